"""Golden digests of batches: a resumed run must draw the same."""

import hashlib
import itertools
from typing import Any

import pytest
import torch

from tgflow import Batch, EventBatch, Plan, TemporalGraph
from tgflow.base.keys import derive_key
from tgflow.graph.tables import FeatureTable
from tgflow.plan import ExperienceReplay, NegativeSampler

COLUMNS = (
    *("eid", "src", "dst", "t", "x", "negative_src", "negative_dst", "num_fallbacks"),
    *("src_row", "dst_row", "negative_src_row", "negative_dst_row", "nodes", "position", "node_x"),
)
LINKS = ("target", "neighbor", "mask", "dt", "eid", "edge_x")

PLANS: dict[str, dict[str, Any]] = {
    "no hops": {"fanouts": (), "with_memory": False},
    "memory": {"fanouts": (4,), "with_memory": True, "replay": ExperienceReplay(0.5, 200, 50)},
    "two hops": {"fanouts": (3, 2), "strategy": "uniform", "with_memory": False},
    "as of the batch": {
        "fanouts": (3, 3),
        "strategy": "window",
        "span": 20,
        "visibility": "batch",
        "negatives": NegativeSampler(historical=2),
        "with_memory": True,
    },
    "three hops": {
        "fanouts": (5, 4, 2),
        "strategy": "decayed",
        "span": 7,
        "negatives": NegativeSampler(inductive=1, since=100),
        "with_memory": True,
    },
}
DIGESTS = {
    "no hops": ["576a9bbb79ac5eeb", "3ae831e0367c9389"],
    "memory": ["ca9951722f0c941a", "679aeeba10513ab3"],
    "two hops": ["3cd44d74a9e04836", "53cb16c2cfd9627b"],
    "as of the batch": ["4124443e09ad6103", "f1cfb573772b40ad"],
    "three hops": ["5c23c9db1bce2ec7", "fa3cc77847f288db"],
}


def made_events() -> EventBatch:
    """Events with repeated pairs, self-loops and ties in time, without torch's generators."""
    i = torch.arange(600)
    x = (i.unsqueeze(1) * torch.tensor([3, 5, 7]) % 11).float()
    return EventBatch(i * 7919 % 12, 5 + i * i * 31 % 35, (i * 104729 % 3).cumsum(0), x)


def digest(batch: Batch) -> str:
    """Return a hash of all contents of the batch: names, shapes and bytes."""
    found = hashlib.sha256()
    parts = [(name, getattr(batch, name)) for name in COLUMNS]
    parts += [(name, getattr(block, name)) for block in batch.blocks for name in LINKS]
    for name, value in parts:
        found.update(name.encode())
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {list(value.shape)}".encode())
            found.update(value.contiguous().numpy().tobytes())
        else:
            found.update(str(value).encode())
    return found.hexdigest()[:16]


def test_keys_of_different_words_differ_and_are_stable() -> None:
    words = [word for n in (2, 3) for word in itertools.product((0, 1, 2, 2**63), repeat=n)]
    words += [(), (0,), (-1,)]
    assert len({derive_key(*word) for word in words}) == len(words)
    assert all(0 <= derive_key(seed, 0, 0) < 2**64 for seed in (-1, 0, 2**64, 2**200))
    assert derive_key(0, 0, 0) == 6084141021458535187


@pytest.mark.parametrize("name", PLANS)
def test_batches_match_golden_digests(name: str) -> None:
    node_x = FeatureTable(4)
    node_x.append(torch.arange(100.0).reshape(25, 4))
    graph = TemporalGraph.from_events(made_events(), time_unit="ms", node_x=node_x)
    defaults: dict[str, Any] = {
        "seed": 3,
        "batch_size": 40,
        "strategy": "recent",
        "visibility": "event",
        "negatives": NegativeSampler(random=1),
    }
    plan = Plan(graph, **(defaults | PLANS[name]))
    assert [digest(plan.batch(1, index)) for index in (3, len(plan) - 1)] == DIGESTS[name]
