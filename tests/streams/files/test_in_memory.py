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


def test_the_fourth_of_a_tuple_is_the_features():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    stream = open_stream(([1, 2], [4, 5], [10, 11], x))
    assert stream.x_dim == 2
    assert next(iter(stream)).x.tolist() == x.tolist()


def test_rows_may_have_keys_that_the_first_has_not():
    rows = [{"src": 1, "dst": 4, "t": 10}, {"src": 2, "dst": 5, "t": 11, "f0": 7.0}]
    stream = open_stream(rows, features="f", fill_missing=0)
    assert next(iter(stream)).x.tolist() == [[0.0], [7.0]]


def test_what_is_no_events_is_refused():
    for source in (7, [1, 2], [], ({1: 2}, 3), [{}, 7]):
        with pytest.raises(TypeError, match="cannot read events from a"):
            open_stream(source)
