"""Main training loop: processes micro-batches, checkpoints periodically, handles shutdown."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from tgflow.checkpoint import Component
from tgflow.graph.events import EventBatch
from tgflow.ranks.broadcast import LeaderFailed
from tgflow.ranks.control import Order, RankControl
from tgflow.run.features import table_figures
from tgflow.run.outlook import memory_left
from tgflow.run.records import State
from tgflow.run.stream import FlowControl, MemoryLimit, Stopped, is_out_of_memory, rank_at_limit
from tgflow.streams.errors import StreamError
from tgflow.train.observe import Callback, StepRecord
from tgflow.train.stream_trainer import StreamTrainer


class Saves(Protocol):
    """Checkpoints of rank 0 or of another rank: `Checkpoints`, `FollowedSaves`."""

    @property
    def saved(self) -> int | None: ...

    def after_step(self) -> bool: ...

    def take(self) -> None: ...

    def finish(self) -> str | None: ...


@dataclass(slots=True)
class RunStatus:
    """State of a run, written by its runner; any thread may read it."""

    state: State = "starting"
    record: StepRecord | None = None
    stepped_at: float = field(default_factory=time.monotonic)
    reason: str | None = None


MEASURE_SECONDS = 1.0
"""Seconds between two measurements of a rank's memory, which read several files."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run with saved state."""

    stopped: bool
    """Whether a signal stopped it before the end of the stream."""
    state_sha256: str | None
    """Digest of model, optimizer, memory and events, and of the run's own state."""
    metrics: Mapping[str, Any]
    tables: Mapping[str, Any]
    """Placements of features and figures of caches, from `table_figures`."""
    reports: Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Runner:
    """Main loop: learns from a stream and saves; all other work is done by components."""

    trainer: StreamTrainer
    stream: Iterable[EventBatch]
    checkpoints: Saves
    resumed: bool = False
    flow: FlowControl = field(default_factory=FlowControl)
    control: RankControl | None = None
    status: RunStatus = field(default_factory=RunStatus)
    services: Sequence[AbstractContextManager[object]] = ()
    display: AbstractContextManager[object] = field(default_factory=nullcontext)
    components: Sequence[Component] = ()
    warn: Callable[[str], None] = lambda text: None
    memory_limit: int | None = None
    measured_at: float = -math.inf

    def run(self) -> RunResult:
        """Learn until the stream ends, a signal stops it, or an error occurs.

        Afterwards the newest checkpoint holds every learned micro-batch, except after a disk error,
        a non-finite loss or an internal error. If memory ran out during a model update, the newest
        checkpoint is the previous one, and `warn` is called.
        """
        with ExitStack() as services:
            for service in self.services:
                services.enter_context(service)
            try:
                return self._learn_and_save()
            except BaseException as error:
                self.status.state, self.status.reason = "failed", str(error)
                raise

    def _learn_and_save(self) -> RunResult:
        try:
            with self.display:
                stopped = self._learn()
        except Exception as error:
            if self._can_save_before(error):
                self._save_before(error)
            raise
        self.status.state = "stopping"
        digest = self.checkpoints.finish()
        self.status.state = "stopped" if stopped else "done"
        metrics, tables = self.trainer.result(), table_figures(self.trainer.graph)
        return RunResult(stopped, digest, metrics, tables, self._reports())

    def _learn(self) -> bool:
        self.status.state = "recovering" if self.resumed else "running"
        try:
            for step in self.trainer.steps(self.stream):
                self._record(step)
                self._obey(self._order())
        except Stopped:
            self._drain()
            return True
        return False

    def _order(self) -> Order:
        """Return the action of all ranks after this micro-batch.

        The request and memory of this rank are sent with the next micro-batch; all ranks act after
        that, or one later if rank 0 has to be asked first.
        """
        is_due = self.checkpoints.after_step()
        if is_due and self.trainer.num_pending:  # every learned micro-batch must have its record
            self.trainer.catch_up()
            is_due = False
        wanted = (Order.CHECKPOINT if is_due else Order.NONE) | self.flow.request()
        if self.control is None:
            return wanted
        # of a GPU's records the last one only, which all ranks have after the same micro-batch
        order = Order.NONE if self.trainer.num_pending else self.control.order
        if time.monotonic() >= self.measured_at + MEASURE_SECONDS:
            self.measured_at = time.monotonic()
            held = memory_left(self.memory_limit)
            self.control.memory_bytes, self.control.free_bytes = map(int, held)
        self.control.request = wanted & ~order
        return order

    def _obey(self, order: Order) -> None:
        if Order.CHECKPOINT in order:
            self.checkpoints.take()
        if not order & (Order.STOP | Order.STOP_FOR_MEMORY):
            return
        self.flow.check()
        assert self.control is not None, "this process alone was not asked to stop"
        if Order.STOP_FOR_MEMORY in order:
            raise rank_at_limit(self.control.requester(Order.STOP_FOR_MEMORY) or "another rank")
        self.flow.stop_for(f"a signal to {self.control.requester(Order.STOP) or 'another rank'}")
        raise Stopped

    def _drain(self) -> None:
        """Record steps that are learned but not recorded: a GPU runs ahead of its records."""
        for step in self.trainer.drain():
            self._record(step)

    def _record(self, step: StepRecord) -> None:
        self.status.record, self.status.stepped_at = step, time.monotonic()
        if self.status.state == "recovering":
            self.status.state = "running"
        for component in self.components:
            if isinstance(component, Callback):
                component.on_step(step)

    def _reports(self) -> dict[str, Mapping[str, Any]]:
        reports: dict[str, Mapping[str, Any]] = {}
        for component in self.components:
            reports |= component.report()
        return reports

    def _can_save_before(self, error: Exception) -> bool:
        """Return whether the state can be saved after `error`.

        With a sharded state all ranks must have ended by the same error, at the same position.
        """
        if not self.trainer.is_spread:
            return isinstance(error, StreamError | MemoryLimit) or is_out_of_memory(error)
        own = [kind.__name__ for kind in type(error).__mro__]
        kinds = error.kinds if isinstance(error, LeaderFailed) else own
        return not {StreamError.__name__, MemoryLimit.__name__}.isdisjoint(kinds)

    def _save_before(self, error: Exception) -> None:
        traceback.clear_frames(error.__traceback__)  # they hold the memory of the failed step
        try:
            self._drain()
            if not self.trainer.is_whole:
                raise _Unfinished("the latest micro-batch has changed the model in part")
            self.checkpoints.finish()
            self._reports()
        except Exception as failed:
            if not (isinstance(failed, OSError | _Unfinished) or is_out_of_memory(failed)):
                raise
            saved, there = self.checkpoints.saved, "there is no checkpoint yet"
            there = there if saved is None else f"the newest checkpoint has {saved:,} events"
            resumes = f"a resumed run starts {'at the first event' if saved is None else 'there'}"
            text = f"the latest progress could not be saved: {failed}; {there}, and {resumes}"
            self.warn(f"{text}; the run ends because of: {error}")


class _Unfinished(Exception):
    """Raised when the model was updated in part and must not be saved."""
