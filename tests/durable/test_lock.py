"""One process writes to a run directory."""

import subprocess
import sys

import pytest

from tgflow.durable.errors import Locked
from tgflow.durable.lock import RunLock

HOLD = """
import sys
from pathlib import Path
from tgflow.durable.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_learns_who_holds_the_lock(tmp_path):
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        note = path.read_bytes()
        with pytest.raises(Locked, match=rf"is in use by process {holder.pid} on .*, since 2"):
            RunLock(path)
        assert path.read_bytes() == note
        holder.kill()  # the lock ends with the process, however it ends
        holder.wait()
        with RunLock(path):
            pass
        with RunLock(path), pytest.raises(Locked):
            RunLock(path)
