"""Training within a horizon: the same bits, whenever memory is freed and however it goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tgflow as tg
from helpers.plans import tied_events
from tgflow import ContinualConfig, ContinualTrainer, TemporalGraph
from tgflow.graph import EventLog, Horizon
from tgflow.nn import NodeMemory

EVENTS = tied_events(600, x_dim=0)
CONFIG = ContinualConfig(batch_size=20, replay_ratio=0.5, num_threads=2)


def trainer_of(horizon: Horizon | None, **options: Any) -> ContinualTrainer:
    torch.manual_seed(3)
    model = tg.TGN(memory_dim=8, time_dim=4, embedding_dim=8)
    graph = TemporalGraph(time_unit="ns", horizon=horizon)
    return ContinualTrainer(model, graph, CONFIG, **options)


def state_of(trainer: ContinualTrainer) -> dict[str, Any]:
    state = trainer.model.state
    assert state is not None
    return {**trainer.model.state_dict(), **state.state_dict()}


def assert_same(one: ContinualTrainer, other: ContinualTrainer) -> None:
    expected, found = state_of(one), state_of(other)
    assert expected.keys() == found.keys()
    for name, x in expected.items():
        assert torch.equal(x, found[name]), name


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventLog, "piece", 50)


def test_longer_horizon_than_the_stream_is_none() -> None:
    plain, within = trainer_of(None), trainer_of(Horizon(2_000, 10**9))
    plain.run(EVENTS)
    within.run(EVENTS)
    assert_same(plain, within)
    assert within.graph.forgotten == 0


@pytest.mark.parametrize("horizon", [Horizon(160), Horizon(ticks=200)], ids=str)
def test_moment_of_freeing_changes_no_bit(
    horizon: Horizon, monkeypatch: pytest.MonkeyPatch
) -> None:
    frees, other = trainer_of(horizon), trainer_of(None)
    frees.run(EVENTS)
    other.run(EVENTS)
    assert frees.graph.forgotten > 300
    assert frees.graph.log.first == frees.graph.forgotten // 50 * 50
    with monkeypatch.context() as patched:
        patched.setattr(TemporalGraph, "forget", lambda self, first: None)
        keeps = trainer_of(horizon)
        keeps.run(EVENTS)
    assert keeps.graph.log.first == 0
    assert_same(frees, keeps)
    with pytest.raises(AssertionError):
        assert_same(frees, other)


@pytest.mark.parametrize("seed", range(3))
def test_moment_of_forgetting_nodes_changes_no_parameter(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New nodes come for ever, and others return."""
    rng = torch.Generator().manual_seed(seed)
    nodes = EVENTS.src + torch.arange(600) // 4
    events = replace(EVENTS, src=nodes, dst=nodes + 1 + EVENTS.dst)
    at_once = trainer_of(Horizon(160))
    at_once.run(events)
    forget = NodeMemory.forget

    def sometimes(memory: NodeMemory, first: int, tick: int) -> None:
        if torch.rand((), generator=rng) < 0.3:
            forget(memory, first, tick)

    with monkeypatch.context() as patched:
        patched.setattr(NodeMemory, "forget", sometimes)
        later = trainer_of(Horizon(160))
        later.run(events)
    for name, x in at_once.model.state_dict().items():
        assert torch.equal(x, later.model.state_dict()[name]), name
    memory = at_once.model.state
    assert isinstance(memory, NodeMemory)
    assert memory.num_kept < memory.num_nodes / 2
    assert len(memory.state_dict()["rows"]) == memory.num_kept


@pytest.mark.parametrize("stop", [180, 500])
def test_checkpoint_within_a_horizon_goes_on_with_the_same_bits(stop: int, tmp_path: Any) -> None:
    whole = trainer_of(Horizon(160))
    whole.run(EVENTS)
    begun = trainer_of(Horizon(160))
    begun.run(EVENTS[:stop])
    tg.save(tmp_path / "saved", begun.checkpoint())
    saved = tg.load(tmp_path / "saved")
    model = tg.TGN(memory_dim=8, time_dim=4, embedding_dim=8)
    resumed = ContinualTrainer.from_checkpoint(model, saved)
    assert resumed.graph.log.first == begun.graph.since(stop) // 50 * 50
    resumed.run(EVENTS[stop:])
    assert_same(whole, resumed)
