"""A growing temporal graph: event log, block store and features behind one append."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from operator import index
from os import PathLike, fspath
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from tgflow.base.choices import Direction, GraphPlacement
from tgflow.base.describe import described
from tgflow.base.peers import Shard
from tgflow.base.units import INT64_MAX, INT64_MIN, parse_bytes, seconds_per_tick
from tgflow.graph.events import COLUMNS, EventBatch, concat
from tgflow.graph.host import HostGraph
from tgflow.graph.log import EventLog, Horizon
from tgflow.graph.mutations import Changes, Kind, Mutation
from tgflow.graph.node_rows import NodeRows, mention_nodes
from tgflow.graph.query import relation_bits
from tgflow.graph.stats import GraphStats, graph_stats
from tgflow.graph.stream_state import PartedState, StreamState
from tgflow.graph.tables import FeatureTable
from tgflow.graph.tables.table import Table

if TYPE_CHECKING:
    from tgflow.cuda.device import Device
    from tgflow.graph.device import DeviceGraph
    from tgflow.graph.feature_scale import FeatureScale


def open_backend(
    direction: Direction,
    budget: int | None,
    device: str | torch.device | Device,
    shard: Shard,
    first: int = 0,
    folder: str | None = None,
) -> HostGraph | DeviceGraph:
    """Return an empty backend for a device; arguments as for `TemporalGraph`."""
    if isinstance(device, str | torch.device):
        kind = str(device).partition(":")[0]
        if kind not in ("cpu", "cuda"):
            raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {str(device)!r}")
        if kind == "cpu":
            return HostGraph(direction, budget, shard, first, folder)
    if folder is not None:
        raise ValueError(
            f"table='disk' requires a graph in host memory, got device={str(device)!r}; leave it "
            "out, and give device_budget to keep older neighbors in host memory"
        )
    from tgflow.cuda.device import device_of
    from tgflow.graph.device import DeviceGraph

    if isinstance(device, str | torch.device):
        device = device_of(torch.device(device))
    return DeviceGraph(direction, budget, device, shard, first)


LEAST_BUDGET = 4096


def edge_table(dim: int, table: Table | None) -> Table | None:
    """Return the table of edge features: the given one, or a new one; None without any."""
    if table is None:
        return FeatureTable(dim) if dim else None
    if dim not in (0, table.dim):
        raise ValueError(f"give edge_x or edge_x_dim: the table's width is {table.dim}, not {dim}")
    if table.dtype != torch.float32 or len(table) > 0:
        raise ValueError(
            f"edge_x must be an empty table of float32 rows, got {len(table)} rows of {table.dtype}"
        )
    return table


def width_of(table: Table | None) -> int:
    """Return the width of a table's rows, 0 without one."""
    return 0 if table is None else table.dim


def on_host(events: EventBatch) -> EventBatch:
    """Return the events with contiguous CPU columns; features stay on their device."""
    if not isinstance(events, EventBatch):
        text = "events must be a tgflow.EventBatch, such as EventBatch(src, dst, t), got"
        raise TypeError(f"{text} {type(events).__name__}")
    columns = {name: getattr(events, name) for name in COLUMNS}
    for name, column in columns.items():
        if name != "x" and column is not None:
            columns[name] = column.cpu().contiguous()
    return EventBatch.checked(**columns, new_nodes=events.new_nodes)


Answer = TypeVar("Answer")

_KEPT_BITS = 64


