"""Serve a run over HTTP: publish its progress, and keep the processes that answer."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow.base.extras import install_command
from tgflow.base.own_code import reference_of
from tgflow.base.units import parse_bytes, parse_seconds
from tgflow.checkpoint import Component
from tgflow.graph.events import COLUMNS
from tgflow.graph.ids import NodeIds
from tgflow.graph.log import NodeCount
from tgflow.nn import NodeMemory
from tgflow.run.config import ConfigError
from tgflow.run.config.schema import ServeConfig
from tgflow.run.posted_labels import Pipe, PostedLabels
from tgflow.serve.endpoint import Endpoint, Hosts, Serving, read_token
from tgflow.serve.ring import Ring
from tgflow.train.continual import ContinualTrainer
from tgflow.train.observe import Callback, StepRecord

NICE = 5
"""Priority of a run beside replicas; 0 is usual, and 19 the lowest."""
_GRACE_SECONDS = 10
"""Seconds for a replica to send its pending answers and end when serving ends."""
FAILURE = "failure: "
"""Before the arguments of `ReplicaFailed`, as JSON, in a replica's line of standard error."""
_RESTART_SECONDS = 1.0
"""Seconds between the end of a replica and the start of the next one."""
_NEW_SECONDS = 5.0
"""Seconds for a process to lock a folder that it has made."""
_MORE_MEMORY = "a larger --set serve.ring needs as large a /dev/shm (containers: --shm-size)"


def check_serving(serve: ServeConfig) -> tuple[Endpoint, str | None] | None:
    """Return the endpoint of a run and its token; None if it is not served."""
    try:
        Hosts(Endpoint("127.0.0.1", 0), listed_hosts(serve))
        if serve.at is None:
            return None
        endpoint = Endpoint.parse(serve.at)
        token = read_token(endpoint, serve.token_file)
    except ValueError as error:
        raise ConfigError(f"--serve: {error}") from None
    for name in ("httptools", "prometheus_client", "uvicorn"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"serving needs {name}; {install_command('serve')}")
    return endpoint, token


def listed_hosts(serve: ServeConfig) -> list[str]:
    """Return the names in `--serve-hosts`, which may be separated by commas."""
    return [name.strip() for text in serve.hosts or () for name in text.split(",")]


