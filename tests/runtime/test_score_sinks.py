"""Rows of scores on their way to a Parquet file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.forged import flip_bit
from tgflow.runtime.scores import ParquetScores, ScoreMark, ScoresLost


@pytest.fixture
def sink(tmp_path):
    return ParquetScores(tmp_path / "s.parquet", tmp_path / "s.arrows")


def write(sink, *positions):
    """Write rows; return the mark behind them."""
    sink.write(pa.record_batch({"position": positions, "logit": [0.5] * len(positions)}))
    return ScoreMark(len(positions), sink.num_bytes, sink.crc32)


def test_any_changed_bit_of_rows_that_are_counted_is_found(sink, tmp_path):
    mark, path = write(sink, 0, 1), tmp_path / "s.arrows"
    sink.close()
    good = path.read_bytes()
    for bit in range(0, 8 * len(good), 11):
        path.write_bytes(flip_bit(good, bit))
        with pytest.raises(ScoresLost, match="is damaged: its checksum differs"):
            sink.rewind(mark)


@pytest.mark.parametrize("is_known", [True, False])
def test_rows_beyond_a_mark_are_taken_back_and_others_follow(sink, tmp_path, is_known):
    mark = write(sink, 0, 1)
    write(sink, 7, 8)
    sink.rewind(mark if is_known else ScoreMark(mark.num_rows, mark.num_bytes))
    assert sink.crc32 == mark.crc32
    sink.rewind(write(sink, 2))
    sink.finish()
    sink.close()
    assert pq.read_table(tmp_path / "s.parquet")["position"].to_pylist() == [0, 1, 2]
