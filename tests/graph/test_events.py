"""Event batches as tables, with the node ids of their stream."""

import sys

import pyarrow as pa
import pytest
import torch

import tgflow as tg

TABLE = {
    "src": ["ann", "bob", "ann"],
    "dst": ["shop_1", "shop_1", "shop_2"],
    "t": [1_600_000_000, 1_600_000_001, 1_600_000_005],
    "label": [0, 1, 0],
    "f0": [0.5, 1.0, 2.0],
    "f1": [1.0, 0.0, 0.0],
}
"""Three events of a stream of names, with labels and two features."""


def read(table):
    """Return the only batch of a table, and the ids of its stream."""
    stream = tg.open_stream(table, label="label", features="f", time_unit="s")
    return next(iter(stream)), stream.ids


def test_table_has_the_ids_of_the_stream_and_round_trips():
    batch, ids = read(TABLE)
    rows = batch.to_arrow(ids)
    assert rows.schema.names == list(TABLE)
    assert rows.to_pydict() == TABLE
    again, _ = read(pa.Table.from_batches([rows]))
    for name in ("src", "dst", "t", "x", "label"):
        assert torch.equal(getattr(again, name), getattr(batch, name)), name


def test_table_without_ids_has_dense_ids():
    rows = read(TABLE)[0].to_arrow().to_pydict()
    assert (rows["src"], rows["dst"]) == ([0, 2, 0], [1, 1, 3])


def test_table_of_no_events():
    none = torch.empty(0, dtype=torch.int64)
    rows = tg.EventBatch(none, none, none).to_arrow()
    assert (len(rows), rows.schema.names) == (0, ["src", "dst", "t"])


def test_ids_of_another_stream_are_refused():
    with pytest.raises(IndexError):
        read(TABLE)[0].to_arrow(tg.NodeIds())


def test_pandas_frame_has_the_same_columns(monkeypatch):
    batch, ids = read(TABLE)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pandas", None)
        with pytest.raises(ModuleNotFoundError, match="pandas"):
            batch.to_pandas(ids)
    frame = batch.to_pandas(ids)
    assert list(frame.columns) == list(TABLE)
    assert frame["src"].tolist() == TABLE["src"]
