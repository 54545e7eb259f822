"""Made streams on disk, and a way to run the command line in this process."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import pytest

from tgflow.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def tgflow(capsys, monkeypatch, tmp_path):
    """Run `tgflow ARGS` in an empty folder; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TGFLOW_TRACEBACK", raising=False)

    def run(*args) -> Ran:
        code = main([str(arg) for arg in args])
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def events_csv(tmp_path):
    """Return a file of 400 events among 20 nodes that mostly write to the node after them."""
    rng = random.Random(5)
    lines = ["src,dst,t"]
    for i in range(400):
        src = rng.randrange(20)
        dst = (src + 1) % 20 if rng.random() < 0.8 else rng.randrange(20)
        lines.append(f"{src},{dst},{1_600_000_000 + 60 * (i // 2)}")
    path = tmp_path / "made.csv"
    path.write_text("\n".join(lines) + "\n")
    return path
