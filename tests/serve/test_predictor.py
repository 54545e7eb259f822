"""Predictor of a live trainer: answers as of the last micro-batch."""

import pytest
import torch

import tgflow as tg
from helpers.effort import cases
from helpers.made_models import made_events
from helpers.served import live_predictor, made_predictor
from tgflow.graph.log import Horizon

EVENTS = made_events(200)
BATCH = 20
SRC, DST = ["n0", "n1", "n2"], ["n6", "n7", "n8"]
MODELS = cases(["tgn", "tgat", "tgn+pairs", "jodie", "counts"], ["tgn"])


def batches(stop=200):
    return (EVENTS[start : start + BATCH] for start in range(0, stop, BATCH))


@pytest.mark.parametrize("name", MODELS)
def test_answer_matches_a_trainer_stopped_at_that_position(name):
    predictor, trainer = live_predictor(name)
    for step in trainer.steps(batches()):
        if step.stop in (60, 140):
            stopped, other = live_predictor(name)
            for _ in other.steps(batches(step.stop)):
                pass
            assert predictor.position == other.position == step.stop
            assert trainer.graph.num_events >= step.stop
            for at in (None, 10**6):  # when all events in the graph have happened
                for ask in (
                    lambda of, at=at: of.score(SRC, DST, at).logit,
                    lambda of, at=at: of.top_k("n0", 3, at=at).logit,
                    lambda of, at=at: of.embed(SRC, at) if name == "tgn" else torch.empty(0),
                ):
                    assert torch.equal(ask(predictor), ask(stopped))
                assert predictor.top_k("n0", 3, at=at).dst == stopped.top_k("n0", 3, at=at).dst
            assert predictor.explain("n0", "n6") == stopped.explain("n0", "n6")
            if name != "tgn+pairs":
                continue
            known = predictor.top_k("n0", k=9, exclude_known=True)
            assert known.dst == stopped.top_k("n0", k=9, exclude_known=True).dst


def popular_by_hand(events, since, cut, candidates):
    """Return candidates by their number of events, the latest event, and their number."""
    received = {name: [] for name in candidates}
    for i in range(since, cut):
        received.get(f"n{int(events.dst[i])}", []).append(i)
    order = {name: int(name[1:]) if name[1:].isdecimal() else 99 for name in candidates}

    def key(name):
        return -len(received[name]), -max(received[name], default=-1), order[name]

    return sorted(candidates, key=key)


@pytest.mark.parametrize("horizon", [None, Horizon(events=64)])
@pytest.mark.parametrize("name", cases(["tgn", "counts", "recency"], ["counts", "tgn"]))
def test_sources_without_events_get_the_popular_destinations(name, horizon):
    predictor, trainer = live_predictor(name)
    trainer.graph.log.horizon = horizon
    events = made_events(200)
    events.src[:] = torch.arange(200) // 40  # n4 and n5 come late, n0 and n1 are forgotten
    for step in trainer.steps(events[start : start + BATCH] for start in range(0, 180, BATCH)):
        cut = step.stop
    log = trainer.graph.log
    since = log.since(cut)
    assert cut == 180
    assert (since > 80) == (horizon is not None)
    every = [f"n{i}" for i in events.dst[:cut].unique().tolist()]
    expected = popular_by_hand(events, since, cut, every)
    asked = ["who", "n4", "n6", "n5"]  # n6 was only a destination, n5 is in no event
    found = predictor.top_k(asked, k=9)
    by = dict(zip(found.src, found.ranked_by, strict=True))
    assert [*by.values()] == ["popularity", "model", "model", "popularity"]
    some = ["n11", "odd", "n8", "n7", "n6", "new"]
    for ask, candidates in (
        ({}, every),
        ({"exclude_known": True}, every),
        ({"candidates": some}, some),
    ):
        best = popular_by_hand(events, since, cut, candidates)
        for k in (2, 9):
            found = predictor.top_k("who", k, **ask)
            assert found.dst == best[:k]
            assert torch.equal(found.logit, predictor.score(["who"] * len(found), found.dst).logit)
            assert found.place.tolist() == [*range(1, len(found) + 1)]
    if horizon is not None:
        assert {*predictor.top_k(["n0", "n1"]).ranked_by} == {"popularity"}  # forgotten
        return
    past = int(events.t[100])
    rest = popular_by_hand(events, 0, int((events.t < past).sum()), every)
    assert predictor.top_k(["who", "who"], 9, at=[past, 10**6]).dst == rest + expected
    assert {*predictor.top_k("n4", at=past).ranked_by} == {"popularity"}  # not seen yet


def test_embeddings_of_all_nodes_are_rows_by_own_ids():
    predictor, trainer = live_predictor("tgn")
    trainer.run(batches())
    rows = predictor.embeddings().read_all()
    assert sorted(rows["id"].to_pylist()) == sorted(f"n{i}" for i in range(trainer.graph.num_nodes))
    chosen = predictor.embeddings(SRC).read_pandas().set_index("id").drop(columns="is_new")
    z = predictor.embed(SRC)
    assert torch.equal(torch.tensor(chosen.to_numpy()), z)
    assert list(chosen.columns) == [f"e{i}" for i in range(z.shape[1])]


def test_unlearned_events_in_the_graph_are_not_visible():
    predictor, trainer = live_predictor("tgn")
    late = made_events(BATCH)
    first = tg.EventBatch(late.src % 3, 3 + late.dst % 3, torch.arange(BATCH), late.x)
    eleven = torch.full((BATCH,), 11)
    second = tg.EventBatch(late.src, eleven, BATCH + torch.arange(BATCH), late.x)
    steps = trainer.steps(iter([first, second]))
    next(steps)
    assert predictor.position == BATCH
    assert predictor.score("n0", "n3").src == ["n0"]
    assert predictor.score("n0", "n11").new == ["dst"]
    for _ in steps:
        pass
    assert predictor.score("n0", "n11").new == [None]


@pytest.mark.parametrize("at", [True, "1e-999999999", "1e999999999", "inf", "soon", None, b"3"])
def test_invalid_time_is_refused(at):
    with pytest.raises(ValueError, match="is not a time: give a number of s, or one such as 2024"):
        made_predictor().score("n0", "n6", [at])
