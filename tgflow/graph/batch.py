"""A batch for a model, and the slices of one that ranks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import accumulate, count
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.base.slice_schedule import new_rows_of_slice, rows_of_slice
from tgflow.cuda.pinned import uploaded

if TYPE_CHECKING:
    from tgflow.cuda.row_lists import RowLists


@dataclass(frozen=True, slots=True, eq=False)
class ReuseRecord:
    """Host-side description of a block's rows that are stored for reuse; see `ReusedRows`."""

    number: int
    """Number of the batch, counted across passes."""
    nodes: Tensor
    """int64 `[S]`: nodes of the targets whose rows are stored."""
    t: Tensor
    """int64 `[S]`: ticks."""
    slots: Tensor
    """int64 `[S]`: slots to store them in."""
    progress: tuple[int, ...]
    """State of the reuse decisions after this batch, to continue from."""


@described
@dataclass(frozen=True, slots=True, eq=False)
class ReusedRows:
    """Rows of a frontier that are read from a ring instead of computed as a block's targets.

    The frontier's rows are those of the block's targets, padding included, followed by the
    reused ones. Decided by `tgflow.plan.reuse`; implemented by `tgflow.nn.embedding_ring`.
    """

    slot: Tensor
    """int64 `[M]`: slots of the reused rows in the ring."""
    stored: Tensor
    """int64 `[S]`: slots of the ring to store the rows of the first `S` targets in."""
    weight: Tensor
    """float32 `[N]`: factors on the gradients of the targets' rows."""
    record: ReuseRecord


@described
@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One layer of message passing: from the frontier below to this layer's targets.

    A *frontier* is a list of distinct (node, time) pairs; the lowest one is a list of distinct
    (node, memory position) pairs, `Batch.nodes`. Missing neighbors have `mask` False, `eid` -1
    and zeros elsewhere, so every index is valid to gather with.
    """

    target: Tensor
    """int64 `[N]`: the row of each target in the frontier below."""
    neighbor: Tensor
    """int64 `[N, k]`: the row of each neighbor in the frontier below, newest first."""
    mask: Tensor
    """bool `[N, k]`: whether the slot holds a neighbor."""
    dt: Tensor
    """float32 `[N, k]`: seconds from the neighbor's event to the target's time, more than 0."""
    eid: Tensor
    """int64 `[N, k]`: the neighbor's event."""
    edge_row: Tensor | None = None
    """int64 `[N, k]`: the row of the event in `edge_table`, 0 where there is no event; or None."""
    edge_table: Tensor | None = None
    """float32 `[R, x_dim]`: features of the batch's distinct events, one table for all its blocks;
    row 0 is zeros. Project it before gathering by `edge_row`: events recur in a batch."""
    reused: ReusedRows | None = None
    """Rows of the frontier above that are not its targets, if training reuses some; or None."""
    target_lists: RowLists | None = None
    """The slots of `target` by row of the frontier below, see `Batch.src_lists`; or None."""
    neighbor_lists: RowLists | None = None
    """The same of `neighbor`, where `mask` is True; or None."""

    @property
    def edge_x(self) -> Tensor | None:
        """Features of the neighbors' events, float32 `[N, k, x_dim]`, zeros without one."""
        if self.edge_table is None or self.edge_row is None:
            return None
        rows = self.edge_table.index_select(0, self.edge_row.reshape(-1))
        return rows.reshape(*self.edge_row.shape, rows.shape[1])

    def parts(self, size: int) -> Iterator[Block]:
        """Yield blocks of at most `size` targets each, as views; a block without any yields itself.

        For models whose work per target needs much memory: in evaluation there may be many.
        """
        if len(self.target) <= size:
            yield self
            return
        for start in range(0, len(self.target), size):
            part = slice(start, start + size)
            columns: dict[str, Any] = {name: x[part] for name, x in _columns(self).items()}
            columns |= {"edge_table": self.edge_table}
            yield replace(self, **columns, target_lists=None, neighbor_lists=None)


