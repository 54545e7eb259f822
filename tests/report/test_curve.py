"""Learning curves: means over parts of a stream, as a table and a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
import torch

import tgflow as tg


@pytest.fixture(scope="module")
def trainer():
    """Return a trainer that has learned 1,150 events in batches of 10."""
    n = torch.arange(1150)
    trainer = tg.ContinualTrainer(
        tg.EdgeBank(), tg.TemporalGraph(), tg.ContinualConfig(batch_size=10)
    )
    trainer.run([tg.EventBatch(src=n % 10, dst=10 + n % 7, t=60 * n)])
    return trainer


def test_means_of_parts_make_the_mean_of_the_stream(trainer):
    curve = tg.learning_curve(trainer)
    assert len(curve.event) <= 100
    assert curve.event[-1] == 1150
    sizes = torch.tensor([curve.event[0], *torch.tensor(curve.event).diff().tolist()])
    for name in ("mrr", "ap"):
        whole = (torch.tensor(curve.metrics[name]) * sizes).sum() / 1150
        # float32 sums of 1,150 values of at most 1
        assert float(whole) == pytest.approx(trainer.result()[f"prequential.{name}"], abs=1e-5)
    assert curve.to_arrow().num_rows == len(curve.event)
    assert list(curve.to_pandas().columns) == curve.to_arrow().column_names


def test_picture_is_an_svg_with_a_line_for_each_metric_asked_for(trainer):
    picture = ET.fromstring(tg.learning_curve(trainer, ["ap", "auc"])._repr_html_())
    space = "{http://www.w3.org/2000/svg}"
    lines = [path for path in picture.iter(f"{space}path") if path.get("fill") == "none"]
    names = [text.text for text in picture.iter(f"{space}text")]
    assert len(lines) == 2
    assert {"AP", "AUC", "1,000"} <= set(names)
    assert repr(tg.learning_curve(trainer)).startswith("LearningCurve(")


def test_curve_of_a_trainer_that_has_learned_nothing_is_empty():
    trainer = tg.ContinualTrainer(tg.EdgeBank(), tg.TemporalGraph())
    assert tg.learning_curve(trainer).to_arrow().num_rows == 0
    ET.fromstring(tg.learning_curve(trainer).svg())
    assert "0 parts" in repr(tg.learning_curve(trainer))
