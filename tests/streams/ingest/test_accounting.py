"""Every row read is accounted for."""

import json

import pytest

from tgflow.streams.ingest.accounting import RowAccounting, Unbalanced


def counted():
    accounting = RowAccounting()
    accounting[0].read += 10
    accounting[0].accepted += 5
    accounting[0].duplicate += 1
    accounting[0].reject("type", {"file": "a", "byte": 7}, "src is 'x'")
    accounting[0].reject("late", {"file": "a", "byte": 9}, "t is 3")
    accounting[1].read += 4
    for i in range(4):
        accounting[1].reject("type", {"offset": i}, f"bad {i}")
    accounting[1].other["tombstone"] += 2
    accounting[1].gaps.append((5, 9))
    return accounting


def test_rows_balance_or_it_is_an_error():
    accounting = counted()
    accounting.check(num_buffered=2)
    with pytest.raises(Unbalanced, match=r"14 rows were read, but 5 accepted \+ 1 late \+ 5 mal"):
        accounting.check(num_buffered=3)


def test_accounting_survive_json():
    accounting = counted()
    again = RowAccounting.from_json(json.loads(json.dumps(accounting.to_json())))
    assert again.to_json() == accounting.to_json()
    again[1].reject("type", {"offset": 9}, "bad 9")
    assert accounting.total("malformed") == 5
    assert again.total("malformed") == 6


def test_the_report_has_first_and_last_place_and_three_examples():
    report = counted().report(num_buffered=2)
    assert report["refused"] == {"type": 5, "late": 1}
    sums = [report[name] for name in ("read", "malformed", "late", "buffered")]
    assert sums == [14, 5, 1, 2]
    seen = report["partitions"]["1"]["refused"]["type"]
    assert (seen["first"], seen["last"]) == ({"offset": 0}, {"offset": 3})
    assert seen["examples"] == ["bad 0", "bad 1", "bad 2"]
    assert report["partitions"]["1"]["gaps"] == [[5, 9]]
    assert counted().total("tombstone") == 2


def test_the_table_is_for_people():
    place = "file a, byte 7"
    assert counted().table()[0] == ("type", "0", "1", place, place, "src is 'x'")


def test_examples_and_places_are_escaped():
    accounting = RowAccounting()
    accounting[0].reject("type", {"file": "\x1b[31m", "byte": 1}, "\x1b[2J" + "x" * 500)
    seen = accounting.report()["partitions"]["0"]["refused"]["type"]
    assert seen["first"]["file"] == r"\x1b[31m"
    assert seen["examples"][0].startswith(r"\x1b[2Jxx")
    assert len(seen["examples"][0]) == 200
