"""The bench of files: what is measured is read, and beside pyarrow."""

from benchmarks import stream
from tgflow.bench.setup import Options


def test_files_are_measured_beside_pyarrow_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stream, "NUM_ROWS", 20_000)
    rows = stream.run(Options(quick=True))
    assert [row.params["file"] for row in rows[::2]] == ["clean.csv", "bad.csv", "clean.parquet"]
    assert all(row.value > 0 and row.baseline for row in rows)
    assert [row.target for row in rows[1::2]] == [3e6, 2.5e6, 10e6]
    assert list(tmp_path.iterdir()) == []


def test_all_rows_but_the_bad_ones_reach_the_log(tmp_path):
    names = stream.write_files(tmp_path, 2000)
    read = [stream.into_log(tmp_path / name, tmp_path) for name in names]
    assert read == [2000, 2000 - stream.NUM_BAD, 2000]
    assert [stream.read(tmp_path / name) for name in names] == [2000] * 3
    assert [stream.read_bare(tmp_path / name) for name in names] == [2000] * 3