@described
@dataclass(frozen=True, slots=True, eq=False)
class HostEvents:
    """The events of a batch in host memory, for decisions on the host.

    Reading them never waits for a device.
    """

    eid: Tensor
    """int64 `[B]`: log positions."""
    src: Tensor
    """int64 `[B]`."""
    dst: Tensor
    """int64 `[B]`."""
    t: Tensor
    """int64 `[B]`: ticks."""
    begin: int
    """Log position of the first new event: the state that the batch is predicted from."""
    end: int
    """Log position after the last new event."""
    negative_mask: Tensor | None = None
    """bool `[B, m]`: which slots hold negatives; None: all. Other slots are padding, the event
    itself, which metrics skip."""
    weight: Tensor | None = None
    """float32 `[B]`: weights of the events in the training loss; None: 1 each."""
    relation: Tensor | None = None
    """int64 `[B]`: relations of the events; None without."""

    def columns(self) -> dict[str, Tensor]:
        """Return the columns of events that a batch has: all but the mask."""
        return {name: x for name, x in _columns(self).items() if name != "negative_mask"}

    def part(self, rows: slice | Tensor) -> HostEvents:
        """Return some of the events, of the same batch."""
        columns = {name: column[rows] for name, column in _columns(self).items()}
        return replace(self, **columns)  # type: ignore[arg-type]


@described
@dataclass(frozen=True, slots=True, eq=False)
class BatchSlice:
    """Rows of a batch in one of its slices, and host-side facts about the whole batch."""

    number: int
    num_slices: int
    num_new: int
    """New events of the whole batch, which come first."""
    num_fallbacks: int
    """Fallbacks among the negatives of the whole batch."""
    host: HostEvents
    """The whole batch's events."""


class KeptTargets(NamedTuple):
    """Labels of `N` earlier events, and what the label decoder read when it predicted them."""

    values: Tensor
    """float16 `[N, width]`: see `tgflow.nn.label_decoder.LabelDecoder.inputs`."""
    past: Tensor
    """Integers `[N, 4, k]`."""
    label: Tensor
    """int64 `[N]`."""
    is_known: Tensor
    """bool `[N]`: whether a row is used; the others fill it up to a fixed size."""
    weight: Tensor
    """float32 `[N]`: weights of the events in the loss."""


@described
class Targets(NamedTuple):
    """Labels of a batch's events, for a task, and the earlier labels visible to each event."""

    label: Tensor
    """int64 `[B]`: the class of each event; to learn from and to measure, never to predict with."""
    is_known: Tensor
    """bool `[B]`: whether the label may be learned with the batch."""
    past: Tensor
    """int64 `[B, 4, k]`: classes of the latest earlier events, newest first, and -1 where
    there are none: events of the pair, of the reversed pair, from the source, and to the
    destination. All were visible before the event's time."""
    age: Tensor
    """float32 `[B, 4]`: log(1 + seconds) since the newest event of each list; 0 without any."""
    kept: KeptTargets | None = None
    """Labels of earlier events to learn with the batch, from inputs of then; or None."""
    host_past: Tensor | None = None
    """`past` in host memory, of stored events; or None."""


class LentMemory(NamedTuple):
    """Identifies the memory of a batch that later batches of its shape get."""

    number: int
    holders: tuple[Any, ...]
    """The fields of such a batch that hold tensors."""


class StepBatch:
    """Base class of what a step is taken on: a whole batch, or its slices that are computed here.

    Numbers, positions and host events are those of the whole.
    """

    __slots__ = ()
    epoch: int
    index: int
    num_new: int
    num_fallbacks: int
    host: HostEvents


