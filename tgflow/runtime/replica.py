"""A process with a copy of a run that follows it and answers: `python -m tgflow.runtime.replica`.

It starts from the newest checkpoint. Beside a run it applies the frames that the run publishes; a
frame that was overwritten before it was read is replaced by a newer checkpoint. Without a ring it
takes over each newer checkpoint of the directory.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.multiprocess import MultiProcessCollector
from uvicorn import Server

from tgflow.checkpoint import CheckpointError, list_checkpoints
from tgflow.events import COLUMNS, EventBatch, NewNodes, concat
from tgflow.nn import MemoryUpdater, NodeMemory
from tgflow.runtime.files import read_health
from tgflow.runtime.saved_run import Run, open_run
from tgflow.runtime.serving import ReplicaJob
from tgflow.serve.answers import Answers
from tgflow.serve.app import Serving, make_server
from tgflow.serve.guard import Limits
from tgflow.serve.questions import Health
from tgflow.serve.ring import Frame, Lapped, Ring

_LOOK_SECONDS = 0.5
"""Seconds between looks for a newer checkpoint."""
MOST_FRAMES = 64
"""Frames applied at once."""


class Replica:
    """A copy of a run, at one of its checkpoints and the frames since.

    Args:
        path: Directory of the run.
        ring: Frames of the run; None: only its checkpoints are followed.

    Raises:
        FileNotFoundError: If there is no run, or it has no checkpoint yet.
        CheckpointError: If its checkpoints are damaged, or belong to a comparison.
    """

    def __init__(self, path: Path, ring: Ring | None = None) -> None:
        self._path, self._ring = path, ring
        self._next: int | None = None
        """Number of the frame that follows; None: not published yet."""
        self._coming: Future[Run] | None = None
        self._looked_at = self._current_at = time.time()
        self.num_frames = self.num_restarts = 0
        """Frames applied, and how often some had been overwritten before."""
        self.predictor: Run
        self.parameters = 0
        self._take(self._load() if ring is not None else open_run(path))

    @property
    def run_position(self) -> int:
        """Events that the run has learned, as far as known."""
        if self._ring is not None:
            return max(self._ring.head.position, self.predictor.position)
        health = read_health(self._path / "health.json")
        there = 0 if health is None else int(health.get("position") or 0)
        return max(there, self.predictor.position)

    def health(self) -> Health:
        """Return the version of the answers, and the distance from the run; any thread may call."""
        position, there = self.predictor.position, self.run_position
        ended = self._ring is None or bool(self._ring.head.has_ended)
        if self._ring is None:
            health = read_health(self._path / "health.json")
            ended = health is None or not health["alive"]
        behind = there - position
        return Health(
            position=position,
            parameters=self.parameters,
            state="ended" if ended else "following",
            behind=behind,
            age=max(0.0, time.time() - self._current_at) if behind else 0.0,
        )

    def memory(self) -> dict[str, int]:
        """Return the bytes of each part of the copy."""
        graph, model = self.predictor.graph, self.predictor.model
        first, state = graph.log.read(0, 0), model.state
        columns = [getattr(first, name) for name in COLUMNS]
        width = sum(x.dtype.itemsize for x in columns if x is not None)
        tables = [table for table in (graph.edge_x, graph.node_x) if table is not None]
        return {
            "events": width * graph.num_events,
            "neighborhoods": graph.stats().bytes,
            "features": sum(4 * table.dim * len(table) for table in tables),
            "memory": state.num_rows * state.row_bytes if isinstance(state, NodeMemory) else 0,
            "parameters": sum(x.nbytes for x in model.state_dict().values()),
        }

    def advance(self) -> None:
        """Take over what the run has published, or a newer checkpoint that has been loaded."""
        if self._coming is not None:
            if not self._coming.done():
                return
            coming, self._coming = self._coming, None
            self._take(coming.result())
        if self._ring is None:
            self._look()
            return
        try:
            self._apply(self._frames(self._ring))
        except Lapped:
            self.num_restarts += 1
            self._load_beside(self._load)

    def _frames(self, ring: Ring) -> list[Frame]:
        """Return the frames that follow, in order."""
        if self._next is None:
            self._next = ring.find(self.predictor.position)
        frames: list[Frame] = []
        position = self.predictor.position
        while self._next is not None and len(frames) < MOST_FRAMES:
            frame = ring.read(self._next)
            if frame is None:
                break
            if frame.begin != position:
                raise Lapped(f"frame {frame.number} begins at {frame.begin}, not at {position}")
            frames.append(frame)
            position, self._next = frame.end, self._next + 1
        return frames

    def _apply(self, frames: Sequence[Frame]) -> None:
        """Apply frames: events and rows of each, the latest of all else."""
        if not frames:
            return
        run, graph = self.predictor, self.predictor.graph
        latest: dict[str, dict[str, torch.Tensor]] = {}
        for frame in frames:
            for name, x in frame.tensors.items():
                part, _, key = name.partition("/")
                if part not in ("events", "ids", "node_x", "rows"):
                    latest.setdefault(part, {})[key] = x
            if ids := _part(frame, "ids"):
                run.ids.extend(ids)
            run.classes.update(frame.note.get("classes", {}))
            self.parameters = frame.note.get("parameters", self.parameters)
        scale, graph.feature_scale = graph.feature_scale, None  # rows come as they are stored
        try:
            graph.append(concat([_events(frame) for frame in frames]))
        finally:
            graph.feature_scale = scale
        if scale is not None and "scale" in latest:
            scale.load(latest["scale"])
        state = run.model.state
        if isinstance(state, NodeMemory):
            for frame in frames:
                if rows := _part(frame, "rows"):
                    state.put_rows(rows)
        elif state is not None and "state" in latest:
            state.load_state_dict(latest["state"])
        if "model" in latest:
            run.model.load_state_dict(latest["model"])
            self._keep_updated()
        if "calibration" in latest:
            run.calibration.load_state_dict(latest["calibration"])
        self.num_frames += len(frames)
        self._current_at = time.time()

    def _take(self, run: Run) -> None:
        self.predictor, self._next = run, None
        self.parameters = run.position
        if run.graph.node_x is not None:
            run.graph.node_scale = None  # rows come as they are stored
        self._keep_updated()
        run.warm()
        self._current_at = time.time()

    def _keep_updated(self) -> None:
        """Update the memory of a node once, until its row or the parameters change."""
        for module in self.predictor.model.modules():
            if isinstance(module, MemoryUpdater):
                module.keep()

    def _look(self) -> None:
        """Load the newest checkpoint if it is another one; without a ring."""
        if time.time() - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = time.time()
        there = list_checkpoints(self._path / "checkpoints")
        if there and there[-1].step > self.predictor.position:
            self._load_beside(lambda: open_run(self._path))
        else:
            self._current_at = time.time()

    def _load(self) -> Run:
        """Return the run at a checkpoint from which on the ring has all frames."""
        ring, asked_at = self._ring, -1
        assert ring is not None
        while True:
            there = list_checkpoints(self._path / "checkpoints")
            try:
                if there:
                    ring.find(there[-1].step)
                    run = open_run(self._path)
                    ring.find(run.position)
                    return run
            except Lapped:
                if asked_at < (newest := there[-1].step):
                    ring.ask_for_checkpoint()
                    asked_at = newest
            except (CheckpointError, FileNotFoundError):
                if ring.head.has_ended:
                    raise
            time.sleep(0.05)

    def _load_beside(self, load: Callable[[], Run]) -> None:
        """Load in another thread; until then answers are as of now."""
        coming = self._coming = Future()

        def work() -> None:
            try:
                coming.set_result(load())
            except BaseException as error:
                coming.set_exception(error)

        threading.Thread(target=work, name="load", daemon=True).start()


def _part(frame: Frame, part: str) -> dict[str, torch.Tensor]:
    prefix = f"{part}/"
    return {
        name.removeprefix(prefix): x for name, x in frame.tensors.items() if name.startswith(prefix)
    }


def _events(frame: Frame) -> EventBatch:
    new: Any = frame.tensors.get("node_x/x")
    nodes = None if new is None else NewNodes(frame.note["node_x"], new)
    return EventBatch.checked(**_part(frame, "events"), new_nodes=nodes)


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
    own = shown = CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        shown = CollectorRegistry()
        MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
    replica = Replica(Path(job.path), None if job.ring is None else Ring(job.ring))
    answers = Answers(replica, job.max_pairs, _warn)
    limits = Limits(job.max_body, job.max_waiting, job.timeout)
    serving = Serving(job.name, job.token, limits, job.max_lag)
    server = make_server(serving, answers, replica.health, own, shown, _warn)
    servers.append(server)
    threading.Thread(target=_observe, args=(own, replica, answers), daemon=True).start()
    gc.collect()
    gc.freeze()  # as a search of all that has been imported would stop answers for 0.1 s
    server.run([socket.socket(fileno=job.listener)])
    answers.close()


def _observe(registry: CollectorRegistry, replica: Replica, answers: Answers) -> None:
    """Update the gauges of a replica."""

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        name = f"tgflow_replica_{name}"
        return Gauge(name, text, labels, registry=registry, multiprocess_mode="liveall")

    position = gauge("position", "Events included in answers.")
    parameters = gauge("parameters", "Log position up to which the parameters were learned.")
    behind = gauge("behind_events", "Events that the run has learned and answers do not include.")
    age = gauge("age_seconds", "Time since answers included all events of the run.")
    frames = gauge("frames", "Frames of the run applied.")
    restarts = gauge("restarts", "Times frames were lost, and a checkpoint replaced them.")
    answered = gauge("answers", "Questions answered.")
    turns = gauge("turns", "Turns in which they were answered together.")
    held = gauge("memory_bytes", "Memory by part.", "part")
    while True:
        health = replica.health()
        position.set(health.position)
        parameters.set(health.parameters)
        behind.set(health.behind)
        age.set(health.age)
        frames.set(replica.num_frames)
        restarts.set(replica.num_restarts)
        answered.set(answers.num_answered)
        turns.set(answers.num_turns)
        for part, size in replica.memory().items():
            held.labels(part).set(size)
        time.sleep(_LOOK_SECONDS)


def _warn(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
