"""A process with a copy of a run that follows it and answers: `python -m tgflow.run.replica`.

It starts from the newest checkpoint. Beside a run it applies the frames that the run publishes; a
frame that was overwritten before it was read is replaced by a newer checkpoint. Without a ring it
follows the log and the checkpoints of the directory.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.multiprocess import MultiProcessCollector
from uvicorn import Server

from tgflow.base.own_code import load
from tgflow.checkpoint import CheckpointError, list_checkpoints
from tgflow.graph.events import COLUMNS, EventBatch, NewNodes, concat
from tgflow.nn import MemoryUpdater, NodeMemory
from tgflow.nn.model import TemporalModel
from tgflow.run.posted_labels import Pipe
from tgflow.run.records import read_health
from tgflow.run.saved import Run, open_run
from tgflow.run.serving import FAILURE, ReplicaJob
from tgflow.serve.answers import Answers
from tgflow.serve.endpoint import Endpoint, Serving
from tgflow.serve.questions import Health
from tgflow.serve.ring import Frame, Lapped, Ring
from tgflow.serve.server import make_server

_LOOK_SECONDS = 0.5
_READ_SECONDS = 0.05
"""Seconds between looks for newer events in the log."""
MOST_FRAMES = 64


class Replica(ABC):
    """A copy of a run that follows it, for queries. One thread uses it, except for `health`."""

    def __init__(self, path: Path, model: type[TemporalModel] | None = None) -> None:
        self._path, self._model = path, model
        self._coming: Future[Run] | None = None
        self._current_at = time.time()
        self.num_frames = self.num_restarts = 0
        """Frames applied, and how often some were lost and a checkpoint replaced them."""
        self.predictor: Run
        self.parameters = 0
        """Log position up to which the parameters were learned."""

    @property
    @abstractmethod
    def run_position(self) -> int:
        """Events that the run has learned, as far as known; not fewer than those in answers."""

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the run has ended."""

    @abstractmethod
    def _follow(self) -> None:
        """Apply what the run has done meanwhile."""

    def advance(self) -> None:
        """Apply what the run has done meanwhile, or a newer checkpoint that has been loaded."""
        if self._coming is not None and self._coming.done():
            coming, self._coming = self._coming, None
            if (run := coming.result()).position >= self.predictor.position:
                self._take(run)
        self._follow()

    def health(self) -> Health:
        """Return the version of the answers, and the distance from the run; any thread may call."""
        position = self.predictor.position
        behind = self.run_position - position
        return Health(
            position=position,
            parameters=self.parameters,
            state="ended" if self.has_ended else "following",
            behind=behind,
            age=max(0.0, time.time() - self._current_at) if behind else 0.0,
        )

    def memory(self) -> dict[str, int]:
        graph, model = self.predictor.graph, self.predictor.model
        at = graph.log.first
        first, state = graph.log.read(at, at), model.state
        columns = [getattr(first, name) for name in COLUMNS]
        width = sum(x.dtype.itemsize for x in columns if x is not None)
        tables = [table for table in (graph.edge_x, graph.node_x) if table is not None]
        return {
            "events": width * (graph.num_events - at),
            "neighborhoods": graph.stats().bytes,
            "features": sum(4 * table.dim * len(table) for table in tables),
            "memory": state.num_rows * state.row_bytes if isinstance(state, NodeMemory) else 0,
            "parameters": sum(x.nbytes for x in model.state_dict().values()),
        }

    def _take(self, run: Run) -> None:
        self.predictor = run
        self.parameters = run.position
        self._keep_updated()
        run.warm()

    def _keep_updated(self) -> None:
        """Update the memory of a node once, until its row or the parameters change."""
        for module in self.predictor.model.modules():
            if isinstance(module, MemoryUpdater):
                module.keep()

    def _load_beside(self, load: Callable[[], Run]) -> None:
        """Load in another thread; until then answers are as of now."""
        coming = self._coming = Future()

        def work() -> None:
            try:
                coming.set_result(load())
            except BaseException as error:
                coming.set_exception(error)

        threading.Thread(target=work, name="load", daemon=True).start()


