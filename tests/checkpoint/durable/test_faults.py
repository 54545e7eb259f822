"""Every fault point of the log and checkpoints leaves the old or the new state."""

import os
import signal
from pathlib import Path

import pytest

import tgflow
from helpers import faults
from helpers.crash_states import outcome_of
from helpers.effort import cases
from helpers.worlds import results_of, run_apart
from tgflow import models, streams

FIRST = {
    # faults required before such a point is reached
    "log.before_rewrite": "log.before_sync:2:eio,",
}
COUNTS = range(1, 9) if os.environ.get("TGFLOW_KILLS") else (1,)
"""Hit of the fault point at which it fires; a campaign tries all."""
KINDS = ("kill", "enospc", "eio", "raise")


@pytest.mark.parametrize("kind", cases(KINDS, ["kill"]))
@pytest.mark.parametrize("point", faults.DURABLE)
def test_fault_at_any_point_leaves_the_old_or_the_new_state(record_property, tmp_path, point, kind):
    record_property("faults", len(COUNTS))
    for count in COUNTS:
        spec = f"{FIRST.get(point, '')}{point}:{count}:{kind}"
        directory = tmp_path / str(count)
        directory.mkdir()
        [(code, again)] = results_of(run_apart(1, outcome_of, point, spec, directory))
        assert again == 0
        if count > 1:
            assert code in {0, 1, -signal.SIGKILL}
        elif kind == "kill":
            assert code == -signal.SIGKILL, "the point was never met"
        elif kind == "raise":
            assert code == 1, "the point was never met"
        else:
            assert code == 0


def test_environment_variables_cannot_inject_faults():
    room = Path(tgflow.__file__).parent
    rooms = (room, *(Path(module.__file__).parent for module in (models, streams)))
    text = "".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    assert "TGFLOW_FAULT" not in text
    killers = {
        path.name for room in rooms for path in room.rglob("*.py") if "SIGKILL" in path.read_text()
    }
    assert killers == {"supervise.py"}  # the supervisor ends its own children
