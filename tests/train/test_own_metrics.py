"""Metrics of one's own: measured, averaged, saved and shown as the built-in ones."""

from __future__ import annotations

import pytest

import tgflow as tg
from helpers.made_streams import made_events, pieces, small_tgn
from helpers.records import untimed
from tgflow.train.observe import Callback

SETTINGS = {"batch_size": 20, "mrr_negatives": 5, "metrics": ("Reciprocal",)}


class Reciprocal:
    """The MRR again, which is averaged over events, too."""

    def update(self, positive, negative):
        self.ranks = tg.metrics.ranks(positive, negative)

    def compute(self):
        return float(self.ranks.reciprocal().mean())


class Incomplete:
    def update(self, positive, negative):
        pass


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(tg.metrics, "_registered", {})
    tg.metrics.register("Reciprocal", Reciprocal)


class Recorder(Callback):
    def __init__(self):
        self.records = []

    def on_step(self, record):
        self.records.append(record.to_json())

    def on_epoch(self, record):
        self.records.append(record.to_json())


def assert_as_mrr(flat, *, num):
    """Assert that a registered metric stands wherever the MRR does, with its value."""
    keys = [key for key in flat if key == "mrr" or key.endswith(".mrr")]
    assert len(keys) >= num
    for key in keys:
        assert flat[key.removesuffix("mrr") + "Reciprocal"] == flat[key], key


def trainer_of(**changes):
    config = tg.ContinualConfig(**{**SETTINGS, **changes})
    return tg.ContinualTrainer(small_tgn(), tg.TemporalGraph(edge_x_dim=2), config)


def test_continual_training_and_resume_measure_a_registered_metric():
    events, whole = made_events(90), trainer_of()
    recorder = Recorder()
    result = whole.run(pieces(events, 40), recorder)
    assert_as_mrr(result, num=3)
    for record in recorder.records:
        assert_as_mrr(record, num=3)
    half = trainer_of()
    half.run(pieces(events[:60], 40))
    resumed = tg.ContinualTrainer.from_checkpoint(small_tgn(), half.checkpoint())
    assert resumed.config.metrics == ("Reciprocal",)
    assert untimed(resumed.run(pieces(events[60:], 40))) == untimed(result)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (("Unknown",), r"there is no metric 'Unknown' \(registered: Reciprocal\)"),
        (("math:Unknown",), "has no attribute 'Unknown'"),
        (("no_such_module:Unknown",), "No module named 'no_such_module'"),
        (("Reciprocal", "Reciprocal"), "two metrics are named 'Reciprocal'"),
        (("math:loss",), "a metric's name must be an identifier other than"),
        (("train.test_own_metrics:Incomplete",), "must have the methods update and compute"),
    ],
)
def test_impossible_metrics_are_refused(metrics, message):
    with pytest.raises(ValueError, match=message):
        tg.metrics.find_metrics(metrics)


@pytest.mark.parametrize("name", ["ap", "replay_ap", "hits@5", "a.b", ""])
def test_names_of_other_figures_are_refused(name):
    with pytest.raises(ValueError, match="a metric's name must be an identifier"):
        tg.metrics.register(name, Reciprocal)
