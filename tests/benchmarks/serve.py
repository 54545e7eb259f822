"""Latency of HTTP requests during training, and the slowdown of training."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

from benchmarks import serve_clients
from benchmarks.own import Task, named_task, tgn_of
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads
from tgflow.bench.train import THREADS, graph_on, set_threads
from tgflow.config import StreamConfig
from tgflow.config.schema import ServeConfig
from tgflow.events import EventBatch
from tgflow.ids import NodeIds
from tgflow.inference import Inference
from tgflow.serve.endpoint import Endpoint
from tgflow.serve.predictor import Predictor
from tgflow.serve.server import Server
from tgflow.train.calibration import Calibration
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer

CLIENTS = (1, 8, 64)
"""Numbers of clients that send requests back to back."""
RATE = 100
"""Total requests per second during which training is measured."""
RATE_CLIENTS = 32
"""Clients sufficient for that rate with a latency of a third of a second."""
MOST_SLOWED = 5.0
"""Maximum slowdown of training in percent."""
SECONDS, QUICK_SECONDS = 5.0, 1.0
"""Seconds of a window."""
MARGIN = 1.0
"""Additional seconds of requests, to cover the last micro-batch of a window."""
WARM_EVENTS = 2_000
QUESTIONS = 500


def run(options: Options) -> list[Row]:
    """Train a TGN on a repeated stream, and request scores of single pairs meanwhile.

    Clients are in a separate process. Windows without requests and with 100 requests per second
    alternate; the slowdown is the median over pairs of windows.
    """
    with restored_threads():
        set_threads()
        task, params = named_task(options)
        seconds = QUICK_SECONDS if options.quick else SECONDS
        params = {"stream": params["stream"], "threads": THREADS, "seconds": seconds}
        with Learning(task) as learning:
            return list(rows_of(learning, params, seconds, options))


def rows_of(learning: Learning, params: Params, seconds: float, options: Options) -> Iterator[Row]:
    """Yield the latency by number of clients, and the slowdown of training."""
    for num in CLIENTS:
        options.say(f"serve: {num} clients")
        _, answers = learning.asked(num, seconds)
        rate = round(len(answers) / (seconds + MARGIN))
        p99 = 1e3 * float(torch.tensor(answers, dtype=torch.float64).quantile(0.99))
        params_of = params | {"clients": num, "answers/s": rate}
        yield Row("serve, p99 beside learning", p99, "ms", params_of)
    slowed, alone, reached = [], [], []
    for number in range(options.rounds):
        options.say(f"serve: {RATE} requests/s, round {number + 1}")
        alone.append(learning.alone(seconds))
        speed, answers = learning.asked(RATE_CLIENTS, seconds, RATE)
        slowed.append(100 * (1 - 2 * speed / (alone[-1] + learning.alone(seconds))))
        reached.append(len(answers) / (seconds + MARGIN))
    params |= {"answers/s": round(median(reached)), "events/s alone": round(median(alone))}
    yield Row("serve, learning is", median(slowed), "% slower", params, MOST_SLOWED)


class Learning:
    """Context manager of a served TGN that trains on a repeated stream in a thread.

    Args:
        task: Whose stream, and widths.
    """

    def __init__(self, task: Task) -> None:
        from prometheus_client import CollectorRegistry

        ids, events = NodeIds(), task.events
        src, dst = ids.encode(events.src, events.dst)
        self._events = EventBatch(src, dst, events.t, events.x)
        graph, model = graph_on("cpu", events.x_dim), tgn_of(task)
        self._trainer = ContinualTrainer(model, graph, ContinualConfig(batch_size=task.batch_size))
        engine = Inference(model, graph)
        predictor = Predictor("bench", StreamConfig(), ids, graph, engine, Calibration())
        predictor.follow(self._trainer, engine)
        pairs = zip(ids.decode(src[:QUESTIONS]), ids.decode(dst[:QUESTIONS]), strict=True)
        self._questions = "\n".join(json.dumps({"src": [a], "dst": [b]}) for a, b in pairs)
        self._server = Server(
            predictor,
            Endpoint("127.0.0.1", 0),
            None,
            ServeConfig(),
            "bench",
            registry=CollectorRegistry(),
            state=lambda: "running",
            warn=lambda text: print(text, file=sys.stderr),
        )
        self._ends, self._thread = False, threading.Thread(target=self._learn)

    def __enter__(self) -> Learning:
        self._thread.start()
        while self._trainer.position < min(WARM_EVENTS, len(self._events)):
            if not self._thread.is_alive():
                raise RuntimeError("learning has ended by itself")
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self._ends = True
        self._thread.join()
        self._server.close()

    def alone(self, seconds: float) -> float:
        """Return the events learned per second without requests."""
        before, begin = self._completed()
        time.sleep(seconds)
        after, end = self._completed()
        return (after - before) / (end - begin)

    def asked(self, clients: int, seconds: float, rate: float = 0) -> tuple[float, list[float]]:
        """Send requests for some seconds, at a total `rate` per second if it is not 0.

        Returns:
            Events learned a second, and the seconds of each answer.

        Raises:
            RuntimeError: If they did not get their answers.
        """
        at = self._server.endpoint
        words = [f"{at.host}:{at.port}", clients, seconds + MARGIN, rate]
        command = [sys.executable, str(Path(serve_clients.__file__)), *map(str, words)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(self._questions)
            process.stdin.close()
            process.stdout.readline()
            speed = self.alone(seconds)
            answers: list[float] = json.loads(process.stdout.read())
        if not answers:
            raise RuntimeError("no client had an answer")
        return speed, answers

    def _completed(self) -> tuple[int, float]:
        """Return the number of learned events at the end of the next micro-batch, and its time."""
        position = self._trainer.position
        while self._trainer.position == position:
            time.sleep(0.002)
        return self._trainer.position, time.perf_counter()

    def _learn(self) -> None:
        for _ in self._trainer.steps(self._stream()):
            if self._ends:
                return

    def _stream(self) -> Iterator[EventBatch]:
        """Yield the stream's events repeatedly, each time later than before."""
        events, lap = self._events, int(self._events.t[-1] - self._events.t[0]) + 1
        while True:
            yield events
            events = EventBatch(events.src, events.dst, events.t + lap, events.x)
