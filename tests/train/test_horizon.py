"""Training within a horizon: the same bits, whenever memory is freed and however it goes on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

import tgflow as tg
from helpers.devices import (
    opened,
    place_of,
    without_autograd_threads,  # noqa: F401
)
from helpers.effort import cases
from helpers.plans import tied_events
from tgflow import ContinualConfig, ContinualTrainer, TemporalGraph
from tgflow.graph import EventLog, Horizon
from tgflow.graph.tables import FeatureTable
from tgflow.nn import NodeMemory
from tgflow.train import trainer_state

X = 100  # no whole number of rows is a page
EVENTS = tied_events(600, x_dim=X)
STOPS, PLACEMENTS = (20, 37, 160, 180, 333, 500, 599), ("host", "disk", "file")
QUICK_STOPS = [(180, "host"), (500, "disk"), (500, "file")]
CONFIG = ContinualConfig(batch_size=20, replay_ratio=0.5, num_threads=2)


def trainer_of(
    horizon: Horizon | None, edge_x: FeatureTable | None = None, device: str = "cpu", **options: Any
) -> ContinualTrainer:
    torch.manual_seed(3)
    model = tg.TGN(memory_dim=8, time_dim=4, embedding_dim=8, edge_x_dim=X)
    place = opened(device)
    edge_x = edge_x or FeatureTable(X, device=None if device == "cpu" else place)
    graph = TemporalGraph(time_unit="ns", horizon=horizon, device=place, edge_x=edge_x)
    return ContinualTrainer(model.to(place_of(device)), graph, CONFIG, **options)


def state_of(trainer: ContinualTrainer) -> dict[str, Any]:
    state = trainer.model.state
    assert state is not None
    return {**trainer.model.state_dict(), **state.state_dict()}


def contents(trainer: ContinualTrainer) -> dict[str, dict[str, torch.Tensor]]:
    """Return all that a checkpoint writes."""
    made = trainer.checkpoint()
    return made.sections | {name: make() for name, make in {**made.sealed, **made.later}.items()}


def assert_same(one: ContinualTrainer, other: ContinualTrainer) -> None:
    expected, found = state_of(one), state_of(other)
    assert expected.keys() == found.keys()
    for name, x in expected.items():
        assert torch.equal(x.cpu(), found[name].cpu()), name


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventLog, "piece", 50)


def test_longer_horizon_than_the_stream_is_none() -> None:
    plain, within = trainer_of(None), trainer_of(Horizon(2_000, 10**9))
    plain.run(EVENTS)
    within.run(EVENTS)
    assert_same(plain, within)
    assert within.graph.forgotten == 0


@pytest.mark.parametrize("seed", cases(range(3), [0]))
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


@pytest.mark.parametrize("at", cases([*product(STOPS, PLACEMENTS)], QUICK_STOPS), ids=str)
def test_checkpoint_within_a_horizon_goes_on_with_the_same_bits(
    at: tuple[int, str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, placement = at

    def table() -> FeatureTable:
        file = tmp_path / "rows" if placement == "file" else None
        return FeatureTable(X, placement="host" if placement == "host" else "disk", path=file)

    monkeypatch.setattr(trainer_state, "PIECE_BYTES", 30 * 4 * X)
    whole = trainer_of(Horizon(160))
    for part in (EVENTS[:stop], EVENTS[stop:]):  # a micro-batch ends at the checkpoint
        whole.run(part)
    begun = trainer_of(Horizon(160), table())
    again = stop // 2 if placement == "disk" else stop  # labels may be behind the events
    begun.graph.log.read_again = again
    begun.run(EVENTS[:stop])
    tg.save(tmp_path / "saved", begun.checkpoint())
    assert begun.graph.edge_x is not None
    begun.graph.edge_x.close()
    saved = tg.load(tmp_path / "saved")
    first = begun.graph.since(again) // 50 * 50
    rows = [int(name.split("-")[-1]) for name in saved.sealed if name.startswith("edge_x-")]
    assert min(rows, default=first // 30) == first // 30
    assert saved.meta["num_nodes_before"] == (int(EVENTS.src[:first].max()) + 1 if first else 0)
    model = tg.TGN(memory_dim=8, time_dim=4, embedding_dim=8, edge_x_dim=X)
    resumed = ContinualTrainer.from_checkpoint(model, saved, edge_x=table())
    assert resumed.graph.log.first == first
    resumed.run(EVENTS[stop:])
    assert_same(whole, resumed)
    expected, found = (contents(each) for each in (whole, resumed))
    for name in found:  # not the rows, if they are in a file
        assert found[name].keys() == expected[name].keys()
        assert all(torch.equal(x, found[name][key]) for key, x in expected[name].items()), name
    assert placement == "file" or found.keys() == expected.keys()
