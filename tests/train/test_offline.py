"""Offline training: the protocol, the state of memory, no leaks."""

import json

import pytest
import torch

from helpers.effort import cases
from helpers.live_runs import assert_same_state, untimed
from helpers.made_streams import made_events, small_tgn
from tgflow import checkpoint as ckpt
from tgflow.graph import TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.train.config import OfflineConfig
from tgflow.train.observe import Callback
from tgflow.train.offline import OfflineTrainer

POSITION = -1


class Recorder(Callback):
    def __init__(self):
        self.batches, self.epochs = [], []

    def on_batch(self, record):
        self.batches.append(record)

    def on_epoch(self, record):
        self.epochs.append(record.to_json())


def trainer_of(events=None, model=None, **changes):
    settings = {"batch_size": 20, "learning_rate": 1e-2, "epochs": 2, "mrr_negatives": 5}
    graph = TemporalGraph.from_events(made_events(300) if events is None else events)
    model = small_tgn() if model is None else model
    recorder = Recorder()
    return OfflineTrainer(model, graph, OfflineConfig(**settings | changes), recorder), recorder


def fit(events=None, **changes):
    trainer, recorder = trainer_of(events, **changes)
    return trainer, recorder, trainer.fit()


def spy(trainer, step, note):
    """Call `note(batch, answer)` after each call of a learner's `predict` or `learn`."""
    original = getattr(trainer._learner, step)

    def noted(batch):
        answer = original(batch)
        note(batch, answer)
        return answer

    setattr(trainer._learner, step, noted)


def test_training_improves_metrics_and_reports_the_protocol():
    trainer, recorder, result = fit(made_events(600, noise=0.05), epochs=8)
    assert result["protocol"] == "offline 70/15/15"
    assert result["visibility"] == "event"
    assert result["test_negatives"] == "random"
    assert result["test.ap"] > 0.75
    assert 0 < result["test.mrr"] <= 1
    assert {"test.auc", "test.hits@10", "inductive.test.ap", "val.ap", "test.ap_pooled"} <= set(
        result
    )
    assert result["val.ap"] == max(epoch["val.ap"] for epoch in recorder.epochs)
    assert recorder.epochs[-1]["loss"] < 0.9 * recorder.epochs[0]["loss"]
    assert json.loads(json.dumps(result)) == result
    split = trainer.split
    assert result["test.num_events"] == 600 - split.test_start
    assert result["inductive.test.num_events"] == int(split.touches_new[split.test_start :].sum())


def test_each_epoch_learns_all_training_events_and_sees_no_others():
    trainer, recorder = trainer_of()
    learned, negatives = [], set()

    def note(batch, _):
        learned.extend((batch.epoch, eid) for eid in batch.eid.tolist())
        negatives.update(batch.negative_dst.flatten().tolist())

    spy(trainer, "learn", note)
    trainer.fit()
    num_train = len(trainer.split.train)
    assert num_train % 20, "the last batch is a short one"
    assert learned == [(epoch, eid) for epoch in range(2) for eid in range(num_train)]
    told = [record.num_events for record in recorder.batches if record.stage == "train"]
    assert sum(told) == 2 * num_train
    seen, train = trainer._train_plan.graph, made_events(300)[trainer.split.train]
    assert torch.equal(seen.log.read(0, seen.num_events).dst, train.dst)
    assert torch.equal(seen.edge_x.gather(torch.arange(seen.num_events)), train.x)
    assert negatives <= set(train.dst.tolist())


def test_plan_of_new_nodes_is_made_once_for_all_epochs(monkeypatch):
    """On a GPU each plan captures memory of its own."""
    made, make = [], OfflineTrainer._new_nodes_plan
    monkeypatch.setattr(
        OfflineTrainer, "_new_nodes_plan", lambda *args: made.append(make(*args)) or made[-1]
    )
    fit(inductive="apart")
    assert len(made) == 2, "to validate and to test"


def test_evaluation_and_training_sample_their_own_numbers_of_neighbors():
    widths = {"learn": set(), "predict": set()}
    trainer, _ = trainer_of(eval_neighbors=(7,), inductive="apart")
    for step, found in widths.items():
        spy(trainer, step, lambda batch, _, to=found: to.add(batch.blocks[0].mask.shape[1]))
    assert "evaluated with 7 neighbors" in trainer.fit()["protocol_line"]
    assert widths == {"learn": {3}, "predict": {7}}


def test_memory_carries_over_to_validation_and_test_and_is_reset_each_epoch():
    trainer, _ = trainer_of()
    memory, split = trainer.model.state, trainer.split
    seen = []

    def note(batch, _):
        seen.append((batch.index, int(memory.clock[:, POSITION].max())))

    spy(trainer, "learn", note)
    spy(trainer, "predict", note)
    trainer.fit()
    at_start = [position for index, position in seen if index == 0]
    end_of_training = len(split.train)
    assert at_start == [0, end_of_training, 0, end_of_training, split.test_start]
    assert int(memory.clock[:, POSITION].max()) == 300