@described
@dataclass(frozen=True, slots=True, eq=False)
class Batch(StepBatch):
    """Events to score, their negatives, and the temporal neighborhoods of all of them.

    A pure function of (seed, epoch, index) and of the event log up to the batch's end.
    Of `B` events the first `num_new` are new and the rest are replayed.

    In a plan `with_nodes=False` there is no frontier: `blocks` and `nodes` are empty, row
    columns have no entries, and `position` holds, per event, `[B]`, its batch's start.

    A slice of a batch is also a `Batch`, with some of its rows; its `host.begin` and `host.end`
    are those of the whole batch.

    On a GPU, which does not synchronize to count a frontier's rows, frontiers and the edge
    table may end in *padding*: extra rows that keep shapes constant. No row in use refers to
    them. A padding target has row 0 and no neighbors (`mask` False, `eid` -1, zeros elsewhere);
    a padding input row has node 0 as of `host.begin`, and zero features. Results for
    padding reach neither scores nor gradients nor state, so models can ignore it. Events
    are never padded.

    Example:
        >>> batch = plan.batch(epoch=0, index=1)
        >>> batch.eid.tolist(), batch.negative_dst.shape
        ([2, 3], torch.Size([2, 1]))
    """

    epoch: int
    """Epoch, a pass over the events, from 0."""
    index: int
    """Index of the batch in its epoch, from 0."""
    num_new: int
    """Number of new events, which come first; the rest is replayed."""
    seconds_per_tick: float
    """Length of a tick of the graph's time unit."""
    eid: Tensor
    """int64 `[B]`: log positions."""
    src: Tensor
    """int64 `[B]`."""
    dst: Tensor
    """int64 `[B]`."""
    t: Tensor
    """int64 `[B]`: ticks."""
    host: HostEvents
    """The same four columns in host memory, and the span of the new events. On the CPU they are
    the batch's own tensors; `to` does not move them."""
    x: Tensor | None
    """float32 `[B, x_dim]`: the events' own features: for storing, never for scoring."""
    negative_src: Tensor
    """int64 `[B, m]`: equal to `src` for random negatives, the pair's own source for the others."""
    negative_dst: Tensor
    """int64 `[B, m]`."""
    src_row: Tensor
    """int64 `[B]`: the row of (src, t) in the top frontier, which `blocks[0].target` lists."""
    dst_row: Tensor
    """int64 `[B]`."""
    negative_src_row: Tensor
    """int64 `[B, m]`."""
    negative_dst_row: Tensor
    """int64 `[B, m]`."""
    blocks: tuple[Block, ...]
    """From the roots down; `blocks[-1]` reads the input rows `nodes`."""
    nodes: Tensor
    """int64 `[U]`: the nodes whose inputs (memory, features) the lowest block reads."""
    position: Tensor
    """int64 `[U]`: log position as of which each node's memory is read."""
    since: Tensor | None = None
    """int64 `[1]`: the tick at which the horizon begins; older memory is not read. None: all is."""
    node_x: Tensor | None = None
    """float32 `[U, node_x_dim]`: features of `nodes`, zeros for a node without a row; or None."""
    counts: Tensor | None = None
    """`[B, 1 + m, C]`: the plan's `counts` of each event, `[:, 0]`, and of its negatives, float64,
    exact below 2^53, or float32 of `Plan(counts_dtype=...)`; None if it has none."""
    weight: Tensor | None = None
    """float32 `[B]`: weights of the events in the training loss; None: 1 each."""
    relation: Tensor | None = None
    """int64 `[B]`: relations of the events, also those of their negatives; None without."""
    log_q: Tensor | None = None
    """float32 `[B, m]`: the logarithm of the number of destinations that each negative stands for
    in a softmax, and -infinity for slots without a negative; None: 0, or as `negative_mask`."""
    num_fallbacks: int = 0
    """How many of the `B * m` negatives are of another kind than requested."""
    num_used: Tensor | None = None
    """int64 `[H + 2]`: rows in use of each block's targets, of `nodes` and of the edge table (0
    without one), where they were counted on a GPU without synchronizing; or None."""
    src_lists: RowLists | None = None
    """The slots of the sources of all pairs, `src_row` and then `negative_src_row`, by row of the
    top frontier: a GPU sums gradients by them. None: they are made where they are needed."""
    dst_lists: RowLists | None = None
    """The same of the destinations."""
    slice: BatchSlice | None = None
    """The slice of a batch that this is, if a plan has several; None: the whole batch."""
    targets: Targets | None = None
    """Labels added by a task, on the batch's device; None without a task. `to` and `map` do not
    change it: it is added last."""
    lent: LentMemory | None = None
    """Its memory, if a loader reuses it for later batches of its shape; or None."""

    def __len__(self) -> int:
        return len(self.eid)

    def _facts(self) -> dict[str, object]:
        return {
            "epoch": self.epoch,
            "index": self.index,
            "num_events": len(self),
            "num_new": self.num_new,
            "t": self.host.t,
            "num_negatives": self.negative_dst.shape[1],
            "num_nodes": len(self.nodes),
            "fanouts": tuple(block.mask.shape[1] for block in self.blocks),
        }

    @property
    def last_t(self) -> Tensor:
        """Time of the last new event, int64 `[1]`; for a slice, that of the whole batch.

        `[0]` without new events. Does not synchronize.
        """
        if self.slice is None:
            return self.t[self.num_new - 1 : self.num_new]
        last = self.slice.num_new - 1
        return uploaded([self.slice.host.t[last : last + 1]], self.t.device)[0]

    @property
    def negative_mask(self) -> Tensor | None:
        """Which slots hold negatives, if their number varies: see `HostEvents`."""
        return self.host.negative_mask

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return the batch with its tensors on `device`; tensors already there are not copied.

        Args:
            device: Target device.
            non_blocking: Whether a copy from pinned memory to a GPU may be asynchronous, on
                the current CUDA stream; otherwise this synchronizes.
        """
        device = torch.device(device)
        if all(column.device == device for column in self.tensors()):
            return self
        return self.map(lambda column: column.to(device, non_blocking=non_blocking))

    def tensors(self) -> list[Tensor]:
        """Return its tensors, each once even if fields share it, without those of `host`."""
        columns = [*_columns(self).values()]
        columns += (column for lists in _lists(self).values() for column in lists)
        for block in self.blocks:
            columns += _columns(block).values()
            columns += (column for lists in _lists(block).values() for column in lists)
            if block.reused is not None:
                columns += _columns(block.reused).values()
        return list({id(column): column for column in columns}.values())

    def map(self, copy: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with a copy of each of its `tensors`."""
        copies = {id(column): copy(column) for column in self.tensors()}

        def copied(part: Batch | Block | ReusedRows) -> dict[str, Any]:
            made: dict[str, Any] = {name: copies[id(x)] for name, x in _columns(part).items()}
            for name, lists in _lists(part).items():
                made[name] = type(lists)(*(copies[id(x)] for x in lists))
            return made

        def copied_block(block: Block) -> Block:
            reused = block.reused
            if reused is not None:
                reused = replace(reused, **copied(reused))
            return replace(block, **copied(block), reused=reused)

        blocks = tuple(copied_block(block) for block in self.blocks)
        return replace(self, blocks=blocks, lent=None, **copied(self))

    def as_lent(self) -> Batch:
        """Return the batch with `lent`: later ones get its memory."""
        return replace(self, lent=LentMemory(next(_numbers), _HOLDERS(self)))

    @property
    def memory(self) -> int | None:
        """Number of the memory that later batches of its shape get; None: all is its own."""
        lent = self.lent
        if lent is None or False in map(is_, _HOLDERS(self), lent.holders):
            return None
        return lent.number


