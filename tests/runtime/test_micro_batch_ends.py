"""Micro-batches that the clock ends: where they end is written down, and repeated."""

from __future__ import annotations

import threading

import pytest
import torch

from tgflow.checkpoint import Checkpoint
from tgflow.events import MICRO_BATCH_END, EventBatch
from tgflow.runtime import micro_batch_ends
from tgflow.runtime.micro_batch_ends import MicroBatchEnds, TimedStream

NEVER = 1e6


def events(start, stop):
    column = torch.arange(start, stop)
    return EventBatch(column, column + 1, column)


def spans(stream):
    """Return where each batch of a stream begins and ends, and "end" for the end of one."""
    return [
        "end" if batch is MICRO_BATCH_END else (int(batch.src[0]), int(batch.src[-1]) + 1)
        for batch in stream
    ]


def timed(stream, ends, position=0, max_wait=NEVER):
    return TimedStream(stream, ends, position=position, batch_size=10, max_wait=max_wait)


def test_full_micro_batches_end_by_themselves_and_are_written_down(tmp_path):
    ends = MicroBatchEnds(tmp_path / "ends.txt", 0)
    found = spans(timed([events(0, 4), events(4, 25)], ends))
    assert found == [(0, 4), (4, 10), (10, 20), (20, 25)]
    ends.close()
    assert (tmp_path / "ends.txt").read_text() == "10\n20\n"


def test_one_that_waits_too_long_ends_before_anything_else_comes(tmp_path):
    has_ended = threading.Event()

    def stream():
        yield events(0, 4)
        assert has_ended.wait(30)  # nothing comes until the micro-batch has ended
        yield events(4, 15)

    ends = MicroBatchEnds(tmp_path / "ends.txt", 0)
    found = []
    for batch in timed(stream(), ends, max_wait=0.001):
        found.append(batch)
        if batch is MICRO_BATCH_END:
            assert (tmp_path / "ends.txt").read_text().startswith("4\n")
            has_ended.set()
    assert spans(found)[:2] == [(0, 4), "end"]
    assert sum(len(batch) for batch in found) == 15


def test_what_the_clock_has_ended_ends_there_again(tmp_path):
    path = tmp_path / "ends.txt"
    path.write_text("10\n14\n24\n27\n3")  # the last line was cut off
    ends = MicroBatchEnds(path, 10)
    found = spans(timed([events(10, 40)], ends, position=10, max_wait=1e-9))
    assert found[:5] == [(10, 14), "end", (14, 24), (24, 27), "end"]
    assert found[5] == (27, 37)
    ends.close()
    assert path.read_text().startswith("10\n14\n24\n27\n37\n")


def test_other_settings_repeat_nothing(tmp_path):
    path = tmp_path / "ends.txt"
    path.write_text("10\n14\n24\n")
    ends = MicroBatchEnds(path, 10, keep=False)
    assert spans(timed([events(10, 20)], ends, position=10)) == [(10, 20)]
    ends.close()
    assert path.read_text() == "10\n20\n"


def test_ends_that_no_checkpoint_needs_are_given_back_in_bulk(tmp_path, monkeypatch):
    """Whatever was given back, what is found from the oldest checkpoint on is what was there."""
    monkeypatch.setattr(micro_batch_ends, "MANY", 100)
    path, oldest, largest = tmp_path / "ends.txt", None, 0
    ends = MicroBatchEnds(path, 0, oldest=lambda: oldest)
    for number in range(1, 1001):
        ends.add(3 * number)
        if number % 10 == 0:
            ends.save(Checkpoint({}))
            oldest = None if number < 30 else 3 * (number - 20)  # three are kept
            ends.saved()
            largest = max(largest, path.stat().st_size)
    for position in (oldest, oldest + 30, 3000):
        ends.close()
        ends = MicroBatchEnds(path, position)
        assert [*ends.to_repeat] == [*range(position + 3, 3001, 3)]
    ends.close()
    assert 100 <= largest <= 2 * 30 * 5 + 50


def test_ends_are_written_while_others_are_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(micro_batch_ends, "MANY", 100)
    path, position = tmp_path / "ends.txt", 0
    ends = MicroBatchEnds(path, 0, oldest=lambda: position)

    def write():
        for number in range(1, 2001):
            ends.add(number)

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        ends.saved()
        position = min(position + 7, 1500)
    thread.join()
    ends.close()
    assert [*MicroBatchEnds(path, 1500).to_repeat] == [*range(1501, 2001)]


def test_what_the_stream_raises_comes_after_its_events(tmp_path):
    def stream():
        yield events(0, 3)
        raise RuntimeError("gone")

    batches = iter(timed(stream(), MicroBatchEnds(tmp_path / "ends.txt", 0)))
    assert spans([next(batches)]) == [(0, 3)]
    with pytest.raises(RuntimeError, match="gone"):
        next(batches)
