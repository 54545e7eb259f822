"""Update and sampling speed against a CSR that the GPU re-sorts for every update."""

from collections.abc import Iterator
from functools import partial
from statistics import median

import torch
from torch import Tensor

from tgflow.cli.benchmarks.graph import CALL, MICRO, GrowingGraph, K
from tgflow.cli.benchmarks.row import Params, Row
from tgflow.cli.benchmarks.setup import Options, PowerLaw, seconds_of
from tgflow.cuda.device import Device
from tgflow.graph.events import EventBatch
from tgflow.graph.sampling import recent_neighbors

LOOP_SIZE = 10_000_000
TARGET = 21.0


class SortedCsr:
    """A stream's entries in device memory, sorted by node again for each insert."""

    def __init__(self, num_nodes: int, device: torch.device) -> None:
        self._num_nodes, self._device = num_nodes, device
        self._src, self._dst = (torch.empty(0, dtype=torch.int64, device=device) for _ in range(2))
        self._begin, self._neighbor, self._eid = self._src, self._src, self._src

    def insert(self, events: EventBatch) -> None:
        """Add events, later than all before, and sort."""
        self._src = torch.cat([self._src, events.src.to(self._device)])
        self._dst = torch.cat([self._dst, events.dst.to(self._device)])
        loop = self._src == self._dst  # a self-loop has one entry: the other goes after all nodes
        other = torch.where(loop, self._num_nodes, self._dst)
        node = torch.stack([self._src, other], 1).view(-1)  # in the order of time
        node, order = node.sort(stable=True)
        self._neighbor = torch.stack([self._dst, self._src], 1).view(-1)[order]
        self._eid = order >> 1
        every = torch.arange(self._num_nodes + 1, device=self._device)
        self._begin = torch.searchsorted(node, every)

    def latest(self, nodes: Tensor, k: int) -> list[Tensor]:
        """Return neighbors and events of the last `k` entries of each node, newest first."""
        place = self._begin[nodes + 1, None] - 1 - torch.arange(k, device=self._device)
        is_there = place >= self._begin[nodes, None]
        place = place.clamp(min=0)
        return [x[place].where(is_there, -1) for x in (self._neighbor, self._eid)]


def rebuild_rows(options: Options, device: str | Device) -> Iterator[Row]:
    """Insert 1,000 events and sample 3,000 queries, at the largest size up to `LOOP_SIZE`."""
    size = max((each for each in options.sizes if each <= LOOP_SIZE), default=0)
    if size == 0:
        return
    options.say(f"sample: beside the device's own rebuild, {size:,} entries")
    stream = PowerLaw.of_sizes([size])
    growing = GrowingGraph(stream.read, device)
    growing.grow_to(size // 2)
    there = growing.graph.device
    csr = SortedCsr(stream.num_nodes, there)
    csr.insert(stream.read(0, growing.graph.num_events))
    ours, sorts = [], []
    for _ in range(2 if options.quick else 20):
        events = growing.read(MICRO)
        nodes = torch.cat([events.src, events.dst, events.src])[:CALL].to(there)
        t = torch.full_like(nodes, growing.graph.num_events + MICRO)
        sample = partial(recent_neighbors, growing.graph, nodes, t, K)
        ours.append(growing.append(events) + seconds_of(sample, growing.device))
        rebuilt = seconds_of(partial(csr.insert, events), growing.device)
        sorts.append(rebuilt + seconds_of(partial(csr.latest, nodes, K), growing.device))
        found = sample()
        for column, expected in zip((found.nodes, found.eid), csr.latest(nodes, K), strict=True):
            if not torch.equal(column, expected):
                raise RuntimeError("the device's own rebuild gives other neighbors")
    name = "update, then sample, over the device's own rebuild"
    params: Params = {"stream": "power law", "entries": size, "device": growing.device, "k": K}
    own_us, sort_us = (1e6 * median(each) for each in (ours, sorts))
    yield Row(name, own_us, "us/step", params, None, sort_us, TARGET)
