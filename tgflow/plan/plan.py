"""The plan: every batch as a pure function of (seed, epoch, index) and of a prefix of the log.

Batches are made in host memory, whole ones by one call of the native core, or on a GPU: by
kernels, by replaying CUDA graphs, or as copies.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor

from tgflow.base.choices import Strategy, Visibility
from tgflow.base.describe import described
from tgflow.base.keys import KeyDomain, derive_key
from tgflow.base.slice_schedule import rows_of_slice
from tgflow.base.units import INT64_MAX
from tgflow.cuda import frontier
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import CapturedWork, Device, StreamEvent
from tgflow.cuda.pinned import PinnedPool
from tgflow.graph import TemporalGraph
from tgflow.graph._native import NATIVE_STRATEGIES
from tgflow.graph.batch import Batch, BatchSlice, Block, HostEvents, Share
from tgflow.graph.cache import CachedTable, cache_of
from tgflow.graph.counts import Number
from tgflow.graph.events import NO_EVENT, NO_NODE, EventBatch
from tgflow.graph.host import HostGraph
from tgflow.graph.sampling import Frontier, Sampler
from tgflow.graph.sampling.expand import distinct
from tgflow.graph.sampling.hops import Hops, HopWalk, hop_by_hop, walk_here
from tgflow.graph.sampling.rows import check_samplable
from tgflow.graph.strategies import SamplerFunction
from tgflow.graph.tables import FeatureTable
from tgflow.graph.tables.row_view import RowView
from tgflow.graph.tables.table import Table
from tgflow.plan import _native
from tgflow.plan._native import Preparer, Slab, SlabPool, unique_events
from tgflow.plan.count_lookup import CountedPairs, CountHistory
from tgflow.plan.negatives import (
    Negatives,
    NegativeSampler,
    NegativesOfBoth,
    NegativeSource,
    PairHistory,
)
from tgflow.plan.padding import BatchShape, Padding, cut, paddings, rounded, shape_of
from tgflow.plan.replay import ExperienceReplay
from tgflow.plan.slot_lists import with_slot_lists

if TYPE_CHECKING:
    from tgflow.nn.model import TemporalModel


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some events of a batch with all their negatives, or all of them to be stored."""

    index: int
    """Index of the batch."""
    rows: slice | Tensor
    """Its events: rows of the batch, or their numbers, int64 `[N]`."""
    is_last: bool
    """Whether it completes the batch's scores."""
    is_stored: bool = False
    """Whether it is the batch to store: all events, one negative each, not scored."""


