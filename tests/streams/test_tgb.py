"""Converted TGB files: events with TGB's node ids, and the negatives of each."""

import errno
import pickle
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from safetensors import safe_open

from helpers.board_files import write_board, write_nodes
from helpers.files import negatives_of, parts_of, write_relbench, write_tgb
from tgflow.streams import StreamError, open_stream
from tgflow.streams.tgb import convert_tgb


def negatives_in(path):
    with safe_open(path, framework="np") as file:
        start, dst = file.get_tensor("start"), file.get_tensor("dst")
        return [dst[a:b].tolist() for a, b in pairwise(start)], file.metadata()


def test_convert_tgb_writes_events_and_negatives(tmp_path):
    events = write_tgb(tmp_path / "raw")
    done = convert_tgb(tmp_path / "raw", tmp_path / "out")
    table = pyarrow.parquet.read_table(tmp_path / "out" / "tgbl-made.parquet").to_pydict()
    assert list(zip(table["src"], table["dst"], table["t"], strict=True)) == events
    assert table["f0"] == pytest.approx([src / 10 for src, _, _ in events])
    for part, own in zip(("val", "test"), parts_of(events), strict=True):
        path = tmp_path / "out" / f"tgbl-made.{part}.negatives.safetensors"
        found, about = negatives_in(path)
        known = negatives_of(own, events)
        assert {each.dtype.kind for each in known.values()} == {"i", "f"}
        assert found == [known[row].tolist() for row in own]
        assert (about["data_set"], about["protocol"], about["part"]) == (
            "tgbl-made",
            "tgbl/1",
            part,
        )
        assert done.num_negatives[part] == sum(map(len, found))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in done.files
    )
    assert len(list(open_stream(tmp_path / "out" / "tgbl-made.parquet"))) > 0


def test_events_out_of_order_are_sorted_if_asked(tmp_path):
    events = write_tgb(tmp_path / "raw")
    path = next((tmp_path / "raw").glob("*_edgelist*.csv"))
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *reversed(rows)]) + "\n")
    with pytest.raises(StreamError, match="times must not decrease"):
        convert_tgb(tmp_path / "raw", tmp_path / "out")
    convert_tgb(tmp_path / "raw", tmp_path / "out", sort=True)
    table = pyarrow.parquet.read_table(tmp_path / "out" / "tgbl-made.parquet").to_pydict()
    assert table["t"] == [t for _, _, t in events]