class FramePublisher(Component, Callback):
    """Writes what each micro-batch has changed to a ring: events, ids, rows of memory, parameters.

    Copies in the trainer's thread, and never waits for readers. Warns if there is less shared
    memory than the ring should have, and raises ConfigError if it is too little for the parameters.
    """

    def __init__(
        self,
        trainer: ContinualTrainer,
        ids: NodeIds,
        classes: Callable[[], Mapping[str, Sequence[str]]],
        config: ServeConfig,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trainer, self._ids, self._classes = trainer, ids, classes
        self._every = parse_seconds(config.parameters_every)
        self._warn = warn
        self.ring = self._make_ring(config.ring)
        self._position = trainer.position
        self.ring.begin_at(self._position)
        self._count = NodeCount(trainer.graph.log)
        self._num_ids = self._count.upto(self._position)
        self._num_rows = trainer.graph.num_node_rows(self._position)
        self._num_classes: dict[str, int] = {}
        self._num_steps = 0
        self._clock, self._learned_at = clock, -inf
        self._parameters = self._position
        """Position of the parameters that were published last."""
        self._asked = self.ring.asked
        self.num_lost = 0
        """Frames for which there was no memory."""
        self.seconds = 0.0
        """Time for which the frames have blocked the training."""
        self.num_bytes = 0

    def _make_ring(self, size: int | str) -> Ring:
        least = 2 * sum(x.nbytes for x in self._trainer.model.state_dict().values())
        try:
            ring = Ring.create(parse_bytes(size))
        except OSError as error:
            raise ConfigError(f"--set serve.ring={size}: {error}; {_MORE_MEMORY}") from None
        if ring.capacity < least:
            ring.close()
            text = f"--set serve.ring={size}: the ring can have {ring.capacity:,} bytes, and needs "
            raise ConfigError(f"{text}{least:,} bytes for twice the parameters; {_MORE_MEMORY}")
        if ring.capacity < parse_bytes(size):
            self._warn(
                f"--set serve.ring={size}: less shared memory is free, so the ring has "
                f"{ring.capacity:,} bytes; {_MORE_MEMORY}"
            )
        return ring

    def on_step(self, record: StepRecord) -> None:
        if self._trainer.position > self._position:
            self._publish()

    def _publish(self, *, is_last: bool = False) -> None:
        started, begin, end = time.perf_counter(), self._position, self._trainer.position
        note, tensors = self._changes(begin, end, is_last)
        self._position, usable = end, self.ring.usable
        try:
            self.num_bytes += self.ring.write(begin, end, note, tensors)
        except OSError as error:  # replicas start from a checkpoint
            self.num_lost += 1
            if self.num_lost.bit_count() == 1:  # the first, and ever fewer of the next ones
                text = f"{self.num_lost:,} frames of --set serve.ring were lost: {error.strerror}"
                self._warn(f"{text}; {_MORE_MEMORY}")
        if self.ring.usable < usable:
            text = f"shared memory is full: --set serve.ring has {self.ring.usable:,} bytes"
            self._warn(f"{text}; {_MORE_MEMORY}")
        self.seconds += time.perf_counter() - started

    @torch.no_grad()
    def _changes(
        self, begin: int, end: int, is_last: bool
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the note and the tensors of a frame, which `Replica` applies."""
        trainer, graph, model = self._trainer, self._trainer.graph, self._trainer.model
        events = graph.log.read(begin, end)
        note: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for name in COLUMNS:
            if (column := getattr(events, name)) is not None:
                tensors[f"events/{name}"] = column
        if graph.edge_x is not None:
            tensors["events/x"] = graph.edge_x.read(begin, end).cpu()
        num_ids, num_rows = self._count.upto(end), graph.num_node_rows(end)
        if graph.node_x is not None and num_rows > self._num_rows:
            note["node_x"] = self._num_rows
            tensors["node_x/x"] = graph.node_x.read(self._num_rows, num_rows).cpu()
        if num_ids > self._num_ids:
            found = self._ids.state_dict(num_ids, self._num_ids)
            tensors |= {f"ids/{name}": x for name, x in found.items()}
        scale = graph.node_scale
        if graph.node_x is not None and scale is not None and self._num_rows < scale.freeze_at:
            tensors |= {f"node_scale/{name}": x for name, x in scale.state_at(num_rows).items()}
        self._num_ids, self._num_rows = num_ids, num_rows
        if trainer.scorer is not None and trainer.scorer.alerts is not None:
            alerts = trainer.scorer.alerts.alerts.between(begin, end)
            tensors |= {f"alerts/{name}": x for name, x in alerts._asdict().items()}
        classes = self._classes()
        sizes = {name: len(texts) for name, texts in classes.items()}
        if sizes != self._num_classes:
            self._num_classes = sizes
            note["classes"] = {name: [*texts] for name, texts in classes.items()}
        scale = graph.feature_scale
        if graph.edge_x is not None and scale is not None and begin < scale.freeze_at:
            tensors |= {f"scale/{name}": x for name, x in scale.state_at(end).items()}
        if isinstance(model.state, NodeMemory):
            nodes: Tensor = torch.unique(torch.cat([events.src, events.dst]))
            tensors |= {f"rows/{name}": x for name, x in model.state.rows_of(nodes).items()}
        elif model.state is not None:
            tensors |= {f"state/{name}": x.cpu() for name, x in model.state.state_dict().items()}
        now = self._clock()
        if is_last or now - self._learned_at >= self._every:
            self._learned_at, self._parameters = now, end
            note["parameters"] = end
            tensors |= {f"model/{name}": x.cpu() for name, x in model.state_dict().items()}
            if trainer.scorer is not None:
                found = trainer.scorer.calibration.state_dict()
                tensors |= {f"calibration/{name}": x for name, x in found.items()}
        late = graph.log.late
        first, stop = (late.num_upto(position) for position in (begin, end))
        if stop > first:
            tensors |= {f"late/{name}": x for name, x in late.read(first, stop).items()}
        self._num_steps += 1
        return note, tensors

    def is_asked(self) -> bool:
        """Return whether a replica asks for a checkpoint, once for each call of it."""
        before, self._asked = self._asked, self.ring.asked
        return before != self._asked

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Publish the last parameters; return the number of frames and what they took."""
        if self._parameters < self._position:
            self._publish(is_last=True)
        num, each = self._num_steps, max(1, self._num_steps)
        found: dict[str, Any] = {"frames": num, "lost": self.num_lost}
        found["bytes_per_frame"] = self.num_bytes // each
        return {"serving": found | {"ms_per_frame": round(1e3 * self.seconds / each, 3)}}

    def close(self) -> None:
        """Mark the run as ended; the ring stays while replicas read it."""
        self.ring.end()
        self.ring.close()


class ReplicaFailed(RuntimeError):
    """Raised if replicas cannot open a run; `kinds` are the class names of their error."""

    def __init__(self, kinds: Sequence[str], text: str) -> None:
        super().__init__(text)
        self.kinds = kinds


@dataclass(frozen=True, slots=True)
class ReplicaJob:
    """What a process of `tgflow.run.replica` gets as JSON."""

    path: str
    listener: int
    """Descriptor of the socket that it listens on."""
    ring: int | None
    """Descriptor of the ring; None: it follows the checkpoints of the directory."""
    max_pairs: int
    serving: Serving
    model: str | None = None
    """Reference to the class of the run's model, if the caller of the parent has given it."""
    labels: int | None = None
    """Descriptor of a `Pipe` that takes labels; None: none are added."""


class Replicas(AbstractContextManager["Replicas"]):
    """Processes that answer for a run at one address; a context manager.

    They share a listening socket, which stays open if one of them ends; another is started then.
    Without a ring they follow the checkpoints of the directory. `warn` gets each message of a
    replica, from other threads.
    """

    def __init__(
        self,
        path: Path,
        serve: ServeConfig,
        name: str,
        where: tuple[Endpoint, str | None],
        ring: Ring | None,
        warn: Callable[[str], None],
        model: str | None = None,
        labels: PostedLabels | None = None,
    ) -> None:
        endpoint, token = where
        self._labels = labels
        self._listener: socket.socket = endpoint.listen()
        address, port = self._listener.getsockname()[:2]
        self.endpoint = Endpoint(endpoint.host, port)
        self._ring = None if ring is None else os.dup(ring.fd)
        self._job = ReplicaJob(
            str(path.absolute()),
            self._listener.fileno(),
            self._ring,
            serve.max_pairs,
            Serving(
                name,
                path.absolute().name,
                token,
                self.endpoint,
                [*listed_hosts(serve), f"[{address}]:{port}"],
                serve.max_body,
                serve.max_waiting,
                parse_seconds(serve.timeout),
                serve.max_lag,
                None if labels is None else labels.token,
            ),
            reference_of(name) if model is None else model,
        )
        self.failure: ReplicaFailed | None = None
        """Why a replica of a directory could not open it; all end then."""
        self._log, self._ends = warn, threading.Event()
        self._metrics, self._metrics_fd = _metrics_folder()
        self._starting = threading.Lock()
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(i,), name="replica", daemon=True)
            for i in range(serve.replicas)
        ]
        for thread in self._threads:
            thread.start()

    def prioritize(self) -> None:
        """Lower the priority of this process's other threads, and of those that they start.

        Has no effect where priorities are those of processes, not of threads.
        """
        kept = {thread.native_id for thread in self._threads}
        with suppress(OSError):
            for name in os.listdir("/proc/self/task"):
                if int(name) not in kept:
                    os.setpriority(os.PRIO_PROCESS, int(name), NICE)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.poll() is None]

    @property
    def is_alive(self) -> bool:
        return self.failure is None and any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Stop accepting requests, and answer those in progress, within a time limit."""
        with self._starting:
            self._ends.set()
            for process in self._processes.values():
                process.terminate()
        killing = threading.Timer(_GRACE_SECONDS, self._kill)
        killing.start()
        for thread in self._threads:
            thread.join()
        killing.cancel()
        self._listener.close()
        if self._ring is not None:
            os.close(self._ring)
        shutil.rmtree(self._metrics, ignore_errors=True)
        os.close(self._metrics_fd)

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _keep(self, index: int) -> None:
        while True:
            with self._starting:
                if self._ends.is_set():
                    return
                process, job = self._start()
                self._processes[index] = process
            assert process.stdin is not None
            assert process.stderr is not None
            with suppress(OSError):
                process.stdin.write(json.dumps(asdict(job)) + "\n")
                process.stdin.flush()  # and stays open as long as this process lives
            for line in process.stderr:
                if line.startswith(FAILURE) and self._ring is None:
                    self.failure = ReplicaFailed(*json.loads(line.removeprefix(FAILURE)))
                else:
                    self._warn(line.rstrip())
            code = process.wait()
            with suppress(OSError):  # of a job that it did not read
                process.stdin.close()
            for file in Path(self._metrics).glob(f"gauge_live*_{process.pid}.db"):
                file.unlink(missing_ok=True)
            if self._ends.is_set():
                return
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            self._warn(f"a replica has ended with {how}: starting another")
            self._ends.wait(_RESTART_SECONDS)

    def _start(self) -> tuple[subprocess.Popen[str], ReplicaJob]:
        job, own, its = self._job, *multiprocessing.Pipe()
        if self._labels is not None:
            job = replace(job, labels=its.fileno())
        inherited = [fd for fd in (job.listener, job.ring, job.labels) if fd is not None]
        settings = {"OMP_NUM_THREADS": "1", "PROMETHEUS_MULTIPROC_DIR": self._metrics}
        # -P: do not import modules from the working directory
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tgflow.run.replica"],
            pass_fds=inherited,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | settings,
            start_new_session=True,  # Ctrl-C is for this process
        )
        its.close()
        if self._labels is None:
            own.close()
        else:
            self._labels.serve(Pipe(own))
        return process, job

    def _warn(self, text: str) -> None:
        with suppress(Exception, SystemExit):  # raised by rich if the terminal is gone
            self._log(text)

    def __exit__(self, *error: object) -> None:
        self.close()


def _metrics_folder() -> tuple[str, int]:
    """Return a new folder for the metrics of replicas, and a descriptor that locks it.

    Removes the folders of processes that were killed: those without a lock, and not just made.
    """
    for folder in Path(tempfile.gettempdir()).glob("tgflow-metrics-*"):
        with suppress(OSError):  # locked, gone, or of another user
            found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(found).st_ctime > _NEW_SECONDS:
                    shutil.rmtree(folder)
            finally:
                os.close(found)
    made = tempfile.mkdtemp(prefix="tgflow-metrics-")
    lock = os.open(made, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return made, lock
