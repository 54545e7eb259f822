"""Predictor of a live trainer: answers as of the last micro-batch."""

import pytest
import torch

import tgflow as tg
from helpers.effort import cases
from helpers.made_models import made_events
from helpers.served import live_predictor, made_predictor

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
