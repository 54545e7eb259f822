"""A sharded memory reads the same bits as one of all nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.ranks import STRIDE, in_threads, spread
from tgflow.base.peers import Peers
from tgflow.base.slice_schedule import SliceSchedule
from tgflow.graph.batch import HostEvents, Share
from tgflow.nn.history import NODE, SINCE
from tgflow.nn.mail import Aggregator, store_mail
from tgflow.nn.memory import NodeMemory
from tgflow.nn.messages import Messages, NewEvents
from tgflow.ranks.memory import ShardedMemory, request_rows
from tgflow.ranks.parcel import exchange_parcels
from tgflow.ranks.reducer import MailRoutes

DIM, MAIL_DIM = 2, 3
SLICES = 4


@dataclass(frozen=True)
class MemoryStream:
    """Batches of events with self-loops, of nodes that appear in sequence."""

    sizes: Sequence[int]
    """New events of each batch."""
    replayed: int
    """Additional rows of each batch, which store nothing."""
    aggregator: Aggregator
    past: int
    """Events by which each batch reads back, and for which history is kept."""
    seed: int

    def begin(self, number):
        """Return the log position at which a batch begins."""
        return sum(self.sizes[:number])

    def share(self, number, numbers=range(SLICES)):
        """Return slices of a batch, with the events of the whole batch."""
        begin, num_new = self.begin(number), self.sizes[number]
        num_rows, end = num_new + self.replayed, begin + num_new
        draw = torch.Generator().manual_seed(self.seed + number)
        src, dst = spread(torch.randint(2 + 2 * number, (2, num_rows), generator=draw))
        dst[::3] = src[::3]
        eid = torch.arange(begin, begin + num_rows)
        host = HostEvents(eid, src, dst, 5 * eid, begin, end, torch.zeros(num_rows, 1).bool())
        return Share((), numbers, SLICES, 0, number, num_new, 0, host)

    def messages(self, share):
        """Return the messages of the new events of each slice, with distinct values."""
        found = {}
        for number in share.numbers:
            new = share.new_rows_of(number)
            row = torch.arange(2 * new.start, 2 * new.stop)
            value = ((1000 * share.index + row) / 7).unsqueeze(1)
            columns = value.repeat(1, DIM), row, value.repeat(1, MAIL_DIM).sqrt()
            found[number] = Messages(columns, 2, last_only=self.aggregator == "last")
        return found

    def queries(self, number, rank):
        """Return the queries of a rank in a micro-batch, possibly none."""
        begins = torch.tensor([self.begin(each) for each in range(number + 1)])
        oldest = int((begins >= begins[-1] - self.past).nonzero()[0])
        draw = torch.Generator().manual_seed(97 * self.seed + 11 * number + rank)
        found = []
        for size in (6, 0 if rank == 1 else 9):
            nodes = spread(torch.randint(4 + 2 * number, (size,), generator=draw))
            batch = torch.randint(oldest, number + 1, (size,), generator=draw)
            found.append(SimpleNamespace(nodes=nodes, position=begins[batch]))
        return found

    def store(self, memory, share, messages):
        """Store the messages of a batch."""
        events = NewEvents.of_host(share.host, share.num_new, torch.device("cpu"))
        store_mail(memory, events, messages, self.aggregator)


def memory_streams():
    """Short streams, with batches of one event and of fewer events than slices."""
    return st.builds(
        MemoryStream,
        st.lists(st.integers(1, 9), min_size=2, max_size=7),
        st.integers(0, 5),
        st.sampled_from(("last", "mean")),
        st.sampled_from((0, 3, 20, 100)),
        st.integers(0, 2**16),
    )


STREAM = MemoryStream([5, 9, 2, 7], 3, "last", 20, 4)


def sharded(peers, past):
    memory = ShardedMemory(NodeMemory(DIM, MAIL_DIM), peers)
    memory.keep_past(past)
    return memory


def sent_to_owners(peers, share, own):
    """Return the messages that this rank stores."""
    routes = MailRoutes(peers.shard, share, own)
    found = exchange_parcels(
        peers,
        "mail",
        share.index,
        [{str(i): x for i, x in enumerate(columns)} for columns in routes.sends()],
        [{str(i): spec for i, spec in enumerate(specs)} for specs in routes.specs()],
    )
    return routes.joined([[*each.values()] for each in found])


def own_slices(peers):
    return SliceSchedule(SLICES, peers.world).slices_of(peers.rank)


def read_by_owners(peers, stream, turn):
    """Read and store a stream, fetching `turn` micro-batches at once; return the read rows."""
    memory, reads = sharded(peers, stream.past), []
    ahead = []
    for number in range(len(stream.sizes)):
        if not ahead:
            numbers = range(number, min(number + turn, len(stream.sizes)))
            ahead = request_rows(peers, [stream.queries(each, peers.rank) for each in numbers])
        wanted = ahead.pop(0)
        for batch in stream.queries(number, peers.rank):
            memory.fetch(wanted)
            reads.append(memory.read(batch.nodes, batch.position))
        share = stream.share(number, own_slices(peers))
        stream.store(memory, share, sent_to_owners(peers, share, stream.messages(share)))
    return reads, memory


def read_alone(stream, world):
    """Return the rows each rank reads from an unsharded memory, and its final state."""
    memory, reads = NodeMemory(DIM, MAIL_DIM), [[] for _ in range(world)]
    memory.keep_past(stream.past)
    for number in range(len(stream.sizes)):
        for rank in range(world):
            for batch in stream.queries(number, rank):
                last = int(batch.nodes.max()) + 1 if len(batch.nodes) else 0
                with memory.covering(last):
                    reads[rank].append(memory.read(batch.nodes, batch.position))
        share = stream.share(number)
        stream.store(memory, share, Messages.joined([*stream.messages(share).values()]))
    return reads, memory


def assert_shard_of(found, whole, peers):
    """Check that a shard's state matches the unsharded memory for its nodes, with history."""
    shard = peers.shard
    state, expected = found.owned.state_dict(), whole.state_dict()
    assert found.num_nodes == whole.num_nodes
    nodes = shard.ids(torch.arange(len(state["clock"])))
    for name in ("rows", "clock"):
        assert torch.equal(state[name], expected[name][nodes])
    if whole.history is None:
        assert found.owned.history is None
        return
    origin = expected["history.origin"]
    owned = shard.owns(origin[:, NODE])
    for name in ("rows", "clock"):
        assert torch.equal(state[f"history.{name}"], expected[f"history.{name}"][owned])
    assert torch.equal(shard.ids(state["history.origin"][:, NODE]), origin[owned, NODE])
    assert torch.equal(state["history.origin"][:, SINCE], origin[owned, SINCE])
    assert torch.equal(state["history.events"], expected["history.events"])


