"""Published formats: DyGLib, SNAP, KONECT, PyG data."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers.files import flat, read, rows_of
from tgflow.streams import FileSource, StreamError, open_stream

ROWS = [(1, 4, 10), (2, 5, 10), (1, 5, 12), (3, 4, 40)]


def features_of(stream):
    return torch.cat([batch.x for batch in stream]).tolist()


def write_dyglib(folder, features=None, rows=ROWS, index=None):
    index = range(1, len(rows) + 1) if index is None else index
    lines = [
        f"{i},{src},{dst},{t}.0,0.0,{idx}"
        for i, ((src, dst, t), idx) in enumerate(zip(rows, index, strict=True))
    ]
    path = folder / "ml_made.csv"
    path.write_text("\n".join([",u,i,ts,label,idx", *lines, ""]))
    if features is not None:
        np.save(folder / "ml_made.npy", features)
    return path


FEATURES = np.arange(10, dtype=np.float64).reshape(5, 2)


def test_dyglib_is_detected_by_its_header_and_reads_its_feature_file(tmp_path):
    stream = open_stream(write_dyglib(tmp_path, FEATURES))
    assert rows_of(stream) == ROWS
    assert not stream.ids.bipartite
    assert features_of(stream) == FEATURES[1:].tolist()


@pytest.mark.parametrize("bad", [b"1,\xff,2,3.0,0.0,1", "1,7,8,9.0,0.0,\u00b2".encode()])
def test_unreadable_dyglib_line_is_a_bad_row(tmp_path, bad):
    path = write_dyglib(tmp_path, FEATURES)
    header, *rows = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([header, bad, *rows, b""]))
    events, found = flat(read(FileSource(path)))
    assert ([row[0] for row in found], len(events)) == ([0], len(ROWS))


def test_dyglib_without_features_or_with_only_zeros_has_none(tmp_path, caplog):
    path = write_dyglib(tmp_path)
    assert open_stream(path).x_dim == 0
    np.save(tmp_path / "ml_made.npy", np.zeros((5, 2)))
    with caplog.at_level(logging.WARNING, "tgflow.streams"):
        assert open_stream(path).x_dim == 0
    assert "holds zeros alone" in caplog.text


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones(5), "a float matrix with one row per event"),
        (np.array([{}], dtype=object), "not a file of numbers"),
        (np.ones((3, 2)), r"line 4: idx is '3', expected 0 to 2"),
    ],
)
def test_mismatched_dyglib_features_are_an_error(tmp_path, features, message):
    path = write_dyglib(tmp_path)
    np.save(tmp_path / "ml_made.npy", features, allow_pickle=True)
    with pytest.raises(StreamError, match=message):
        list(open_stream(path))


def text_of(rows, separator=" "):
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


@pytest.mark.parametrize("kind", ["sym", "bip"])
def test_konect_header_sets_bipartite(tmp_path, kind):
    path = tmp_path / "out.made"
    path.write_text(
        f"% {kind} weighted\n% 4 3 3\n" + "".join(f"{s} {d} 2\t{t}\n" for s, d, t in ROWS)
    )
    stream = open_stream(path, features=["weight"])
    assert rows_of(stream) == ROWS
    assert stream.ids.bipartite is (kind == "bip")
    assert features_of(stream) == [[2.0]] * 4


def test_comments_longer_than_a_block_are_skipped(tmp_path):
    path = tmp_path / "made.txt"
    path.write_text("".join(f"# comment {i}\n" for i in range(120)) + text_of(ROWS))
    assert flat(read(FileSource(path, block_bytes=30))) == flat(read(FileSource(path)))
    assert rows_of(open_stream(path)) == ROWS
    for separator in ("\t", ",", "  ", ", "):
        path.write_text("# src dst t\n" + text_of(ROWS, separator))
        assert rows_of(open_stream(path)) == ROWS
    path.write_text("#\n" * 10_001 + text_of(ROWS))
    with pytest.raises(StreamError, match="more than 10,000 comment lines"):
        open_stream(path)
    path.write_text("# nothing\n")
    assert rows_of(open_stream(path)) == []


def columns_of(rows):
    src, dst, t = (np.array(column) for column in zip(*rows, strict=True))
    return {"src": src, "dst": dst, "t": t}


class TemporalData(SimpleNamespace):
    """Mock of the PyTorch Geometric class of this name."""

    def to_dict(self):
        return dict(vars(self))


def temporal_data():
    columns = {name: torch.from_numpy(x) for name, x in columns_of(ROWS).items()}
    return TemporalData(**columns, msg=torch.from_numpy(FEATURES[1:]), name="made", y=None)


def test_pyg_temporal_data_is_read(tmp_path):
    stream = open_stream(temporal_data(), features=["msg"])
    assert rows_of(stream) == ROWS
    assert features_of(stream) == FEATURES[1:].tolist()