@described
class TemporalGraph:
    """Timed edges, and the neighbors of each node at any time.

    Any number of threads may sample and read while one appends: they see the graph as of
    `num_events`, the snapshot, which advances when an append is complete.

    With `device="cuda"` the neighborhoods are in the GPU's memory, and samplers take and return
    tensors there; the log stays on the host. Results are bit-identical.

    Args:
        direction: "undirected": both ends of an event are each other's neighbors, and a self-loop
            counts once. "directed": `dst` is a neighbor of `src` only. "bipartite": as undirected,
            and a node is a source or a destination but never both.
        edge_x_dim: Width of the events' features, 0 without; they are kept in host memory.
        time_unit: Unit of the events' times, one of `tgflow.base.units.UNITS`.
        edge_x: Instead of a width: an empty table for them, of float32 rows, in any placement.
        node_x: A table of the nodes' features, float32: row `i` is node `i`'s, and nodes beyond its
            end have zeros. Node `i` of a stream is the `i`-th to appear, whatever its original id:
            `tgflow.NodeFeatures` gives features by original ids. The table may be filled before and
            grow with the stream, by `append`, or by rows that come with events
            (`EventBatch.new_nodes`): a row must come before the first event with its node.
        device: "cpu", "cuda" or "cuda:1"; or any `tgflow.cuda.device.Device`.
        device_budget: Limit of recent blocks, in bytes or text such as "8GB"; beyond it the oldest
            ones move to host memory, and results stay the same. Memory that running samplers still
            read is released after them, so the budget may be exceeded until then. On the CPU both
            tiers are host memory, which emulates a GPU. None: no limit.
        shard: Store the neighbors of a rank's nodes only, `peers.shard`; the log is whole and fully
            checked. Deletes and the like count the neighbors stored here. For other ranks' nodes
            use `tgflow.ranks.sharded_sampling.ShardedSampler`. None: the neighbors of all nodes.
        feature_scale: Scales the features of events as they are appended, and, by
            another instance of its kind, those of nodes that come with events. None: no
            scaling.
        horizon: How much of the past batches see. None: all.
        first: Log position of the first event, where earlier ones were forgotten.
        table: "host", or "disk": neighbors, log and counts are in files, so that the system can
            drop what is rarely read from memory; results stay the same. The files have no names
            and end with the graph. After `os.fork` only one of both processes may use it.
        directory: Folder of the files, on a disk: /tmp is often memory. None: that of temporary
            files.

    Raises:
        CudaError: If the GPU cannot be used; the message contains the cause.
        OSError: If the directory cannot have files.
        TypeError: If the budget is neither a whole number nor text.
        ValueError: If an argument is invalid, or the budget is below 4 KB.

    Example:
        >>> graph = tg.TemporalGraph("directed")
        >>> graph.append(events)
        0
        >>> graph.num_events, graph.num_nodes
        (4, 4)
    """

    def __init__(
        self,
        direction: Direction = "undirected",
        edge_x_dim: int = 0,
        *,
        time_unit: str = "s",
        edge_x: Table | None = None,
        node_x: Table | None = None,
        device: str | torch.device | Device = "cpu",
        device_budget: int | str | None = None,
        shard: Shard | None = None,
        feature_scale: FeatureScale | None = None,
        horizon: Horizon | None = None,
        first: int = 0,
        table: GraphPlacement = "host",
        directory: str | PathLike[str] | None = None,
    ) -> None:
        self.time_unit = time_unit
        self.seconds_per_tick = seconds_per_tick(time_unit)
        if direction not in ("undirected", "directed", "bipartite"):
            raise ValueError(
                f"direction must be 'undirected', 'directed' or 'bipartite', got {direction!r}"
            )
        self.direction: Direction = direction
        self.device_budget = None if device_budget is None else parse_bytes(device_budget)
        if self.device_budget is not None and self.device_budget < LEAST_BUDGET:
            raise ValueError(
                f"device_budget must be at least {LEAST_BUDGET} bytes, got {device_budget!r}"
            )
        self.shard = Shard() if shard is None else shard
        """Shard of the nodes whose neighbors are stored."""
        if table not in ("host", "disk"):
            raise ValueError(f"table must be 'host' or 'disk', got {table!r}")
        folder = fspath(directory or gettempdir()) if table == "disk" else None
        self.backend = open_backend(
            direction, self.device_budget, device, self.shard, first, folder
        )
        """Store of the neighborhoods."""
        self.device = self.backend.device
        """Device of samplers' arguments and results."""
        self.gpu = self.backend.gpu
        """The GPU with the neighborhoods; None: host memory."""
        self.log = EventLog(self.backend.log)
        self.edge_x = edge_table(edge_x_dim, edge_x)
        self.feature_scale = feature_scale
        """Scales the features of appended events."""
        self.log.horizon = horizon
        self.forgotten = self._seen_from = first
        """Earlier events are not to be asked about."""
        self._of_nodes = None if node_x is None else NodeRows(node_x, self.log, feature_scale)
        self._writing = threading.Lock()
        self._changes = Changes()
        self.relation_bits = lru_cache(_KEPT_BITS)(relation_bits)
        """`query.relation_bits`, of which only the first call copies to a device."""

    @classmethod
    def from_events(
        cls, events: EventBatch, direction: Direction = "undirected", **options: Any
    ) -> TemporalGraph:
        """Return a graph of `events`, including their features; other arguments as the class."""
        graph = cls(direction, events.x_dim, **options)
        graph.append(events)
        return graph

    def _facts(self) -> dict[str, object]:
        return {
            "direction": self.direction,
            **self.log._facts(),
            "time_unit": self.time_unit,
            "edge_x_dim": width_of(self.edge_x),
            "node_x_dim": width_of(self.node_x),
            "device": str(self.device),
        }

    def check_time_unit(self, unit: str | None) -> None:
        """Raise ValueError if a stream's time unit differs from the graph's; None if unknown."""
        if unit is not None and seconds_per_tick(unit) != self.seconds_per_tick:
            raise ValueError(
                f"the stream's ticks are of unit {unit!r}, the graph's of {self.time_unit!r}; "
                f"create the graph with TemporalGraph(time_unit={unit!r})"
            )

    def append(self, events: EventBatch, *, allow_late: bool = False) -> int:
        """Add `events`, all or none of them, and return the first one's position.

        Args:
            events: Events in the order of their times.
            allow_late: Accept a batch that begins before the latest time so far: its events are
                appended to the log and merged into their nodes' pasts by time, visible to cut-offs
                from the batch's end on. Slow; a reorder buffer is the usual way.

        Raises:
            MemoryError: If a tier has no room; the message has the bytes requested.
            OSError: If the disk of `table="disk"` is full; the graph stays as it was.
            TypeError: If `events` is no `EventBatch`.
            ValueError: If a time is earlier than the one before it, a node id is too large, a node
                is on both sides of a bipartite graph, the optional columns differ from the
                graph's, or `node_x` has got rows for nodes that earlier events mentioned, or lacks
                those before rows that come with the events.
        """
        events = on_host(events)
        with self._writing, mention_nodes(self._of_nodes, events):
            dim = width_of(self.edge_x)
            if events.x_dim != dim and (len(events) or events.x is not None):
                raise ValueError(
                    f"the graph has edge features of width {dim}, the batch has {events.x_dim}; "
                    "create the graph with TemporalGraph(edge_x_dim=...)"
                )
            t_last = self.log.t_last
            if t_last is None or len(events) == 0 or int(events.t[0]) >= t_last:
                return self._append(events, allow_late)
            with self._changes.making():
                first = self._append(events, allow_late)
                self._changes.note(Mutation(first, "append_late", {"size": len(events)}))
            return first

    def _append(self, events: EventBatch, allow_late: bool) -> int:
        self.log.keep_columns(events)  # before any thread can read them
        if self.edge_x is None or events.x is None:
            return self.backend.append(events, allow_late)
        self.backend.check(events, allow_late)
        scale, x, known = self.feature_scale, events.x, None
        if scale is not None:
            x, known = scale.scaled(events.x)
        first_row = self.edge_x.append(x)  # before any thread can read them
        try:
            first = self.backend.append(events, allow_late)
        except BaseException:
            self.edge_x.truncate(first_row)
            raise
        if scale is not None:
            scale.keep(events.x, known)
        return first

    def delete(self, eid: Tensor) -> int:
        """Remove events from their nodes' neighborhoods; the log keeps its rows.

        As every change of the past, it is visible to cut-offs from the current `num_events` on;
        earlier cut-offs see the graph as it was, until `compact`. Readers see all of it or nothing.

        Args:
            eid: Log positions, int64 `[N]`. Events already deleted are skipped.

        Returns:
            Number of neighbors removed: two per event, one for self-loops and in directed graphs.

        Raises:
            IndexError: If the log does not hold one of the events.
            MemoryError: If there is no room for the changed blocks; nothing is changed then.
            ValueError: If `eid` has another dtype or shape.
        """
        if eid.dtype != torch.int64 or eid.dim() != 1:
            raise ValueError(f"eid must be int64 [N], got {eid.dtype} {list(eid.shape)}")
        eid = eid.cpu().contiguous().clone()
        return self._mutate("delete", lambda: self.backend.remove(eid), eid=eid)

    def delete_pair(self, src: int, dst: int) -> int:
        """Delete every event from `src` to `dst`, and back unless directed; as `delete`."""
        remove = self.backend.remove_pair
        return self._mutate("delete_pair", lambda: remove(src, dst), {"src": src, "dst": dst})

    def delete_node(self, node: int) -> int:
        """Delete every event of `node`; as `delete`. Reads the whole log."""

        def remove() -> int:
            events = self.log.read(first := self.log.first, len(self.log))
            own = max(-1, min(index(node), INT64_MAX))  # no text of a damaged checkpoint
            is_own = (events.src == own) | (events.dst == own)
            return self.backend.remove(first + is_own.nonzero().flatten())

        return self._mutate("delete_node", remove, {"node": node})

    def retain(self, *, max_age: int | None = None, max_count: int | None = None) -> int:
        """Remove old neighbors of every node, exactly; visible from `num_events` on, as `delete`.

        Args:
            max_age: Remove neighbors more ticks older than the latest event. None: no limit.
            max_count: Most neighbors kept per node, the latest ones. None: no limit.

        Returns:
            Number of neighbors removed.

        Raises:
            MemoryError: If there is no room for the changed blocks; nothing is changed then.
            ValueError: If neither or a negative one is given.
        """
        limits = [limit for limit in (max_age, max_count) if limit is not None]
        if not limits or min(limits) < 0:
            raise ValueError(
                "retain needs max_age or max_count, at least 0, "
                f"got max_age={max_age}, max_count={max_count}"
            )
        given = {"max_age": max_age, "max_count": max_count}
        arguments = {name: limit for name, limit in given.items() if limit is not None}
        return self._mutate("retain", lambda: self._retain(**arguments), arguments)

    def _retain(self, max_age: int | None = None, max_count: int = INT64_MAX) -> int:
        t_last = self.log.t_last
        if t_last is None:
            return 0
        min_t = INT64_MIN if max_age is None else max(INT64_MIN, t_last - max_age)
        return self.backend.retain(min_t, min(max_count, INT64_MAX))

    def compact(self) -> None:
        """Free memory: entries that only cut-offs before the latest changes see, and sparse chunks.

        An earlier cut-off then sees what the changes have left of its view; for a node with late
        events merged into its past, it sees nothing. Sampling continues concurrently; compaction
        waits for samplers that started before, on a GPU by streams and not on the host.

        Raises:
            MemoryError: If there is no room to move blocks to; no retained entry is lost.
        """
        self._mutate("compact", self.backend.compact)

    def forget(self, first: int) -> None:
        """Free the events before a log position; answers with `since` from there on stay the same.

        The log keeps part of a piece of them, and so do features of events. As `compact`, it waits
        for samplers that started before.

        Raises:
            IndexError: If the log does not hold `first`.
            MemoryError: If there is no room to move blocks to.
        """
        with self._writing, self._changes.making():
            self.log.late.forget(first)  # which orders them by the events, before these go
            log_first = self.log.forgettable(first)
            self.backend.forget(first, log_first)
            self.log.forget(log_first)
            self._changes.forget(log_first)
            if self.edge_x is not None:
                self.edge_x.forget(log_first)
            self.forgotten = first

    def forget_outside(self, position: int, states: Iterable[StreamState | None] = ()) -> None:
        """Free what batches that begin at `position` or later do not see, as `forget`.

        Events go once they are a fifth of what is seen: it takes a pass over all nodes.

        Args:
            position: Log position.
            states: Those of models; what they keep of nodes that have no later event is freed.
        """
        first = self.since(position)
        if first <= self._seen_from:
            return
        self._seen_from = first
        for state in states:  # now, as what they keep is saved
            if isinstance(state, PartedState):
                state.forget(first, self.log.native.since(first)[0])
        if 5 * (first - self.forgotten) >= max(position - first, 1):
            self.forget(first)

    @property
    def mutations(self) -> tuple[Mutation, ...]:
        """The changes of the past, from which, with the log, `rebuild` makes the graph.

        Of repeated cycles of `retain`, with the same arguments, and `compact` only the last two are
        kept: they remove all that the earlier ones did. So the record stays short, and `rebuild`
        needs memory for all events up to the first one kept.
        """
        return tuple(self._changes.noted)

    @property
    def last_change(self) -> Mutation | None:
        """The latest change of the past, None without any; waits for one in progress.

        Cut-offs from `Mutation.stop` on see all changes. While this is the same object, their view
        of the time before one that the log has reached stays the same, too.
        """
        return self._changes.last(self._writing)

    def _mutate(
        self,
        kind: Kind,
        make: Callable[[], Answer],
        arguments: dict[str, int] | None = None,
        eid: Tensor | None = None,
    ) -> Answer:
        with self._writing, self._changes.making():
            answer = make()
            self._changes.note(Mutation(len(self.log), kind, arguments or {}, eid))
            return answer

    @property
    def node_x(self) -> Table | None:
        """The table of node features, or None."""
        return None if self._of_nodes is None else self._of_nodes.table

    def node_rows(self, nodes: Tensor) -> Tensor:
        """Return the row in `node_x` of each of the log's `nodes`, int64 `[N]`; -1: none.

        The result does not change when the table grows.
        """
        return nodes if self._of_nodes is None else self._of_nodes.rows_of(nodes)

    @property
    def node_x_end(self) -> int | None:
        """The first node without a row of `node_x`, once events have mentioned it or a later one.

        None until then; afterwards it never changes.
        """
        return None if self._of_nodes is None else self._of_nodes.end

    def num_node_rows(self, position: int) -> int:
        """Return the number of rows of `node_x` that belong to the first `position` events.

        If rows come with events, those of the nodes of these events; else all.
        """
        return 0 if self._of_nodes is None else self._of_nodes.num_at(position)

    @property
    def node_scale(self) -> FeatureScale | None:
        """Scales the features of nodes that come with events."""
        return None if self._of_nodes is None else self._of_nodes.scale

    @node_scale.setter
    def node_scale(self, scale: FeatureScale | None) -> None:
        assert self._of_nodes is not None
        self._of_nodes.scale = scale

    def check_node_x(self) -> None:
        """Raise ValueError if rows of `node_x` came after events that mention their nodes."""
        if self._of_nodes is not None:
            self._of_nodes.check()

    @property
    def num_nodes(self) -> int:
        """The largest node id so far plus one."""
        return self.log.num_nodes

    @property
    def num_events(self) -> int:
        """Events in the current snapshot, which samplers see unless given an earlier `as_of`."""
        return self.backend.position

    @property
    def horizon(self) -> Horizon | None:
        """How much of the past batches see; None: all."""
        return self.log.horizon

    def since(self, position: int) -> int:
        """Return the first log position that a batch which begins at `position` sees."""
        return self.log.since(position)

    def horizon_at(self, position: int) -> Tensor | None:
        """Return the tick at which the horizon of a batch begins, int64 `[1]`; None without one."""
        if self.horizon is None:
            return None
        return torch.tensor(self.log.native.since(self.since(position))[:1])

    def reading(self) -> AbstractContextManager[None]:
        """Enclose replays of CUDA graphs in which samplers of this graph were captured.

        Does not wait for the device. On the current stream, the replays see all events appended
        before, and no memory that they read is reused while they run. Samplers that are called
        directly do not need it, and without a GPU it is a no-op. Capture with
        `capture_error_mode="thread_local"`: with PyTorch's default, "global", a concurrent append
        makes the capture fail. Sample once before the capture, since a kernel cannot be loaded
        within one.
        """
        return self.backend.reading()

    def stats(self) -> GraphStats:
        """Return the size of the block store. Waits for an append in progress."""
        return graph_stats(self.backend.stats(), 1 if self.device_budget is None else 2)