@settings(max_examples=tries(150, 8), deadline=None)
@given(stream=memory_streams(), world=st.integers(1, 4), turn=st.integers(1, 8))
def test_sharded_memory_matches_replicated_memory(stream, world, turn):
    """Last and mean, replayed positions, nodes that appear later, self-loops, idle ranks."""
    expected, whole = read_alone(stream, world)
    found = in_threads(world, lambda peers: (peers, *read_by_owners(peers, stream, turn)))
    for peers, reads, memory in found:
        for one, other in zip(reads, expected[peers.rank], strict=True):
            assert torch.equal(one.state, other.state)
            assert torch.equal(one.clock, other.clock)
        assert_shard_of(memory, whole, peers)


def test_unfetched_rows_are_refused():
    memory = sharded(Peers(), 0)
    nodes, position = torch.tensor([STRIDE]), torch.tensor([0])
    with pytest.raises(ValueError, match="must be fetched before each micro-batch"):
        memory.read(nodes, position)
    memory.fetch(request_rows(Peers(), [STREAM.queries(0, 0)])[0])
    with pytest.raises(ValueError, match="node 999 is with rank 0, which was not asked for it"):
        memory.read(torch.tensor([999]), position)
    share = STREAM.share(0)
    STREAM.store(memory, share, Messages.joined([*STREAM.messages(share).values()]))
    with pytest.raises(ValueError, match="must be fetched"):
        memory.read(nodes, position)
