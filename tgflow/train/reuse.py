"""Reuse of rows in training: the rings of a model's layers, and the plans that fill them.

Rows of the lowest layer may also be computed by threads beside the training, as in the layered
orchestration of NeutronOrch (PVLDB 17, 2024): while the batches of a super-batch are learned, rows
that several batches of the next one need are computed on the CPU, from the parameters at the start
of the super-batch. The plan decides which rows. When they are due, the training takes the finished
ones and computes the others from the same parameters, in the same units, on one thread. So the
training never waits, and its bits do not depend on timing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tgflow._native import num_threads, stay_alone
from tgflow.batch import AnyBatch, Batch, HotRows, ReuseRecord
from tgflow.checkpoint import Checkpoint
from tgflow.model import TemporalModel
from tgflow.nn.choice import one_thread
from tgflow.nn.embedding_ring import EmbeddingRing, RingRows
from tgflow.plan._native import ReuseMap
from tgflow.plan.plan import Plan
from tgflow.plan.reuse import (
    BatchReuse,
    HopReuse,
    ReuseProgress,
    ReuseRule,
    ReusingPlan,
    check_reusable,
    node_features,
    with_event_features,
)
from tgflow.sampling.expand import Frontier, expand
from tgflow.sampling.rows import sample_neighbors
from tgflow.train.config import Reuse
from tgflow.train.step import StepResult, TrainStep
from tgflow.units import parse_bytes

UNIT_ROWS = 256
"""Rows that a producer computes at once."""


@dataclass(frozen=True, slots=True)
class ReuseStats:
    """Counts of rows over all passes and layers."""

    asked: int
    """Rows of layers below the top that batches asked for, while reuse was on."""
    reused: int
    """Of these, rows that were taken and not computed."""
    refreshed: int
    """Rows that could have been taken, and were computed again."""
    saved: int
    """Neighbors that were neither sampled nor read."""
    largest_lag: int
    """Batches since the oldest row that was taken had been computed."""
    dropped: int
    """Rows that were forgotten as the past had changed."""
    is_off: bool
    """Whether it has switched itself off in the latest pass, where too little was reused."""
    produced: int = 0
    """Rows that the producer computed, for the batches that took them."""
    late: int = 0
    """Of these, rows that the training computed for it, by the clock; of this process alone."""


class TrainingReuse:
    """Rings for all layers of a model but the top one, for batches of one plan."""

    name = "reuse"

    def __init__(
        self, config: Reuse, model: TemporalModel, plan: Plan, device: torch.device
    ) -> None:
        check_reuse(model)
        check_reusable(plan)
        self._config, self._plan, self._pads = config, plan, device.type != "cpu"
        self._rule = ReuseRule(config.staleness, config.refresh)
        self._layers = tuple(model.embedding_layers())[1:]
        dtype = next(model.parameters()).dtype
        self._rings = [
            EmbeddingRing(dim, self._capacity(dim, dtype), dtype, device)
            for dim in map(_dim_of, self._layers)
        ]
        self._progress = [ReuseProgress()] * len(self._rings)
        self.producer: _RowProducer | None = None
        """Computes rows of the lowest layer ahead; None: rows are computed when they are needed."""
        if config.super_batch:
            if plan.gpu is not None:
                raise ValueError(
                    "rows are computed ahead from a graph in host memory, and this one is on "
                    f'{plan.graph.device}: set producer="inline"'
                )
            self.producer = _RowProducer(self._layers[-1], self._rings[-1], plan)

    def _capacity(self, dim: int, dtype: torch.dtype) -> int:
        budget = parse_bytes(self._config.budget) // len(self._layers)
        each = EmbeddingRing.slot_bytes(dim, dtype) + ReuseMap.SLOT_BYTES
        capacity = budget // each - 1
        if capacity < 1:
            raise ValueError(
                f"reuse has no room for a row of {dim} numbers in a budget of "
                f"{self._config.budget}: give {2 * each * len(self._layers)} bytes or more"
            )
        return capacity

    @property
    def stats(self) -> ReuseStats:
        """The counts so far, by the batches that were learned."""
        asked, reused, refreshed, saved, dropped = (
            sum(getattr(each, name) for each in self._progress)
            for name in ("asked", "reused", "refreshed", "saved", "dropped")
        )
        lag = max(each.largest_lag for each in self._progress)
        is_off = all(each.is_off for each in self._progress)
        stats = ReuseStats(asked, reused, refreshed, saved, lag, dropped, is_off)
        if (by := self.producer) is None:
            return stats
        return replace(stats, saved=saved - by.num_read, produced=by.num_made, late=by.num_late)

    def figures(self) -> dict[str, Any]:
        """Return the statistics as a result has them."""
        return {f"reuse.{name}": value for name, value in asdict(self.stats).items()}

    def restart(self) -> None:
        """Begin a pass, with which those before share no rows."""
        self.close()
        self._progress = [each.restarted() for each in self._progress]

    def close(self) -> None:
        """Stop to compute rows ahead, as at the end of a pass."""
        if self.producer is not None:
            self.producer.close()

    def batches(
        self, tasks: Iterable[tuple[int, int]], num_threads: int
    ) -> tuple[ReusingPlan, Iterator[tuple[int, int, BatchReuse]]]:
        """Return the source of the next batches and its tasks, for a loader."""
        hops = [self._hop(number) for number in range(len(self._rings))]
        source = ReusingPlan(self._plan, hops)
        return source, source.tasks(tasks, num_threads)

    def _hop(self, number: int) -> HopReuse:
        ring, progress, rule = self._rings[number], self._progress[number], self._rule
        if number + 1 == len(self._rings):
            rule = replace(rule, super_batch=self._config.super_batch)
        return HopReuse(
            self._plan, 1 + number, rule, ring.capacity, self._pads, progress,
            ring.rows_since(progress.oldest(self._rule.staleness)),
        )  # fmt: skip

    def learn(self, learner: TrainStep, batch: AnyBatch) -> StepResult:
        """Take a step from a batch, whose rows are completed and stored; see `TrainStep.learn`."""
        assert isinstance(batch, Batch)
        with self._completing(batch):
            return learner.learn(batch)

    @contextmanager
    def _completing(self, batch: Batch) -> Iterator[None]:
        lowest = batch.blocks[-1].reused
        if self.producer is not None and lowest is not None:
            self.producer.begin(lowest.record)
        with ExitStack() as hooks:
            for number, (layer, ring) in enumerate(zip(self._layers, self._rings, strict=True)):
                reused = batch.blocks[1 + number].reused
                if reused is not None:
                    hooks.callback(layer.register_forward_hook(ring.hook).remove)
                    ring.note(reused.record)
                    self._progress[number] = ReuseProgress(*reused.record.progress)
            yield

    def save(self, writer: Checkpoint) -> None:
        """Save the rows that later batches may take, and how far the decisions have come."""
        tensors: dict[str, Tensor] = {}
        if self.producer is not None:  # before rings are read: it completes them
            tensors |= self.producer.saved(self._progress[-1].number)
        for number, (ring, progress) in enumerate(zip(self._rings, self._progress, strict=True)):
            kept = ring.rows_since(progress.oldest(self._rule.staleness))
            tensors[f"{number}.progress"] = torch.tensor(progress)
            tensors[f"{number}.rows"] = ring.rows[kept.slot.to(ring.rows.device)].cpu()
            tensors |= {f"{number}.{name}": x for name, x in kept._asdict().items()}
        writer.put(self.name, tensors)

    def load(self, reader: Checkpoint) -> None:
        """Become what was saved; ValueError if it does not fit."""
        saved = reader.get(self.name)
        for number, ring in enumerate(self._rings):
            kept = RingRows(*(saved[f"{number}.{name}"] for name in RingRows._fields))
            rows = saved[f"{number}.rows"]
            if len(kept.slot) and int(kept.slot.max()) >= ring.capacity:
                raise ValueError("the checkpoint's rows for reuse need a larger budget")
            ring.restore(kept, rows)
            self._progress[number] = ReuseProgress(*saved[f"{number}.progress"].tolist())
        if self.producer is not None:
            self.producer.restore(saved)


def reuse_of(config: Reuse, learner: TrainStep, plan: Plan, num_ranks: int) -> TrainingReuse | None:
    """Return what reuses rows in training, None if nothing is to be reused."""
    if not config.staleness:
        return None
    if num_ranks > 1:
        raise ValueError(
            f"reuse is for one process, whose ring has the rows of all batches, got {num_ranks} "
            "ranks: leave reuse out (staleness=0), or train in one process"
        )
    return TrainingReuse(config, learner.model, plan, learner.device)


def check_reuse(model: TemporalModel) -> None:
    """Raise ValueError unless rows of a model's layers can be reused in training."""
    name = type(model).__name__
    if model.state is not None:
        raise ValueError(
            f"{name} keeps a state that moves on with each event, so that its rows never recur: "
            "leave reuse out (staleness=0)"
        )
    if type(model).forward is not TemporalModel.forward:
        raise ValueError(
            f"{name} defines a forward of its own, where rows that are reused are for embed and "
            "decoder: leave reuse out (staleness=0)"
        )
    if len(model.embedding_layers()) < 2:
        raise ValueError(
            f"reuse is of rows below the top layer, and {name} names "
            f"{len(model.embedding_layers())} in TemporalModel.embedding_layers: give it two "
            "layers or more, or leave reuse out (staleness=0)"
        )


