"""What a trainer says of each event before it learns it; ranks are threads here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.made_models import X_DIM, made_model
from helpers.made_streams import made_events, small_tgn
from helpers.thread_peers import in_threads
from tgflow.graph import TemporalGraph
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
