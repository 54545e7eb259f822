"""Generated events and samplers."""

import torch
from hypothesis import strategies as st

from tgflow import EventBatch, Sampler

RELATIONS = (0, 1, 63, 64, 65_535)

# Unix seconds and nanoseconds, which are equal in float32, and a clock that starts below 0.
CLOCKS = (0, -5, 1_600_000_000, 1_600_000_000_000_000_000)


@st.composite
def event_lists(draw, max_events=40, max_node=6, relations=False):
    """Events among few nodes with many ties, self-loops and duplicates, at times of any size."""
    size = draw(st.integers(0, max_events))
    node = st.integers(0, max_node)
    src = draw(st.lists(node, min_size=size, max_size=size))
    dst = draw(st.lists(node, min_size=size, max_size=size))
    steps = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    t = torch.tensor([draw(st.sampled_from(CLOCKS)), *steps], dtype=torch.int64).cumsum(0)[1:]
    relation = st.lists(st.sampled_from(RELATIONS), min_size=size, max_size=size)
    return EventBatch(
        torch.tensor(src, dtype=torch.int64),
        torch.tensor(dst, dtype=torch.int64),
        t,
        relation=torch.tensor(draw(relation), dtype=torch.int64) if relations else None,
    )


def samplers():
    """Every strategy, with spans from a tick to longer than any history."""
    span = st.sampled_from((1, 2, 3, 5, 10, 100, 10**9, 2**62, 2**63 - 1))
    return st.one_of(
        st.sampled_from((Sampler.recent(), Sampler.uniform())),
        st.builds(Sampler, st.sampled_from(("window", "decayed")), span),
    )


def every_query(events, max_node=6):
    """All nodes, padding and unknown ones included, at all times at which a result can change."""
    times = sorted({int(t) + d for t in events.t.tolist() for d in (0, 1)} | {-(2**63), 2**63 - 1})
    nodes = [-1, *range(max_node + 1), max_node + 1, 2**31 - 2, 2**40]
    pairs = [(v, t) for v in nodes for t in times]
    table = torch.tensor(pairs, dtype=torch.int64)
    return table[:, 0].contiguous(), table[:, 1].contiguous()


def graph_events(*rows):
    """Events from rows of (src, dst, t)."""
    table = torch.tensor(rows, dtype=torch.int64).view(-1, 3)
    return EventBatch(*(column.contiguous() for column in table.unbind(1)))


def skewed_events(size, num_nodes, seed=0):
    """Events among a few hubs and many others; event `i` has time `i`."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(2, size, generator=generator).pow(4) * num_nodes
    return EventBatch(*ends.long().unbind(0), torch.arange(size))


SAMPLERS = [
    Sampler.recent(),
    Sampler.uniform(),
    Sampler.window(width=900),
    Sampler.decayed(half_life=90),
]


def hub_events(size, num_nodes, seed):
    """Events with hubs: some nodes in very many, most in few; self-loops, ties and relations."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(2, size, generator=generator).pow(3) * num_nodes
    t = torch.randint(0, 2, (size,), generator=generator).cumsum(0)
    relation = torch.randint(0, 3, (size,), generator=generator)
    return EventBatch(*ends.long().unbind(0), t, relation=relation)


def begin_by_scan(t, horizon, p, steps=16):
    """Return where the horizon of a batch at position `p` of events at times `t` begins."""
    first = 0
    if horizon is not None and horizon.events is not None:
        step = horizon.events // steps
        first = max(first, step * ((p - horizon.events) // step))
    if horizon is not None and horizon.ticks is not None and p:
        step = horizon.ticks // steps
        least = step * (t[p - 1] // step) - horizon.ticks
        first = max(first, sum(each < least for each in t))
    return first
