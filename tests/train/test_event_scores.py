"""What a trainer says of each event before it learns it; ranks are threads here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.made_models import X_DIM, made_model
from helpers.made_streams import made_events, pieces, small_tgn
from helpers.thread_peers import in_threads
from tgflow.events import MICRO_BATCH_END
from tgflow.graph import TemporalGraph
from tgflow.model import Scores
from tgflow.train import ContinualConfig, ContinualTrainer

CONFIG = ContinualConfig(batch_size=16, learning_rate=1e-2, mrr_negatives=3)
COLUMNS = ("logit", "probability", "rank", "anomaly")


def trainer_of(config=CONFIG, peers=None, scores=True, model=None):
    model = small_tgn() if model is None else model
    graph = TemporalGraph("undirected", 2)
    return ContinualTrainer(model, graph, config, peers=peers, scores=scores)


def columns_of(records):
    scores = [record.scores for record in records]
    return {name: torch.cat([getattr(each, name) for each in scores]) for name in COLUMNS}


def assert_same(left, right):
    for name, column in left.items():
        assert torch.equal(column.nan_to_num(-9.0), right[name].nan_to_num(-9.0)), name


def test_each_event_has_its_scores_of_the_model_that_did_not_know_it():
    events, trainer = made_events(100), trainer_of()
    heard = []
    before = [p.detach().clone() for p in trainer.model.parameters()]

    def hear(seen, scores):
        at = trainer.model.parameters()
        if not heard:  # nothing was learned yet
            assert all(torch.equal(p, q) for p, q in zip(at, before, strict=True))
        assert trainer.position == scores.model_position == seen.begin
        assert torch.equal(seen.src, events.src[seen.begin : seen.end])
        heard.append(scores)

    trainer.scorer.hear = hear
    records = list(trainer.steps([events]))
    assert [r.scores for r in records] == heard
    assert torch.equal(torch.cat([r.eid for r in records]), torch.arange(100))
    assert [r.scores.model_position for r in records] == [r.start for r in records]
    for record in records:
        assert (1 / record.scores.rank).mean() == pytest.approx(record.metrics["mrr"])
        assert "scores" not in record.to_json()
    assert not torch.equal(before[0], next(trainer.model.parameters()))


def test_a_trainer_that_gives_scores_learns_the_same():
    events = made_events(100)
    plain, scoring = trainer_of(scores=False), trainer_of()
    records = [list(each.steps([events])) for each in (plain, scoring)]
    assert all(record.scores is None for record in records[0])
    assert [r.metrics for r in records[0]] == [r.metrics for r in records[1]]
    left, right = (each.checkpoint().sections for each in (plain, scoring))
    assert right.keys() - left.keys() == {"calibration"}
    for section, tensors in left.items():
        assert all(torch.equal(x, right[section][name]) for name, x in tensors.items()), section


def test_a_checkpoint_carries_the_calibration_on():
    events, first = made_events(96), trainer_of()
    whole = columns_of(trainer_of().steps([events]))
    records = list(first.steps([events[:48]]))
    resumed = ContinualTrainer.from_checkpoint(small_tgn(), first.checkpoint(), scores=True)
    records += resumed.steps([events[48:]])
    assert_same(columns_of(records), whole)
    afresh = ContinualTrainer.from_checkpoint(
        small_tgn(), trainer_of(scores=False).checkpoint(), scores=True
    )
    assert afresh.scorer is not None


@pytest.mark.parametrize("updates", [0, 1])
def test_ranks_give_rank_0_the_scores_of_one_process(updates):
    config = replace(CONFIG, slices=4, updates=updates)
    events = made_events(66, x_dim=X_DIM)

    def learned(peers=None, model=None):
        graph = TemporalGraph("undirected", X_DIM)
        made = made_model("tgn") if model is None else model
        trainer = ContinualTrainer(made, graph, config, peers=peers, scores=True)
        return list(trainer.steps([events]))

    whole = columns_of(learned())
    models = [made_model("tgn") for _ in range(2)]
    first, second = in_threads(2, lambda peers: learned(peers, models[peers.rank]))
    assert_same(columns_of(first), whole)
    assert all(record.scores is None for record in second)


def test_what_was_skipped_as_not_finite_has_no_scores():
    trainer = trainer_of(replace(CONFIG, on_nan="skip"))
    predict = trainer._learner.score

    def lost(batch):
        scores = predict(batch)
        if batch.index == 1:
            scores = Scores(scores.positive * torch.nan, scores.negative, scores.carry)
            trainer._learner.check_finite(batch, scores)
        return scores

    trainer._learner.score = lost
    records = list(trainer.steps([made_events(48)]))
    assert [bool(r.scores.logit.isnan().all()) for r in records] == [False, True, False]
    assert len(records[1].scores.rank) == 16


def test_a_stream_can_end_a_micro_batch_before_it_is_full():
    events = made_events(80)
    stream = [events[:20], MICRO_BATCH_END, MICRO_BATCH_END, events[20:41], MICRO_BATCH_END]
    records = list(trainer_of().steps([*stream, events[41:]]))
    spans = [(r.start, r.stop) for r in records]
    assert spans == [(0, 16), (16, 20), (20, 36), (36, 41), (41, 57), (57, 73), (73, 80)]
    again = list(trainer_of().steps([*pieces(events[:20], 7), *stream[1:], events[41:]]))
    assert_same(columns_of(again), columns_of(records))
    assert [r.metrics for r in again] == [r.metrics for r in records]
