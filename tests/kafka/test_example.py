"""The example of the whole round, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ["--dim", "8", "--neighbors", "2", "--mrr-negatives", "2", "--replay-ratio", "0"]
SCRIPT = Path(__file__).parents[2] / "examples" / "kafka_round.py"


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_the_round_ends_as_an_undisturbed_run_would():
    command = [sys.executable, str(SCRIPT), "--events", "1600", *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to the last bit" in done.stdout
    assert "killed after" in done.stdout
