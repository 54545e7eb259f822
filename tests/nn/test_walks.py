"""Walk projections against matrices that count walks by definition."""

import math

import pytest
import torch

from helpers.plans import made_batch
from tgflow.graph.events import EventBatch
from tgflow.nn import Pairs
from tgflow.nn.messages import NewEvents
from tgflow.nn.walks import WalkProjection, WalkRows, random_signs, row_times

NODES, HOPS, DECAY = 6, 3, 0.07


def identity(nodes):
    return torch.eye(NODES)[nodes]


EXACT = WalkProjection(dim=NODES, hops=HOPS, decay=DECAY, base=identity)
"""With R = I, rows equal those of the matrices."""


def made_events(size=30, gap=3, start=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(NODES, (2, size), generator=generator)
    t = start + torch.randint(gap, (size,), generator=generator).cumsum(0)
    return EventBatch(src, dst, t)


def dense(events, batch_size, end):
    """Return A^0 .. A^HOPS as of `end`: an event extends the walks before its batch, both ways."""
    walks = torch.zeros(1 + HOPS, NODES, NODES, dtype=torch.float64)
    walks[0] = torch.eye(NODES)
    now = 0

    def decayed(walks, ticks):
        weight = [math.exp(-DECAY * ticks * length) for length in range(1 + HOPS)]
        return walks * torch.tensor(weight, dtype=torch.float64).view(-1, 1, 1)

    for begin in range(0, len(events), batch_size):
        part = events[begin : begin + batch_size]
        before, after = walks, decayed(walks, int(part.t[-1]) - now)
        for u, v, t in zip(part.src.tolist(), part.dst.tolist(), part.t.tolist(), strict=True):
            then, longer = decayed(before, t - now), torch.zeros_like(walks)
            longer[1:, u] += then[:-1, v]
            longer[1:, v] += then[:-1, u]
            after = after + decayed(longer, int(part.t[-1]) - t)
        walks, now = after, int(part.t[-1])
    return decayed(walks, end - now)


def take_in(memory, batch, projection=EXACT):
    messages = projection.messages(batch, projection.read(memory, batch))
    projection.write(memory, NewEvents.of(batch), messages)


def stored(events, batch_size, projection=EXACT):
    memory = projection.memory()
    for index in range(-(-len(events) // batch_size)):
        batch = made_batch(events, index, batch_size, (2,))
        take_in(memory, batch, projection)
    return memory


def rows_of(memory, projection=EXACT, position=10**6):
    nodes = torch.arange(NODES)
    rows = memory.read(nodes, torch.full((NODES,), position))
    base = identity(nodes) if projection.base else random_signs(nodes, projection.dim)
    return WalkRows(base, rows, projection.decay, 1.0)


def decayed_walks(rows, end):
    left = rows.left(torch.arange(NODES), torch.full((NODES,), end))
    return rows.walks() * torch.stack([left**length for length in range(1 + HOPS)], 1)[:, :, None]


@pytest.mark.parametrize("batch_size", [1, 4, 30])
def test_rows_match_the_walk_matrices(batch_size):
    events = made_events()
    end = int(events.t[-1]) + 5
    found = decayed_walks(rows_of(stored(events, batch_size)), end).double()
    expected = dense(events, batch_size, end).transpose(0, 1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_features_of_a_batch_match_the_walk_matrices_at_its_times():
    events = made_events()
    memory = stored(events[:16], 4)
    batch = made_batch(events, 4, 4, (2,))
    rows, pairs, block = EXACT.read(memory, batch), Pairs.of(batch), batch.blocks[0]
    t = row_times(batch, pairs)
    found = rows.features(block.neighbor, block.target[:, None], t[:, None], block.mask)
    for n, k in block.mask.nonzero().tolist():
        walks = dense(events[:16], 4, int(t[n])).transpose(0, 1)
        both = walks[batch.nodes[torch.stack([block.neighbor[n, k], block.target[n]])]]
        both = both.reshape(2 * (1 + HOPS), NODES)
        row, column = torch.triu_indices(len(both), len(both))
        expected = (both @ both.T)[row, column].log1p()
        torch.testing.assert_close(found[n, k].double(), expected, rtol=1e-4, atol=1e-5)
    assert bool((found[~block.mask] == 0).all())


def test_random_signs_keep_inner_products():
    dim = 4096
    projection = WalkProjection(dim=dim, hops=HOPS, decay=DECAY)
    events = made_events()
    end = int(events.t[-1])
    exact = decayed_walks(rows_of(stored(events, 4)), end).flatten(0, 1).double()
    projected = rows_of(stored(events, 4, projection), projection)
    projected = decayed_walks(projected, end).flatten(0, 1).double()
    norm = exact.norm(dim=1)
    sigma = norm.outer(norm) * (2 / dim) ** 0.5
    assert bool(((projected @ projected.T - exact @ exact.T).abs() <= 5 * sigma + 1e-6).all())
