"""Calls that are captured by the shape of their batch, and replayed from memory that they share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.emulator.device import EmulatedDevice
from helpers.made_plans import plan_of
from helpers.made_streams import made_events
from helpers.padding import pad
from tgflow.batch import Batch
from tgflow.graph import TemporalGraph
from tgflow.plan.padding import BatchShape, shape_of
from tgflow.train import captured
from tgflow.train.captured import WARM_UPS, CapturedCalls

BATCH = plan_of(TemporalGraph.from_events(made_events(60))).batch(0, 4)
STATE: list[Tensor] = []
MOST_SHAPES, LONG = 4, 30


@pytest.fixture(autouse=True)
def _no_more_than_a_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST_SHAPES", MOST_SHAPES)
    monkeypatch.setattr(captured, "LONG", LONG)


def batch_with(nodes: int, value: int = 3) -> Batch:
    """A batch of that many input rows, all of one node."""
    shape = shape_of(BATCH)
    batch = pad(BATCH, BatchShape(shape.targets, len(BATCH.nodes) + nodes, shape.edges))
    batch.nodes.fill_(value)
    return batch


def doubled(batch: Batch) -> Tensor:
    return 2 * batch.nodes


def asked(calls: CapturedCalls, batch: Batch, name: str = "double") -> Tensor:
    return calls.call(name, batch, doubled, lambda out: [out])


def is_captured(calls: CapturedCalls, nodes: int) -> bool:
    """Ask often enough for it to be captured, and return whether it was."""
    for value in range(1, WARM_UPS + 2):
        batch = batch_with(nodes, value)
        assert torch.equal(asked(calls, batch), doubled(batch))
    return calls.was_replay


def test_further_shapes_run_as_they_are_until_one_has_not_come_for_long() -> None:
    calls = CapturedCalls(EmulatedDevice(), lambda: STATE)
    assert all(is_captured(calls, nodes) for nodes in range(1, MOST_SHAPES + 1))
    assert not is_captured(calls, 40)
    for _ in range(LONG):
        asked(calls, batch_with(2))
    assert is_captured(calls, 40), "in the place of one of the others"
    asked(calls, batch_with(2))
    assert calls.was_replay, "that was in use"
