"""The plan: every batch as a pure function of (seed, epoch, index) and of a prefix of the log."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from tgflow.batch import Batch, Share
from tgflow.choices import Visibility
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.plan.device import (
    CapturedBatches,
    CapturedPreparer,
    DeviceBatches,
    DevicePreparer,
    OwnedBatches,
)
from tgflow.plan.host import (
    CopyingPreparer,
    HostPreparer,
    SlabCopies,
    SlabPreparer,
    slab_preparer_of,
)
from tgflow.plan.negatives import NegativeSampler, NegativeSource
from tgflow.plan.pending import FeatureInput, PendingBatch, feature_inputs
from tgflow.plan.spec import PlanSpec

if TYPE_CHECKING:
    from tgflow.model import TemporalModel


class Plan(PlanSpec):
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

    @cached_property
    def preparer(self) -> HostPreparer | DevicePreparer:
        """What makes the batches where the graph is."""
        return preparer_of(copy(self))  # not self: a circle would keep the graph's files open

    @cached_property
    def _slabs(self) -> SlabPreparer | None:
        """What makes whole batches by one call each; None where the core cannot."""
        return slab_preparer_of(copy(self))

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
        if number is None and self._slabs is not None:
            return self._slabs.batch(epoch, index)
        return self.preparer.of_roots(self.draw(epoch, index, number))

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
        num = self.negatives.num if num_negatives is None else num_negatives
        return self.preparer.of_roots(self.draw_part(epoch, index, rows, num))

    def batches_on(self, gpu: Device, num_slabs: int, clock: WorkClock) -> DeviceBatches:
        """Return what makes the batches on a GPU for one pass: made there, or copied.

        Args:
            gpu: The graph's, or any for a graph in host memory.
            num_slabs: How many batches may be prepared by replays of a CUDA graph and not freed
                yet; a batch that is freed is written over. 0: none; nor is any where the host
                prepares batches, or has to read a table for them.
            clock: Adds up how long the stream is busy that batches are made on.
        """
        if self.gpu is None:
            copying = CopyingPreparer(self, gpu, clock)
            slabs = slab_preparer_of(copy(self), gpu.allocate_host)
            copies = None if slabs is None else SlabCopies(copy(self), slabs, copying, gpu, clock)

            def make(epoch: int, index: int, number: int | None = None) -> Batch:
                if number is None and copies is not None:
                    return copies.batch(epoch, index)
                return copying.of_roots(self.draw(epoch, index, number))

            return OwnedBatches(make)
        if num_slabs == 0 or not all(each.is_in_reach_of_a_gpu for each in self._inputs):
            eager = DevicePreparer(self, self.gpu)
            return OwnedBatches(lambda *task: eager.of_roots(self.draw(*task), clock))
        return CapturedBatches(self._captured, self, num_slabs, clock)

    @cached_property
    def _captured(self) -> CapturedPreparer:
        assert self.gpu is not None
        return CapturedPreparer(copy(self), self.gpu)

    @property
    def _inputs(self) -> list[FeatureInput]:
        return feature_inputs(self.graph)

    def pending(self, epoch: int, index: int, number: int | None = None) -> PendingBatch:
        """Return batch `index` of `epoch`, or slice `number` of it, before features are read.

        Raises:
            IndexError: If the log does not hold an event of that batch, or there is no such slice.
            ValueError: If an event can have no negative; see `NegativeSampler`.
        """
        if number is None and self._slabs is not None:
            return self._slabs.pending(epoch, index)
        return self.preparer.pending(self.draw(epoch, index, number))


def preparer_of(spec: PlanSpec) -> HostPreparer | DevicePreparer:
    """Return what prepares batches where the graph of `spec` is."""
    gpu = spec.graph.gpu
    return HostPreparer(spec) if gpu is None else DevicePreparer(spec, gpu)
