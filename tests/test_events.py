"""Batches of events as tables, by the ids that a stream has for its nodes."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
import torch

import tgflow as tg

FIRST_TIME = 1_600_000_000


def named_batch():
    """Three events of a stream of names, with labels and two features, and the stream's ids."""
    table = {
        "src": ["ann", "bob", "ann"],
        "dst": ["shop_1", "shop_1", "shop_2"],
        "t": [FIRST_TIME, FIRST_TIME + 1, FIRST_TIME + 5],
        "kind": [0, 1, 0],
        "f0": [0.5, 1.0, 2.0],
        "f1": [1.0, 0.0, 0.0],
    }
    stream = tg.open_stream(table, label="kind", features="f", time_unit="s")
    return next(iter(stream)), stream.ids, table


def test_a_table_has_the_ids_of_the_stream():
    batch, ids, table = named_batch()
    rows = batch.to_arrow(ids)
    assert rows.schema.names == ["src", "dst", "t", "label", "f0", "f1"]
    assert rows.to_pydict() == {"label" if name == "kind" else name: x for name, x in table.items()}


def test_a_table_without_ids_has_the_dense_ones():
    batch, _, _ = named_batch()
    rows = batch.to_arrow().to_pydict()
    assert rows["src"] == batch.src.tolist() == [0, 2, 0]
    assert rows["dst"] == batch.dst.tolist() == [1, 1, 3]


def test_what_a_table_says_is_read_back_the_same():
    batch, ids, _ = named_batch()
    table = pa.Table.from_batches([batch.to_arrow(ids)])
    stream = tg.open_stream(table, label="label", features="f", time_unit="s")
    again = next(iter(stream))
    for name in ("src", "dst", "t", "x", "label"):
        assert torch.equal(getattr(again, name), getattr(batch, name)), name


def test_a_table_of_no_events():
    none = torch.empty(0, dtype=torch.int64)
    rows = tg.EventBatch(none, none, none).to_arrow()
    assert (len(rows), rows.schema.names) == (0, ["src", "dst", "t"])


def test_ids_of_another_stream_are_refused():
    batch, _, _ = named_batch()
    with pytest.raises(IndexError):
        batch.to_arrow(tg.NodeIds())


def test_a_frame_of_pandas_has_the_same_columns():
    pytest.importorskip("pandas", reason="pandas is not installed")
    batch, ids, table = named_batch()
    frame = batch.to_pandas(ids)
    assert list(frame.columns) == ["src", "dst", "t", "label", "f0", "f1"]
    assert frame["src"].tolist() == table["src"]


def test_without_pandas_an_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    batch, ids, _ = named_batch()
    with pytest.raises(ModuleNotFoundError, match="pandas"):
        batch.to_pandas(ids)
