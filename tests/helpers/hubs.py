"""Streams with hubs, and every sampler."""

import torch

from tgflow.graph.events import EventBatch
from tgflow.graph.sampling import Sampler

SAMPLERS = [
    Sampler.recent(),
    Sampler.uniform(),
    Sampler.window(width=900),
    Sampler.decayed(half_life=90),
]


def hub_events(size: int, num_nodes: int, seed: int) -> EventBatch:
    """Events with hubs: some nodes in very many, most in few; self-loops, ties and relations."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(2, size, generator=generator).pow(3) * num_nodes
    t = torch.randint(0, 2, (size,), generator=generator).cumsum(0)
    relation = torch.randint(0, 3, (size,), generator=generator)
    return EventBatch(*ends.long().unbind(0), t, relation=relation)
