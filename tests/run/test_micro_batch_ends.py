"""Micro-batches that end by the clock (repeated on resume) or where the time changes."""

import threading
from types import SimpleNamespace

import pytest
import torch

from helpers.forged import flip_bit
from helpers.made_streams import pieces
from tgflow.checkpoint import Checkpoint
from tgflow.graph.events import MICRO_BATCH_END, EventBatch
from tgflow.run import micro_batch_ends
from tgflow.run.micro_batch_ends import EndsDamaged, MicroBatchEnds, line_of
from tgflow.streams.decorators import SteppedStream, TimedStream

NEVER = 1e6


def events(start, stop):
    column = torch.arange(start, stop)
    return EventBatch(column, column + 1, column)


def lines_of(*ends):
    return b"".join(map(line_of, ends))


def spans(stream):
    """Return the range of each batch of a stream, and "end" for each micro-batch end."""
    return [
        "end" if batch is MICRO_BATCH_END else (int(batch.src[0]), int(batch.src[-1]) + 1)
        for batch in stream
    ]


def timed(stream, ends, position=0, max_wait=NEVER):
    return TimedStream(stream, position, 10, max_wait, ends.to_repeat, ends.add)


def test_timed_out_micro_batch_ends_before_the_next_events(tmp_path):
    has_ended = threading.Event()

    def stream():
        yield events(0, 4)
        assert has_ended.wait(30)  # no events until the micro-batch has ended
        yield events(4, 15)

    ends = MicroBatchEnds(tmp_path / "ends.txt", 0)
    found = []
    for batch in timed(stream(), ends, max_wait=0.001):
        found.append(batch)
        if batch is MICRO_BATCH_END:
            assert (tmp_path / "ends.txt").read_bytes().startswith(lines_of(4))
            has_ended.set()
    assert spans(found)[:2] == [(0, 4), "end"]
    assert sum(len(batch) for batch in found) == 15


def test_recorded_ends_are_repeated(tmp_path):
    path = tmp_path / "ends.txt"
    path.write_bytes(lines_of(10, 14, 24, 27, 37)[:-2])  # the last line is truncated
    ends = MicroBatchEnds(path, 10)
    found = spans(timed([events(10, 40)], ends, position=10, max_wait=1e-9))
    assert found[:5] == [(10, 14), "end", (14, 24), (24, 27), "end"]
    assert found[5] == (27, 37)
    ends.close()
    assert path.read_bytes().startswith(lines_of(10, 14, 24, 27, 37))


def test_stream_error_is_raised_after_its_events(tmp_path):
    def stream():
        yield events(0, 3)
        raise RuntimeError("gone")

    batches = timed(stream(), MicroBatchEnds(tmp_path / "ends.txt", 0))
    found = []
    with pytest.raises(RuntimeError, match="gone"):
        found.extend(iter(batches))
    assert spans(found) == [(0, 3)]


def found_in(path, position):
    """Return the recorded ends, or the error for them."""
    try:
        return [*MicroBatchEnds(path, position).to_repeat]
    except EndsDamaged as error:
        return str(error)


@pytest.mark.parametrize("position", [0, 14])
def test_flipped_bit_of_a_recorded_end_is_detected(tmp_path, position):
    path, good = tmp_path / "ends.txt", lines_of(10, 14, 24, 27)
    for bit in range(8 * len(good)):
        path.write_bytes(flip_bit(good, bit))
        found, line = found_in(path, position), 1 + good[: bit // 8].count(b"\n")
        is_found = f"is damaged in line {line}," in str(found)
        assert is_found or found == [end for end in (10, 14, 24, 27) if end > position]
        assert is_found or position > 10, "all were to be repeated"


@pytest.mark.parametrize("zeros", [0, 3])
def test_truncated_end_is_ignored(tmp_path, zeros):
    path, good = tmp_path / "ends.txt", lines_of(10, 14)
    for size in range(len(good)):
        path.write_bytes(good[:size] + bytes(zeros))
        whole = [10] if size >= len(lines_of(10)) else []
        assert [*MicroBatchEnds(path, 0).to_repeat] == whole
        assert path.read_bytes() == lines_of(*whole)


def test_ends_no_checkpoint_needs_are_released_in_bulk(tmp_path, monkeypatch):
    """Ends from the oldest checkpoint on are kept after any release."""
    monkeypatch.setattr(micro_batch_ends, "MANY", 100)
    path, oldest, largest = tmp_path / "ends.txt", None, 0
    store = SimpleNamespace(oldest_kept=lambda: oldest and {"position": oldest})
    ends = MicroBatchEnds(path, 0, store=store)
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
    assert 100 <= largest <= 2 * 30 * len(line_of(3000)) + 200


SIZES = [3, 25, 1, 20, 7]
TIMES = torch.repeat_interleave(torch.arange(5) * 10, torch.tensor(SIZES))


def steps():
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(6, (2, len(TIMES)), generator=generator)
    return EventBatch(ends[0], 6 + ends[1], TIMES)


def parts(stream):
    """Return the times of the events between ends."""
    found = [[]]
    for batch in stream:
        if batch is MICRO_BATCH_END:
            found.append([])
        else:
            found[-1] += batch.t.tolist()
    return found


@pytest.mark.parametrize("size", [4, 200])
def test_micro_batches_end_exactly_between_distinct_times(size):
    found = parts(SteppedStream(pieces(steps(), size)))
    assert found == [[10 * step] * num for step, num in enumerate(SIZES)]
