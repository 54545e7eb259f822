"""Counts of kills, crash states and faults in `make test-all`.

A failure is an error, not a row.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.options import Options
from benchmarks.results import Params, Row

TESTS = Path(__file__).parents[1]
CAMPAIGNS = (
    "run/test_kills.py",
    "checkpoint/durable/test_crash_states.py",
    "streams/ingest/test_ingest.py",
)
KILLS, QUICK_KILLS = 50, 4
"""Kills over Kafka; half as many over a file for each format of scores."""
_KILLED = "kill -9 at random, bit-identical final state"
ROWS: dict[tuple[str, str], tuple[str, Params, str, float | None]] = {
    ("killed_over_kafka", "kills"): (_KILLED, {"over": "Kafka"}, "kills", KILLS),
    ("exactly_once", "kills"): (_KILLED, {"over": "a file"}, "kills", None),
    ("interleaving", "interleavings"): (
        "interleavings of partitions with crashes, bit-identical", {}, "interleavings", 2000
    ),
    ("", "crash states of the log"): (
        "crash states, recovered to the old or new state", {"of": "the log"}, "states", None
    ),
    ("", "crash states of checkpoints"): (
        "crash states, recovered to the old or new state", {"of": "checkpoints"}, "states", None
    ),
    ("", "faults"): ("fault points x kill, enospc, eio, raise, recovered", {}, "faults", None),
}  # fmt: skip
"""Row of each summed property, by part of the test's name and by property."""


def run(options: Options) -> list[Row]:
    """Run the campaigns."""
    options.say("reliability: the campaigns")
    properties = campaign_properties(QUICK_KILLS if options.quick else KILLS)
    return [*campaign_rows(properties)]


def campaign_properties(kills: int) -> Counter[tuple[str, str]]:
    """Run campaign tests; return their recorded properties, summed by test and name.

    Raises:
        RuntimeError: If a test fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        asked = [*CAMPAIGNS, "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        counts = {"TGFLOW_KILLS": str(kills), "HYPOTHESIS_PROFILE": "ci"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *asked],
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **counts},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(asked)} failed:\n{done.stdout[-4000:]}{done.stderr}")
        return properties_of(report)


def properties_of(report: Path) -> Counter[tuple[str, str]]:
    """Return the properties of a JUnit report, summed by test and name."""
    found: Counter[tuple[str, str]] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        for each in case.iter("property"):
            found[case.attrib["name"], each.attrib["name"]] += int(each.attrib["value"])
    return found


def campaign_rows(properties: Counter[tuple[str, str]]) -> Iterator[Row]:
    """Yield a row for each kind of fault."""
    for (test, name), (title, params, unit, target) in ROWS.items():
        there = [n for (of, which), n in properties.items() if which == name and test in of]
        if there:
            yield Row(title, sum(there), unit, params, target)
