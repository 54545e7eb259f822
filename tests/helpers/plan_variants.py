"""Plans of generated events in a few variants, and small random plans for property tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from helpers.plan_reference import PlanSpec
from tgflow.graph import TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.plan.replay import ExperienceReplay

UNIX_NANOSECONDS = 1_600_000_000_000_000_000


def made_events(size: int, num_nodes: int = 30, x_dim: int = 3, seed: int = 0) -> EventBatch:
    """Events with ties, self-loops and repeated pairs."""
    g = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(num_nodes, (2, size), generator=g).unbind(0)
    t = UNIX_NANOSECONDS + torch.randint(3, (size,), generator=g).cumsum(0)
    x = torch.randn(size, x_dim, generator=g) if x_dim else None
    return EventBatch(src.contiguous(), dst.contiguous(), t, x)


def plan_of(graph: TemporalGraph, **changes: Any) -> Plan:
    arguments: dict[str, Any] = {
        "seed": 7,
        "batch_size": 10,
        "fanouts": (3,),
        "strategy": "recent",
        "visibility": "event",
        "negatives": NegativeSampler(random=1),
        "with_memory": True,
    }
    return Plan(graph, **(arguments | changes))


VARIANTS: list[dict[str, Any]] = [
    {},
    {"visibility": "batch", "replay": ExperienceReplay(0.7, 60, 20.0)},
    {"fanouts": (3, 2), "strategy": "uniform", "with_memory": False},
    {
        "fanouts": (2, 2),
        "strategy": "uniform",
        "replay": ExperienceReplay(1.3, 40, 10.0),
        "negatives": NegativeSampler(historical=2),
        "visibility": "batch",
    },
    {"start": 13, "negatives": NegativeSampler(inductive=3, since=20)},
    {"negatives": NegativeSampler(random=4, every=3)},
    {"negatives": NegativeSampler(historical=2, every=4), "visibility": "batch"},
    {"negatives": NegativeSampler(3, 2, 2), "replay": ExperienceReplay(0.7, 60, 20.0)},
    {"negatives": NegativeSampler(2, 3), "visibility": "batch", "fanouts": (), "with_nodes": False},
]
each_variant = pytest.mark.parametrize("variant", VARIANTS)


@st.composite
def plans(draw: st.DrawFn) -> tuple[EventBatch, dict[str, Any]]:
    size = draw(st.integers(1, 40))
    node = st.integers(0, 6)
    src, dst = (draw(st.lists(node, min_size=size, max_size=size)) for _ in "ab")
    dst[0] = (src[0] + 1) % 7  # one node alone has no negative
    steps = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    first = draw(st.sampled_from([0, -5, UNIX_NANOSECONDS]))
    t = first + torch.tensor(steps, dtype=torch.int64).cumsum(0)
    x = torch.arange(2.0 * size).reshape(size, 2) + 1 if draw(st.booleans()) else None
    kind = draw(st.sampled_from(["random", "historical"]))
    changes = {
        "batch_size": draw(st.integers(1, 12)),
        "fanouts": draw(st.sampled_from([(), (2,), (3, 2), (1, 2, 2)])),
        "visibility": draw(st.sampled_from(["event", "batch"])),
        "with_memory": draw(st.booleans()),
        "negatives": NegativeSampler(**{kind: draw(st.integers(1, 2))}),
        "replay": draw(
            st.sampled_from([None, ExperienceReplay(0.6, 20, 5.0), ExperienceReplay(2.0, 4)])
        ),
        "start": draw(st.integers(0, size - 1)),
    }
    changes["with_nodes"] = bool(changes["fanouts"]) or draw(st.booleans())
    return EventBatch(torch.tensor(src), torch.tensor(dst), t, x), changes


def spec_of(plan: Plan) -> PlanSpec:
    draws = plan.draws
    return PlanSpec(
        draws.batch_size, draws.fanouts, draws.visibility, draws.with_memory, draws.start,
        draws.graph.seconds_per_tick, draws.with_nodes,
    )  # fmt: skip
