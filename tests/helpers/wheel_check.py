"""Checks the installed wheel where PATH has no compiler: python -P wheel_check.py."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tgflow as tg

os.environ["PATH"] = str(Path(sys.executable).parent)
for compiler in ("cc", "c++", "gcc", "g++", "clang", "clang++"):
    assert shutil.which(compiler) is None, compiler
assert Path(tg.__file__).is_relative_to(sys.prefix), tg.__file__
for name in tg.__all__:
    getattr(tg, name)
assert not {"inject_fault", "FileOp"} & set(dir(tg._core))

with tempfile.TemporaryDirectory() as folder:
    data = Path(tg.__file__).parent / "datasets" / "collegemsg.csv.gz"
    small = ["--limit", "600", "--dim", "8", "--neighbors", "3", "--time-unit", "s"]
    out = Path(folder) / "run"
    tgflow = [sys.executable, "-m", "tgflow"]
    subprocess.run([*tgflow, "run", data, "--out", out, *small], cwd=folder, check=True)
    assert (out / "report.html").exists()
    assert len(tg.open_run(out).top_k(1, k=3)) == 3
    subprocess.run([*tgflow, "--version"], check=True)