def test_evaluation_does_not_change_training(monkeypatch):
    _, recorder, _ = fit(epochs=3)
    silent, silent_recorder = trainer_of(epochs=3)
    monkeypatch.setattr(silent, "_evaluate", lambda *_: {"ap": 0.5})
    silent.fit()
    losses = [epoch["loss"] for epoch in recorder.epochs]
    assert losses == [epoch["loss"] for epoch in silent_recorder.epochs]
    assert len(losses) == 3


@pytest.mark.parametrize("trained", cases([1, 3], [3]))
def test_resume_within_fit_matches_undisturbed_run(tmp_path, trained):
    settings = {"epochs": 4, "patience": 2, "events": made_events(200)}
    whole, recorder, result = fit(**settings)
    before, _ = trainer_of(**settings)
    saved = []
    before.fit(lambda: saved.append(ckpt.save(tmp_path / str(len(saved)), before.checkpoint())))
    others = Recorder()
    after = OfflineTrainer.from_checkpoint(
        small_tgn(seed=9), ckpt.load(saved[trained - 1]), observer=others
    )
    assert after.config == before.config
    found = untimed(after.fit())
    assert found == untimed(result)
    assert all(type(found[name]) is type(value) for name, value in untimed(result).items())
    seen, rest = ([untimed(epoch) for epoch in each.epochs] for each in (recorder, others))
    assert rest == seen[trained:]
    assert_same_state(after, whole)
    for ended in (after.checkpoint(), trainer_of(**settings)[0].checkpoint()):
        with pytest.raises(ckpt.CheckpointError, match="no epoch to continue after"):
            OfflineTrainer.from_checkpoint(small_tgn(), ended)


def test_best_epoch_is_restored_and_tested_with_its_own_memory(monkeypatch):
    whole, _, result = fit(epochs=1)
    trainer, recorder = trainer_of(epochs=50, patience=2)
    original, answers = trainer._evaluate, iter([0.9, 0.3, 0.2, 0.1])

    def judged(stage, epoch, plan, *on_scores):
        measured = original(stage, epoch, plan, *on_scores)
        return measured | {"ap": next(answers)} if stage == "val" else measured

    monkeypatch.setattr(trainer, "_evaluate", judged)
    other = trainer.fit()
    assert [epoch["is_best"] for epoch in recorder.epochs] == [True, False, False]
    assert other["best_epoch"] == 0
    assert other["num_epochs"] == 3
    for name, value in result.items():
        if name.startswith(("test.", "inductive.test.")):
            assert other[name] == value, name
    best = whole.checkpoint().sections
    for part in ("model", "state"):
        for name, tensor in trainer.checkpoint().sections[part].items():
            assert torch.equal(tensor, best[part][name]), name


def test_seed_changes_training_but_not_evaluation_negatives():
    drawn = []
    for seed in (0, 1):
        trainer, recorder = trainer_of(seed=seed)
        negatives = []
        spy(trainer, "predict", lambda batch, _, to=negatives: to.append(batch.negative_dst))
        trainer.fit()
        drawn.append((recorder.epochs[0]["loss"], torch.cat([n.flatten() for n in negatives])))
    assert drawn[0][0] != drawn[1][0]
    assert torch.equal(drawn[0][1], drawn[1][1])


@pytest.mark.parametrize("visibility", ["event", "batch"])
@pytest.mark.parametrize("changed", cases([220, 280], [280]))
def test_changed_event_changes_nothing_earlier(visibility, changed):
    """Its source and features change, but not the node sets that the protocol fixes."""
    events = made_events(300, noise=0.5)
    src, x = events.src.clone(), events.x.clone()
    src[changed] = (src[changed] + 1) % 12
    x[changed:] += 1.0
    others = EventBatch(src, events.dst, events.t, x)
    recorded = []
    for stream in (events, others):
        trainer, recorder = trainer_of(stream, visibility=visibility)
        scores = {}
        spy(
            trainer,
            "predict",
            lambda batch, out, to=scores: to.update(
                zip(batch.eid.tolist(), out.positive.tolist(), strict=True)
            ),
        )
        trainer.fit()
        losses = [epoch["loss"] for epoch in recorder.epochs]
        recorded.append((trainer.split, losses, [scores[e] for e in sorted(scores)]))
    (split, losses, scores), (other_split, other_losses, other_scores) = recorded
    assert torch.equal(split.train, other_split.train)
    assert losses == other_losses
    start = split.val_start if changed < split.test_start else split.test_start
    batch_start = start + (changed - start) // 20 * 20 - split.val_start
    assert scores[:batch_start] == other_scores[:batch_start]
    assert scores[batch_start:] != other_scores[batch_start:]
