"""`tgflow convert`, and training under what it has written."""

from __future__ import annotations

import json

from helpers.live_runs import SMALL
from helpers.tgb_files import write_tgb


def test_what_is_converted_can_be_trained_on_under_its_protocol(tgflow, tmp_path):
    events = write_tgb(tmp_path / "raw")
    ran = tgflow("convert", "tgb", "raw", "--out", "data")
    assert ran.code == 0
    assert f"{len(events)} events, " in ran.out
    assert "negatives of val, " in ran.out
    ran = tgflow(
        "train", "--data", "data/tgbl-made.parquet", "--features", "f*", "--protocol", "tgb/1",
        "--fixed-negatives", "data/tgbl-made", "--epochs", 1, "-o", "out", *SMALL,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["protocol"] == "tgb/1"
    assert 0 < metrics["test.mrr"] <= 1
    assert "fixed negatives of tgbl-made" in metrics["protocol_line"]
    assert "tgb/1: 70/15/15" in ran.out
    assert "tgb/1: 70/15/15" in (tmp_path / "out" / "report.html").read_text()
