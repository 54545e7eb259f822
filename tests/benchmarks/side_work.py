"""A process of the benchmark of threads: it trains while others do, and says how fast."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tgflow import _core
from tgflow.bench import made
from tgflow.bench.own import Own, own_tgn
from tgflow.bench.train import TURN, task_of

READY = "ready\n"
"""What it prints once it is warm; the line that it waits for then may say anything."""


@dataclass(frozen=True, slots=True)
class SideWork:
    """What one process trains."""

    events: int
    """The stream's first ones."""
    seconds: float
    """How long it is measured."""
    threads: int
    cores: int
    """How many it may use, the first ones of those that there are."""
    data: str | None = None
    """A file of events; None: a made stream."""


def measure(own: Own, seconds: float, now: Callable[[], float] = time.perf_counter) -> float:
    """Return the events a second of a training that goes round its task for so long by `now`."""
    begin, num_batches = now(), 0
    while now() - begin < seconds:
        losses = own.train(TURN)
        num_batches += len(losses)
        if not losses:
            own.rewind()
    return num_batches * own.task.batch_size / (now() - begin)


def main(text: str) -> None:
    """Warm up, wait for a line, train, and print the events a second."""
    work = SideWork(**json.loads(text))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: work.cores])
    torch.set_num_threads(work.threads)
    _core.set_num_threads(work.threads)
    events = made.wikipedia() if work.data is None else made.read(Path(work.data))
    own = own_tgn(task_of(events[: work.events]))
    own.train(TURN)
    sys.stdout.write(READY)
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(f"{measure(own, work.seconds)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
