"""The plan: every batch as a pure function of (seed, epoch, index) and of a prefix of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

from tgflow.batch import Batch, HostEvents
from tgflow.choices import Strategy, Visibility
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.keys import KeyDomain, derive_key
from tgflow.plan.inputs import feature_inputs
from tgflow.plan.negatives import Negatives, NegativeSampler, PairHistory
from tgflow.plan.pending import PendingBatch, pending_batch
from tgflow.plan.replay import ExperienceReplay
from tgflow.sampling import Sampler
from tgflow.sampling.expand import Frontier, distinct
from tgflow.sampling.hops import descend


class Plan:
    """Batches of consecutive events of a log, each with negatives, replay and neighborhoods.

    `batch(epoch, index)` reads nothing of the log past the batch's end, and draws nothing that is
    not keyed by (seed, epoch, index): whatever the order, the thread or the number of events that
    have been appended since, it returns the same tensors. Only the last batch, while it is partial,
    grows with the log.

    Args:
        graph: Graph whose log is planned; not modified, and may be appended to meanwhile.
        seed: Seeds every draw.
        batch_size: New events per batch, at least 1.
        fanouts: Neighbors per query and hop, from the roots down.
        strategy: Which neighbors are sampled; see `tgflow.sampling.Sampler`.
        span: Ticks: the width of strategy `window`, the half-life of `decayed`.
        visibility: `event`: a query sees all that is strictly earlier than its event. `batch`: of
            that, what had happened when its event's batch started, as in most published figures.
        negatives: How negatives are drawn.
        start: Log position of the first event of batch 0.
        stop: Log position after the last event. None grows with the log.
        replay: Past events to add to each batch, or None.
        with_memory: Whether the model reads node memory. If so the input rows are distinct (node,
            memory position) pairs, otherwise distinct nodes.

    Raises:
        ValueError: If an argument is out of range, the graph is on a GPU, or its `node_x` has got
            rows of nodes that events mentioned before.
    """

    def __init__(
        self,
        graph: TemporalGraph,
        *,
        seed: int,
        batch_size: int,
        fanouts: Sequence[int],
        strategy: Strategy,
        span: int | None = None,
        visibility: Visibility,
        negatives: NegativeSampler,
        start: int = 0,
        stop: int | None = None,
        replay: ExperienceReplay | None = None,
        with_memory: bool,
    ) -> None:
        _check(batch_size, fanouts, visibility)
        if start < 0 or (stop is not None and stop < start):
            raise ValueError(f"a plan needs 0 <= start <= stop, got start={start}, stop={stop}")
        if graph.device.type != "cpu":
            raise ValueError(
                f"a plan prepares batches on the CPU, and the graph is on {graph.device}: training "
                "on a GPU graph is not there yet. Plan a TemporalGraph(device='cpu'), its default, "
                "and sample the one on the GPU with sample_hops"
            )
        graph.check_node_x()
        self.graph = graph
        self.seed = seed
        self.batch_size = batch_size
        self.fanouts = tuple(fanouts)
        self.sampler = Sampler(strategy, span)
        self.visibility = visibility
        self.negatives = negatives
        self.start = start
        self.stop = stop
        self.replay = replay
        self.with_memory = with_memory
        self._history = PairHistory(graph.log)

    def __len__(self) -> int:
        """Return the number of batches that the log holds now, a last partial one included."""
        num_events = max(0, self._end() - self.start)
        return (num_events + self.batch_size - 1) // self.batch_size

    def _end(self) -> int:
        end = self.graph.num_events
        return end if self.stop is None else min(end, self.stop)

    def span(self, index: int) -> tuple[int, int]:
        """Return the log positions [begin, end) of the new events of batch `index`.

        Raises:
            IndexError: If the log does not hold an event of that batch.
        """
        begin = self.start + index * self.batch_size
        end = min(begin + self.batch_size, self._end())
        if index < 0 or begin >= end:
            raise IndexError(f"there is no batch {index}; the plan has {len(self)} batches now")
        return begin, end

    def batch(self, epoch: int, index: int) -> Batch:
        """Return batch `index` as it is drawn in `epoch`. Safe to call from any number of threads.

        Raises:
            IndexError: If the log does not hold an event of that batch.
            OSError: If features cannot be read from a disk; a note says which.
            ValueError: If an event can have no negative; see `NegativeSampler`.
        """
        batch = self.pending(epoch, index)
        rows = {each.name: each.gather(batch) for each in feature_inputs(self.graph)}
        return batch.with_features(rows)

    def pending(self, epoch: int, index: int) -> PendingBatch:
        """Return batch `index` of `epoch` before features are read; see `PendingBatch`.

        Raises:
            IndexError: If the log does not hold an event of that batch.
            ValueError: If an event can have no negative; see `NegativeSampler`.
        """
        begin, end = self.span(index)
        batch_key = derive_key(self.seed, epoch, index)
        eid = self._positions(batch_key, begin, end)
        events = self.graph.log.gather(eid)
        start = self._starts(eid)
        negatives = self.negatives.draw(
            self._history,
            derive_key(batch_key, KeyDomain.NEGATIVES),
            events.src,
            events.dst,
            start=start,
            stop=end,
        )
        roots, rows = self._roots(events, negatives, start, begin)
        hops = descend(
            self.graph, roots, self.fanouts, sampler=self.sampler, key=batch_key,
            as_of=None if self.visibility == "batch" else end,
            by_time=False, by_position=self.with_memory,
        )  # fmt: skip
        nodes, position = hops.inputs.nodes, hops.inputs.position
        if position is None or not self.with_memory:
            position = torch.full_like(nodes, begin)
        batch = Batch(
            epoch=epoch,
            index=index,
            num_new=end - begin,
            seconds_per_tick=self.graph.seconds_per_tick,
            eid=eid,
            src=events.src,
            dst=events.dst,
            t=events.t,
            host=HostEvents(eid, events.src, events.dst, events.t, begin, end),
            x=None,
            negative_src=negatives.src,
            negative_dst=negatives.dst,
            **rows,
            blocks=hops.blocks,
            nodes=nodes,
            position=position,
            num_fallbacks=negatives.num_fallbacks,
        )
        graph = self.graph
        node_rows = None if graph.node_x is None else graph.node_rows(nodes)
        return pending_batch(batch, with_edges=graph.edge_x is not None, node_rows=node_rows)

    def _positions(self, batch_key: int, begin: int, end: int) -> Tensor:
        new = torch.arange(begin, end)
        if self.replay is None:
            return new
        drawn = self.replay.draw(derive_key(batch_key, KeyDomain.REPLAY), begin, end - begin)
        return torch.cat([new, drawn])

    def _starts(self, eid: Tensor) -> Tensor:
        """Return the position at which the batch of each event started, int64 of `eid`'s shape."""
        if self.replay is None:  # all are of this batch
            return eid[:1].expand_as(eid).contiguous()
        size = self.batch_size
        index = torch.div(eid - self.start, size, rounding_mode="floor")
        return (self.start + index * size).clamp_(min=0)

    def _roots(
        self, events: EventBatch, negatives: Negatives, start: Tensor, begin: int
    ) -> tuple[Frontier, dict[str, Tensor]]:
        """Return the distinct queries of the events and negatives, and the rows of each."""
        own_sources = self.negatives.kind == "random"
        num, m = negatives.dst.shape
        columns = [events.src, events.dst, negatives.dst.reshape(-1)]
        if not own_sources:
            columns.append(negatives.src.reshape(-1))
        if self.visibility == "event" and not self.with_memory:
            start = torch.full_like(start, begin)
        t = events.t if self.fanouts else torch.zeros_like(events.t)
        frontier, row = distinct(
            Frontier(
                torch.cat(columns), _per_root(t, m, own_sources), _per_root(start, m, own_sources)
            )
        )
        src_row, dst_row, rest = row[:num], row[num : 2 * num], row[2 * num :].reshape(-1, num, m)
        return frontier, {
            "src_row": src_row,
            "dst_row": dst_row,
            "negative_src_row": src_row.unsqueeze(1).expand(-1, m) if own_sources else rest[1],
            "negative_dst_row": rest[0],
        }


def _per_root(column: Tensor, m: int, own_sources: bool) -> Tensor:
    """Repeat a column of the events for the roots: sources, destinations and `m` negatives each."""
    repeated = column.repeat_interleave(m) if m > 1 else column
    return torch.cat([column, column, repeated] + ([] if own_sources else [repeated]))


def _check(batch_size: int, fanouts: Sequence[int], visibility: str) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1 event, got {batch_size}")
    if any(k < 1 for k in fanouts):
        raise ValueError(f"fanouts must be at least 1 neighbor each, got {tuple(fanouts)}")
    if visibility not in get_args(Visibility):
        raise ValueError(f"visibility must be event or batch, got {visibility!r}")
