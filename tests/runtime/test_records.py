"""metrics.jsonl: bounded however long a run is, and the same however often it was killed."""

from __future__ import annotations

import json
import random

import pytest

from helpers.effort import cases
from tgflow.runtime import files as module
from tgflow.runtime.files import NUMBER, RecordFile, read_records


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LATEST", 16)
    monkeypatch.setattr(module, "EARLIER", 8)
    monkeypatch.setattr(module, "STEP", 4)
    return tmp_path / "metrics.jsonl"


def numbers(path):
    return [json.loads(line)[NUMBER] for line in path.read_text().splitlines()]


def write(file, start, stop):
    for index in range(start, stop):
        file.write({"index": index, "loss": index / 7})


def test_the_latest_are_all_there_and_an_even_share_of_those_before(path):
    file = RecordFile(path)
    for total in range(1, 400):
        write(file, total - 1, total)
        found = numbers(path)
        assert len(found) <= 16 + 8 + 4
        assert found[-min(16, total) :] == [*range(max(0, total - 16), total)]
    assert numbers(path) == [*range(0, 380, 64), *range(380, 399)]
    assert read_records(path).kept[-1] == {"index": 398, "loss": 398 / 7}
    assert not list(path.parent.glob(".*partial"))


@pytest.mark.parametrize("seed", cases(range(8), range(3)))
def test_a_run_that_is_killed_keeps_the_same_ones(path, seed, tmp_path):
    whole = RecordFile(tmp_path / "whole.jsonl")
    write(whole, 0, 301)
    chance, at, mark = random.Random(seed), 0, 0
    while at < 301:
        file = RecordFile(path)
        file.rewind(mark)
        saved = min(301, at + chance.randrange(40))
        write(file, at, saved)
        mark, at = file.sync(), saved
        lost = min(301, saved + chance.randrange(90))
        write(file, saved, lost)  # which no checkpoint counts
        file.close()
        with path.open("ab") as torn:
            torn.write(b'{"index":')
    file = RecordFile(path)
    file.rewind(mark)
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_damaged_line_is_no_reason_to_cut_off_good_ones(path):
    file = RecordFile(path)
    write(file, 0, 10)
    mark = file.sync()
    write(file, 10, 12)
    file.close()
    data = (
        path.read_bytes().replace(b'"number":3', b'"number":9').replace(b'"index":4', b'"index":5')
    )
    path.write_bytes(data)
    file = RecordFile(path)
    file.rewind(mark)
    write(file, 10, 11)
    assert numbers(path) == [0, 1, 2, 9, 4, 5, 6, 7, 8, 9, 10]
    assert read_records(path).num_damaged == 2
