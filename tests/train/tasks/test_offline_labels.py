"""Labels learned offline: beyond heuristics, choice of epoch, refused settings."""

import json
from dataclasses import replace

import pytest
import torch

from helpers.made_models import made_model
from helpers.made_streams import (
    by_feature,
    made_events,
    seeded,
    small_tgn,
    taking_turns,
    with_labels,
)
from tgflow import OfflineConfig, OfflineTrainer, TemporalGraph
from tgflow.graph.events import NO_LABEL
from tgflow.train import Reuse
from tgflow.train.split import chronological_split
from tgflow.train.tasks import LabelTask, TaskConfig
from tgflow.train.tasks.labels import count_classes


def trainer_of(events, kind="edge", model=None, observer=None, config=None, **settings):
    graph = TemporalGraph.from_events(events)
    task = LabelTask(TaskConfig(kind=kind, target="label", **(config or {})))
    model = small_tgn(dropout=0.0) if model is None else model
    seeded(lambda: task.add_decoder(model, 2))
    wanted = {"batch_size": 20, "learning_rate": 1e-2, "epochs": 3, "mrr_negatives": 5}
    settings = OfflineConfig(**wanted | settings, task=task.config)
    return OfflineTrainer(model, graph, settings, observer)


def test_labels_no_heuristic_predicts_are_learned():
    result = trainer_of(
        taking_turns(400), config={"classes": 3}, epochs=5, learning_rate=3e-2
    ).fit()
    assert result["test.edge.accuracy"] > 0.8
    rules = [x for name, x in result.items() if name.endswith(".accuracy") and name.count(".") == 3]
    assert len(rules) == 5
    assert max(rules) < 0.6
    low, high = result["test.edge.accuracy_low"], result["test.edge.accuracy_high"]
    assert low < result["test.edge.accuracy"] < high
    assert result["test.ap"] > 0.5  # links are also learned
    assert json.loads(json.dumps(result)) == result


def test_training_on_labels_alone_does_not_change_the_link_decoder():
    trainer = trainer_of(taking_turns(200), config={"classes": 3, "links": False}, epochs=1)
    before = [p.clone() for p in trainer.model.decoder.parameters()]
    trainer.fit()
    assert all(map(torch.equal, before, trainer.model.decoder.parameters()))


def test_labels_unknown_at_validation_are_not_learned():
    trainer = trainer_of(taking_turns(200), config={"classes": 3, "label_delay": "10m"})
    t = trainer.graph.log.read(0, 200).t
    learned = torch.cat([batch.targets.is_known for batch in trainer._training_batches(0)])
    assert torch.equal(learned, t[trainer.split.train] + 600 < t[trainer.split.val_start])
    assert 0 < int(learned.sum()) < len(learned)


def test_unlikely_links_are_found_as_anomalies():
    events = made_events(300, noise=0.0)
    places, pool = torch.arange(chronological_split(events).test_start, 300, 3), events.dst.unique()
    dst, label = events.dst.clone(), torch.zeros_like(events.dst)
    dst[places] = pool[(torch.searchsorted(pool, dst[places]) + 1) % len(pool)]
    label[places] = 1
    odd = replace(events, dst=dst, label=label)
    result = trainer_of(odd, kind="anomaly", model=made_model("recency"), epochs=1).fit()
    assert result["test.anomaly.auc"] > 0.8
    assert result["test.anomaly.auc_low"] < result["test.anomaly.auc"]
    assert result["test.anomaly.num_positives"] == len(places)


def test_classes_are_counted():
    def count(*labels):
        events = with_labels(made_events(len(labels)), torch.tensor(labels))
        return count_classes(TemporalGraph.from_events(events))

    assert count(0, 1, 1) == count(-1, 1, 1) == count(0, NO_LABEL, 1) == 2
    assert count(0, 1, 2) == 3
    assert count(5, 6, 7, 8) == 4
    with pytest.raises(ValueError, match=r"nothing to learn: the labels are \[4\]"):
        count(4, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slices": 2}, "leave slices out"),
        ({"fixed_negatives": "x"}, "leave fixed_negatives out"),
        ({"reuse": Reuse(staleness=2)}, "leave reuse out"),
    ],
)
def test_settings_incompatible_with_a_task_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        trainer_of(by_feature(100), **settings)


def test_uninformative_labels_are_refused():
    events = with_labels(made_events(100), torch.ones(100, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"every label \(label\) of validation is of class 1"):
        trainer_of(events)
    with pytest.raises(ValueError, match="no labels"):
        trainer_of(made_events(100))
