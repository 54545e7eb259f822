"""The books: every row read is accounted for."""

import json

import pytest

from tgflow.streams.ingest.counts import Counts, Unbalanced


def counted():
    counts = Counts()
    counts[0].read += 10
    counts[0].accepted += 5
    counts[0].duplicate += 1
    counts[0].refuse("type", {"file": "a", "byte": 7}, "src is 'x'")
    counts[0].refuse("late", {"file": "a", "byte": 9}, "t is 3")
    counts[1].read += 4
    for i in range(4):
        counts[1].refuse("type", {"offset": i}, f"bad {i}")
    counts[1].other["tombstone"] += 2
    counts[1].gaps.append((5, 9))
    return counts


def test_p5_the_books_balance_or_it_is_an_error():
    counts = counted()
    counts.check(num_buffered=2)
    with pytest.raises(Unbalanced, match=r"14 rows were read, but 5 accepted \+ 1 late \+ 5 mal"):
        counts.check(num_buffered=3)


def test_counts_survive_json():
    counts = counted()
    again = Counts.from_json(json.loads(json.dumps(counts.to_json())))
    assert again.to_json() == counts.to_json()
    again[1].refuse("type", {"offset": 9}, "bad 9")
    assert counts.total("malformed") == 5
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


def test_r11_examples_and_places_are_escaped():
    counts = Counts()
    counts[0].refuse("type", {"file": "\x1b[31m", "byte": 1}, "\x1b[2J" + "x" * 500)
    seen = counts.report()["partitions"]["0"]["refused"]["type"]
    assert seen["first"]["file"] == r"\x1b[31m"
    assert seen["examples"][0].startswith(r"\x1b[2Jxx")
    assert len(seen["examples"][0]) == 200
