"""Plans of a trainer's batches, and the division of a stream into micro-batches."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tgflow.base.keys import derive_key
from tgflow.base.peers import Peers
from tgflow.base.units import ticks_in
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch
from tgflow.graph.events import EventBatch, LateLabels, empty_events
from tgflow.nn.model import TemporalModel
from tgflow.plan.count_lookup import CountHistory
from tgflow.plan.device_preparer import DevicePreparer, MakeBatches, Slots, WantedBatch, one_by_one
from tgflow.plan.draws import BatchPart
from tgflow.plan.in_order import Task
from tgflow.plan.negatives import NegativeSampler, NegativeSource, PairHistory
from tgflow.plan.plan import Plan
from tgflow.plan.replay import ExperienceReplay
from tgflow.train.config import ContinualConfig, TrainingConfig, parse_further, parse_negatives

PREDICT = 0
"""Epoch of the batches to predict; update `u` of a micro-batch, from 1, is epoch `u`."""


@dataclass(frozen=True, slots=True)
class MicroBatchPlans:
    """The plans of one segment of a stream, combined into one source for the loader."""

    predict: Plan
    learn: Plan
    updates: int
    """Batches to learn after each that is predicted."""
    slots: Slots
    """Memory of a GPU for captured batches, which outlives a segment."""

    @property
    def gpu(self) -> Device | None:
        return self.predict.gpu

    def __len__(self) -> int:
        return len(self.predict)

    def batch(self, epoch: int, index: int, number: int | None = None) -> Batch:
        return self.plan_of(epoch).batch(epoch, index, number)

    def plan_of(self, epoch: int) -> Plan:
        return self.predict if epoch == PREDICT else self.learn

    def asked(self, epoch: int, index: int, piece: int | BatchPart | None = None) -> WantedBatch:
        plan = self.predict if epoch == PREDICT else self.learn
        return WantedBatch(plan.draws, epoch, index, piece)

    def batches_on(self, gpu: Device, num_slots: int) -> MakeBatches:
        if self.gpu is None:
            return one_by_one(self.copies_on(gpu))
        return DevicePreparer(self.predict.graph, gpu, self.slots).batches(num_slots, self.asked)

    def copies_on(self, gpu: Device) -> Callable[..., Batch]:
        """Return a function that makes batches in host memory and copies them to a GPU."""
        predict, learn = self.predict.copies_on(gpu), self.learn.copies_on(gpu)

        def make(epoch: int, *task: Any) -> Batch:
            return (predict if epoch == PREDICT else learn)(epoch, *task)

        return make


@dataclass(slots=True)
class MicroBatcher:
    """Appends a stream to a graph, and yields tasks as micro-batches fill up.

    Late labels of the stream are written to the log where they come, before further events.
    """

    graph: TemporalGraph
    start: int
    index: int
    batch_size: int
    updates: int
    arrivals: deque[float] = field(default_factory=deque)
    """When the events of each named micro-batch came, oldest first; a reader removes them."""

    def tasks(self, stream: Iterable[EventBatch | LateLabels]) -> Iterator[Task]:
        """Yield the tasks of each micro-batch once its events are in the log, then of the rest."""
        return itertools.chain.from_iterable(self.turns(stream, most=1))

    def turns(self, stream: Iterable[EventBatch | LateLabels], most: int) -> Iterator[list[Task]]:
        """Yield the same as `tasks`, up to `most` micro-batches at once, completed by one batch."""
        turn: list[Task] = []
        num_tasks = most * (1 + self.updates)
        for events in itertools.chain([empty_events()], stream):
            if isinstance(events, LateLabels):
                self.graph.log.add_labels(events)
                continue
            rest = events
            while (room := self._room()) <= len(rest):
                more = min((len(rest) - room) // self.batch_size, self._most_ahead)
                rest = self._append(rest, room + more * self.batch_size)
                num_events, arrived = self.graph.num_events, time.perf_counter()
                while self.start + (self.index + 1) * self.batch_size <= num_events:
                    turn += self._name(arrived)
                    if turn[num_tasks - 1 :]:
                        yield turn
                        turn = []
            self._append(rest, len(rest))
            if turn:
                yield turn
                turn = []
        if self._room() < self.batch_size:
            yield [*self._name(time.perf_counter())]

    @property
    def _most_ahead(self) -> int:
        """Micro-batches to append with the next one, where an append costs as much as a step."""
        return 0 if self.graph.gpu is None else 7

    def _append(self, events: EventBatch, num: int) -> EventBatch:
        if num:
            self.graph.append(events[:num])
        return events[num:]

    def _room(self) -> int:
        """Return the number of events that the next micro-batch lacks, 0 if it is complete."""
        end = self.start + (self.index + 1) * self.batch_size
        return max(0, end - self.graph.num_events)

    def _name(self, arrived: float) -> Iterable[Task]:
        self.arrivals += (arrived,)
        self.index += 1
        return zip(range(PREDICT, self.updates + 1), itertools.repeat(self.index - 1))


def loader_threads(config: TrainingConfig, peers: Peers) -> int:
    """Return how many threads prepare batches ahead.

    A rank with one CPU thread has one core, where another thread would delay the steps that all
    ranks wait for.
    """
    if config.num_threads is not None:
        return config.num_threads
    return 0 if peers.world > 1 and torch.get_num_threads() == 1 else 1


def sampler_span(graph: TemporalGraph, config: TrainingConfig) -> int | None:
    """Return the span of the sampling strategy in ticks of a graph."""
    if config.span is None:
        return None
    ticks = ticks_in(config.span, graph.time_unit)
    if ticks.denominator != 1:
        raise ValueError(
            f"span is {config.span!r}, between two ticks of 1 {graph.time_unit}; give whole ticks, "
            "or store times in a finer unit (--set stream.tick_unit=UNIT)"
        )
    return int(ticks)


def make_plan(
    graph: TemporalGraph,
    model: TemporalModel,
    config: TrainingConfig,
    negatives: NegativeSource,
    *,
    seed: int,
    start: int = 0,
    counts: CountHistory | None = None,
    fanouts: Sequence[int] | None = None,
    **options: Any,
) -> Plan:
    """Return the plan of a graph's events from `start` on for a model and its settings."""
    own = {"fanouts": fanouts, "strategy": config.strategy, "counts": counts}
    return Plan.for_model(
        model,
        graph,
        batch_size=config.batch_size,
        seed=derive_key(seed, start),
        visibility=config.visibility,
        negatives=negatives,
        span=sampler_span(graph, config),
        start=start,
        slices=config.slices,
        **options,
        **{name: value for name, value in own.items() if value is not None},
    )


