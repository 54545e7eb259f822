"""Reuse of rows in training: the rings of a model's layers, and the plans that fill them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from tgflow.base.units import parse_bytes
from tgflow.checkpoint import Checkpoint, Component
from tgflow.graph.batch import Batch, StepBatch
from tgflow.nn.embedding_ring import EmbeddingRing, RingRows
from tgflow.nn.model import TemporalModel
from tgflow.plan._native import ReuseMap
from tgflow.plan.plan import Plan
from tgflow.plan.reuse import BatchReuse, HopReuse, ReuseProgress, ReusingPlan, check_reusable
from tgflow.train.config import Reuse
from tgflow.train.step import StepResult, TrainStep

_SUMS = ("asked", "reused", "refreshed", "saved", "dropped")


class TrainingReuse(Component):
    """Embedding rings for all layers of a model but the top one, for batches of one plan."""

    name = "reuse"

    def __init__(
        self, config: Reuse, model: TemporalModel, plan: Plan, device: torch.device
    ) -> None:
        _check_reuse(model)
        check_reusable(plan)
        self._config, self._plan, self._pads = config, plan, device.type != "cpu"
        self._layers = tuple(model.embedding_layers())[1:]
        dtype = next(model.parameters()).dtype
        widths: list[Any] = [layer.dim for layer in self._layers]
        self._rings = [
            EmbeddingRing(dim, self._capacity(dim, dtype), dtype, device) for dim in widths
        ]
        self._progress = [ReuseProgress()] * len(self._rings)

    def _capacity(self, dim: int, dtype: torch.dtype) -> int:
        budget = parse_bytes(self._config.budget) // len(self._layers)
        each = dim * dtype.itemsize + 3 * 8 + ReuseMap.SLOT_BYTES  # of a ring, and of the map
        capacity = budget // each - 1
        if capacity < 1:
            raise ValueError(
                f"reuse has no room for a row of {dim} numbers in a budget of "
                f"{self._config.budget}: give {2 * each * len(self._layers)} bytes or more"
            )
        return capacity

    @property
    def stats(self) -> ReuseProgress:
        """Counts of rows over all passes and layers; whether the latest pass switched reuse off."""
        sums = {name: sum(getattr(each, name) for each in self._progress) for name in _SUMS}
        lag = max(each.largest_lag for each in self._progress)
        is_off = all(each.is_off for each in self._progress)
        return ReuseProgress(**sums, largest_lag=lag, is_off=is_off)

    def figures(self) -> dict[str, Any]:
        stats = self.stats
        return {f"reuse.{name}": getattr(stats, name) for name in (*_SUMS, "largest_lag", "is_off")}

    def restart(self) -> None:
        self._progress = [each.restarted() for each in self._progress]

    def batches(
        self, tasks: Iterable[tuple[int, int]], num_threads: int
    ) -> tuple[ReusingPlan, Iterator[tuple[int, int, BatchReuse]]]:
        """Return the source of the next batches and its tasks, for a loader."""
        hops = [self._hop(number) for number in range(len(self._rings))]
        source = ReusingPlan(self._plan, hops)
        return source, source.tasks(tasks, num_threads)

    def _hop(self, number: int) -> HopReuse:
        ring, progress = self._rings[number], self._progress[number]
        return HopReuse(
            self._plan, 1 + number, self._config.staleness, self._config.refresh, ring.capacity,
            self._pads, progress, ring.rows_since(progress.oldest(self._config.staleness)),
        )  # fmt: skip

    def learn(self, learner: TrainStep, batch: StepBatch) -> StepResult:
        """Take a step on a batch whose rows are completed and stored; see `TrainStep.learn`."""
        assert isinstance(batch, Batch)
        with ExitStack() as hooks:
            for number, (layer, ring) in enumerate(zip(self._layers, self._rings, strict=True)):
                reused = batch.blocks[1 + number].reused
                if reused is not None:
                    hooks.callback(layer.register_forward_hook(ring.hook).remove)
                    ring.note(reused.record)
                    self._progress[number] = ReuseProgress(*reused.record.progress)
            return learner.learn(batch)

    def save(self, writer: Checkpoint) -> None:
        """Save the rows that later batches may reuse, and the state of the decisions."""
        tensors: dict[str, Tensor] = {}
        for number, (ring, progress) in enumerate(zip(self._rings, self._progress, strict=True)):
            kept = ring.rows_since(progress.oldest(self._config.staleness))
            tensors[f"{number}.progress"] = torch.tensor(progress)
            tensors[f"{number}.rows"] = ring.rows[kept.slot.to(ring.rows.device)].cpu()
            tensors |= {f"{number}.{name}": x for name, x in kept._asdict().items()}
        writer.put(self.name, tensors)

    def load(self, reader: Checkpoint) -> None:
        saved = reader.get(self.name)
        for number, ring in enumerate(self._rings):
            kept = RingRows(*(saved[f"{number}.{name}"] for name in RingRows._fields))
            rows = saved[f"{number}.rows"]
            if len(kept.slot) and int(kept.slot.max()) >= ring.capacity:
                raise ValueError("the checkpoint's rows for reuse need a larger budget")
            ring.restore(kept, rows)
            self._progress[number] = ReuseProgress(*saved[f"{number}.progress"].tolist())


def reuse_of(config: Reuse, learner: TrainStep, plan: Plan, num_ranks: int) -> TrainingReuse | None:
    if not config.staleness:
        return None
    if num_ranks > 1:
        raise ValueError(
            f"reuse is for one process, whose ring has the rows of all batches, got {num_ranks} "
            "ranks: leave reuse out (staleness=0), or train in one process"
        )
    return TrainingReuse(config, learner.model, plan, learner.device)


def _check_reuse(model: TemporalModel) -> None:
    name, layers = type(model).__name__, model.embedding_layers()
    way_out = "leave reuse out (staleness=0)"
    if model.state is not None:
        raise ValueError(
            f"{name} has a state that changes with each event, so that its rows never recur: "
            f"{way_out}"
        )
    if type(model).forward is not TemporalModel.forward:
        raise ValueError(
            f"{name} overrides forward, but reuse requires embed and decoder: {way_out}"
        )
    if len(layers) < 2:
        raise ValueError(
            f"reuse applies to rows below the top layer, and {name} has {len(layers)} in "
            f"TemporalModel.embedding_layers: give it two layers or more, or {way_out}"
        )
    for layer in layers[1:]:
        if not isinstance(getattr(layer, "dim", None), int):
            raise ValueError(
                f"reuse needs the width of the rows of {type(layer).__name__}: give it dim, or "
                f"{way_out}"
            )