def _dim_of(layer: Any) -> int:
    dim = getattr(layer, "dim", None)
    if not isinstance(dim, int):
        raise ValueError(
            f"reuse needs to know how wide the rows of {type(layer).__name__} are: give it dim, "
            "or leave reuse out (staleness=0)"
        )
    return dim


class _RowProducer:
    """Computes hot rows of a layer ahead, and brings them into its ring."""

    def __init__(self, layer: nn.Module, ring: EmbeddingRing, plan: Plan) -> None:
        self._layer, self._ring, self._plan = layer, ring, plan
        self._pool: ThreadPoolExecutor | None = None
        self._published: nn.Module | None = None
        self._job: _Job | None = None
        self.uses_threads = True
        """Whether threads compute rows ahead; otherwise the training computes all of them."""
        self.num_made = 0
        """Rows that came into the ring."""
        self.num_read = 0
        """Neighbors that they were made of."""
        self.num_late = 0
        """Of the rows, those that were not there in time, since this process began."""

    def begin(self, record: ReuseRecord) -> None:
        """Begin a batch: what is due comes into the ring, and what it hands over is begun."""
        self.finish(record.number)
        if record.hot is None:
            return
        if record.hot.number == record.number:
            self._published = _copied(self._layer)
        if self._published is None:
            raise ValueError(
                "the checkpoint has no parameters that rows were computed ahead with: go on from "
                'it with producer="inline", as it was made'
            )
        self._job = _Job(record.hot, self._published, self._plan)
        if self.uses_threads:
            self._job.begin(self._threads())

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            most = max(1, num_threads() - 1)  # beside the one that trains
            self._pool = ThreadPoolExecutor(most, "tgflow-producer", initializer=stay_alone)
        return self._pool

    def finish(self, number: int) -> None:
        """Bring rows into the ring that batch `number`, the next, may take."""
        job = self._job
        if job is None or number < job.hot.due:
            return
        self._job = self._published = None
        self._ring.put(job.hot, job.rows())
        self.num_made += len(job.hot)
        self.num_read += len(job.hot) * job.hot.k
        self.num_late += job.num_late

    def close(self) -> None:
        """Drop what is not due yet, and end the threads: at most a unit of rows is waited for."""
        self._job = self._published = None
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def saved(self, number: int) -> dict[str, Tensor]:
        """Bring due rows into the ring, then return counts and the parameters of those not due."""
        self.finish(number)
        published = {} if self._published is None else self._published.state_dict()
        return {"made": torch.tensor([self.num_made, self.num_read])} | {
            f"published.{name}": x for name, x in published.items()
        }

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self.close()
        self.num_made, self.num_read = saved.get("made", torch.zeros(2, dtype=torch.int64)).tolist()
        head = "published."
        published = {
            name.removeprefix(head): x for name, x in saved.items() if name.startswith(head)
        }
        if published:
            self._published = _copied(self._layer)
            self._published.load_state_dict(published)