def joined(batches: Sequence[Batch]) -> Batch:
    """Return one batch with the events of several: all new, of one plan, without reuse.

    Rows are not deduplicated across the batches, which have equal numbers of negatives and of
    neighbors. Facts about a pass are those of the first.
    """
    if len(batches) == 1:
        return batches[0]
    levels = [*zip(*(batch.blocks for batch in batches), strict=True)]
    frontiers = [[len(block.target) for block in level] for level in levels]
    frontiers.append([len(batch.nodes) for batch in batches])
    first_rows = [[0, *accumulate(sizes)] for sizes in frontiers]
    edges = [0]
    if levels and levels[0][0].edge_table is not None:
        edges += accumulate(len(block.edge_table) for block in levels[0])

    def column(parts: Sequence[Any], name: str, first_row: Sequence[int] = ()) -> Any:
        values = [getattr(part, name) for part in parts]
        if values[0] is None:
            return None
        if first_row:
            values = [x + row for x, row in zip(values, first_row, strict=False)]
        return torch.cat(values)

    edge_table = column(levels[0], "edge_table") if levels else None
    blocks = [
        Block(
            target=column(level, "target", below),
            neighbor=column(level, "neighbor", below),
            edge_row=column(level, "edge_row", edges),
            edge_table=edge_table,
            **{name: column(level, name) for name in ("mask", "dt", "eid")},
        )
        for level, below in zip(levels, first_rows[1:], strict=True)
    ]
    rows = ("src_row", "dst_row", "negative_src_row", "negative_dst_row")
    others = ("eid", "src", "dst", "t", "x", "negative_src", "negative_dst", "nodes", "position")
    host = [batch.host for batch in batches]
    return replace(
        batches[0],
        num_new=sum(batch.num_new for batch in batches),
        host=replace(host[0], **{name: column(host, name) for name in ("eid", "src", "dst", "t")}),
        blocks=tuple(blocks),
        num_used=None,
        src_lists=None,
        dst_lists=None,
        **{name: column(batches, name, first_rows[0]) for name in rows},
        **{
            name: column(batches, name)
            for name in (*others, "node_x", "counts", "weight", "relation")
        },
    )