def test_other_data_sets_number_nodes_in_order_of_appearance(tmp_path):
    rows = [("b", "a", 1), ("a", "c", 1), ("b", "c", 2), ("c", "b", 3), ("a", "b", 4)]
    events = [(0, 1, 1), (1, 2, 1), (0, 2, 2), (2, 0, 3), (1, 0, 4)]
    lines = [f"{t},{src},{dst},{t / 2}" for src, dst, t in rows]
    text = "\n".join(["time,src,dst,weight", *lines, ""])
    (tmp_path / "tgbl-coin_edgelist_v2.csv").write_text(text)
    for part, own in zip(("val", "test"), parts_of(events), strict=True):
        known = {row: np.array([2, 1]) for row in own}
        (tmp_path / f"tgbl-coin_{part}_ns_v2.pkl").write_bytes(pickle.dumps(known))
    convert_tgb(tmp_path, tmp_path / "out")
    table = pyarrow.parquet.read_table(tmp_path / "out" / "tgbl-coin.parquet").to_pydict()
    assert list(zip(table["src"], table["dst"], table["t"], strict=True)) == events
    assert table["f0"] == [0.5, 0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("is_bipartite", [True, False])
def test_export_of_relbench_is_converted_likewise(tmp_path, is_bipartite):
    events = write_tgb(tmp_path / "raw")
    write_relbench(tmp_path / "export", events, is_bipartite)
    convert_tgb(tmp_path / "raw", tmp_path / "out")
    done = convert_tgb(tmp_path / "export", tmp_path / "again")
    for path in done.files[1:]:
        assert negatives_in(path)[0] == negatives_in(tmp_path / "out" / path.name)[0]
    table, other = (
        pyarrow.parquet.read_table(tmp_path / out / "tgbl-made.parquet") for out in ("out", "again")
    )
    assert other.equals(table.select(other.column_names))
    assert other.column_names == ["src", "dst", "t", "f0"]


def test_other_folders_of_relbench_are_refused(tmp_path):
    write_relbench(tmp_path / "export", write_tgb(tmp_path / "raw"))
    (tmp_path / "export/db/src_nodes.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no src_nodes\.parquet in"):
        convert_tgb(tmp_path / "export", tmp_path / "out")
    (tmp_path / "export/db/events.parquet").rename(tmp_path / "export/db/labels.parquet")
    with pytest.raises(FileNotFoundError, match=r"there is no events\.parquet in"):
        convert_tgb(tmp_path / "export", tmp_path / "out")
    (tmp_path / "export/manifest.yaml").write_text("tables:\n")
    with pytest.raises(StreamError, match=r"it has no line `name: \.\.\.`"):
        convert_tgb(tmp_path / "export", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_negatives_of_another_version_are_refused_and_the_event_named(tmp_path):
    write_tgb(tmp_path)
    path = tmp_path / "tgbl-made_test_ns_v2.pkl"
    known = pickle.loads(path.read_bytes())
    gone = next(iter(known))
    path.write_bytes(pickle.dumps({key: x for key, x in known.items() if key != gone}))
    text = rf"no negatives of event \d+, {gone[0]} -> {gone[1]} at {gone[2]}; .*one version"
    with pytest.raises(StreamError, match=text):
        convert_tgb(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def with_index(path):
    """Write a table as pandas does by default, with an index before the columns."""
    pd.read_csv(path).to_csv(path)


def test_index_of_pandas_before_the_columns_is_no_column(tmp_path, caplog):
    raw = tmp_path / "raw"
    write_board(raw, "tgbl-uci")
    done = convert_tgb(raw, tmp_path / "out")
    with_index(raw / "tgbl-uci_edgelist.csv")
    again = convert_tgb(raw, tmp_path / "again")
    assert "its first column, an index without a name, is not read" in caplog.text
    for reader, files in (
        (pyarrow.parquet.read_table, (done.files[0], again.files[0])),
        (lambda path: negatives_in(path)[0], (done.files[2], again.files[2])),
    ):
        assert reader(files[0]) == reader(files[1])


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("thgl-made", "edgelist"),
        ("thgl-made", "nodetype"),
        ("tkgl-made", "edgelist"),
        ("tkgl-wikidata", "static_edgelist"),
        ("tgbn-trade", "edgelist"),
        ("tgbn-trade", "node_labels"),
    ],
)
def test_index_of_pandas_before_columns_read_in_order_is_refused(tmp_path, name, file):
    raw = tmp_path / "raw"
    (write_nodes if name.startswith("tgbn") else write_board)(raw, name)
    with_index(raw / f"{name}_{file}.csv")
    with pytest.raises(StreamError, match=rf"{file}\.csv.*column has no name.*with index=False"):
        convert_tgb(raw, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_full_disk_leaves_no_file(tmp_path, monkeypatch):
    write_tgb(tmp_path / "raw")

    def save(arrays, path, about):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "no space left", str(path))

    monkeypatch.setattr("tgflow.streams.tgb.save_file", save)
    with pytest.raises(OSError, match="no space left"):
        convert_tgb(tmp_path / "raw", tmp_path / "out")
    assert not [*(tmp_path / "out").iterdir()]


def test_missing_or_ambiguous_file_is_named(tmp_path):
    write_tgb(tmp_path)
    (tmp_path / "tgbl-made_val_ns.pkl").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"there is 2 files \*_val_ns\*.pkl in"):
        convert_tgb(tmp_path, tmp_path / "out")
    (tmp_path / "tgbl-made_edgelist_v2.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no \*_edgelist\*.csv in"):
        convert_tgb(tmp_path, tmp_path / "out")
