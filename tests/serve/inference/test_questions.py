"""Invalid queries raise errors that name the problem, the value and the fix."""

import re

import pytest
import torch

import tgflow as tg
from helpers.made_models import made_events, made_model, plan_for
from helpers.ranks import with_sharded_memory
from tgflow.base.peers import Peers
from tgflow.train.config import ContinualConfig
from tgflow.train.step import TrainStep

NODES = torch.tensor([1, 2])


@pytest.fixture(scope="module")
def engine():
    model = made_model("tgn")
    return tg.Inference(model, plan_for(model, made_events(30)).graph)


def engine_for(name, fanouts=None):
    model = made_model(name)
    return tg.Inference(model, plan_for(model, made_events(30)).graph, fanouts)


@pytest.mark.parametrize(
    ("name", "fanouts", "message"),
    [
        ("tgat", (20,), "TGAT takes fan-outs for as many hops as its own, (4, 4), got (20,)"),
        ("tgat", (20, 0), "fanouts must be at least 1 neighbor each, got (20, 0)"),
        ("tgat", (20, "many"), 'fanouts must be whole numbers or "all"'),
        ("tgat", (20, 2.5), 'fanouts must be whole numbers or "all"'),
        ("graphmixer", (9,), "GraphMixer reads exactly the (4,) neighbors that it was built for"),
        ("craft", "all", "CRAFT reads exactly the (4,) neighbors"),
        ("jodie", (2,), "JODIE reads exactly the (1,) neighbors"),
        ("recency", (2,), "Recency takes fan-outs for as many hops as its own, ()"),
    ],
)
def test_unsupported_fanouts_are_refused(name, fanouts, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        engine_for(name, fanouts)


@pytest.mark.parametrize("name", ["dygformer", "tpnet", "craft", "edgebank", "counts"])
def test_model_without_embeddings_refuses_to_embed(name):
    with pytest.raises(ValueError, match="defines no embed; use score or rank"):
        engine_for(name).embed(NODES, 5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"src": torch.tensor([1, 99])}, "src has node 99, the graph has 12 nodes"),
        ({"src": torch.tensor([1, -1])}, "src has node -1"),
        ({"src": torch.tensor([1.0, 2.0])}, "src must be int64, got torch.float32"),
        ({"src": [1, 2]}, "src must be a tensor of int64, got list"),
        ({"src": NODES.view(1, 2)}, "src must be int64 [B], got [1, 2]"),
        ({"dst": NODES[:1]}, "dst must have the destinations of each of 2 sources, got [1]"),
        ({"dst": torch.tensor([1, 14])}, "dst has node 14"),
        ({"t": NODES[:1]}, "t must be a number or int64 [2], got [1]"),
        ({"t": 2.5}, "t must be a tensor of int64, got float"),
        ({"t": 1 << 64}, "t must be a tick of 64 bits"),
        ({"t": NODES.float()}, "t must be int64"),
        ({"as_of": 31}, "as_of must be log positions from 0 to 30"),
        ({"as_of": -1}, "got -1"),
        ({"as_of": torch.tensor([3, 40])}, "got 40"),
        ({"as_of": NODES[:1]}, "as_of must be a number or int64 [2]"),
    ],
)
def test_invalid_nodes_times_and_positions_are_refused(engine, wrong, message):
    right = {"src": NODES, "dst": NODES, "t": 5, "as_of": None}
    with pytest.raises((IndexError, TypeError, ValueError), match=re.escape(message)):
        engine.score(**right | wrong)


def test_invalid_rankings_are_refused(engine):
    for wrong, message in (
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"candidates": NODES[:0]}, "candidates must be at least one for each of 2 sources"),
        ({"candidates": NODES.view(1, 2)}, "candidates must be at least one for each of 2 sources"),
        ({"candidates": torch.tensor([50])}, "candidates has node 50"),
        ({"as_of": 0}, "candidates must be at least one for each of 2 sources"),
    ):
        with pytest.raises((IndexError, ValueError), match=re.escape(message)):
            engine.rank(**{"src": NODES, "t": 5} | wrong)


def test_sharded_memory_is_refused():
    model = with_sharded_memory(made_model("tgn"), Peers())
    with pytest.raises(ValueError, match="the model's memory is sharded over ranks"):
        tg.Inference(model, plan_for(made_model("tgn"), made_events(30)).graph)


def test_position_before_the_kept_memory_is_refused():
    model = made_model("tgn")
    plan = plan_for(model, made_events(60))
    learner = TrainStep(model, ContinualConfig())
    for index in range(3):
        batch = plan.batch(0, index)
        learner.commit(batch, learner.predict(batch))
    with pytest.raises(ValueError, match="no history is kept"):
        tg.Inference(model, plan.graph).embed(NODES, 100, as_of=20)