class FrameReplica(Replica):
    """A replica beside a run: it applies the frames that the run publishes, bit for bit.

    Waits for a checkpoint; raises as `open_run` if the run ends without one.
    """

    def __init__(
        self,
        path: Path,
        ring: Ring,
        warn: Callable[[str], None],
        model: type[TemporalModel] | None = None,
    ) -> None:
        super().__init__(path, model)
        self._ring, self._warn = ring, warn
        self._next: int | None = None
        """Number of the frame that follows; None: not published yet."""
        self._take(self._load(0))
        end = ring.head.position
        while self.predictor.position < end:  # as a replica before this one may have answered
            self.advance()
            time.sleep(0 if self._coming is None else 0.01)

    @property
    def run_position(self) -> int:
        return max(self._ring.head.position, self.predictor.position)

    @property
    def has_ended(self) -> bool:
        return bool(self._ring.head.has_ended)

    def _follow(self) -> None:
        if self._coming is not None:
            return
        now, position = time.time(), self.predictor.position
        try:
            frames = self._frames()
        except Lapped as error:
            self.num_restarts += 1
            text = f"a replica answers as of event {position:,} until a checkpoint is loaded"
            self._warn(f"{text}: {error}")
            self._load_beside(partial(self._load, position))
            return
        if not frames and position >= self._ring.head.position:
            self._current_at = now
        self._apply(frames)

    def _frames(self) -> list[Frame]:
        ring = self._ring
        if self._next is None:
            self._next = ring.find(self.predictor.position)
        frames: list[Frame] = []
        position = self.predictor.position
        while self._next is not None and len(frames) < MOST_FRAMES:
            if (frame := ring.read(self._next)) is None:
                break
            if frame.begin != position:
                raise Lapped(f"frame {frame.number} begins at {frame.begin}, not at {position}")
            frames.append(frame)
            position, self._next = frame.end, self._next + 1
        return frames

    def _apply(self, frames: Sequence[Frame]) -> None:
        if not frames:
            return
        run, graph = self.predictor, self.predictor.graph
        latest, batches = dict[str, dict[str, torch.Tensor]](), list[EventBatch]()
        for frame in frames:
            for name, x in frame.tensors.items():
                part, _, key = name.partition("/")
                if part not in ("events", "ids", "late", "node_x", "rows", "alerts"):
                    latest.setdefault(part, {})[key] = x
            if ids := _part(frame, "ids"):
                run.ids.extend(ids)
            if run.alerts is not None and (alerts := _part(frame, "alerts")):
                run.alerts = run.alerts.extended(**alerts)
            run.classes.update(frame.note.get("classes", {}))
            self.parameters = frame.note.get("parameters", self.parameters)
        scale, graph.feature_scale = graph.feature_scale, None  # rows come as they are stored
        try:
            for frame in frames:
                new: Any = frame.tensors.get("node_x/x")
                nodes = None if new is None else NewNodes(frame.note["node_x"], new)
                batches.append(EventBatch.checked(**_part(frame, "events"), new_nodes=nodes))
            graph.append(concat(batches))
        finally:
            graph.feature_scale = scale
        for frame in frames:
            if late := _part(frame, "late"):
                graph.log.late.load(late)
        for own, part in ((scale, "scale"), (self._node_scale, "node_scale")):
            if own is not None and part in latest:
                own.load(latest[part])
        state = run.model.state
        if isinstance(state, NodeMemory):
            for frame in frames:
                if rows := _part(frame, "rows"):
                    state.put_rows(rows)
        elif state is not None and "state" in latest:
            state.load_state_dict(latest["state"])
        if run.labels is not None and graph.horizon is not None:
            run.labels.history.upto(graph.num_events)  # before its beginning is forgotten
        graph.forget_outside(graph.num_events, [state])
        if "model" in latest:
            run.model.load_state_dict(latest["model"])
            self._keep_updated()
        if "calibration" in latest:
            run.calibration.load_state_dict(latest["calibration"])
        self.num_frames += len(frames)
        self._current_at = max(self._current_at, frames[-1].time)

    def _take(self, run: Run) -> None:
        super()._take(run)
        self._next = None
        self._node_scale = run.graph.node_scale  # which scales the features of new nodes
        if run.graph.node_x is not None:
            run.graph.node_scale = None  # rows come as they are stored

    def _load(self, least: int) -> Run:
        """Return the run at a checkpoint from `least` on, after which the ring has all frames."""
        ring, asked_at = self._ring, -1
        while True:
            there = list_checkpoints(self._path / "checkpoints")
            try:
                if there:
                    ring.find(there[-1].step)
                    run = open_run(self._path, self._model)
                    ring.find(run.position)
                    if run.position >= least:
                        return run
            except Lapped:
                if asked_at < (newest := there[-1].step):
                    ring.ask_for_checkpoint()
                    asked_at = newest
            except (CheckpointError, FileNotFoundError):
                if ring.head.has_ended:
                    raise
            time.sleep(0.05)


