"""What a second thread is worth to a training, and what two trainings leave each other.

Threads of two kinds meet in a step: those of torch's operators and those of the core's, while
others prepare the next batches. Where they wait for each other by spinning, a machine with few
cores does little else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict

import torch

from benchmarks.side_work import READY, SideWork
from tgflow import _core
from tgflow.bench.options import Options
from tgflow.bench.own import Own, own_tgat, own_tgn
from tgflow.bench.row import Params, Row
from tgflow.bench.task import Laps, Task
from tgflow.bench.train import QUICK_EVENTS, TURN, task_of
from tgflow.bench.turns import restored_threads
from tgflow.runtime.machine import num_cores

EVENTS = 30_000
"""The first ones of the stream."""
OVER_ONE = 1.7
"""Of all cores' threads over one, on two cores."""
OF_HALF = 0.9
"""Of a training beside another one, over one that has half of the machine to itself."""
SECONDS, QUICK_SECONDS = 20.0, 0.5
TRAINING = "threads, training"
SIDE_BY_SIDE = "threads, two trainings side by side"
_FAILED = "a training beside others has failed; see what it printed"


class OnThreads:
    """A contender that trains on a number of threads, torch's and the core's alike.

    Args:
        own: What trains.
        threads: How many.
    """

    def __init__(self, own: Own, threads: int) -> None:
        self._own, self._threads = own, threads

    def train(self, num_batches: int) -> list[float]:
        """Train on the next batches."""
        torch.set_num_threads(self._threads)
        _core.set_num_threads(self._threads)
        return self._own.train(num_batches)

    def evaluate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Score the held-out events."""
        return self._own.evaluate()


def run(options: Options) -> list[Row]:
    """Train TGN and TGAT on one thread and on all, in turns; then TGN in two processes at once."""
    name, events = options.wikipedia()
    task = task_of(events[: options.events or (QUICK_EVENTS if options.quick else EVENTS)])
    params: Params = {"stream": name, "events": len(task.events)}
    rows: list[Row] = []
    for model, make in (("TGN", own_tgn), ("TGAT", own_tgat)):
        rows += training_rows(task, make, {**params, "model": model}, options)
    return [*rows, *side_rows(params, options)]


def training_rows(
    task: Task, make: Callable[[Task], Own], params: Params, options: Options
) -> Iterator[Row]:
    """Yield the speed on one thread and on as many as there are cores, turn by turn."""
    cores = num_cores()
    laps = {n: Laps(OnThreads(make(task), n), TURN, task.batch_size) for n in (1, cores)}
    with restored_threads():
        while len(laps[1].losses) < task.num_batches:
            for each in laps.values():
                each.run()
            options.say(f"{params['model']}: batch {len(laps[1].losses):,}")
    one = laps.pop(1).median
    yield Row(TRAINING, one, "events/s", {**params, "threads": 1})
    wanted = OVER_ONE if cores == 2 else None
    for each in laps.values():
        named = {**params, "threads": cores}
        yield Row(TRAINING, each.median, "events/s", named, baseline=one, target_ratio=wanted)


def side_rows(params: Params, options: Options) -> Iterator[Row]:
    """Yield the speed of a TGN on half of the cores alone, and of each of two at once on all."""
    cores = num_cores()
    if cores < 2:
        return
    seconds = QUICK_SECONDS if options.quick else SECONDS
    events = int(params["events"])
    data = None if options.standard_file is None else str(options.standard_file)

    def of(threads: int, at_once: int, on_cores: int) -> tuple[float, Params]:
        options.say(f"{at_once} at once on {on_cores} cores, {threads} threads each")
        speeds = speeds_of([SideWork(events, seconds, threads, on_cores, data)] * at_once)
        named = {**params, "model": "TGN", "trainings": at_once, "threads": threads}
        return sum(speeds) / len(speeds), {**named, "cores": on_cores}

    alone, named = of(cores // 2, 1, cores // 2)
    yield Row(SIDE_BY_SIDE, alone, "events/s", named)
    for threads in (cores // 2, cores):
        each, named = of(threads, 2, cores)
        yield Row(SIDE_BY_SIDE, each, "events/s", named, None, alone, OF_HALF)


def speeds_of(works: Sequence[SideWork]) -> list[float]:
    """Return the events a second of processes that train at the same time.

    Raises:
        RuntimeError: If one has failed; it has said why.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(_process(work)) for work in works]
        for process in processes:
            stack.callback(process.kill)  # before it is waited for; one that is done is left alone
        for process in processes:
            if process.stdout is None or process.stdout.readline() != READY:
                raise RuntimeError(_FAILED)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError(_FAILED)
    return [float(answer) for answer in answers]


def _process(work: SideWork) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.side_work", json.dumps(asdict(work))]
    return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
