"""Every row read is accounted for, and what is noted of a row is safe to print."""

import json

import numpy as np

from tgflow.streams.ingest.accounting import RowAccounting, sums
from tgflow.streams.ingest.admission import Admitted
from tgflow.streams.ingest.ordering import no_rows, ranks
from tgflow.streams.rows.row_batch import BadRow, Origin, RowBatch


def enter(accounting, partition, num_rows, *rejected, **polled):
    rows = [
        BadRow(i, code, text, Origin(place, b"")) for i, (code, place, text) in enumerate(rejected)
    ]
    none = no_rows("int", 0)
    batch = RowBatch(none.events, num_rows=num_rows, partition=partition, **polled)
    accounting.enter(batch, Admitted(none, rows, num_duplicates=1))


def counted():
    accounting = RowAccounting()
    late, bad = ("late", {"file": "a", "byte": 9}, "t is 3"), ("type", {"file": "a"}, "src is 'x'")
    enter(accounting, 0, 10, late, bad)
    accounting.accept(ranks(0, np.arange(5)))
    for i in range(4):
        enter(
            accounting,
            1,
            2,
            ("type", {"offset": i}, f"bad {i}"),
            counts={"tombstone": i},
            gaps=[(i, 9)],
        )
    return accounting


def test_counts_have_sums_places_and_three_examples_and_continue_from_json():
    accounting = RowAccounting()
    changes = counted().changes()
    accounting.restore(json.loads(json.dumps(changes)))
    assert accounting.counts == counted().counts
    enter(accounting, 1, 1, ("type", {"offset": 7}, "\x1b[2J" + "x" * 500))
    enter(accounting, 2, 1, ("type", {"file": "\x1b[31m"}, "\x1b[2J" + "x" * 500))
    assert accounting.changes().keys() == {"1", "2"}
    totals = sums(accounting.counts, 2)
    assert [totals[name] for name in ("read", "malformed", "late", "buffered")] == [20, 7, 1, 2]
    assert totals["refused"] == {"type": 7, "late": 1}
    entry = accounting.counts["1"]
    assert (entry["other"], entry["gaps"]) == ({"tombstone": 6}, [[0, 9], [1, 9], [2, 9], [3, 9]])
    seen = entry["refused"]["type"]
    assert (seen["count"], seen["first"], seen["last"]) == (5, {"offset": 0}, {"offset": 7})
    assert seen["examples"] == ["bad 0", "bad 1", "bad 2"]
    escaped = accounting.counts["2"]["refused"]["type"]
    assert escaped["first"]["file"] == r"\x1b[31m"
    assert escaped["examples"][0].startswith(r"\x1b[2Jxx")
    assert len(escaped["examples"][0]) == 200
    assert sums(changes, 0)["malformed"] == 5  # what was returned has not changed since