class LogReplica(Replica):
    """A replica that follows the log and the checkpoints of a directory, also on another host.

    Between checkpoints it stores the events that the run has logged, with the parameters of the
    latest one: its answers are those of the model at that checkpoint, had it learned nothing since.
    A run without a log, or whose nodes have features, is followed from checkpoint to checkpoint.
    """

    def __init__(self, path: Path, model: type[TemporalModel] | None = None) -> None:
        super().__init__(path, model)
        self._looked_at = self._read_at = 0.0
        self._take(open_run(path, model))

    @property
    def run_position(self) -> int:
        health = read_health(self._path / "health.json")
        there = 0 if health is None else int(health.get("position") or 0)
        return max(there, self.predictor.position)

    @property
    def has_ended(self) -> bool:
        health = read_health(self._path / "health.json")
        return health is None or not health["alive"]

    def _follow(self) -> None:
        now = time.time()
        if self._coming is None and now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            there = list_checkpoints(self._path / "checkpoints")
            newest = there[-1] if there else None
            own = self.predictor.checkpoint_path
            if newest is not None and (
                newest.step > self.parameters
                or (newest.path != own and newest.step == int(own.name.split("-")[1]))  # forgotten
            ):
                self._load_beside(self._newest)
        if now - self._read_at < _READ_SECONDS:
            return
        self._read_at = now  # also if that raises
        if self.predictor.advance(end := self.run_position):
            self.num_frames += 1
            self._read_at = 0.0
        if self.predictor.position >= end:
            self._current_at = now

    def _newest(self) -> Run:
        """Return the run at its newest checkpoint, with the events of the present answers."""
        run = open_run(self._path, self._model)
        while run.position < (position := self.predictor.position) and run.advance(position):
            pass
        return run


def _part(frame: Frame, part: str) -> dict[str, torch.Tensor]:
    named = ((name.partition("/"), x) for name, x in frame.tensors.items())
    return {name: x for (of, _, name), x in named if of == part}


def main() -> None:
    """Serve on an inherited socket until SIGTERM, or until standard input ends.

    The first line of standard input is a `ReplicaJob`.
    """
    job = ReplicaJob(**json.loads(sys.stdin.readline()))
    servers: list[Server] = []

    def last() -> None:
        sys.stdin.read()  # ends with the process that started this one
        if not servers:  # a checkpoint is still awaited
            os._exit(0)
        servers[0].should_exit = True

    threading.Thread(target=last, name="last", daemon=True).start()
    sys.setswitchinterval(5e-4)  # so that requests are read while a model computes
    torch.set_num_threads(1)
    own, shown = CollectorRegistry(), CollectorRegistry()
    MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
    path = Path(job.path)
    replica: Replica
    try:
        model = None if job.model is None else load(job.model)
        if job.ring is None:
            replica = LogReplica(path, model)
        else:
            replica = FrameReplica(path, Ring(job.ring), _warn, model)
    except OSError:
        raise  # the run may have removed a file meanwhile
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        _warn(FAILURE + json.dumps([kinds, str(error)]))
        raise
    answers = Answers(replica, job.max_pairs, _warn)
    serving = Serving(*job.serving)
    serving = serving._replace(endpoint=Endpoint(*serving.endpoint))
    add_labels = None if job.labels is None else Pipe(Connection(job.labels)).ask
    server = make_server(serving, answers, replica.health, own, shown, _warn, add_labels)
    servers.append(server)
    threading.Thread(target=_observe, args=(own, replica, answers), daemon=True).start()
    gc.collect()
    gc.freeze()  # as a search of all that has been imported would stop answers for 0.1 s
    server.run([socket.socket(fileno=job.listener)])
    answers.close()


def _observe(registry: CollectorRegistry, replica: Replica, answers: Answers) -> None:

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        name = f"tgflow_replica_{name}"
        return Gauge(name, text, labels, registry=registry, multiprocess_mode="liveall")

    gauges = [
        gauge("position", "Events included in answers."),
        gauge("parameters", "Log position up to which the parameters were learned."),
        gauge("behind_events", "Events that the run has learned and answers do not include."),
        gauge("age_seconds", "Time since answers included all events of the run."),
        gauge("frames", "Frames or logged micro-batches of the run applied."),
        gauge("restarts", "Times frames were lost, and a checkpoint replaced them."),
        gauge("answers", "Questions answered."),
        gauge("turns", "Turns in which they were answered together."),
    ]
    held = gauge("memory_bytes", "Memory by part.", "part")
    while True:
        at = replica.health()
        values = [at.position, at.parameters, at.behind, at.age]
        values += [replica.num_frames, replica.num_restarts]
        values += [answers.num_answered, answers.num_turns]
        for each, value in zip(gauges, values, strict=True):
            each.set(value)
        for part, size in replica.memory().items():
            held.labels(part).set(size)
        time.sleep(_LOOK_SECONDS)


def _warn(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
