"""Every fault point of log and checkpoints, met in every way, leaves old or new."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tgflow
from helpers import faults
from helpers.effort import cases
from helpers.processes import environment
from tgflow import models, streams

FIRST = {
    # what must go wrong before such a point is met at all
    "log.before_rewrite": "log.before_sync:2:eio,",
}
COUNTS = range(1, 9) if os.environ.get("TGFLOW_KILLS") else (1,)
"""Which time a point is met; a campaign asks for all."""
KINDS = ("kill", "enospc", "eio", "raise")


@pytest.fixture(scope="module")
def child():
    command = [sys.executable, "-m", "helpers.fault_child"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment()
    ) as process:
        yield process
        process.stdin.close()


def run(child, **request):
    child.stdin.write(json.dumps(request) + "\n")
    child.stdin.flush()
    answer = json.loads(child.stdout.readline())
    assert "error" not in answer, answer["error"]
    return answer


@pytest.mark.parametrize("kind", cases(KINDS, ["kill"]))
@pytest.mark.parametrize("point", faults.DURABLE)
def test_a_fault_at_any_point_leaves_the_old_or_the_new(
    child, record_property, tmp_path, point, kind
):
    record_property("faults", len(COUNTS))
    for count in COUNTS:
        spec = f"{FIRST.get(point, '')}{point}:{count}:{kind}"
        directory = tmp_path / str(count)
        directory.mkdir()
        answer = run(child, what=point.split(".")[0], spec=spec, directory=str(directory))
        assert answer["again"] == 0
        if count > 1:
            assert answer["code"] in {0, 1, -signal.SIGKILL}
        elif kind == "kill":
            assert answer["code"] == -signal.SIGKILL, "the point was never met"
        elif kind == "raise":
            assert answer["code"] == 1, "the point was never met"
        else:
            assert answer["code"] == 0


def test_nothing_in_the_environment_makes_a_run_fail():
    room = Path(tgflow.__file__).parent
    rooms = (room, *(Path(module.__file__).parent for module in (models, streams)))
    text = "".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    assert "TGFLOW_FAULT" not in text
    killers = {
        path.name for room in rooms for path in room.rglob("*.py") if "SIGKILL" in path.read_text()
    }
    supervisor, benchmark = "rank_processes.py", "rank_restart.py"
    assert killers == {supervisor, benchmark}, "each ends its own children, and nobody else"
