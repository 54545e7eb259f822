"""Rows of the latest events in mapped files, against a list of all rows."""

import errno
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.checkpoint import Checkpoint
from tgflow.train.tasks.kept_rows import KeptRows

COLUMNS = {"values": (3, torch.float16), "past": (2, torch.int8)}
CAPACITY = 64 * 8 * 4
"""Four segments of 64 rows of 8 bytes."""


def rows_of(start, stop):
    number = torch.arange(start, stop)
    values = (number % 1000).unsqueeze(1).expand(-1, 3).half()
    return {"values": values, "past": (number % 100).unsqueeze(1).expand(-1, 2).to(torch.int8)}


@given(
    first=st.integers(0, 200),
    sizes=st.lists(st.integers(0, 150), min_size=1, max_size=8),
    cut=st.integers(0, 7),
)
def test_kept_rows_are_the_latest_also_after_a_restore(first, sizes, cut):
    kept, stop = KeptRows("rows", COLUMNS, CAPACITY), first
    for i, size in enumerate(sizes):
        kept.write(stop, rows_of(stop, stop + size))
        stop += size
        if i == cut:
            writer = Checkpoint({})
            kept.save(writer)
            kept = KeptRows("rows", COLUMNS, CAPACITY)
            kept.load(writer)
    begin = kept.begin(stop)
    assert (kept.first, kept.stop) == (first, stop)
    assert begin == first or 3 * 64 <= stop - begin <= 4 * 64
    eid = torch.arange(begin, stop).flip(0)
    for name, column in kept.read(eid).items():
        assert torch.equal(column, rows_of(begin, stop)[name].flip(0))
    assert len(kept._segments) <= 4


def test_full_disk_is_an_error(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = KeptRows("rows", COLUMNS, CAPACITY, str(tmp_path))
    kept.write(0, rows_of(0, 64))
    assert not list(tmp_path.iterdir()), "the file has no name"
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        kept.write(64, rows_of(64, 70))
    assert torch.equal(kept.read(torch.arange(64))["past"], rows_of(0, 64)["past"])
