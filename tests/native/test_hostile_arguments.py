"""No argument from Python makes the native core read or write memory that is not its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers.hostile.__main__ import CASES
from helpers.hostile.attempts import entries

TESTS = Path(__file__).parents[1]


def test_every_entry_of_the_core_is_tried():
    assert entries() == set(CASES)


def test_every_wrong_argument_is_refused_by_a_sentence():
    done = subprocess.run(
        [sys.executable, "-m", "helpers.hostile"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    bad = [
        f"{lines[i - 1]}: {line}"
        for i, line in enumerate(lines)
        if line[4:5].isupper() and ("ACCEPTED" in line or "NOT AS A REFUSAL" in line)
    ]
    assert not bad, "\n".join(bad)
    assert done.returncode == 0, f"after {lines[-1:]}: {done.stderr[-2000:]}"
