"""Ranks as threads of this process, and shards of a graph beside the whole graph."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar, get_args

import torch
from hypothesis import strategies as st

from tgflow import EventBatch, TemporalGraph
from tgflow.base.peers import Group, PeerLost, Peers, Shard, check_buffers, check_chunks
from tgflow.checkpoint import Checkpoint
from tgflow.nn import NodeMemory
from tgflow.ranks import ShardedMemory

Answer = TypeVar("Answer")
_PATIENCE = 20.0


class _Table:
    """Exchange buffers and barrier of one group of ranks."""

    def __init__(self, world):
        self.meeting = threading.Barrier(world)
        self.laid = [[] for _ in range(world)]

    def meet(self):
        try:
            self.meeting.wait(_PATIENCE)
        except threading.BrokenBarrierError:
            raise PeerLost("another rank has raised, or hangs") from None


class ThreadPeers(Peers):
    """A rank of `thread_peers`."""

    def __init__(self, rank, world, tables):
        super().__init__(Shard(rank, world))
        self._tables = tables

    def exchange(self, sends, receives, *, kind, group="train"):
        """Exchange buffers with all other ranks."""
        check_buffers(self, sends, receives)
        start, table = time.perf_counter(), self._tables[group]
        table.laid[self.rank] = list(sends)
        table.meet()
        for rank, buffer in enumerate(receives):
            sent = table.laid[rank][self.rank]
            assert sent.shape == buffer.shape, f"{rank} sent {len(sent)} bytes, not {len(buffer)}"
            buffer.copy_(sent)
        table.meet()
        others = sum(len(x) for rank, x in enumerate(sends) if rank != self.rank)
        self.traffic.count(kind, others, time.perf_counter() - start)

    def gather(self, mine, sizes, *, kind, group="train"):
        """Send the chunk to all, and concatenate the received chunks."""
        check_chunks(self, mine, sizes)
        whole = mine.new_empty(sum(sizes)).view(torch.uint8)
        parts = torch.split(whole, [size * mine.element_size() for size in sizes])
        sends = [mine.contiguous().view(torch.uint8)] * self.world
        self.exchange(sends, parts, kind=kind, group=group)
        return whole.view(mine.dtype)

    def broadcast(self, tensor, *, kind, group="train"):
        """Return the buffer broadcast by rank 0."""
        table = self._tables[group]
        table.laid[self.rank] = [tensor]
        table.meet()
        tensor.copy_(table.laid[0][0])
        table.meet()


def thread_peers(world):
    """Return the ranks of a world, each to be used by a thread of its own."""
    tables = {group: _Table(world) for group in get_args(Group)}
    return [ThreadPeers(rank, world, tables) for rank in range(world)]


def in_threads(world, work):
    """Return the results of `work` on each rank; raises the first error, if any."""
    world_peers = thread_peers(world)

    def run(rank):
        try:
            return work(world_peers[rank])
        except BaseException:
            for table in world_peers[rank]._tables.values():
                table.meeting.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(run, rank) for rank in range(world)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
        raise error
    return [future.result() for future in futures]


STRIDE = 19
"""Distance of node ids, so that every rank owns some of a few nodes."""
NUM_NODES = 7


def spread(nodes):
    """Map few small ids to ids of many partitions; padding is kept."""
    return torch.where(nodes >= 0, nodes * STRIDE, nodes)


def spread_events(events):
    """Return the events with node ids spread over all ranks."""
    return replace(events, src=spread(events.src), dst=spread(events.dst))


def with_sharded_memory(model, peers):
    """Return a model whose node memory, if any, is sharded to this rank."""
    if isinstance(model.state, NodeMemory):
        model.state = ShardedMemory(model.state, peers)
    return model


@dataclass(frozen=True, slots=True)
class OwnParts(Checkpoint):
    """A checkpoint without the partitions of other ranks."""

    own: Shard = field(default_factory=Shard)

    def put_part(self, name, part, make):
        if self.own.owner(part) == self.own.rank:
            Checkpoint.put_part(self, name, part, make)


def sections_of(trainer, shard):
    """Return the sections a trainer saves on this rank, except cache contents."""
    checkpoint = OwnParts({}, own=shard if trainer.is_spread else Shard())
    trainer.save_to(checkpoint)
    return {name: x for name, x in checkpoint.sections.items() if not name.startswith("cache_")}


def assert_sections(ranks, expected):
    """Check that the saved shards together equal the checkpoint of one process."""
    assert set().union(*ranks) == expected.keys()
    for found in ranks:
        for section, held in found.items():
            assert held.keys() == expected[section].keys()
            for name, tensor in held.items():
                assert torch.equal(tensor, expected[section][name]), (section, name)


@dataclass
class Growth:
    """Appends and mutations that can be applied to several graphs."""

    direction: str
    steps: list[tuple[str, int]]
    seed: int

    def grow(self, graph):
        """Apply all steps; return the counts of those that return one."""
        generator = torch.Generator().manual_seed(self.seed)
        clock, counted = 0, []
        for kind, size in self.steps:
            rows = torch.randint(0, NUM_NODES, (2, max(size, 1)), generator=generator)
            eid = torch.randint(0, max(graph.num_events, 1), (3,), generator=generator)
            if kind in ("append", "append_late"):
                start = clock - (size if kind == "append_late" else 0)
                steps = torch.randint(0, 2, (rows.shape[1],), generator=generator)
                src, dst = spread(rows)
                if self.direction == "bipartite":
                    dst = dst + STRIDE * NUM_NODES
                t = start + steps.cumsum(0)
                graph.append(EventBatch(src, dst, t, relation=src % 3), allow_late=True)
                clock = max(clock, int(t[-1]))
            elif graph.num_events == 0:
                continue
            elif kind == "delete":
                counted.append(graph.delete(eid))
            elif kind == "delete_node":
                counted.append(graph.delete_node(STRIDE * int(rows[0, 0])))
            elif kind == "delete_pair":
                counted.append(graph.delete_pair(*(STRIDE * rows[:, 0]).tolist()))
            elif kind == "retain":
                counted.append(graph.retain(max_count=size))
            else:
                graph.compact()
        return counted

    def whole(self, device="cpu"):
        """Return the whole graph."""
        graph = TemporalGraph(self.direction, device=device)
        self.grow(graph)
        return graph

    def shard(self, shard, device="cpu"):
        """Return the shard of a rank."""
        graph = TemporalGraph(self.direction, device=device, shard=shard)
        self.grow(graph)
        return graph


def growths():
    """Appends in order, with ties, and late; deletes, retention and compaction between them."""
    changes = ("delete", "delete_node", "delete_pair", "retain", "compact")
    kind = st.sampled_from(("append", "append", "append_late", *changes))
    return st.builds(
        Growth,
        st.sampled_from(("undirected", "directed", "bipartite")),
        st.lists(st.tuples(kind, st.integers(1, 20)), min_size=1, max_size=8).map(
            lambda steps: [("append", 20), *steps]
        ),
        st.integers(0, 2**16),
    )


def some_queries(size, end, seed):
    """Return nodes, unknown ones and padding too, times, and cut-offs of up to `end` events."""
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randint(-1, 2 * NUM_NODES + 2, (size,), generator=generator)
    t = torch.randint(-25, end + 3, (size,), generator=generator)
    return spread(nodes), t, torch.randint(0, end + 1, (size,), generator=generator)
