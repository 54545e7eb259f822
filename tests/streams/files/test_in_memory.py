"""What people hold in memory: tuples of arrays, rows as dicts, lazy frames."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from tgflow.streams import open_stream

ROWS = [{"src": 1, "dst": 4, "t": 10}, {"src": 2, "dst": 5, "t": 11}]


class Lazy:
    """A frame that is computed when it is asked for, as those of polars."""

    def collect_schema(self):
        return {}

    def collect(self):
        return pa.Table.from_pylist(ROWS)


@pytest.mark.parametrize(
    "source",
    [
        ([1, 2], [4, 5], [10, 11]),
        (np.array([1, 2]), torch.tensor([4, 5]), pa.array([10, 11])),
        ROWS,
        (row for row in ROWS),
        Lazy(),
    ],
    ids=["lists", "arrays", "dicts", "generator", "lazy"],
)
def test_events_in_memory_are_a_stream(source):
    stream = open_stream(source)
    for _ in range(2):
        assert [t for batch in stream for t in batch.t.tolist()] == [10, 11]
        assert len(stream.ids) == 4


def test_what_is_no_events_is_refused():
    for source in (7, [1, 2], [], ({1: 2}, 3), [{}, 7]):
        with pytest.raises(TypeError, match="cannot read events from a"):
            open_stream(source)