def negatives_learned(model: TemporalModel, config: TrainingConfig) -> str:
    """Return the kinds and numbers of the negatives that a model learns from."""
    return model.negatives if config.negatives is None else config.negatives


def training_negatives(
    text: str,
    *,
    cut: int | None = None,
    pool: Tensor | None = None,
    collide: bool = False,
    types: Callable[[Tensor], Tensor] | None = None,
) -> NegativeSampler:
    """Return the source of the negatives that `parse_negatives` reads from a text.

    A single random negative has no `log_q`: there is one in most published training.

    Args:
        text: As `TrainingConfig.negatives`.
        cut: As in `NegativeSampler`.
        pool: Destinations to draw random negatives from, int64 `[N]`; None: those before the cut.
        collide: Whether a single random negative may be the event itself.
        types: Types of the pool's nodes, as `EventLog.node_types`.
    """
    numbers: dict[str, Any] = parse_negatives(text)
    is_list = numbers.get("random", 1) > 1 or not numbers.keys().isdisjoint(("source", "recent"))
    return NegativeSampler(
        **numbers,
        distinct=is_list,
        cut=cut,
        pool=None if pool is None else PairHistory.of_pool(pool, types),
        collide=collide and not is_list and "random" in numbers,
    )


def micro_batch_plans(
    graph: TemporalGraph,
    model: TemporalModel,
    config: ContinualConfig,
    *,
    start: int = 0,
    replay_from: int = 0,
    negatives: NegativeSource | None = None,
    slots: Slots,
    **shared: Any,
) -> MicroBatchPlans:
    """Return the plans of micro-batches: to predict, and to learn from `negatives`, or as set."""
    c = config
    replay = ExperienceReplay(c.replay_ratio, c.replay_horizon, c.replay_half_life, replay_from)
    seed = c.seed if c.data_seed is None else c.data_seed

    def make(negatives: NegativeSource, **own: Any) -> Plan:
        return make_plan(graph, model, c, negatives, seed=seed, start=start, **shared, **own)

    is_all = c.mrr_negatives == "all"
    num = 1 if c.mrr_negatives == "all" else c.mrr_negatives
    ranked = NegativeSampler(
        num, **parse_further(c.mrr_further), apart=True, every=c.mrr_every, among_all=is_all
    )
    return MicroBatchPlans(
        make(ranked),
        make(
            negatives if negatives is not None else training_negatives(negatives_learned(model, c)),
            replay=replay if c.replay_ratio else None,
            for_gradients=True,
        ),
        c.updates if any(each.requires_grad for each in model.parameters()) else 0,
        slots,
    )