@described
class Plan:
    """Batches of consecutive events of a log, with negatives, replay and neighborhoods.

    `batch(epoch, index)` reads nothing of the log past the batch's end, and all its draws are
    keyed by (seed, epoch, index): it returns the same tensors in any order, on any thread, and
    after any number of later appends. Only the last batch, while it is partial,
    grows with the log.

    Batches are prepared on the graph's device: on a GPU with the same contents to the last bit
    and with padding, see `Batch`.

    Args:
        graph: Graph whose log is planned; not modified, and may be appended to concurrently.
        seed: Seeds every draw.
        batch_size: New events per batch, at least 1.
        fanouts: Neighbors per query and hop, from the roots down.
        strategy: Which neighbors are sampled: a name or a function; see `tgflow.Sampler`.
        span: Ticks: the width of strategy `window`, the half-life of `decayed`.
        visibility: `event`: a query sees all that is strictly earlier than its event. `batch`: of
            that, only events before the start of its event's batch, as in most published figures.
        negatives: How negatives are drawn.
        start: Log position of the first event of batch 0.
        stop: Log position after the last event. None grows with the log.
        only: Log positions of the only events to plan, int64 `[N]`, ascending; None: all of them.
            They are predicted from the graph of all events.
        replay: Past events to add to each batch, or None.
        with_memory: Whether the model reads node memory. If so the input rows are distinct (node,
            memory position) pairs, otherwise distinct nodes.
        with_nodes: Whether the model reads rows of nodes. Without, for models that read counts and
            the events alone, no frontier is made; see `Batch`.
        counts: Numbers of the past of each pair that a batch scores: exact, as of the time
            of its event and, with visibility `batch`, as of the start of its event's batch. They
            are in `Batch.counts`, in this order, and cover all events of the log, also those that
            `TemporalGraph.retain` removes as neighbors. A `CountHistory` of the graph
            may be shared by several plans, which saves memory.
        pairs: History of the graph's log to draw negatives from, to share it with other plans;
            None creates one.
        slices: Number of slices of a batch for `share`, at least 1.
        for_gradients: Whether batches on a GPU have the lists that gradients are summed by, see
            `Batch.src_lists`.
        slabs: Captured memory of batches on a GPU that is free, to share it with other plans of the
            graph, one after the other: they differ in nothing but `seed`, `start` and `stop`. None
            creates some.

    Raises:
        ValueError: If an argument is out of range, the graph's `node_x` has got rows for nodes that
            events mentioned before, events have been deleted from the graph and there are `counts`,
            or the graph is on a GPU and reads features through a cache
            with `policy="belady"`.

    Example:
        >>> plan = tg.Plan(
        ...     graph,
        ...     seed=0,
        ...     batch_size=2,
        ...     fanouts=[10],
        ...     strategy="recent",
        ...     visibility="event",
        ...     negatives=tg.plan.NegativeSampler(),
        ...     with_memory=True,
        ... )  # see `for_model` for the plan of a model
        >>> len(plan), plan.batch(epoch=0, index=1).src.tolist()
        (2, [0, 1])
    """

    def __init__(
        self,
        graph: TemporalGraph,
        *,
        seed: int,
        batch_size: int,
        fanouts: Sequence[int],
        strategy: Strategy | SamplerFunction,
        span: int | None = None,
        visibility: Visibility,
        negatives: NegativeSource,
        start: int = 0,
        stop: int | None = None,
        only: Tensor | None = None,
        replay: ExperienceReplay | None = None,
        with_memory: bool,
        with_nodes: bool = True,
        counts: Sequence[Number] | CountHistory = (),
        pairs: PairHistory | None = None,
        slices: int = 1,
        for_gradients: bool = False,
        slabs: Slabs | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 event, got {batch_size}")
        if any(k < 1 for k in fanouts):
            raise ValueError(f"fanouts must be at least 1 neighbor each, got {tuple(fanouts)}")
        if visibility not in get_args(Visibility):
            raise ValueError(f"visibility must be event or batch, got {visibility!r}")
        if slices < 1:
            raise ValueError(f"slices must be at least 1, got {slices}")
        if fanouts and not with_nodes:
            raise ValueError(
                f"fanouts are neighbors of nodes, got {tuple(fanouts)} with with_nodes=False: give "
                "none, or leave it out"
            )
        if only is not None and (replay is not None or start or stop is not None):
            raise ValueError("a plan of given events has neither start, stop nor replay")
        if getattr(negatives, "every", 1) > 1 and (only is not None or replay is not None):
            raise ValueError("negatives for one event of every few are for consecutive new events")
        if start < 0 or (stop is not None and stop < start):
            raise ValueError(f"a plan needs 0 <= start <= stop, got start={start}, stop={stop}")
        graph.check_node_x()
        for table in feature_inputs(graph):
            if graph.gpu is not None and table.planned_cache is not None:
                raise ValueError(
                    f'the cache of {table.name} has policy="belady", which is planned on the host, '
                    "but a GPU samples without returning ids to the host; the graph is on "
                    f'{graph.device}: use policy="lru", or TemporalGraph(device="cpu"), whose '
                    "batches are copied to the GPU"
                )
        self.graph = graph
        self.seed = seed
        self.batch_size = batch_size
        self.fanouts = tuple(fanouts)
        self.sampler = Sampler(strategy, span)
        check_samplable(graph, self.sampler)
        self.visibility = visibility
        self.negatives = negatives
        self.start = start
        self.stop = stop
        self.only = only
        self.replay = replay
        self.with_memory = with_memory
        self.with_nodes = with_nodes
        self.slices = slices
        self.for_gradients = for_gradients
        self.slabs = Slabs() if slabs is None else slabs
        self.pairs = PairHistory(graph.log, shard=graph.shard) if pairs is None else pairs
        """History that negatives are drawn from."""
        self.counts = counts if isinstance(counts, CountHistory) else CountHistory(graph, counts)
        if self.counts.graph is not graph:
            raise ValueError("counts must be of the plan's graph, got those of another graph")

    @classmethod
    def for_model(
        cls,
        model: TemporalModel,
        graph: TemporalGraph,
        *,
        batch_size: int = 200,
        seed: int = 0,
        visibility: Visibility = "event",
        negatives: NegativeSource | None = None,
        **options: Any,
    ) -> Self:
        """Return a plan of the batches that a model requires.

        Fan-outs, strategy, counts, memory and node features are taken from the model.

        Args:
            model: Model to train or to evaluate.
            graph: Graph whose log is planned.
            batch_size: New events per batch.
            seed: Seeds every draw.
            visibility: As in `Plan`.
            negatives: How negatives are drawn; None: one random destination per event.
            options: Other arguments of `Plan`, which override the model's.

        Example:
            >>> plan = tg.Plan.for_model(tg.TGN(), graph, batch_size=2)
            >>> plan.batch(epoch=0, index=0).src.tolist()
            [0, 1]
        """
        own = {
            "fanouts": model.fanouts,
            "strategy": model.strategy,
            "with_memory": model.state is not None,
            "with_nodes": model.reads_nodes,
            "counts": model.counts,
        }
        return cls(
            graph,
            seed=seed,
            batch_size=batch_size,
            visibility=visibility,
            negatives=NegativeSampler() if negatives is None else negatives,
            **own | options,
        )

    def __len__(self) -> int:
        """Return the number of batches that the log holds now, including a partial last one."""
        num_events = max(0, self._end() - self.start) if self.only is None else len(self.only)
        return (num_events + self.batch_size - 1) // self.batch_size

    def _facts(self) -> dict[str, object]:
        return {
            "num_batches": len(self),
            "batch_size": self.batch_size,
            "start": self.start,
            "stop": self._end(),
            "fanouts": self.fanouts,
            "sampler": self.sampler,
            "visibility": self.visibility,
            "negatives": self.negatives,
            "seed": self.seed,
        }

    def _end(self) -> int:
        end = self.graph.num_events
        return end if self.stop is None else min(end, self.stop)

    def span(self, index: int) -> tuple[int, int]:
        """Return the log positions [begin, end) of the new events of batch `index`.

        Raises:
            IndexError: If the log holds no event of that batch.
        """
        begin = self.start + index * self.batch_size
        last = self._end() if self.only is None else len(self.only)
        end = min(begin + self.batch_size, last)
        if index < 0 or begin >= end:
            raise IndexError(f"there is no batch {index}; the plan has {len(self)} batches now")
        if self.only is not None:
            return int(self.only[begin]), int(self.only[end - 1]) + 1
        return begin, end

    @cached_property
    def _one_call(self) -> HostPreparer | None:
        """Preparer of whole batches by one native call each; None where not supported."""
        return host_preparer(copy(self))  # not self: a cycle would keep the graph's files open

    @cached_property
    def _device(self) -> DevicePreparer | None:
        """Preparer of batches on the graph's GPU; None without one."""
        return None if self.gpu is None else DevicePreparer(copy(self), self.gpu)

    def placed(self, roots: Roots) -> Roots:
        """Return roots on the graph's device: unchanged, or copied to a GPU."""
        return roots if self._device is None else self._device.placed(roots)

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of drawn roots, hop by hop, on the graph's device."""
        return assemble(self, self.placed(roots)).gathered(self.graph)

    def batch(self, epoch: int, index: int, piece: int | BatchPart | None = None) -> Batch:
        """Return batch `index` of `epoch`, or a slice or part of it; see `draw` and `share`.

        Thread-safe. In host memory the tensors of a batch share one slab, which is reused once the
        last of them is freed.

        On a GPU the work is queued on the current stream without synchronizing; only features
        from a disk or from host memory are waited for.

        Raises:
            IndexError: If the log holds no event of that batch, or there is no such slice.
            OSError: If features cannot be read from a disk; a note contains the table.
            ValueError: If an event has no eligible negative, see `NegativeSampler`; or events have
                been deleted from the graph since, and the plan has `counts`.
        """
        if self._one_call is not None and not isinstance(piece, BatchPart):
            return self._one_call.batch(epoch, index, piece)
        return self.of_roots(self.draw(epoch, index, piece))

    def pending(self, epoch: int, index: int, piece: int | BatchPart | None = None) -> PendingBatch:
        """Return a batch, slice or part before its features are read; raises as `batch`."""
        if self._one_call is not None and not isinstance(piece, BatchPart):
            return self._one_call.pending(epoch, index, piece)
        return assemble(self, self.placed(self.draw(epoch, index, piece)))

    def share(self, epoch: int, index: int, wanted: range) -> Share:
        """Return some slices of a batch, of which the plan has `slices`.

        A slice has its share of the new rows and of the replayed ones, with their negatives; see
        `tgflow.base.slice_schedule`. It has a frontier and draws of its own, independent of the
        thread and of the other slices wanted.
        The slice of a plan with `slices=1` is the batch. Thread-safe.

        Args:
            epoch: Epoch of the batch.
            index: Index of the batch.
            wanted: Numbers of consecutive slices, at least one.

        Raises:
            IndexError: If the log holds no event of that batch, or there is no such slice.
            OSError: As `batch`.
            ValueError: As `batch`.
        """
        return Share.of([self.batch(epoch, index, number) for number in wanted])

    def part(
        self, epoch: int, index: int, rows: slice | Tensor, num_negatives: int | None = None
    ) -> Batch:
        """Return some events of a batch, with its cut-offs, memory positions and negatives.

        So a batch of 200 events with 1,000 negatives each is scored in parts that fit in memory.
        Together they equal the whole unless neighbors are drawn at random, since draws depend
        on the queries of a batch. Thread-safe.

        Args:
            epoch: Epoch of the batch.
            index: Index of the batch.
            rows: Slice of its events, or their numbers, int64 `[N]`.
            num_negatives: Number of negatives per event, the first ones; None: all, which
                `NegativeSampler(among_all=True)` makes all known destinations.

        Raises:
            IndexError: If the log holds no event of that batch.
            ValueError: As `batch`, or if the plan replays events.
        """
        return self.of_roots(self._with_counts(self._part_of(epoch, index, rows, num_negatives)))

    def parts(self, max_pairs: int, *, with_storing: bool) -> list[BatchPart]:
        """Return the parts of all batches in order, for tasks (epoch, part.index, part).

        Args:
            max_pairs: Pairs of nodes to score at once, the events' own included; a part has at
                least one event.
            with_storing: Whether a batch's parts are followed by the whole of it, to be stored.
        """
        found: list[BatchPart] = []
        for index in range(len(self)):
            begin, end = self.span(index)
            found += self.parts_of(index, torch.arange(end - begin), max_pairs)
            if with_storing:
                found.append(BatchPart(index, slice(0, end - begin), False, True))
        return found

    def parts_of(self, index: int, rows: Tensor, max_pairs: int) -> list[BatchPart]:
        """Return the parts of a batch that have some of its events, see `parts`.

        Args:
            index: Index of the batch.
            rows: Numbers of the events, int64 `[N]`.
            max_pairs: As in `parts`.
        """
        others = self._others(index)
        num = self.negatives.num if others is None else 1 + len(others)
        split = torch.split(rows, max(1, max_pairs // (1 + num))) if len(rows) else ()
        return [BatchPart(index, part, part is split[-1]) for part in split]

    def _others(self, index: int) -> Tensor | None:
        """Return the destinations that parts of a batch are ranked among, beside those drawn."""
        negatives = self.negatives
        if isinstance(negatives, NegativesOfBoth):
            negatives = negatives.first
        if not isinstance(negatives, NegativeSampler) or not negatives.among_all:
            return None
        return negatives.all_known(self.pairs, *self.span(index))

    def batches_on(self, gpu: Device, num_slabs: int, clock: WorkClock) -> MakeBatch:
        """Return a function that makes batches on a GPU for one pass: made there, or copied.

        Args:
            gpu: The graph's, or any for a graph in host memory.
            num_slabs: Most batches prepared by replaying a CUDA graph and not yet freed; a freed
                batch is overwritten. 0 replays none; nor is any replayed where the host
                prepares batches, or has to read a table for them.
            clock: Adds up the busy time of the stream that makes batches.
        """
        if self._device is None:
            return CopiedBatches(copy(self), gpu, clock).make
        in_reach = all(each.is_in_reach_of_a_gpu for each in feature_inputs(self.graph))
        return self._device.batches(num_slabs if in_reach else 0, clock)

    def draw(self, epoch: int, index: int, piece: int | BatchPart | None = None) -> Roots:
        """Return the queries of batch `index` in `epoch`. Never waits for a device.

        Without counts if the graph is a shard: `tgflow.ranks.sharded_counts` adds them.

        Args:
            epoch: Epoch of the batch.
            index: Index of the batch.
            piece: The slice, by its number, or part to draw; None: the whole batch.

        Raises:
            IndexError: If the log holds no event of that batch, or there is no such slice.
            ValueError: If an event has no eligible negative; see `NegativeSampler`.
        """
        if isinstance(piece, BatchPart):
            num = 1 if piece.is_stored else None
            return self._with_counts(self._part_of(epoch, index, piece.rows, num))
        whole = self._drawn(epoch, index)
        return self._with_counts(whole if piece is None else self._slice_of(whole, piece))

    def _drawn(self, epoch: int, index: int) -> Roots:
        """Return the queries of batch `index` in `epoch`, without counts."""
        begin, end = self.span(index)
        key = derive_key(self.seed, epoch, index)
        if self.only is not None:
            place = index * self.batch_size
            eid = self.only[place : place + self.batch_size]
        else:
            eid = torch.arange(begin, end)
        num_new = len(eid)
        if self.replay is not None:
            drawn = self.replay.draw(derive_key(key, KeyDomain.REPLAY), begin, end - begin)
            eid = torch.cat([eid, drawn])
        events, start = self.graph.log.gather(eid), self._starts(eid, begin)
        src, dst, cut = events.src, events.dst, start
        if getattr(self.negatives, "follows_visibility", False):
            limit = eid if self.sees_all_before else start
            cut = torch.minimum(limit, self.graph.log.positions(events.t))
        negatives = self.negatives.draw(
            self.pairs, derive_key(key, KeyDomain.NEGATIVES), src, dst, start=cut, stop=end
        )
        host = HostEvents(
            eid, src, dst, events.t, begin, end, negatives.mask, events.weight, events.relation
        )
        queries = self._queries(host, negatives, start)
        return Roots(epoch, index, key, num_new, host, negatives, queries)

    def ask(
        self, src: Tensor, dst: Tensor, t: Tensor, as_of: Tensor, relation: Tensor | None = None
    ) -> Roots:
        """Return the queries of pairs outside of the log, as of any positions and times.

        Each row is an event with its first destination, whose negatives are the others.

        Args:
            src: int64 `[B]`.
            dst: int64 `[B, 1 + m]`.
            t: Ticks, int64 `[B]`.
            as_of: Log positions, int64 `[B]`: earlier events are seen.
            relation: Relations, int64 `[B]`; None: the pairs have none.

        Raises:
            ValueError: If events have been deleted from the graph, and there are counts; or these
                are of relations, which the log has and the pairs have not.
        """
        if relation is None and self.counts.are_of_relations and self.graph.log.has_relations:
            raise ValueError(
                "the model counts events by relation: give the relation of each pair, relation=... "
                "(--relation)"
            )
        first, others = dst[:, 0].contiguous(), dst[:, 1:]
        begin, end = (int(as_of.min()), int(as_of.max())) if len(src) else (0, 0)
        own = for_each_negative(src, others.shape[1])
        negatives = Negatives(own, others, 0, own_sources=True)
        eid = torch.full_like(src, NO_EVENT)
        host = HostEvents(eid, src, first, t, begin, end, relation=relation)
        queries = self._queries(host, negatives, as_of)
        roots = Roots(0, 0, self.seed, len(src), host, negatives, queries)
        return self._with_counts(roots, as_of)

    def pairs_of(self, roots: Roots, limit: Tensor | None = None) -> CountedPairs:
        """Return the pairs to count, as of `limit` or else as each event sees the past."""
        host, negatives = roots.host, roots.negatives
        if limit is None:
            limit = host.eid if self.sees_all_before else self._starts(host.eid, host.begin)
        return CountedPairs(
            EventBatch.checked(src=host.src, dst=host.dst, t=host.t, relation=host.relation),
            None if negatives.own_sources else negatives.src,
            negatives.dst,
            limit,
            host.end,
        )

    def _with_counts(self, roots: Roots, limit: Tensor | None = None) -> Roots:
        """Add all counts, unless all ranks must ask for them together."""
        if not self.counts.asked or self.graph.shard.world > 1:
            return roots
        return replace(roots, counts=self.counts.answer(**self.pairs_of(roots, limit)._asdict()))

    def _part_of(
        self, epoch: int, index: int, rows: slice | Tensor, num_negatives: int | None
    ) -> Roots:
        if self.replay is not None:
            raise ValueError("a plan that replays events has no parts")
        others = self._others(index) if num_negatives is None else None
        part = self._some_of(self._drawn(epoch, index), rows, num_negatives, others)
        return replace(part, num_new=len(part.host.eid))

    def _some_of(
        self,
        whole: Roots,
        rows: slice | Tensor,
        num_negatives: int | None = None,
        others: Tensor | None = None,
    ) -> Roots:
        """Return the queries of some events of a batch, with its key, without counts."""
        host, negatives = whole.host, whole.negatives.part(rows, num_negatives)
        if others is not None:
            dst = host.dst[rows]
            negatives = negatives.followed_by(others, dst, self.pairs.are_alike(dst, others))
            if getattr(self.negatives, "filtered", False):
                are_false = ~self._are_true(host, rows, negatives.dst)
                assert negatives.mask is not None
                negatives = replace(negatives, mask=negatives.mask & are_false)
        host = host.part(rows)
        host = replace(host, negative_mask=negatives.mask)
        queries = self._queries(host, negatives, self._starts(host.eid, host.begin))
        return replace(whole, host=host, negatives=negatives, queries=queries)

    def _are_true(self, host: HostEvents, rows: slice | Tensor, nodes: Tensor) -> Tensor:
        """Return which `nodes`, `[B, N]`, are destinations at the time of an event, like its own.

        Those are the destinations of all the log's events with its source, relation and time.
        """
        src, t = host.src[rows, None], host.t[rows, None]
        if not len(t):
            return torch.zeros_like(nodes, dtype=torch.bool)
        log = self.graph.log
        events = log.read(log.position(int(t.min())), log.position(int(t.max()) + 1))
        are_alike = (events.t == t) & (events.src == src)
        if host.relation is not None:
            are_alike &= events.relation == host.relation[rows, None]
        return torch.stack(
            [torch.isin(x, events.dst[alike]) for x, alike in zip(nodes, are_alike, strict=True)]
        )

    def _slice_of(self, whole: Roots, number: int) -> Roots:
        """Return the queries of a slice, with a key of its own, without counts."""
        rows = self.rows_of_slice(number, whole.num_new, len(whole.host.eid))
        if rows is None:
            return whole
        fallbacks = whole.negatives.num_fallbacks
        return replace(
            self._some_of(whole, rows),
            key=derive_key(whole.key, KeyDomain.SLICE, number),
            num_new=int((rows < whole.num_new).sum()),
            slice=BatchSlice(number, self.slices, whole.num_new, fallbacks, whole.host),
        )

    def rows_of_slice(self, number: int | None, num_new: int, num_rows: int) -> Tensor | None:
        """Return the rows of a slice of a batch, int64; None: all of them.

        Raises:
            IndexError: If there is no such slice.
        """
        if number is not None and not 0 <= number < self.slices:
            raise IndexError(f"slice {number} is out of range; a batch has {self.slices}")
        if number is None or self.slices == 1:
            return None
        return rows_of_slice(number, self.slices, num_new, num_rows)

    @property
    def gpu(self) -> Device | None:
        """The GPU that makes batches, which holds the graph; None: host memory."""
        return self.graph.gpu

    @property
    def full_size(self) -> int:
        """Events of a full batch: all its new ones, and the most to replay."""
        replay = 0 if self.replay is None else self.replay.num_events(self.batch_size)
        return self.batch_size + replay

    @property
    def sees_all_before(self) -> bool:
        """Whether a query sees all that is earlier than its event, including its own batch."""
        return self.visibility == "event"

    def _starts(self, eid: Tensor, begin: int) -> Tensor:
        """Return the start position of each event's batch, int64 of `eid`'s shape."""
        if self.replay is None:  # all are of this batch
            return torch.full_like(eid, begin)
        size = self.batch_size
        index = torch.div(eid - self.start, size, rounding_mode="floor")
        return (self.start + index * size).clamp_(min=0)

    def _queries(self, host: HostEvents, negatives: Negatives, start: Tensor) -> Frontier:
        """Return the sources, destinations and negatives, each as of its event's `start`."""
        m, own_sources = negatives.dst.shape[1], negatives.own_sources

        def per_root(column: Tensor) -> Tensor:
            repeated = column if m == 1 else column.repeat_interleave(m)
            return torch.cat([column, column, repeated] + ([] if own_sources else [repeated]))

        drawn = [negatives.dst] if own_sources else [negatives.dst, negatives.src]
        nodes = torch.cat([host.src, host.dst, *(each.reshape(-1) for each in drawn)])
        if self.sees_all_before and not self.with_memory and self.with_nodes:
            position = torch.full_like(nodes, host.begin)
        else:
            position = per_root(start)
        t = per_root(host.t) if self.fanouts else torch.zeros_like(nodes)
        return Frontier(nodes, t, position)


Feature = Literal["edge_x", "node_x"]
"""A table of the graph that batches read rows of."""


@dataclass(frozen=True, slots=True, eq=False)
class Roots:
    """Queries of a batch: its events and negatives, drawn on the host, or copied to a GPU."""

    epoch: int
    index: int
    key: int
    """Key of the batch's draws."""
    num_new: int
    host: HostEvents
    negatives: Negatives
    queries: Frontier
    """The sources, the destinations and the negatives of all events, then the negatives' sources
    unless they are the events' own. Not deduplicated."""
    counts: Tensor | None = None
    """float64 `[B, 1 + m, C]`: the plan's counts, if it has any."""
    slice: BatchSlice | None = None
    """As `Batch.slice`."""
    columns: Mapping[str, Tensor] | None = None
    """The events' columns on a GPU; None: those of `host`."""
    begin: Tensor | None = None
    """On a GPU, `host.begin`, int64 `[1]`."""
    params: Tensor | None = None
    """On a GPU, int64 `[H, 3]`: parameters of each hop's sampler, see `hop_by_hop`."""

    @property
    def events(self) -> Mapping[str, Tensor]:
        """`eid`, `src`, `dst` and `t` of the events, on the batch's device."""
        host = self.host
        return self.columns or {"eid": host.eid, "src": host.src, "dst": host.dst, "t": host.t}

    def split(self, column: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the parts of a column of `queries`, as views."""
        num, m = self.negatives.dst.shape
        src, dst, rest = column.tensor_split((num, 2 * num))
        negative_dst = rest[: num * m].view(num, m)
        if self.negatives.own_sources:
            return src, dst, for_each_negative(src, m), negative_dst
        return src, dst, rest[num * m :].view(num, m), negative_dst


def for_each_negative(column: Tensor, m: int) -> Tensor:
    """Repeat each event's value for its negatives, `[B, m]`."""
    return column.unsqueeze(1).expand(-1, m)


def walk_of(plan: Plan, roots: Roots) -> HopWalk:
    """Return the hops of a batch, as a generator of `tgflow.graph.sampling.hops`."""
    if plan.with_nodes:
        top, rows = distinct(roots.queries, plan.gpu)
    else:
        rows = roots.queries.nodes.new_empty(0)
        top = Frontier(rows, rows)
    return hop_by_hop(
        plan.graph.seconds_per_tick, plan.gpu, top, plan.fanouts, rows=rows, key=roots.key,
        as_of=roots.host.end if plan.sees_all_before else None,
        by_time=False, by_position=plan.with_memory, params=roots.params,
    )  # fmt: skip


def assemble(plan: Plan, roots: Roots, hops: Hops | None = None) -> PendingBatch:
    """Return the batch of `roots` before its features are read. Does not synchronize."""
    if plan.counts.asked and roots.counts is None:
        raise ValueError(
            "counts of past events are sharded with the graph: ask all ranks together "
            "(tgflow.ranks.sharded_counts.AskingCounts), or make the graph without shard="
        )
    if hops is None:
        hops = walk_here(plan.graph, walk_of(plan, roots), plan.sampler)
    graph, inputs, events = plan.graph, hops.inputs, roots.events
    if plan.with_nodes:
        src_row, dst_row, negative_src_row, negative_dst_row = roots.split(hops.roots)
        position = _positions(roots, inputs, plan.with_memory)
    else:
        assert roots.queries.position is not None
        src_row = dst_row = hops.roots
        negative_src_row = negative_dst_row = hops.roots.view(0, roots.negatives.dst.shape[1])
        position = roots.queries.position[: len(roots.host.eid)]
    batch = Batch(
        epoch=roots.epoch,
        index=roots.index,
        num_new=roots.num_new,
        seconds_per_tick=graph.seconds_per_tick,
        eid=events["eid"],
        src=events["src"],
        dst=events["dst"],
        t=events["t"],
        host=roots.host,
        x=None,
        negative_src=roots.negatives.src,
        negative_dst=roots.negatives.dst,
        src_row=src_row,
        dst_row=dst_row,
        negative_src_row=negative_src_row,
        negative_dst_row=negative_dst_row,
        blocks=hops.blocks,
        nodes=inputs.nodes if inputs.num_used is None else inputs.nodes.clamp(min=0),
        position=position,
        counts=roots.counts,
        log_q=None if roots.negatives.log_q is None else roots.negatives.log_q.float(),
        num_fallbacks=roots.negatives.num_fallbacks,
        slice=roots.slice,
    )
    ids: dict[Feature, Tensor] = {}
    own_row, num_in_blocks = None, 0
    num_used = [each.num_used for each in hops.frontiers if each.num_used is not None]
    num_edges = torch.zeros_like(num_used[0]) if num_used else None
    if graph.edge_x is not None:
        found = distinct_events([*(block.eid for block in batch.blocks), batch.eid], plan.gpu)
        ids["edge_x"], (*rows, own_row), num_in_blocks, num_edges = found
        blocks = zip(batch.blocks, rows, strict=True)
        batch = replace(batch, blocks=tuple(replace(b, edge_row=row) for b, row in blocks))
    if graph.node_x is not None:
        ids["node_x"] = graph.node_rows(inputs.nodes)
    if num_used and num_edges is not None:
        batch = replace(batch, num_used=torch.stack([*num_used, num_edges]))
    if plan.for_gradients and plan.gpu is not None:
        batch = with_slot_lists(batch)
    return PendingBatch(batch, ids, num_in_blocks, own_row)


def _positions(roots: Roots, inputs: Frontier, with_memory: bool) -> Tensor:
    """Return the log position as of which each input row reads memory; padding: `begin`."""
    begin = roots.host.begin if roots.begin is None else roots.begin
    if inputs.position is None or not with_memory:
        if isinstance(begin, int):
            return torch.full_like(inputs.nodes, begin)
        return begin.expand_as(inputs.nodes).contiguous()
    if inputs.num_used is None:
        return inputs.position
    return torch.where(inputs.nodes == NO_NODE, begin, inputs.position)


def distinct_events(
    eids: list[Tensor], gpu: Device | None
) -> tuple[Tensor, list[Tensor], int, Tensor | None]:
    """As `_native.unique_events`, on any device; on a GPU blocks may also read padding."""
    if gpu is None:
        return *_native.unique_events(eids), None
    all_eids = torch.cat([eid.reshape(-1) for eid in eids])
    found, row, num_used = frontier.unique_events(gpu, all_eids)
    parts = zip(torch.split(row, [eid.numel() for eid in eids]), eids, strict=True)
    return found, [part.view(eid.shape) for part, eid in parts], len(found), num_used


@dataclass(frozen=True, slots=True, eq=False)
class PendingBatch:
    """A batch without features, and the ids of the rows it needs."""

    batch: Batch
    """The final batch, without `x`, `node_x` and the blocks' `edge_table`."""
    ids: dict[Feature, Tensor]
    """int64 ids of the rows to gather, per table of the graph, in one call.

    `edge_x`: -1 and then the distinct events, first the blocks', in order of first appearance, then
    the batch's own; on a GPU followed by -1 for every possible further event. `node_x`: the row of
    each of `nodes`, -1 for those that have none.
    """
    num_in_blocks: int = 0
    """Number of leading rows of `edge_x` that the blocks read; on a GPU all, an upper bound."""
    own_row: Tensor | None = None
    """int64 `[B]`: the row of each of the batch's own events in `edge_x`."""

    def with_features(self, rows: Mapping[Feature, Tensor]) -> Batch:
        """Return the batch with features, float32 `[len(ids), x_dim]` per given table."""
        node_x, edge_x = rows.get("node_x", self.batch.node_x), rows.get("edge_x")
        if edge_x is None or self.own_row is None:
            has_all = node_x is self.batch.node_x
            return self.batch if has_all else replace(self.batch, node_x=node_x)
        table, own_row = edge_x[: self.num_in_blocks], self.own_row
        is_here = edge_x.is_cpu
        return replace(
            self.batch,
            x=_native.gather_rows(edge_x, own_row) if is_here else edge_x.index_select(0, own_row),
            node_x=node_x,
            blocks=tuple(replace(block, edge_table=table) for block in self.batch.blocks),
        )

    def gathered(self, graph: TemporalGraph) -> Batch:
        """Return the batch with the rows of all remaining tables, gathered on its device."""
        tables = [each for each in feature_inputs(graph) if each.name in self.ids]
        return self.with_features({each.name: each.gather(self) for each in tables})

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        columns = [*self.ids.values(), *self.batch.tensors()]
        if self.own_row is not None:
            columns.append(self.own_row)
        return sum(column.nbytes for column in columns)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureInput:
    """A table of the graph."""

    name: Feature
    table: Table

    def gather(self, batch: PendingBatch) -> Tensor:
        """Return the rows that a batch needs from the table."""
        with self.error_context():
            return self.table.gather(batch.ids[self.name])

    def gather_base(self, ids: Tensor) -> Tensor:
        """Return the rows of `base_ids`, on their device."""
        with self.error_context():
            return self.base_table.gather(ids)

    @contextmanager
    def error_context(self) -> Iterator[None]:
        """Add the table's name to errors, as a note."""
        try:
            yield
        except Exception as error:
            error.add_note(f"{self.name} ({self.table.placement})")
            raise

    @property
    def base_table(self) -> Table:
        """The table or cache behind row selections."""
        table = self.table
        while isinstance(table, RowView):
            table = table.table
        return table

    def base_ids(self, batch: PendingBatch) -> Tensor:
        """Return the ids, also -1, of a batch's rows in a cache behind the table."""
        ids, table = batch.ids[self.name], self.table
        while isinstance(table, RowView):
            ids, table = table.ids_of(ids), table.table
        return ids

    def trace(self, batch: PendingBatch) -> Tensor:
        """Return the distinct `base_ids`, without -1, in order of first appearance."""
        ids = self.base_ids(batch).cpu()
        return ids[ids >= 0] if self.name == "edge_x" else unique_events([ids])[0][1:]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Enclose the replay of a captured `gather`, which is otherwise not tracked."""
        base, cache = self.table.base, cache_of(self.base_table)
        view = base.view if isinstance(base, FeatureTable) else None
        turn = nullcontext() if cache is None else cache.reading()
        with turn, nullcontext() if view is None else view.readers.reading():
            yield

    @property
    def is_in_reach_of_a_gpu(self) -> bool:
        """Whether kernels gather the rows by ids on a GPU without waiting for the host."""
        cache = cache_of(self.base_table)
        is_there = cache is None or cache.gpu is not None
        return is_there and self.table.placement in ("device", "uva")

    @property
    def planned_cache(self) -> CachedTable | None:
        """The cache in front of the table, if its policy is "belady"."""
        cache = cache_of(self.base_table)
        return cache if cache is not None and cache.policy == "belady" else None


def feature_inputs(graph: TemporalGraph) -> list[FeatureInput]:
    """Return the tables that batches of `graph` read."""
    named: dict[Feature, Table | None] = {"edge_x": graph.edge_x, "node_x": graph.node_x}
    return [FeatureInput(name, table) for name, table in named.items() if table is not None]


def check_unplanned(graph: TemporalGraph) -> None:
    """Raise ValueError if a feature cache needs known future accesses."""
    for table in feature_inputs(graph):
        if table.planned_cache is not None:
            raise ValueError(
                f'the cache of {table.name} has policy="belady", which plans for what comes next, '
                'and future accesses of a live stream are unknown; use policy="lru"'
            )


class BlockPlaces(NamedTuple):
    """Byte offsets of the columns of a `Block` in a slab; -1: no such column."""

    targets: int
    """Its rows, padding included."""
    target: int
    neighbor: int
    mask: int
    dt: int
    eid: int
    edge_row: int


class BatchPlaces(NamedTuple):
    """Byte offsets and row counts of a batch's columns in a slab; -1: no such column."""

    num_whole: int
    whole_eid: int
    whole_t: int
    whole_ends: int
    """Events of the whole batch, if this is a slice of it; else those below."""
    num_events: int
    num_new: int
    num_queries: int
    num_fallbacks: int
    """Fallbacks among the negatives of the whole batch."""
    eid: int
    t: int
    ends: int
    """Sources, destinations, negatives' destinations and, if they have their own, sources."""
    row: int
    """Row of each of those in the top frontier."""
    counts: int
    num_nodes: int
    nodes: int
    position: int
    num_edges: int
    """Rows of the edge table, padding included; number of them that the blocks read."""
    num_in_blocks: int
    own_row: int
    edge_ids: int
    """Ids of the edge table, where its rows are gathered separately."""
    edge_x: int
    x: int
    node_ids: int
    node_x: int

    @property
    def named(self) -> set[Feature]:
        """The tables of which the slab holds ids instead of rows."""
        named: set[Feature] = {"edge_x"} if self.edge_ids >= 0 else set()
        return named | {"node_x"} if self.node_ids >= 0 else named


@dataclass(frozen=True, slots=True, eq=False)
class FilledSlab:
    """A slab that holds a batch."""

    epoch: int
    index: int
    memory: Tensor
    """All bytes written, uint8."""
    host: HostEvents
    """The batch's events: a copy."""
    slice: BatchSlice | None
    at: BatchPlaces
    blocks: list[BlockPlaces]


class _Piece:
    """A buffer, uint8, whose views are columns."""

    def __init__(self, memory: Tensor) -> None:
        types = torch.int64, torch.float32, torch.float64, torch.bool
        self._typed = {dtype: memory.view(dtype) for dtype in types}

    def column(
        self, place: int, rows: int, width: int | None = None, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        """Return `[rows]` or `[rows, width]` at byte `place`."""
        typed = self._typed[dtype]
        start = place // typed.element_size()
        if width is None:
            return typed.as_strided((rows,), (1,), start)
        return typed.as_strided((rows, width), (width, 1), start)

    def features(self, place: int, rows: int, width: int) -> Tensor | None:
        """Return float32 `[rows, width]` at byte `place`; None where there are none."""
        return None if place < 0 else self.column(place, rows, width, torch.float32)

    def ends(self, place: int, at: BatchPlaces, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a column of sources, destinations, negatives' sources and destinations."""
        num = at.num_events
        src, dst = self.column(place, num), self.column(place + 8 * num, num)
        negative_dst = self.column(place + 16 * num, num, m)
        if at.num_queries == num * (2 + m):
            return src, dst, for_each_negative(src, m), negative_dst
        return src, dst, self.column(place + 8 * num * (2 + m), num, m), negative_dst


KEPT_SLABS = 8
"""Most unused slabs kept: enough for a loader's lookahead, some threads and consumers."""


def host_preparer(
    plan: Plan, allocate: Callable[[int], Tensor] | None = None
) -> HostPreparer | None:
    """Return the native preparer of a plan's batches; None where not supported."""
    graph, negatives = plan.graph, plan.negatives
    if not isinstance(graph.backend, HostGraph) or graph.shard.world > 1:
        return None  # kernels sample on a GPU; shards query other ranks at every hop
    if not isinstance(negatives, NegativeSampler) or callable(plan.sampler.strategy):
        return None  # negatives from outside the log; the core calls no Python
    return HostPreparer(plan, graph.backend, negatives, allocate)


class HostPreparer:
    """Prepares batches of a plan, or slices of them, in slabs; bit-identical to hop by hop."""

    def __init__(
        self,
        plan: Plan,
        backend: HostGraph,
        negatives: NegativeSampler,
        allocate: Callable[[int], Tensor] | None = None,
    ) -> None:
        self._plan, self._negatives = plan, negatives
        self.pool = SlabPool(KEPT_SLABS, allocate)
        """Pool of the slabs; counts them and their allocations."""
        self._native = Preparer(
            graph=backend.native,
            pairs=plan.pairs.upto(0).native,
            counts=plan.counts.native if plan.counts.asked else None,
            start=plan.start,
            batch_size=plan.batch_size,
            fanouts=list(plan.fanouts),
            strategy=NATIVE_STRATEGIES[plan.sampler.native_strategy],
            span=plan.sampler.span or 1,
            sees_all_before=plan.sees_all_before,
            with_memory=plan.with_memory,
            with_nodes=plan.with_nodes,
            seconds_per_tick=plan.graph.seconds_per_tick,
            num_negatives=negatives.num,
            draws_pairs=negatives.kind != "random",
            cut=-1 if negatives.cut is None else negatives.cut,
            pairs_from=negatives.pairs_from,
            collide=negatives.collide,
            replace=negatives.replace,
            half_life=1.0 if plan.replay is None else plan.replay.half_life,
        )

    def batch(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return a batch of the plan, or a slice of it, in host memory."""
        tables = {each.name for each in feature_inputs(self._plan.graph)}
        filled = self.fill(epoch, index, tables, number)
        pending = self.view(filled, filled.memory, is_here=True)
        return pending.gathered(self._plan.graph) if pending.ids else pending.batch

    def pending(self, epoch: int, index: int, number: int | None = None) -> PendingBatch:
        """Return a batch of the plan, or a slice of it, before its features are read."""
        filled = self.fill(epoch, index, (), number)
        return self.view(filled, filled.memory, is_here=True)

    def fill(
        self,
        epoch: int,
        index: int,
        gathered: Collection[Feature],
        number: int | None = None,
        *,
        is_padded: bool = False,
    ) -> FilledSlab:
        """Prepare a batch, or slice `number` of it, in a slab.

        With the rows of `gathered` tables that are in memory.
        """
        plan, graph = self._plan, self._plan.graph
        begin, end = plan.span(index)
        key = derive_key(plan.seed, epoch, index)
        if plan.counts.asked:
            plan.counts.check_deletions()
        plan.pairs.upto(self._negatives.limit(end), pairs=self._negatives.kind != "random")
        mask = self._negatives.mask(begin, end)
        only = None if plan.only is None else plan.only[index * plan.batch_size :]
        replay_begin, num_replay = begin, 0
        if plan.replay is not None:
            replay_begin, num_replay = plan.replay.begin(begin), plan.replay.num_events(end - begin)
        num_new = end - begin if only is None else min(plan.batch_size, len(only))
        rows = plan.rows_of_slice(number, num_new, num_new + min(num_replay, begin - replay_begin))
        own_key = key
        if rows is not None and number is not None:
            own_key = derive_key(key, KeyDomain.SLICE, number)
        tables: dict[Feature, Tensor | None] = {}  # after the span: rows of its events exist
        for each in feature_inputs(graph):
            if each.name in gathered and isinstance(each.table, FeatureTable):
                with each.error_context():
                    tables[each.name] = each.table.in_memory
        node_end = graph.node_x_end
        slab = Slab(self.pool)
        numbers = self._native.prepare(
            slab,
            negatives_key=derive_key(key, KeyDomain.NEGATIVES),
            replay_key=derive_key(key, KeyDomain.REPLAY),
            negative_mask=mask,
            hop_keys=[derive_key(own_key, KeyDomain.HOP + hop) for hop in range(len(plan.fanouts))],
            begin=begin,
            end=end,
            only=None if only is None else only[: plan.batch_size].contiguous(),
            replay_begin=replay_begin,
            num_replay=num_replay,
            reads_edges=graph.edge_x is not None,
            edge_x=tables.get("edge_x"),
            reads_nodes=graph.node_x is not None,
            node_x=tables.get("node_x"),
            node_end=INT64_MAX if node_end is None else node_end,
            is_padded=is_padded,
            rows=rows,
        )
        memory = torch.frombuffer(slab, dtype=torch.uint8)  # it and its views keep the slab alive
        size, step = len(BatchPlaces._fields), len(BlockPlaces._fields)
        at = BatchPlaces(*numbers[:size])
        starts = range(size, len(numbers), step)
        blocks = [BlockPlaces(*numbers[start : start + step]) for start in starts]
        num = at.num_whole
        # a copy: events outlive their batch, and would keep its slab alive
        ends = memory[: at.whole_ends + 16 * num].view(torch.int64).clone()
        places = at.whole_eid, at.whole_t, at.whole_ends, at.whole_ends + 8 * num
        eid, t, src, dst = (ends[place // 8 :][:num] for place in places)
        weight, relation = (graph.log.column(name, eid) for name in ("weight", "relation"))
        host, of = HostEvents(eid, src, dst, t, begin, end, mask, weight, relation), None
        if rows is not None and number is not None:
            of = BatchSlice(number, plan.slices, num_new, at.num_fallbacks, host)
            host = host.part(rows)
        return FilledSlab(epoch, index, memory, host, of, at, blocks)

    def view(self, filled: FilledSlab, memory: Tensor, *, is_here: bool) -> PendingBatch:
        """Return the batch as views of `memory`, the slab or a copy of it on any device."""
        plan, at, host = self._plan, filled.at, filled.host
        piece = _Piece(memory)
        num, m = at.num_events, plan.negatives.num
        src, dst, negative_src, negative_dst = piece.ends(at.ends, at, m)
        if at.row >= 0:
            src_row, dst_row, negative_src_row, negative_dst_row = piece.ends(at.row, at, m)
        else:  # no frontier
            src_row = dst_row = piece.column(0, 0)
            negative_src_row = negative_dst_row = piece.column(0, 0, m)
        eid, t = piece.column(at.eid, num), piece.column(at.t, num)
        if is_here:
            eid, src, dst, t = host.eid, host.src, host.dst, host.t
        counts, num_counts = None, len(plan.counts.asked)
        if num_counts:
            counts = piece.column(at.counts, num * (1 + m), num_counts, torch.float64)
            counts = counts.view(num, 1 + m, num_counts)
        widths = {each.name: each.table.dim for each in feature_inputs(plan.graph)}
        edge_dim = widths.get("edge_x", 0)
        edge_table = piece.features(at.edge_x, at.num_in_blocks, edge_dim)
        blocks = tuple(
            Block(
                target=piece.column(of.target, of.targets),
                neighbor=piece.column(of.neighbor, of.targets, k),
                mask=piece.column(of.mask, of.targets, k, torch.bool),
                dt=piece.column(of.dt, of.targets, k, torch.float32),
                eid=piece.column(of.eid, of.targets, k),
                edge_row=None if of.edge_row < 0 else piece.column(of.edge_row, of.targets, k),
                edge_table=edge_table,
            )
            for of, k in zip(filled.blocks, plan.fanouts, strict=True)
        )
        batch = Batch(
            epoch=filled.epoch,
            index=filled.index,
            num_new=at.num_new,
            seconds_per_tick=plan.graph.seconds_per_tick,
            eid=eid,
            src=src,
            dst=dst,
            t=t,
            host=host,
            x=piece.features(at.x, num, edge_dim),
            negative_src=negative_src,
            negative_dst=negative_dst,
            src_row=src_row,
            dst_row=dst_row,
            negative_src_row=negative_src_row,
            negative_dst_row=negative_dst_row,
            blocks=blocks,
            nodes=piece.column(at.nodes, at.num_nodes),
            position=piece.column(at.position, at.num_nodes if plan.with_nodes else num),
            node_x=piece.features(at.node_x, at.num_nodes, widths.get("node_x", 0)),
            counts=counts,
            num_fallbacks=at.num_fallbacks if filled.slice is None else 0,
            slice=filled.slice,
        )
        ids: dict[Feature, Tensor] = {}
        own_row = None
        if at.edge_ids >= 0:
            ids["edge_x"] = piece.column(at.edge_ids, at.num_edges)
            own_row = piece.column(at.own_row, num)
        if at.node_ids >= 0:
            ids["node_x"] = piece.column(at.node_ids, at.num_nodes)
        return PendingBatch(batch, ids, num_in_blocks=at.num_in_blocks, own_row=own_row)


class LentBatch(NamedTuple):
    """A batch on a GPU, and how to give back the memory that it was lent."""

    batch: Batch
    free: Callable[[], None] = lambda: None
    """Releases its memory after the current stream's work so far."""
    cuts: dict[tuple[int, ...], Batch] | None = None
    """Of a slab, which is overwritten once the batch is freed: results of `cut` so far, by size.
    None: the batch's tensors own their memory."""

    def cut(self, num_used: Sequence[int]) -> Batch:
        """Return the batch without rows beyond `Batch.num_used`, rounded up, as views."""
        now, cuts = self.batch, self.cuts
        size = tuple(map(rounded, num_used))
        if cuts is None or size not in cuts:
            shorter = cut(now, BatchShape.of_used(num_used).rounded())
            if cuts is None:
                return shorter
            cuts[size] = shorter.as_lent()
        return replace(
            cuts[size],
            epoch=now.epoch,
            index=now.index,
            num_new=now.num_new,
            host=now.host,
            num_fallbacks=now.num_fallbacks,
        )


MakeBatch = Callable[..., LentBatch]
"""Makes batch (epoch, index), or a slice or part of it; thread-safe."""

_PARAMS = 3
"""Parameters of a hop: cut-off of all queries, key of its draws, number of queries in use."""
_TWO_TO_63 = 1 << 63


@dataclass(slots=True, eq=False)
class _Captured:
    """Captured preparation of batches of one shape, in memory that later batches reuse."""

    node_x_end: int | None
    """`node_x_end` of the graph at capture, which determines the rows of node features."""
    roots: Tensor
    """int64 on the GPU: input of each replay."""
    batch: Batch
    """Output tensors of each replay."""
    work: CapturedWork
    cuts: dict[tuple[int, ...], Batch] = field(default_factory=dict)
    """As `LentBatch.cuts`."""
    freed: StreamEvent | None = None
    """Point after which nothing reads the previous batch."""


Slabs = deque[_Captured]
"""Slabs of batches that nothing uses."""


class DevicePreparer:
    """Prepares batches on a GPU, by kernels on the current stream; the host draws their roots.

    Roots are copied in one transfer from pinned memory without synchronizing: frontiers have
    their largest possible number of rows, unused ones being padding. Batches of full size can be
    replays of CUDA graphs, whose slabs outlive a pass, and the plan where others share them.
    """

    def __init__(self, plan: Plan, gpu: Device) -> None:
        self._plan, self._gpu = plan, gpu
        self._pinned = PinnedPool(gpu)
        self._free, plan.slabs = plan.slabs, Slabs()  # captured work may hold the plan: no cycle

    def placed(self, roots: Roots) -> Roots:
        """Return the roots with columns on the GPU, copied in one transfer."""
        with self._pinned.lend(8 * sum(self._sizes(roots))) as room:
            self._pack(roots, room)
            return self._unpack(roots, self._gpu.copy_from_host(room).view(torch.int64))

    def _sizes(self, roots: Roots) -> list[int]:
        """Return the lengths of the columns of roots, concatenated as int64."""
        num, num_queries = len(roots.host.eid), len(roots.queries)
        num_params = _PARAMS * len(self._plan.fanouts)
        sizes = [0 if x is None else x.numel() for x in (roots.counts, roots.negatives.log_q)]
        return [num, num, *[num_queries] * 3, *sizes, 1, num_params]

    def _pack(self, roots: Roots, room: Tensor) -> None:
        """Write the columns of roots to host memory, uint8."""
        plan, host, queries = self._plan, roots.host, roots.queries
        assert queries.position is not None
        limit = host.end if plan.sees_all_before else INT64_MAX
        keys = [derive_key(roots.key, KeyDomain.HOP + hop) for hop in range(len(plan.fanouts))]
        signed = [key - 2 * _TWO_TO_63 if key >= _TWO_TO_63 else key for key in keys]
        params = [word for key in signed for word in (limit, key, INT64_MAX)]
        columns = [host.eid, host.t, queries.nodes, queries.t, queries.position]
        for each in (roots.counts, roots.negatives.log_q):
            if each is not None:
                columns.append(each.double().view(torch.int64).flatten())
        words = torch.tensor([host.begin, *params])
        torch.cat([*columns, words], out=room.view(torch.int64))

    def _unpack(self, roots: Roots, words: Tensor) -> Roots:
        """Return `roots` with columns that are views of `words`, int64."""
        columns = torch.split(words, self._sizes(roots))
        eid, t, nodes, query_t, position, counts, log_q, begin, params = columns

        def floats(words: Tensor, like: Tensor | None) -> Tensor | None:
            return None if like is None else words.view(torch.float64).view(like.shape)

        src, dst, negative_src, negative_dst = roots.split(nodes)
        return replace(
            roots,
            columns={"eid": eid, "src": src, "dst": dst, "t": t},
            negatives=replace(
                roots.negatives,
                src=negative_src,
                dst=negative_dst,
                log_q=floats(log_q, roots.negatives.log_q),
            ),
            queries=Frontier(nodes, query_t, position),
            counts=floats(counts, roots.counts),
            begin=begin,
            params=params.view(-1, _PARAMS),
        )

    def batches(self, num_slabs: int, clock: WorkClock) -> MakeBatch:
        """Return a function that makes batches for one pass, with `num_slabs` slabs.

        All are captured before the first batch of full size.
        """
        plan, lock, num_used = self._plan, threading.Lock(), 0

        def make(*task: Any) -> LentBatch:
            nonlocal num_used
            roots = plan.draw(*task)
            is_full = len(task) == 2 and len(roots.host.eid) == plan.full_size
            with lock:
                slab = None
                if is_full and num_used < num_slabs:
                    if num_used + len(self._free) < num_slabs:  # the first of all
                        self._batch(roots, clock)  # compiles kernels, and allocates memory
                        while num_used + len(self._free) < num_slabs:
                            self._free.append(self._captured(roots))
                    slab = self._free.popleft()
                    num_used += 1
            if slab is None:
                return LentBatch(self._batch(roots, clock))
            replayed = self._replayed(roots, slab, clock)

            def free() -> None:
                nonlocal num_used
                replayed.freed = self._gpu.record_event()
                with lock:
                    num_used -= 1
                    self._free.append(replayed)

            return LentBatch(replayed.batch, free, replayed.cuts)

        return make

    def _batch(self, roots: Roots, clock: WorkClock) -> Batch:
        """Return the batch of drawn roots; waits only for features that the host reads."""
        graph = self._plan.graph
        with clock.measuring():
            pending = assemble(self._plan, self.placed(roots))
            if all(each.is_in_reach_of_a_gpu for each in feature_inputs(graph)):
                return pending.gathered(graph)
        return pending.gathered(graph)

    def _replayed(self, roots: Roots, slab: _Captured, clock: WorkClock) -> _Captured:
        """Return a slab that holds the batch of drawn roots; waits only during a capture."""
        graph = self._plan.graph
        if slab.freed is not None:
            self._gpu.wait_event(slab.freed)
        if slab.node_x_end != graph.node_x_end:
            slab = self._captured(roots)
        tables = {id(each.table.base): each for each in feature_inputs(graph)}
        with self._pinned.lend(slab.roots.nbytes) as room:
            self._pack(roots, room)
            with clock.measuring(), ExitStack() as reading:
                self._gpu.copy_from_host(room, out=slab.roots.view(torch.uint8))
                reading.enter_context(graph.backend.reading())
                for each in tables.values():
                    reading.enter_context(each.reading())
                slab.work.replay()
        slab.batch = replace(
            slab.batch,
            epoch=roots.epoch,
            index=roots.index,
            num_new=roots.num_new,
            host=roots.host,
            num_fallbacks=roots.negatives.num_fallbacks,
        )
        return slab

    def _captured(self, roots: Roots) -> _Captured:
        plan, size = self._plan, sum(self._sizes(roots))
        there = torch.zeros(size, dtype=torch.int64, device=self._gpu.device)
        placed = self._unpack(roots, there)
        made: list[Batch] = []

        def prepare() -> list[Tensor]:
            made.append(assemble(plan, placed).gathered(plan.graph))
            return made[-1].tensors()

        node_x_end, work = plan.graph.node_x_end, self._gpu.capture(prepare)
        return _Captured(node_x_end, there, made[0], work)


_ALIGNMENT = 256
"""Alignment of columns in bytes, as of torch's own allocations."""


class PinnedCopies:
    """Copies host columns to a GPU in one transfer on the current stream."""

    def __init__(self, gpu: Device, clock: WorkClock) -> None:
        self._gpu, self._clock = gpu, clock
        self._pinned = PinnedPool(gpu)

    def of(
        self, columns: Sequence[Tensor], longer: Mapping[int, Padding] | None = None
    ) -> dict[int, Tensor]:
        """Return copies on the GPU by the `id` of each column, contiguous; does not synchronize."""
        longer = {} if longer is None else longer
        shapes = [
            (longer[id(column)].rows if id(column) in longer else len(column), *column.shape[1:])
            for column in columns
        ]
        sizes = [c.element_size() * prod(shape) for c, shape in zip(columns, shapes, strict=True)]
        *begins, end = 0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)

        def parts(piece: Tensor) -> list[Tensor]:
            places = zip(columns, begins, sizes, shapes, strict=True)
            return [
                piece[begin : begin + size].view(column.dtype).view(shape)
                for column, begin, size, shape in places
            ]

        with self._pinned.lend(end) as room:
            for column, part in zip(columns, parts(room), strict=True):
                # numpy copies on this thread, where torch would start more
                values = part.numpy()
                values[: len(column)] = column.numpy()
                if id(column) in longer:
                    values[len(column) :] = longer[id(column)].fill
            with self._clock.measuring():
                there = self._gpu.copy_from_host(room)
        return {id(column): part for column, part in zip(columns, parts(there), strict=True)}

    def of_batch(self, batch: Batch) -> Batch:
        """Return a padded copy of a batch; does not synchronize."""
        copies = self.of(batch.tensors(), paddings(batch, shape_of(batch).rounded()))
        return batch.map(lambda column: copies[id(column)])


class CopiedBatches:
    """Prepares batches in host memory and copies them to a GPU, on the current stream.

    Whole batches are prepared in slabs of pinned memory, which are reused after their copies are
    done. Slices, parts, and batches with features on a disk, behind a host cache or of
    selected rows, are first packed in pinned memory. Rows that the GPU can read it gathers itself.
    """

    def __init__(self, plan: Plan, gpu: Device, clock: WorkClock) -> None:
        self._plan, self._gpu, self._clock = plan, gpu, clock
        self._copies = PinnedCopies(gpu, clock)
        inputs = feature_inputs(plan.graph)
        self._there = {each.name: each for each in inputs if each.is_in_reach_of_a_gpu}
        self._here = {each.name: each for each in inputs if not each.is_in_reach_of_a_gpu}
        has_views = any(isinstance(each.table, RowView) for each in inputs)
        self._slabs = None if has_views else host_preparer(plan, gpu.allocate_host)
        self._lock = threading.Lock()
        self._copied: deque[tuple[Tensor, StreamEvent]] = deque()
        """Slabs, and the event that ends their copies."""

    def make(self, epoch: int, index: int, *part: Any) -> LentBatch:
        """Return the padded batch on the GPU; waits for tables at most."""
        filled: FilledSlab | None = None
        if not part and self._slabs is not None:
            filled = self._slabs.fill(epoch, index, self._here, is_padded=True)
        if self._slabs is None or filled is None or filled.at.named & self._here.keys():
            return LentBatch(self.of_pending(self._plan.pending(epoch, index, *part)))
        with self._lock:
            while self._copied and self._copied[0][1].query():
                self._copied.popleft()
        with self._clock.measuring():
            there = self._gpu.copy_from_host(filled.memory)
        with self._lock:
            self._copied.append((filled.memory, self._gpu.record_event()))
        return LentBatch(self._completed(self._slabs.view(filled, there, is_here=False)))

    def of_pending(self, pending: PendingBatch) -> Batch:
        """Return a host batch on the GPU; waits for features that the host gathers."""
        batch = pending.with_features({n: each.gather(pending) for n, each in self._here.items()})
        ids = {name: each.base_ids(pending) for name, each in self._there.items()}
        shape = replace(shape_of(batch), edges=len(pending.ids.get("edge_x", ()))).rounded()
        longer = paddings(batch, shape)
        for name, column in ids.items():
            longer[id(column)] = Padding(shape.edges if name == "edge_x" else shape.nodes, -1)
        own_row = [] if pending.own_row is None else [pending.own_row]
        copies = self._copies.of([*batch.tensors(), *ids.values(), *own_row], longer)
        copied = PendingBatch(
            batch.map(lambda column: copies[id(column)]),
            {name: copies[id(column)] for name, column in ids.items()},
            shape.edges,
            None if pending.own_row is None else copies[id(pending.own_row)],
        )
        return self._completed(copied)

    def _completed(self, pending: PendingBatch) -> Batch:
        with self._clock.measuring():
            rows = {n: self._there[n].gather_base(ids) for n, ids in pending.ids.items()}
            batch = pending.with_features(rows) if rows else pending.batch
            return with_slot_lists(batch) if self._plan.for_gradients else batch
