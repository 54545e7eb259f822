"""Labels learned on a stream: never visible before their time, exact on resume."""

from dataclasses import replace

import pytest
import torch

from helpers.effort import slow
from helpers.made_streams import by_feature, pieces, seeded, small_tgn, taking_turns
from tgflow import ContinualConfig, ContinualTrainer, TemporalGraph
from tgflow.graph.events import NO_LABEL
from tgflow.train.event_scores import EventScorer
from tgflow.train.tasks import LabelTask, TaskConfig

SETTINGS = {"batch_size": 20, "learning_rate": 1e-2, "mrr_negatives": 5}


def task_of(delay=None, kind="edge", classes=3):
    return LabelTask(TaskConfig(kind=kind, target="label", classes=classes, label_delay=delay))


def model_of(task):
    model = small_tgn(dropout=0.1)
    seeded(lambda: task.add_decoder(model, 2))
    return model


def trainer_of(delay=None, *, scores=False, classes=3, **changes):
    task = task_of(delay, classes=classes)
    graph = TemporalGraph("undirected", 2)
    config = ContinualConfig(**SETTINGS | changes, task=task.config)
    return ContinualTrainer(model_of(task), graph, config, scores=scores)


def said_of(events, delay=None, **changes):
    """Return link and label logits of each event, before it was learned."""
    trainer, said = trainer_of(delay, **changes), []
    predict = trainer._learner.predict

    def noted(batch):
        scores = predict(batch)
        said.append(torch.cat([scores.positive.unsqueeze(1), scores.classes], dim=1))
        return scores

    trainer._learner.predict = noted
    trainer.run(pieces(events, 64))
    return torch.cat(said)


def changed_label(events, position):
    label = events.label.clone()
    label[position] = (label[position] + 1) % 3
    return replace(events, label=label)


@pytest.mark.parametrize("position", [50, slow(73)])
def test_label_changes_no_score_before_it_is_known(position):
    """With a delay: no score at or before its event's time plus the delay, and some later."""
    events, delay = taking_turns(200), 600
    before, after = (said_of(each, f"{delay}s", replay_ratio=2.0) for each in
                     (events, changed_label(events, position)))  # fmt: skip
    too_early = events.t <= events.t[position] + delay
    differs = (before != after).any(1)
    assert 60 < int(too_early.sum()) < 160
    assert not differs[too_early].any()
    assert differs[~too_early].any()


def scored(events, **options):
    """Return the predicted label of each event and its probability, by `StepRecord.scores`."""
    found = [r.scores for r in trainer_of(scores=True, **options).steps(pieces(events, 64))]
    columns = ("predicted_label", "label_probability")
    return tuple(torch.cat([getattr(each, name) for each in found]) for name in columns)


@pytest.mark.parametrize("classes", [3, slow(2)])
def test_scores_have_the_most_likely_of_the_earlier_labels(classes):
    events = taking_turns(200)
    events = replace(events, label=(7 if classes == 3 else 1) * (events.label - 1))
    logits = said_of(events, classes=classes)[:, 1:].double()
    label, probability = scored(events, classes=classes)
    share, codes = logits.softmax(1), logits.argmax(1).tolist()
    if classes == 2:
        first = events.t[events.label == -1][0]  # from then on the class without a 1 is -1
        known = zip(codes, events.t, strict=True)
        assert label.tolist() == [-1 if code == 0 and first < t else code for code, t in known]
        assert torch.equal(probability, share[:, 1])
        return
    kinds = list(dict.fromkeys(events.label.tolist()))
    first = [events.t[events.label == kind][0] for kind in kinds]
    expected = [
        kinds[code] if first[code] < t else NO_LABEL
        for code, t in zip(codes, events.t, strict=True)
    ]
    assert label.tolist() == expected
    assert NO_LABEL in expected, "of the first events nothing is known"
    assert torch.equal(probability, share.amax(1))


def test_stream_anomalies_are_events_with_low_link_scores():
    config = ContinualConfig(**SETTINGS, task=task_of(kind="anomaly", classes=2).config)
    trainer = ContinualTrainer(small_tgn(), TemporalGraph("undirected", 2), config)
    result = trainer.run(pieces(by_feature(200), 64))
    assert 0 < result["prequential.anomaly.auc"] < 1
    assert not EventScorer(labels=trainer.labels).label_columns


def test_batches_in_slices_are_refused():
    with pytest.raises(ValueError, match="whole batches in one process: leave slices at 1"):
        trainer_of(slices=2)