@cache
def _fields_of(kind: type[Any], annotated: str) -> tuple[list[str], Callable[[Any], Any]]:
    """Return the fields of a dataclass of one type or None, and a function of all their values."""
    wanted = (annotated, f"{annotated} | None")
    names = [field.name for field in fields(kind) if field.type in wanted]
    return names, attrgetter(*names, "__class__", "__class__")  # a tuple of any number of fields


def _columns(part: Batch | Block | ReusedRows | HostEvents) -> dict[str, Tensor]:
    kind: Any = type(part)
    names, values = _fields_of(kind, "Tensor")
    return {n: x for n, x in zip(names, values(part), strict=False) if x is not None}


def _lists(part: Batch | Block | ReusedRows) -> dict[str, RowLists]:
    kind: Any = type(part)
    names, values = _fields_of(kind, "RowLists")
    return {n: x for n, x in zip(names, values(part), strict=False) if x is not None}


_numbers = count()
_HOLDERS = attrgetter(
    "blocks", *_fields_of(Batch, "Tensor")[0], *_fields_of(Batch, "RowLists")[0]
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Share(StepBatch):
    """Consecutive slices of a batch, and host-side facts about the whole batch."""

    slices: tuple[Batch, ...]
    """In order, at least one; if a batch has fewer rows than slices some are empty."""
    numbers: range
    """Numbers of `slices`."""
    num_slices: int
    """Number of slices of the whole batch."""
    epoch: int
    index: int
    num_new: int
    """New events of the whole batch; the rest of its rows is replayed."""
    num_fallbacks: int
    """As `Batch.num_fallbacks`, for the whole batch."""
    host: HostEvents
    """Events of the whole batch."""
    fetch: Callable[[], None] | None = None
    """Fetches what the slices read of a state that is sharded over ranks, see `SpreadState.ask`;
    call it before they are computed. None: nothing to fetch."""

    @classmethod
    def of(cls, slices: Sequence[Batch]) -> Self:
        """Return the share of consecutive slices of one batch, or of a batch as its only slice."""
        if not slices:
            raise ValueError("a share has at least one slice, got none")
        first = slices[0]
        whole: Batch | BatchSlice = first
        numbers, num_slices = range(1), 1
        if first.slice is not None:
            whole, start, num_slices = first.slice, first.slice.number, first.slice.num_slices
            numbers = range(start, start + len(slices))
        found = [(s.epoch, s.index, 0 if s.slice is None else s.slice.number) for s in slices]
        if found != [(first.epoch, first.index, number) for number in numbers]:
            raise ValueError(
                "a share has slices of one batch, next to each other; got those of "
                f"(epoch, index, number) {', '.join(map(str, found))}"
            )
        return cls(
            tuple(slices), numbers, num_slices, first.epoch, first.index,
            whole.num_new, whole.num_fallbacks, whole.host,
        )  # fmt: skip

    def __len__(self) -> int:
        """Return the number of rows of the whole batch."""
        return len(self.host.eid)

    def in_order(self, columns: Iterable[Tensor]) -> list[Tensor]:
        """Return columns of all slices, one slice after the other, in the order of the rows."""
        order, columns = self.rows_of(range(self.num_slices)).argsort(), [*columns]
        [place] = uploaded([order], columns[0].device)
        return [column.index_select(0, place) for column in columns]

    def rows_of(self, numbers: Iterable[int]) -> Tensor:
        """Return the rows of the whole batch in some slices, one slice after the other, int64.

        Slices outside of this share are allowed.
        """
        num = len(self)
        return torch.cat([rows_of_slice(n, self.num_slices, self.num_new, num) for n in numbers])

    def new_rows_of(self, number: int) -> range:
        """Return the rows of a slice that are new events."""
        return new_rows_of_slice(number, self.num_slices, self.num_new)

    def computed(self) -> Iterator[tuple[int, Batch]]:
        """Yield the numbers and slices of non-empty slices; the first one, if all are empty."""
        pairs = [*zip(self.numbers, self.slices, strict=True)]
        filled = [pair for pair in pairs if len(pair[1])]
        return iter(filled or pairs[:1])