class _Job:
    """The hot rows of a super-batch, and who computes them."""

    def __init__(self, hot: HotRows, layer: nn.Module, plan: Plan) -> None:
        self.hot = hot
        self.num_late = 0
        self._layer, self._plan = layer, plan
        self._units = [slice(i, i + UNIT_ROWS) for i in range(0, len(hot), UNIT_ROWS)]
        self._futures: list[Future[Tensor] | None] = [None] * len(self._units)

    def begin(self, threads: ThreadPoolExecutor) -> None:
        """Let threads compute, in the order of units."""
        self._futures = [threads.submit(self._made, unit) for unit in self._units]

    def rows(self) -> Tensor:
        """Return all rows, `[S, dim]`; computes those that are not there, the last ones first."""
        pairs = zip(reversed(self._units), reversed(self._futures), strict=True)
        return torch.cat([self._taken(unit, future) for unit, future in pairs][::-1])

    def _taken(self, unit: slice, future: Future[Tensor] | None) -> Tensor:
        if future is not None and future.done():
            return future.result()
        if future is not None:
            future.cancel()  # one that is being computed is computed twice
        rows = self._made(unit)
        self.num_late += len(rows)
        return rows

    def _made(self, unit: slice) -> Tensor:
        """Return the rows of a unit, `[n, dim]` on the CPU."""
        graph, hot = self._plan.graph, self.hot
        nodes, t = hot.nodes[unit], hot.t[unit]
        with torch.no_grad(), one_thread():
            neighbors = sample_neighbors(
                graph, self._plan.sampler, nodes, t, hot.k, as_of=hot.position[unit]
            )
            block, below = expand(
                Frontier(nodes, t), neighbors, graph.seconds_per_tick, None, by_time=False
            )
            inputs = node_features(graph, below.nodes)
            rows: Tensor = self._layer(inputs, with_event_features(graph, block))
            return rows


def _copied(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer on the CPU in evaluation mode, which has its present parameters."""
    memo: dict[int, Tensor] = {id(x): x.detach().to("cpu", copy=True) for x in layer.buffers()}
    for x in layer.parameters():
        memo[id(x)] = nn.Parameter(x.detach().to("cpu", copy=True), requires_grad=False)
    return copy.deepcopy(layer, memo).eval()
