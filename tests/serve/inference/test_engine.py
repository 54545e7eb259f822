"""Inference engine: a trainer's scores, no future events, whole neighborhoods, rankings."""

import pytest
import torch

import tgflow as tg
from helpers.effort import cases
from helpers.made_models import X_DIM, batches_of, made_events, made_model, plan_for
from tgflow import ContinualConfig, Plan
from tgflow.graph.tables import FeatureTable
from tgflow.models import MODELS
from tgflow.nn.attention import each_target_alone
from tgflow.train.step import TrainStep

NAMES = [*MODELS]
for_each_model = pytest.mark.parametrize("name", NAMES)
for_each_kind = pytest.mark.parametrize("name", cases(NAMES, quick=("tgn", "counts")))
STREAM = made_events(60)


def graph_of(events):
    graph = tg.TemporalGraph(edge_x=FeatureTable(X_DIM))
    graph.append(events)
    return graph


def learner_of(model):
    return TrainStep(model, ContinualConfig())


def pairs_of(batch):
    """Events and negatives of a batch as arguments of an engine."""
    return batch.src, torch.cat([batch.dst.unsqueeze(1), batch.negative_dst], dim=1), batch.t


def see(model, plan: Plan, num_batches: int):
    """Store the first batches of a plan in a model."""
    if model.state is not None:
        model.state.reset()
    learner = learner_of(model)
    for _, batch in zip(range(num_batches), batches_of(plan), strict=False):
        learner.commit(batch, learner.predict(batch))
    return model


def questions(size=9):
    """Some node pairs and times of the stream."""
    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(12, (2, size), generator=generator)
    return src, dst, torch.randint(1, 200, (size,), generator=generator)


@for_each_model
@pytest.mark.parametrize("visibility", ["event", "batch"])
def test_scores_equal_the_predictions_of_a_trainer(name, visibility):
    model = made_model(name)
    plan = plan_for(model, STREAM, visibility=visibility)
    learner, engine = learner_of(model), tg.Inference(model, plan.graph)
    for batch in batches_of(plan):
        with each_target_alone():
            predicted = learner.predict(batch)
        as_of = batch.host.begin
        if visibility == "event":  # popularity counts how many events ago something was
            as_of = batch.host.end if model.fanouts else batch.eid
        found = engine.score(*pairs_of(batch), as_of=as_of)
        assert torch.equal(found[:, 0], predicted.positive)
        assert torch.equal(found[:, 1:], predicted.negative)
        learner.commit(batch, predicted)


@for_each_model
def test_answer_as_of_a_position_reads_no_later_events(name):
    model, (src, dst, t) = made_model(name), questions()
    plan = plan_for(model, STREAM)
    see(model, plan, 2)
    then = tg.Inference(model, graph_of(STREAM[:40]))
    found = tg.Inference(model, plan.graph).score(src, dst, t, as_of=40)
    assert torch.equal(found, then.score(src, dst, t))


@pytest.mark.parametrize(("name", "hops"), [("tgn", 1), ("tgat", 2)])
def test_fanout_all_uses_every_neighbor(name, hops):
    model = made_model(name)
    plan = plan_for(model, STREAM)
    see(model, plan, 3)
    src, dst, t = questions()
    found = tg.Inference(model, plan.graph, "all").score(src, dst, t)
    more = tg.Inference(model, plan.graph, (50,) * hops).score(src, dst, t)
    torch.testing.assert_close(found, more, rtol=1e-5, atol=1e-6)
    own = tg.Inference(model, plan.graph).score(src, dst, t)
    assert not torch.allclose(found, own)


def test_large_neighborhoods_are_split_into_smaller_batches(monkeypatch):
    model = made_model("tgat")
    graph = graph_of(STREAM)
    src, dst, t = questions()
    expected = tg.Inference(model, graph, "all").score(src, dst, t)
    monkeypatch.setattr("tgflow.train.inference.MAX_SLOTS", 1500)
    monkeypatch.setattr("tgflow.train.inference._FEW", 2)
    found = tg.Inference(model, graph, ("all", "all")).score(src, dst, t)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr("tgflow.train.inference.MAX_SLOTS", 8)
    with pytest.raises(MemoryError, match="give a fan-out as a number"):
        tg.Inference(model, graph, "all").score(src, dst, t)


@for_each_kind
def test_ranking_orders_the_scores_of_all_destinations(name):
    model = made_model(name)
    plan = plan_for(model, STREAM)
    see(model, plan, 3)
    src, t = torch.tensor([0, 3, 5]), torch.tensor([150, 151, 200])
    destinations = list(dict.fromkeys(STREAM.dst.tolist()))
    engine = tg.Inference(model, plan.graph)
    scores = engine.score(src, torch.tensor(destinations).expand(3, -1), t)
    order = scores.sort(dim=1, descending=True, stable=True)
    nodes = torch.tensor(destinations)[order.indices]
    best = engine.rank(src, t, k=4)
    assert torch.equal(best.nodes, nodes[:, :4])
    assert torch.equal(best.scores, order.values[:, :4])
    blocks = tg.Inference(model, plan.graph, max_pairs=6).rank(src, t, k=100)
    torch.testing.assert_close(blocks.scores, order.values, rtol=1e-5, atol=1e-5)


def test_destinations_are_those_before_the_position():
    engine = tg.Inference(made_model("edgebank"), graph_of(STREAM))
    for position in (1, 2, 60, 5):
        expected = list(dict.fromkeys(STREAM.dst[:position].tolist()))
        found = engine.rank(torch.tensor([0]), 1000, k=99, as_of=position)
        assert sorted(found.nodes[0].tolist()) == sorted(expected)
        for src in (0, 3, 6):
            before = STREAM[:position]
            met = list(dict.fromkeys(before.dst[before.src == src].tolist()))
            assert engine.destinations(src, as_of=position).tolist() == met
    with pytest.raises(IndexError, match="99"):
        engine.destinations(99)


def test_ranking_embeds_each_node_once_for_all_sources(monkeypatch):
    model = made_model("tgn")
    plan = plan_for(model, STREAM)
    see(model, plan, 3)
    embed, rows = type(model).embed, []

    def counted(self, batch):
        rows.append(len(batch.src_row))
        return embed(self, batch)

    monkeypatch.setattr(type(model), "embed", counted)
    src, destinations = torch.arange(6), STREAM.dst.unique()
    tg.Inference(model, plan.graph, max_pairs=8).rank(src, 200, destinations)
    assert sum(rows) == len(torch.cat([src, destinations]).unique())
