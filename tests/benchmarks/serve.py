"""Latency of HTTP requests during training, and the slowdown of training."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import torch

from benchmarks import serve_clients
from benchmarks.options import Options
from benchmarks.results import Params, Row
from tgflow.streams import open_stream
from tgflow.streams.datasets import FOLDER
from tgflow.streams.write import write_rows

CANDIDATES = 100
"""Destinations ranked by each question."""
RATE, CLIENTS = 200, 64
"""Total requests per second of many clients."""
MOST_P50, MOST_P99, MOST_P99_OF_MANY = 8.0, 20.0, 50.0
"""Targets in milliseconds."""
LEAST_SHARE = 0.97
"""Target for the speed of training on one core beside requests on the other."""
SECONDS, QUICK_SECONDS = 8.0, 1.0
"""Seconds of a window."""
LAPS, WARM_EVENTS = 12, 4_000
QUESTIONS = 500


def run(options: Options) -> list[Row]:
    """Rank destinations at one replica while a run of the default model learns a repeated stream.

    Clients are in a separate process. For the slowdown the run is pinned to one core, replica and
    clients to another, and windows with and without requests alternate.
    """
    path = options.data[0] if options.data else FOLDER / "collegemsg.csv.gz"
    seconds = QUICK_SECONDS if options.quick else SECONDS
    rounds = 1 if options.quick else 3
    params: Params = {"stream": Path(path).name.partition(".")[0], "seconds": seconds}
    with tempfile.TemporaryDirectory() as folder:
        repeated, ids = write_laps(path, Path(folder), LAPS)
        rows: list[Row] = []
        with Served(repeated, ids, Path(folder) / "free") as served:
            rows += rows_of_latency(served, params, seconds, rounds)
        with Served(repeated, ids, Path(folder) / "pinned", is_pinned=True) as served:
            rows += rows_of_share(served, params, seconds, rounds)
    return rows


def rows_of_latency(served: Served, params: Params, seconds: float, rounds: int) -> Iterator[Row]:
    """Yield latencies by number of clients."""
    for clients, rate, targets in (
        (1, 0, {50: MOST_P50, 99: MOST_P99}),
        (CLIENTS, RATE, {50: None, 99: MOST_P99_OF_MANY}),
    ):
        found: dict[int, list[float]] = {percent: [] for percent in targets}
        for _ in range(rounds):
            answers = 1e3 * torch.tensor(served.ask(clients, seconds, rate), dtype=torch.float64)
            for percent in targets:
                found[percent].append(float(answers.quantile(percent / 100)))
        own = params | {"clients": clients, "answers/s": round(len(answers) / seconds)}
        for percent, target in targets.items():
            yield Row(
                f"serve, p{percent} beside learning", median(found[percent]), "ms", own, target
            )


def rows_of_share(served: Served, params: Params, seconds: float, rounds: int) -> Iterator[Row]:
    """Yield the speed of training beside requests, relative to that alone."""
    shares, alone, reached = [], [served.speed(seconds)], []
    for _ in range(rounds):
        with served.asking(CLIENTS, seconds, RATE) as answers:
            beside = served.speed(seconds)
        reached.append(len(answers()) / seconds)
        alone.append(served.speed(seconds))
        shares.append(2 * beside / (alone[-1] + alone[-2]))
    own = params | {"answers/s": round(median(reached)), "events/s alone": round(median(alone))}
    yield Row("serve, learning beside requests", median(shares), "of alone", own, LEAST_SHARE)


def write_laps(path: str | Path, folder: Path, laps: int) -> tuple[Path, list[int]]:
    """Write a stream several times in a row, each time later; return the file and its ids."""
    stream = open_stream(path, time_unit="s")
    events = pa.Table.from_batches([batch.to_arrow() for batch in stream]).select(
        ["src", "dst", "t"]
    )
    times = events["t"].to_numpy()
    span = int(times[-1] - times[0]) + 1
    made = [
        events.set_column(2, "t", pa.array(times + lap * span)).to_batches() for lap in range(laps)
    ]
    target = folder / "events.parquet"
    write_rows(target, [batch for each in made for batch in each], events.schema)
    first = events.slice(0, WARM_EVENTS)
    return target, sorted({*first["src"].to_pylist(), *first["dst"].to_pylist()})


class Served:
    """Context manager of a `tgflow run --serve` in a process of its own.

    Args:
        stream: File of the stream.
        ids: Ids to ask about.
        out: Directory of the run.
        is_pinned: Whether the run gets the first core, and replica and clients the second.
        flags: Further flags of the run.
    """

    def __init__(
        self,
        stream: Path,
        ids: Sequence[int],
        out: Path,
        *,
        is_pinned: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        self._is_pinned = is_pinned and len(os.sched_getaffinity(0)) > 1
        words = ["run", "-s", stream, "--out", out, "--serve", "0", "--time-unit", "s", *flags]
        words += ["--threads", "1"] if is_pinned else []
        rng = random.Random(1)
        questions = [
            {"src": [rng.choice(ids)], "candidates": rng.sample(ids, min(CANDIDATES, len(ids)))}
            for _ in range(QUESTIONS)
        ]
        self._questions = "\n".join(map(json.dumps, questions))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tgflow", *map(str, words)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"answers at http://([0-9.]+:\d+)", line):
                self._at = found[1]
                break
        else:
            raise RuntimeError("the run has ended by itself")

    def __enter__(self) -> Served:
        while self.get("/healthz")["position"] < WARM_EVENTS:
            time.sleep(0.05)
        if self._is_pinned:
            first, second = sorted(os.sched_getaffinity(0))[:2]
            pin(self._process.pid, first)
            pin(self.replica, second)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def get(self, path: str) -> Any:
        """Return the response to a request: parsed JSON, or text."""
        connection = http.client.HTTPConnection(self._at, timeout=120)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text if path == "/metrics" else json.loads(text)

    @property
    def replica(self) -> int:
        """Process id of the replica."""
        found = re.search(r'tgflow_replica_frames\{pid="(\d+)"\}', self.get("/metrics"))
        assert found is not None
        return int(found[1])

    def learned(self) -> tuple[int, float]:
        """Return the number of events that the run has learned, and the time of its change."""
        before = self._learned()
        while (now := self._learned()) == before:
            time.sleep(0.002)
        return now, time.perf_counter()

    def _learned(self) -> int:
        health = self.get("/healthz")
        if health["state"] != "following":
            raise RuntimeError("the stream has ended: it needs more laps")
        return int(health["position"]) + int(health["behind"])

    def speed(self, seconds: float) -> float:
        """Return the events learned per second in a window."""
        before, begin = self.learned()
        time.sleep(seconds)
        after, end = self.learned()
        return (after - before) / (end - begin)

    def ask(self, clients: int, seconds: float, rate: float = 0) -> list[float]:
        """Send requests and return the seconds of each answer."""
        with self.asking(clients, seconds, rate) as answers:
            pass
        return answers()

    def asking(self, clients: int, seconds: float, rate: float = 0) -> Asking:
        """Return a context manager of clients, at a total `rate` per second if it is not 0."""
        words = [self._at, "/top-k", clients, seconds, rate]
        return Asking(words, self._questions, is_pinned=self._is_pinned)


class Asking:
    """Context manager of clients in a process of their own; call it for the latencies."""

    def __init__(self, words: Sequence[object], questions: str, *, is_pinned: bool) -> None:
        command = [sys.executable, str(Path(serve_clients.__file__)), *map(str, words)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if is_pinned:
            pin(self._process.pid, sorted(os.sched_getaffinity(0))[1])
        assert self._process.stdin is not None
        self._process.stdin.write(questions)
        self._process.stdin.close()

    def __enter__(self) -> Asking:
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *error: object) -> None:
        self._found = self._process.stdout.read() if self._process.stdout is not None else ""
        self._process.wait()

    def __call__(self) -> list[float]:
        answers: list[float] = json.loads(self._found)
        if not answers:
            raise RuntimeError("no client had an answer")
        return answers


def pin(pid: int, core: int) -> None:
    """Run all threads of a process on one core."""
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), {core})
