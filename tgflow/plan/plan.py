"""The plan: every batch as a pure function of (seed, epoch, index) and of a prefix of the log."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, get_args

import torch
from torch import Tensor

from tgflow.batch import Batch, BatchSlice, HostEvents, Share
from tgflow.choices import Strategy, Visibility
from tgflow.counts import Count
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device
from tgflow.describe import described
from tgflow.events import NO_EVENT, EventBatch
from tgflow.graph import TemporalGraph
from tgflow.keys import KeyDomain, derive_key
from tgflow.plan.assembly import PendingBatch, Roots, assemble, check_preparable, feature_inputs
from tgflow.plan.counts import CountHistory
from tgflow.plan.device import CapturedBatches, CopiedBatches, DeviceBatches, DevicePreparer
from tgflow.plan.host import HostPreparer, host_preparer
from tgflow.plan.negatives import Negatives, NegativeSampler, NegativeSource, PairHistory
from tgflow.plan.replay import ExperienceReplay
from tgflow.sampler import SamplerFunction
from tgflow.sampling import Frontier, Sampler
from tgflow.sampling.rows import check_samplable
from tgflow.schedule import rows_of_slice

if TYPE_CHECKING:
    from tgflow.model import TemporalModel


@described
class Plan:
    """Batches of consecutive events of a log, each with negatives, replay and neighborhoods.

    `batch(epoch, index)` reads nothing of the log past the batch's end, and draws nothing that is
    not keyed by (seed, epoch, index): whatever the order, the thread or the number of events that
    have been appended since, it returns the same tensors. Only the last batch, while it is partial,
    grows with the log.

    Batches are prepared where the graph is: those of a graph on a GPU are there, with the same
    contents to the last bit and with padding, see `Batch`.

    Args:
        graph: Graph whose log is planned; not modified, and may be appended to meanwhile.
        seed: Seeds every draw.
        batch_size: New events per batch, at least 1.
        fanouts: Neighbors per query and hop, from the roots down.
        strategy: Which neighbors are sampled: a name or a function; see `tgflow.Sampler`.
        span: Ticks: the width of strategy `window`, the half-life of `decayed`.
        visibility: `event`: a query sees all that is strictly earlier than its event. `batch`: of
            that, what had happened when its event's batch started, as in most published figures.
        negatives: How negatives are drawn.
        start: Log position of the first event of batch 0.
        stop: Log position after the last event. None grows with the log.
        only: Log positions of the only events to plan, int64 `[N]`, ascending; None: all of them.
            What they are predicted from is the graph of all events.
        replay: Past events to add to each batch, or None.
        with_memory: Whether the model reads node memory. If so the input rows are distinct (node,
            memory position) pairs, otherwise distinct nodes.
        with_nodes: Whether the model reads rows of nodes. Without, for models that read counts and
            the events alone, no frontier is made; see `Batch`.
        counts: What to count of the past of each pair that a batch scores: exactly, as of the time
            of its event and, with visibility `batch`, as of the start of its event's batch. The
            answers are in `Batch.counts`, in this order. They are of all events of the log, also of
            those that `TemporalGraph.retain` forgets as neighbors. A `CountHistory` of the graph
            may be shared by several plans, which saves memory.
        pairs: What negatives are drawn from, of the graph's log, to share it with other plans; None
            is one of its own.
        slices: How many slices a batch is cut into for `share`, at least 1.

    Raises:
        ValueError: If an argument is out of range, the graph's `node_x` has got rows of nodes that
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
        counts: Sequence[Count] | CountHistory = (),
        pairs: PairHistory | None = None,
        slices: int = 1,
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
        if start < 0 or (stop is not None and stop < start):
            raise ValueError(f"a plan needs 0 <= start <= stop, got start={start}, stop={stop}")
        graph.check_node_x()
        check_preparable(graph)
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
        self.pairs = PairHistory(graph.log) if pairs is None else pairs
        """What negatives are drawn from."""
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
        """Return a plan of the batches that a model reads.

        Fan-outs, strategy, counts, and whether memory and nodes are read, are the model's.

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
        """Return the number of batches that the log holds now, a last partial one included."""
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
        """Return the log positions [begin, end) that the new events of batch `index` are in.

        Raises:
            IndexError: If the log does not hold an event of that batch.
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
        """Makes whole batches by one call each; None where the core cannot."""
        return host_preparer(copy(self))  # not self: a circle would keep the graph's files open

    @cached_property
    def _device(self) -> DevicePreparer | None:
        """Makes batches on the graph's GPU; None where there is none."""
        return None if self.gpu is None else DevicePreparer(copy(self), self.gpu)

    def placed(self, roots: Roots) -> Roots:
        """Return roots where the graph is: as they are, or copied to a GPU."""
        return roots if self._device is None else self._device.placed(roots)

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of what was drawn, hop by hop, where the graph is."""
        return assemble(self, self.placed(roots)).gathered(self.graph)

    def batch(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return batch `index` as it is drawn in `epoch`, or slice `number` of it; see `share`.

        Safe to call from any number of threads. In host memory the tensors of a batch share one
        piece of memory, which is used again once the last of them is gone.

        On a GPU the work is queued on the current stream, and nothing waits for it; only features
        from a disk or from host memory are waited for.

        Raises:
            IndexError: If the log does not hold an event of that batch, or there is no such slice.
            OSError: If features cannot be read from a disk; a note says which.
            ValueError: If an event can have no negative, see `NegativeSampler`; or events have been
                deleted from the graph since, and the plan has `counts`.
        """
        if number is None and self._one_call is not None:
            return self._one_call.batch(epoch, index)
        return self.of_roots(self.draw(epoch, index, number))

    def pending(self, epoch: int, index: int, number: int | None = None) -> PendingBatch:
        """Return a batch or a slice before its features are read; raises as `batch`."""
        if number is None and self._one_call is not None:
            return self._one_call.pending(epoch, index)
        return assemble(self, self.placed(self.draw(epoch, index, number)))

    def share(self, epoch: int, index: int, wanted: range) -> Share:
        """Return some slices of a batch, of which the plan has `slices`.

        Slice `s` of a batch of `n` rows, new ones and then replayed ones, has the rows from
        `n * s // slices` up to `n * (s + 1) // slices`, with their negatives. It has a frontier and
        draws of its own: it is the same whoever prepares it, and whatever other slices are wanted.
        The slice of a plan with `slices=1` is the batch. Safe to call from any number of threads.

        Args:
            epoch: Of the batch.
            index: Of the batch.
            wanted: Numbers of slices next to each other, at least one.

        Raises:
            IndexError: If the log does not hold an event of that batch, or there is no such slice.
            OSError: As `batch`.
            ValueError: As `batch`.
        """
        return Share.of([self.batch(epoch, index, number) for number in wanted])

    def part(self, epoch: int, index: int, rows: slice, num_negatives: int | None = None) -> Batch:
        """Return some events of a batch, with its cut-offs, memory positions and negatives.

        So a batch of 200 events with 1,000 negatives each is scored in pieces that fit in memory:
        together they are what the whole would be, where neighbors are not drawn at random, which
        goes by the queries of a batch. Safe to call from any number of threads.

        Args:
            epoch: Of the batch.
            index: Of the batch.
            rows: Which of its events.
            num_negatives: How many negatives each, the first ones; None: all.

        Raises:
            IndexError: If the log does not hold an event of that batch.
            ValueError: As `batch`, or if the plan replays events.
        """
        if self.replay is not None:
            raise ValueError("a plan that replays events has no parts")
        num = self.negatives.num if num_negatives is None else num_negatives
        part = self._some_of(self._drawn(epoch, index), rows, num)
        return self.of_roots(self._with_counts(replace(part, num_new=len(part.host.eid))))

    def batches_on(self, gpu: Device, num_slabs: int, clock: WorkClock) -> DeviceBatches:
        """Return what makes the batches on a GPU for one pass: made there, or copied.

        Args:
            gpu: The graph's, or any for a graph in host memory.
            num_slabs: How many batches may be prepared by replays of a CUDA graph and not freed
                yet; a batch that is freed is written over. 0: none; nor is any where the host
                prepares batches, or has to read a table for them.
            clock: Adds up how long the stream is busy that batches are made on.
        """
        there = self._device
        if there is None:
            return CopiedBatches(copy(self), gpu, clock)
        in_reach = all(each.is_in_reach_of_a_gpu for each in feature_inputs(self.graph))
        if num_slabs and in_reach:
            return CapturedBatches(there, self, num_slabs, clock)
        return DeviceBatches(lambda *task: there.batch(self.draw(*task), clock))

    def draw(self, epoch: int, index: int, number: int | None = None) -> Roots:
        """Return what batch `index` asks about in `epoch`. Never waits for a device.

        Args:
            epoch: Of the batch.
            index: Of the batch.
            number: Of the slice that is drawn alone; None: the whole batch.

        Raises:
            IndexError: If the log does not hold an event of that batch, or there is no such slice.
            ValueError: If an event can have no negative; see `NegativeSampler`.
        """
        whole = self._drawn(epoch, index)
        return self._with_counts(whole if number is None else self._slice_of(whole, number))

    def _drawn(self, epoch: int, index: int) -> Roots:
        """Return what batch `index` asks about in `epoch`, before the past is counted."""
        begin, end = self.span(index)
        key = derive_key(self.seed, epoch, index)
        eid, num_new = self._positions(index, key, begin, end)
        events = self.graph.log.gather(eid)
        start = self._starts(eid, begin)
        negatives = self.negatives.draw(
            self.pairs,
            derive_key(key, KeyDomain.NEGATIVES),
            events.src,
            events.dst,
            start=start,
            stop=end,
        )
        return Roots(
            epoch=epoch,
            index=index,
            key=key,
            num_new=num_new,
            host=HostEvents(
                eid,
                events.src,
                events.dst,
                events.t,
                begin,
                end,
                negatives.mask,
                events.weight,
            ),
            negatives=negatives,
            queries=self._queries(events, negatives, start, begin),
        )

    def ask(self, src: Tensor, dst: Tensor, t: Tensor, as_of: Tensor) -> Roots:
        """Return what pairs ask about that no batch of the log has: as of any positions, any times.

        Each row is an event with its first destination, whose negatives are the others.

        Args:
            src: int64 `[B]`.
            dst: int64 `[B, 1 + m]`.
            t: Ticks, int64 `[B]`.
            as_of: Log positions, int64 `[B]`: what is before is seen.

        Raises:
            ValueError: If events have been deleted from the graph, and there are counts.
        """
        first, others = dst[:, 0].contiguous(), dst[:, 1:]
        own = src.unsqueeze(1).expand_as(others)
        begin, end = (int(as_of.min()), int(as_of.max())) if len(src) else (0, 0)
        negatives = Negatives(own, others, 0, own_sources=True)
        roots = Roots(
            epoch=0,
            index=0,
            key=self.seed,
            num_new=len(src),
            host=HostEvents(torch.full_like(src, NO_EVENT), src, first, t, begin, end),
            negatives=negatives,
            queries=self._queries(EventBatch(src, first, t), negatives, as_of, begin),
        )
        return self._with_counts(roots, as_of)

    def _with_counts(self, roots: Roots, limit: Tensor | None = None) -> Roots:
        """Add the answers of all counts, as of `limit` or else as each event sees the past."""
        if not self.counts.asked:
            return roots
        host, negatives = roots.host, roots.negatives
        if limit is None:
            limit = host.eid if self.sees_all_before else self._starts(host.eid, host.begin)
        counts = self.counts.answer(
            EventBatch.checked(src=host.src, dst=host.dst, t=host.t),
            None if negatives.own_sources else negatives.src,
            negatives.dst,
            limit=limit,
            stop=host.end,
        )
        return replace(roots, counts=counts)

    def _some_of(self, whole: Roots, rows: slice, num_negatives: int) -> Roots:
        """Return what some events of a batch ask about, by its key, before the past is counted."""
        host = whole.host
        eid, src, dst, t = (x[rows] for x in (host.eid, host.src, host.dst, host.t))
        weight = None if host.weight is None else host.weight[rows]
        negatives = whole.negatives.part(rows, num_negatives)
        start = self._starts(eid, host.begin)
        return replace(
            whole,
            host=HostEvents(eid, src, dst, t, host.begin, host.end, negatives.mask, weight),
            negatives=negatives,
            queries=self._queries(EventBatch(src, dst, t), negatives, start, host.begin),
        )

    def _slice_of(self, whole: Roots, number: int) -> Roots:
        """Return what a slice asks about, by a key of its own, before the past is counted."""
        if not 0 <= number < self.slices:
            raise IndexError(f"there is no slice {number}; a batch has {self.slices}")
        if self.slices == 1:
            return whole
        rows = rows_of_slice(number, self.slices, len(whole.host.eid))
        fallbacks = whole.negatives.num_fallbacks
        return replace(
            self._some_of(whole, slice(rows.start, rows.stop), self.negatives.num),
            key=derive_key(whole.key, KeyDomain.SLICE, number),
            num_new=min(max(whole.num_new - rows.start, 0), len(rows)),
            slice=BatchSlice(number, self.slices, whole.num_new, fallbacks, whole.host),
        )

    @property
    def gpu(self) -> Device | None:
        """The GPU that batches are made on, which the graph is on; None: made in host memory."""
        return self.graph.gpu

    @property
    def full_size(self) -> int:
        """Events of a batch that has all its new ones, and as many to replay as it may."""
        replay = 0 if self.replay is None else self.replay.num_events(self.batch_size)
        return self.batch_size + replay

    @property
    def sees_all_before(self) -> bool:
        """Whether a query sees all that is earlier than its event, of its own batch too."""
        return self.visibility == "event"

    def _positions(self, index: int, key: int, begin: int, end: int) -> tuple[Tensor, int]:
        """Return the events of a batch, and how many of them, the first ones, are new."""
        if self.only is not None:
            place = index * self.batch_size
            new = self.only[place : place + self.batch_size]
        else:
            new = torch.arange(begin, end)
        if self.replay is None:
            return new, len(new)
        drawn = self.replay.draw(derive_key(key, KeyDomain.REPLAY), begin, end - begin)
        return torch.cat([new, drawn]), len(new)

    def _starts(self, eid: Tensor, begin: int) -> Tensor:
        """Return the position at which the batch of each event started, int64 of `eid`'s shape."""
        if self.replay is None:  # all are of this batch
            return torch.full_like(eid, begin)
        size = self.batch_size
        index = torch.div(eid - self.start, size, rounding_mode="floor")
        return (self.start + index * size).clamp_(min=0)

    def _queries(
        self, events: EventBatch, negatives: Negatives, start: Tensor, begin: int
    ) -> Frontier:
        m, own_sources = negatives.dst.shape[1], negatives.own_sources
        columns = [events.src, events.dst, negatives.dst.reshape(-1)]
        if not own_sources:
            columns.append(negatives.src.reshape(-1))
        nodes = torch.cat(columns)
        if self.sees_all_before and not self.with_memory and self.with_nodes:
            position = torch.full_like(nodes, begin)
        else:
            position = _per_root(start, m, own_sources)
        t = _per_root(events.t, m, own_sources) if self.fanouts else torch.zeros_like(nodes)
        return Frontier(nodes, t, position)


def _per_root(column: Tensor, m: int, own_sources: bool) -> Tensor:
    """Repeat a column of the events for the roots: sources, destinations and `m` negatives each."""
    repeated = column if m == 1 else column.repeat_interleave(m)
    return torch.cat([column, column, repeated] + ([] if own_sources else [repeated]))
