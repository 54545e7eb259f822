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
from tgflow.train.tasks.injection import inject
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


def test_injected_anomalies_have_low_link_scores():
    events = made_events(300, noise=0.0)
    start = chronological_split(events).test_start
    graph, _ = inject(TemporalGraph.from_events(events), "structural", 0.3, start=start, seed=0)
    odd = graph.log.read(0, 300)
    odd = replace(events, dst=odd.dst, label=odd.label)
    result = trainer_of(odd, kind="anomaly", model=made_model("recency"), epochs=1).fit()
    assert result["test.anomaly.auc"] > 0.8
    assert result["test.anomaly.auc_low"] < result["test.anomaly.auc"]
    assert result["test.anomaly.num_positives"] == int(odd.label.sum())


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


GRAPH = TemporalGraph.from_events(made_events(200))


@pytest.mark.parametrize("kind", ["structural", "temporal"])
def test_anomalies_have_another_destination_or_the_time_of_another_pair(kind):
    made, places = inject(GRAPH, kind, 0.1, start=100, seed=0)
    assert len(places) == 10
    assert int(places.min()) >= 100
    was, now = (graph.log.read(0, 200) for graph in (GRAPH, made))
    assert torch.equal(was.t, now.t)
    assert now.label.nonzero().flatten().tolist() == places.tolist()
    assert made.edge_x is GRAPH.edge_x
    rest = now.label == 0
    assert torch.equal(was.src[rest], now.src[rest])
    assert torch.equal(was.dst[rest], now.dst[rest])
    if kind == "structural":
        assert torch.equal(was.src, now.src)
        assert (was.dst != now.dst)[places].all()
        assert set(now.dst.tolist()) <= set(was.dst.tolist())
    else:
        pairs = (
            sorted(zip(each.src[places].tolist(), each.dst[places].tolist(), strict=True))
            for each in (was, now)
        )
        assert next(pairs) == next(pairs)


def test_too_few_events_are_refused():
    with pytest.raises(ValueError, match="too few events"):
        inject(GRAPH, "structural", 0.5, start=199, seed=0)
