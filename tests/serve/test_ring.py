"""Ring of frames in shared memory: order, overwriting, and torn reads."""

import os
import threading
from errno import ENOSPC

import pytest
import torch

from tgflow.serve import ring as ring_module
from tgflow.serve.ring import Lapped, Ring


@pytest.fixture
def ring():
    ring = Ring.create(4_096)
    ring.begin_at(10)
    yield ring
    ring.close()


def write(ring, number, size=8):
    """Write the frame of the events from 10 * number on, all of whose values are its number."""
    tensors = {"x": torch.full((size,), float(number)), "flag": torch.tensor([True, False])}
    return ring.write(10 * number, 10 * number + 10, {"number": number}, tensors)


def test_frames_are_read_in_order_with_their_tensors(ring):
    assert ring.find(10) is None
    for number in (1, 2):
        write(ring, number)
    tensors = {
        "empty": torch.empty(0, 3),
        "ids": torch.tensor(7),
        "many": torch.ones(2, 3).double(),
    }
    ring.write(30, 35, None, tensors)
    reader = Ring(ring.fd)
    assert reader.head[0::2] == (3, 35, 0)
    first = reader.find(10)
    assert first == 1
    frame = reader.read(first)
    assert (frame.begin, frame.end, frame.note) == (10, 20, {"number": 1})
    assert frame.tensors["x"].tolist() == [1.0] * 8
    assert frame.tensors["flag"].tolist() == [True, False]
    assert reader.find(20) == 2
    found = reader.read(3)
    for name, x in tensors.items():
        assert torch.equal(found.tensors[name], x)
        assert found.tensors[name].dtype == x.dtype
    assert reader.read(4) is None
    assert reader.find(35) is None
    ring.end()
    assert reader.head.has_ended


def test_overwritten_frames_and_unknown_positions_raise(ring):
    size = write(ring, 1)
    for number in range(2, 3 * 4_096 // size):
        write(ring, number)
    with pytest.raises(Lapped, match="not have all frames from event 10 on"):
        ring.find(10)
    with pytest.raises(Lapped):
        ring.read(1)
    assert ring.read(number).tensors["x"].tolist() == [number] * 8
    with pytest.raises(Lapped):
        ring.find(10 * number + 5)


def test_frame_larger_than_the_ring_is_skipped(ring):
    write(ring, 1)
    with pytest.raises(OSError, match="larger than the ring"):
        write(ring, 2, size=2_000)
    write(ring, 3)
    assert ring.read(1) is not None
    with pytest.raises(Lapped):
        ring.find(10)  # a reader would stop at the second
    with pytest.raises(Lapped):
        ring.read(2)
    assert ring.read(3).begin == 30
    assert ring.head.position == 40


def test_full_memory_makes_the_ring_smaller(ring, monkeypatch):
    """Memory ends after two frames and a half: later ones take the place of the first two."""
    size, plain, begin = write(ring, 1), os.pwritev, ring_module._DATA

    def pwritev(fd, parts, at):
        room = begin + 5 * size // 2 - at
        if room < sum(map(len, parts)):
            raise OSError(ENOSPC, "no space")
        return plain(fd, parts, at)

    monkeypatch.setattr(os, "pwritev", pwritev)
    for number in range(2, 9):
        write(ring, number)
        reader = Ring(ring.fd)
        assert reader.read(number).tensors["x"].tolist() == [number] * 8
        assert reader.find(10 * number) == number
        if number > 2:
            assert ring.usable == 2 * size
            for old in range(1, number - 1):
                with pytest.raises(Lapped):
                    reader.read(old)
    with pytest.raises(OSError, match="larger than the ring"):
        write(ring, 9, size=3 * size)
    write(ring, 10)


def test_index_of_frames_wraps(monkeypatch):
    monkeypatch.setattr(ring_module, "NUM_ENTRIES", 4)
    ring = Ring.create(1 << 16)
    for number in range(6):
        write(ring, number)
    with pytest.raises(Lapped):
        ring.read(2)
    assert ring.read(6).begin == 50
    assert ring.find(50) == 6
    ring.close()


def test_request_for_a_checkpoint_reaches_the_writer(ring):
    before = ring.asked
    Ring(ring.fd).ask_for_checkpoint()
    assert ring.asked != before


def test_concurrent_reader_sees_whole_frames_or_none(ring):
    torn, seen, ends = [], [0], threading.Event()

    def read():
        reader = Ring(ring.fd)
        while not ends.is_set():
            try:
                frame = reader.read(reader.head.number)
            except Lapped:
                continue
            if frame is not None:
                seen[0] += 1
                torn.extend(x for x in frame.tensors["x"].tolist() if x != frame.note["number"])

    thread = threading.Thread(target=read)
    thread.start()
    number = 1
    while number < 2_000 or not seen[0]:
        write(ring, number, size=300)
        number += 1
    ends.set()
    thread.join()
    assert not torn