def rebuild(
    graph: TemporalGraph, pieces: Iterable[EventBatch], mutations: Iterable[Mutation]
) -> None:
    """Append the events of `pieces` to an empty `graph`; apply `mutations` at their positions.

    One piece is held at a time, except for late events, which are merged at once.

    Raises:
        MemoryError: As the graph's methods raise it.
        ValueError: If the mutations are not those of a graph with these events.
    """
    rest = _Rest(pieces)
    for number, mutation in enumerate(mutations):
        try:
            _make(graph, rest, mutation)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"mutation {number}, {mutation.kind!r} at position {mutation.position}, cannot be "
                f"made of these events: {error!r}"
            ) from error
    for part in rest.take(INT64_MAX):
        graph.append(part)


class _Rest:
    """Events that a graph does not have yet."""

    def __init__(self, pieces: Iterable[EventBatch]) -> None:
        self._pieces = iter(pieces)
        self._held: EventBatch | None = None

    def take(self, num: int) -> Iterator[EventBatch]:
        """Yield the next `num` events in parts; fewer at the end."""
        while num > 0:
            if not self._held:
                self._held = None  # released before the next one is read
                self._held = next(self._pieces, None)
            if self._held is None:
                return
            part, self._held = self._held[:num], self._held[num:]
            num -= len(part)
            yield part


def _make(graph: TemporalGraph, rest: _Rest, mutation: Mutation) -> None:
    start = len(graph.log)
    for part in rest.take(mutation.position - start):
        graph.append(part)
    if len(graph.log) != mutation.position:
        raise ValueError(f"its position must be from {start} to {len(graph.log)}")
    if mutation.kind == "append_late":
        size = mutation.arguments["size"]
        late = [*rest.take(size)]
        if not 0 < size == sum(map(len, late)):
            raise ValueError(f"its events would end at {mutation.position + size}")
        graph.append(concat(late), allow_late=True)
    elif mutation.eid is not None:
        graph.delete(mutation.eid)
    else:
        getattr(graph, mutation.kind)(**mutation.arguments)
