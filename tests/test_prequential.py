"""Prequential evaluation in one call, and installed data sets."""

import os

import pytest
import torch

import tgflow as tg
from helpers.made_streams import made_events, small_tgn


def test_evaluate_matches_a_continual_trainer():
    events, config = made_events(120), tg.ContinualConfig(batch_size=20)
    found = tg.evaluate([events], small_tgn(), config=config)
    trainer = tg.ContinualTrainer(small_tgn(), tg.TemporalGraph(edge_x_dim=2), config)
    expected = trainer.run([events])
    for name in ("prequential.ap", "prequential.mrr", "test.ap", "num_events"):
        assert found[name] == expected[name]


def test_evaluate_builds_a_model_for_the_features_of_the_stream():
    rows = {"u": [1, 2, 1] * 40, "v": [7, 8, 8] * 40, "t": [*range(120)], "x": [0.5, 1.5, 2.5] * 40}
    stream = tg.open_stream(rows, src="u", dst="v", t="t", features=["x"], time_unit="s")
    torch.manual_seed(0)
    assert tg.evaluate(stream, tg.JODIE)["num_events"] == 120


@pytest.mark.parametrize("delay", [None, "60s"])
def test_evaluate_learns_labels_with_a_delay(delay):
    count = 160
    rows = {"src": [i % 8 for i in range(count)], "dst": [i % 5 for i in range(count)]}
    rows |= {"t": [10 * i for i in range(count)], "fraud": [int(i % 8 < 2) for i in range(count)]}
    stream = tg.open_stream(rows, label="fraud", time_unit="s")
    torch.manual_seed(0)
    config = tg.ContinualConfig(batch_size=20)
    found = tg.evaluate(stream, tg.TGN(memory_dim=8), target="fraud", delay=delay, config=config)
    assert 0 <= found["prequential.edge.auc"] <= 1


def test_delay_requires_a_target():
    with pytest.raises(ValueError, match="delay='1d' is for labels: give target"):
        tg.evaluate([made_events(4)], tg.EdgeBank(), delay="1d")


def test_data_set_is_read_from_any_folder(tmp_path):
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        stream = tg.datasets.collegemsg()
        first = next(iter(stream))
    finally:
        os.chdir(before)
    assert first.t[0] == 1082040961
    assert stream.unit == "s"
