"""Generated streams on disk, and a fixture that runs the command line in this process."""

import functools
import json
from dataclasses import dataclass

import pytest
import typer

from helpers import faults
from helpers.live_runs import SMALL, Killed, write_events
from tgflow.cli import main
from tgflow.report.compare.offline import OfflineResults

made_once = functools.cache(typer.main.get_command)


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
    monkeypatch.setattr(typer.main, "get_command", made_once)  # every command, at every call

    def run(*args):
        code = main([str(arg) for arg in args])
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def run(tgflow, made):
    """Run over the events into `out`, with more flags."""
    return lambda *flags: tgflow("run", "-s", made / "made.csv", "-o", "out", *SMALL, *flags)


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.arm("")


@pytest.fixture
def resume(tgflow):
    """Resume the run in `out`, with more flags."""
    return lambda *flags: tgflow("run", "-o", "out", "--resume", *flags)


@pytest.fixture
def events_csv(tmp_path):
    """Return a file of 400 events among 20 nodes, mostly from each node to its successor."""
    return write_events(tmp_path / "made.csv")


@pytest.fixture
def kill_after(monkeypatch):
    """Return a function that makes offline training be killed after some epochs.

    Epochs of all seeds and models count.
    """

    def arm(epochs):
        original, left = OfflineResults.after_epoch, iter(range(epochs - 1))

        def killing(self, trainer):
            original(self, trainer)
            if next(left, None) is None:
                monkeypatch.setattr(OfflineResults, "after_epoch", original)
                raise Killed

        monkeypatch.setattr(OfflineResults, "after_epoch", killing)

    return arm
