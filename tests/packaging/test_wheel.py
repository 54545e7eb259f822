"""Contents of the source archive and of the wheel, which `make wheel` tries elsewhere."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {"tgflow": "tgflow", "streams": "tgflow/streams", "models": "tgflow/models"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

if not (ROOT / "csrc").is_dir():
    pytest.skip("needs the repository's sources", allow_module_level=True)


def python_files(folder):
    return {
        path.relative_to(ROOT / folder).as_posix()
        for path in (ROOT / folder).rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }


def python(*arguments, **options):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel():
    """Return the wheel that `make wheel` builds and tries, for this Python."""
    return Path(python(ROOT / ".ci" / "wheel.py", sys.executable).split()[-1])


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_wheel_contains_every_package(names):
    for folder, package in ROOMS.items():
        missing = {f"{package}/{file}" for file in python_files(folder)} - names
        assert not missing, missing


def test_wheel_contains_the_core_the_marker_of_types_and_the_kernels(names):
    assert [n for n in names if re.fullmatch(r"tgflow/_core\.[^/]*\.(so|pyd)", n)]
    assert "tgflow/py.typed" in names
    for header in (ROOT / "csrc/include").rglob("*.hpp"):
        assert f"tgflow/kernels/include/{header.relative_to(ROOT / 'csrc/include')}" in names
    for kernel in (ROOT / "csrc/cuda").glob("*.cu"):
        assert f"tgflow/kernels/cuda/{kernel.name}" in names


def test_wheel_contains_nothing_else(names):
    tops = {name.split("/")[0] for name in names}
    assert "tgflow" in tops
    assert all(
        top == "tgflow" or re.fullmatch(r"tgflow_learn-[\d.]+\.dist-info", top) for top in tops
    )
    kinds = {Path(name).suffix for name in names if name.startswith("tgflow/")}
    sources = {".py", ".typed", ".json", ".hpp", ".cu", ".html", ".css", ".js"}
    assert kinds <= sources | {".so", ".pyd", ".gz", ".csv"}, kinds
    assert {n for n in names if n.endswith(".csv")} == {"tgflow/report/boards.csv"}
    assert {n for n in names if n.endswith(".gz")} == {"tgflow/datasets/collegemsg.csv.gz"}


def test_source_archive_contains_all_build_inputs(tmp_path):
    script = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    python("-c", script, tmp_path, cwd=ROOT)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = {"pyproject.toml", "README.md", "LICENSE", "csrc/CMakeLists.txt"}
    for folder in ("tgflow", "streams", "models"):
        needed |= {f"{folder}/{file}" for file in python_files(folder)}
    for pattern in ("*.cpp", "*.hpp", "*.cu"):
        needed |= {p.relative_to(ROOT).as_posix() for p in (ROOT / "csrc").rglob(pattern)}
    assert not needed - held, needed - held
    assert not [name for name in held if name.startswith((".venv", "build/", "runs/"))]
