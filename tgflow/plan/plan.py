"""The plan: every batch as a pure function of (seed, epoch, index) and of a prefix of the log.

Batches are made in host memory, whole ones by one call of the native core, or on a GPU: by
kernels, by replaying CUDA graphs, or as copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, get_args

import torch
from torch import Tensor

from tgflow.base.choices import Strategy, Visibility
from tgflow.base.describe import described
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch
from tgflow.graph.counts import Number
from tgflow.graph.sampling import Sampler
from tgflow.graph.sampling.rows import check_samplable
from tgflow.graph.strategies import SamplerFunction
from tgflow.plan.assemble import PendingBatch, assemble, feature_inputs
from tgflow.plan.count_lookup import CountHistory
from tgflow.plan.device_preparer import (
    CopiedBatches,
    DevicePreparer,
    MakeBatches,
    Slots,
    WantedBatch,
    one_by_one,
)
from tgflow.plan.draws import BatchPart, Draws, Roots
from tgflow.plan.host_preparer import HostPreparer, host_preparer
from tgflow.plan.negatives import NegativeSampler, NegativeSource, PairHistory
from tgflow.plan.replay import ExperienceReplay

if TYPE_CHECKING:
    from tgflow.nn.model import TemporalModel


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
        counts_dtype: Type of `Batch.counts`, float64 or float32.
        pairs: History of the graph's log to draw negatives from, to share it with other plans;
            None creates one.
        slices: Number of slices of a batch, see `batch`, at least 1.
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
        ...     negatives=tg.plan.NegativeSampler(random=1),
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
        counts_dtype: torch.dtype = torch.float64,
        pairs: PairHistory | None = None,
        slices: int = 1,
        for_gradients: bool = False,
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
        if not isinstance(negatives, NegativeSource):
            raise TypeError(
                f"negatives= takes tgflow.plan.NegativeFunction(function, num), a NegativeSampler "
                f"or FixedNegatives, got {negatives!r}"
            )
        every = negatives.every if isinstance(negatives, NegativeSampler) else 1
        if every > 1 and (only is not None or replay is not None):
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
        counts = counts if isinstance(counts, CountHistory) else CountHistory(graph, counts)
        if counts.graph is not graph:
            raise ValueError("counts must be of the plan's graph, got those of another graph")
        sampler = Sampler(strategy, span)
        check_samplable(graph, sampler)
        self.draws = Draws(
            graph=graph,
            seed=seed,
            batch_size=batch_size,
            fanouts=tuple(fanouts),
            sampler=sampler,
            visibility=visibility,
            negatives=negatives,
            start=start,
            stop=stop,
            only=only,
            replay=replay,
            with_memory=with_memory,
            with_nodes=with_nodes,
            counts=counts,
            counts_dtype=counts_dtype,
            pairs=PairHistory(graph.log, shard=graph.shard) if pairs is None else pairs,
            slices=slices,
            for_gradients=for_gradients,
        )
        """Settings, and what they draw for each batch."""

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
            "counts_dtype": model.counts_dtype,
        }
        return cls(
            graph,
            seed=seed,
            batch_size=batch_size,
            visibility=visibility,
            negatives=NegativeSampler(random=1) if negatives is None else negatives,
            **own | options,
        )

    def __len__(self) -> int:
        """Return the number of batches that the log holds now, including a partial last one."""
        return len(self.draws)

    def _facts(self) -> dict[str, object]:
        draws = self.draws
        return {
            "num_batches": len(self),
            "batch_size": draws.batch_size,
            "start": draws.start,
            "stop": draws.end,
            "fanouts": draws.fanouts,
            "sampler": draws.sampler,
            "visibility": draws.visibility,
            "negatives": draws.negatives,
            "seed": draws.seed,
        }

    @property
    def graph(self) -> TemporalGraph:
        """The graph whose log is planned."""
        return self.draws.graph

    @property
    def gpu(self) -> Device | None:
        """The GPU that makes batches, which holds the graph; None: host memory."""
        return self.graph.gpu

    @property
    def batch_size(self) -> int:
        """New events per batch."""
        return self.draws.batch_size

    @cached_property
    def _one_call(self) -> HostPreparer | None:
        """Preparer of whole batches by one native call each; None where not supported."""
        return host_preparer(self.draws)

    @cached_property
    def _device(self) -> DevicePreparer | None:
        """Preparer of batches on the graph's GPU; None without one."""
        gpu = self.gpu
        return None if gpu is None else DevicePreparer(self.graph, gpu, Slots())

    def placed(self, roots: Roots) -> Roots:
        """Return roots on the graph's device: unchanged, or copied to a GPU."""
        return roots if self._device is None else self._device.placed(self.draws, roots)

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of drawn roots, hop by hop, on the graph's device."""
        return assemble(self.draws, self.placed(roots)).gathered(self.graph)

    def batch(self, epoch: int, index: int, piece: int | BatchPart | None = None) -> Batch:
        """Return batch `index` of `epoch`, or a slice or part of it, see `Draws.roots`.

        A slice has its share of the new rows and of the replayed ones, with their negatives, see
        `tgflow.base.slice_schedule`; it has a frontier and draws of its own, independent of the
        other slices.
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
        return self.of_roots(self.draws.roots(epoch, index, piece))

    def pending(self, epoch: int, index: int, piece: int | BatchPart | None = None) -> PendingBatch:
        """Return a batch, slice or part before its features are read; raises as `batch`."""
        if self._one_call is not None and not isinstance(piece, BatchPart):
            return self._one_call.pending(epoch, index, piece)
        return assemble(self.draws, self.placed(self.draws.roots(epoch, index, piece)))

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
                `NegativeSampler(random=1, among_all=True)` makes all known destinations.

        Raises:
            IndexError: If the log holds no event of that batch.
            ValueError: As `batch`, or if the plan replays events.
        """
        return self.of_roots(self.draws.part(epoch, index, rows, num_negatives))

    def parts(self, max_pairs: int, *, with_storing: bool) -> list[BatchPart]:
        """Return the parts of all batches in order, for tasks (epoch, part.index, part).

        Args:
            max_pairs: Pairs of nodes to score at once, the events' own included; a part has at
                least one event.
            with_storing: Whether a batch's parts are followed by the whole of it, to be stored.
        """
        found: list[BatchPart] = []
        for index in range(len(self)):
            begin, end = self.draws.span(index)
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
        others = self.draws.others(index)
        num = self.draws.negatives.num if others is None else 1 + len(others)
        split = torch.split(rows, max(1, max_pairs // (1 + num))) if len(rows) else ()
        return [BatchPart(index, part, part is split[-1]) for part in split]

    def asked(self, epoch: int, index: int, piece: int | BatchPart | None = None) -> WantedBatch:
        """Return what to make for a task."""
        return WantedBatch(self.draws, epoch, index, piece)

    def batches_on(self, gpu: Device, num_slots: int) -> MakeBatches:
        """Return a function that makes batches on a GPU for one pass: made there, or copied.

        Args:
            gpu: The graph's, or any for a graph in host memory.
            num_slots: How often batches are prepared by replaying a CUDA graph and not yet freed;
                freed ones are overwritten. 0 replays none; nor is any replayed where the host
                prepares batches, or has to read a table for them.
        """
        if self._device is None:
            return one_by_one(self.copies_on(gpu))
        return self._device.batches(num_slots, self.asked)

    def copies_on(self, gpu: Device) -> Callable[..., Batch]:
        """Return a function that makes batches in host memory and copies them to a GPU."""
        return CopiedBatches(self.draws, gpu, self.pending).make
