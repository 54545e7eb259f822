"""Runs killed at random on odd machines: full and read-only disks, clocks that jump, second runs.

TGFLOW_KILLS says how often; a failure is an error, not a row (`tests/runtime/test_odd_kills.py`).
"""

from __future__ import annotations

import os
from collections import Counter

from benchmarks.reliability import campaign_properties
from tgflow.bench.row import Row
from tgflow.bench.setup import Options

KILLS, QUICK_KILLS = 500, 5
CAMPAIGN = "runtime/test_odd_kills.py"
BY_KIND = "kill -9 at random on an odd machine, final state the same bits"
BY_MACHINE = "what these runs went through"
_MACHINES = {
    "kills, ordinary": ("killed", "an ordinary one"),
    "kills, clock": ("killed", "a clock that jumps by months"),
    "kills, full": ("killed", "a disk that is full now and then"),
    "kills, read-only": ("killed", "a disk that becomes read-only"),
    "ends, full": ("ended with exit 74", "a disk that is full now and then"),
    "ends, read-only": ("ended with exit 74", "a disk that becomes read-only"),
    "second runs": ("a second run refused", "any"),
}


def run(options: Options) -> list[Row]:
    """Run the campaign."""
    kills = int(os.environ.get("TGFLOW_KILLS", QUICK_KILLS if options.quick else KILLS))
    options.say(f"kills: {kills} on an odd machine")
    return rows_of(campaign_properties(kills, [CAMPAIGN]), kills)


def rows_of(properties: Counter[tuple[str, str]], kills: int) -> list[Row]:
    """Return a row for each kind of run, one for all of them, and one for each machine.

    Args:
        properties: What the campaign's tests recorded, by test and name.
        kills: How many were asked for.
    """
    by_kind = {
        test.partition("[")[2].removesuffix("]"): count
        for (test, name), count in properties.items()
        if name == "kills"
    }
    rows = [Row(BY_KIND, count, "kills", {"of": kind}) for kind, count in by_kind.items()]
    rows.append(Row(BY_KIND, sum(by_kind.values()), "kills", {"of": "all"}, kills))
    for name, (what, machine) in _MACHINES.items():
        count = sum(n for (_, which), n in properties.items() if which == name)
        rows.append(Row(BY_MACHINE, count, "times", {"what": what, "machine": machine}))
    return rows
