"""Speed of several ranks against one process, measured in turns.

Each contender is a set of new processes, one thread each by default, so that none starts warm. The
control is two independent processes with micro-batches of half the size: the speed of two ranks
without communication. Each learns all events of the ranks, as neighborhoods grow along a stream, so
their speeds add up.

A process of a contender is `python -m benchmarks.ranks FILE WORK (alone|joined)`, see `measure`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import options
from benchmarks.options import Options
from benchmarks.results import Params, Row, skipped
from tgflow import TGAT, TGN, ContinualConfig, ContinualTrainer, TemporalGraph, _core, join
from tgflow.base.peers import Peers
from tgflow.ranks.supervise import RankProcesses

ROUNDS = 3
WARM_UP, MEASURED, QUICK = 10, 40, 4
"""Micro-batches before the clock starts, and measured ones; of both with `quick`."""
LIMIT_SECONDS = 1800.0
CONTROL_SHARE = 0.9
"""Target ratio to the control, if even this share of it is below the target of `SPEEDS`."""
SPEEDS = {("tgn", 1000): 1.5, ("tgat", 1000): 1.4, ("tgn", 200): 1.1}
"""Target ratio to the better of one process with one or two threads, by model and micro-batch."""
KILL_NAME, KILL_SECONDS, KILLS = "ranks, kill -9 to learning again", 15.0, 3
BATCHES = 25
"""Micro-batches between checkpoints, and from one kill's recovery to the next kill."""
KILL_LIMIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Work:
    """Work of each process of a contender, and number of processes."""

    model: str
    """tgn or tgat."""
    batch: int
    """Events of a micro-batch."""
    warm_up: int = WARM_UP
    batches: int = MEASURED
    data: str | None = None
    """A file of events; None: a made stream."""
    threads: int = 1
    dim: int = 100
    world: int = 0
    """Ranks that share the work; 0: a single process."""
    copies: int = 1
    """Concurrent worlds."""


def run(options: Options) -> list[Row]:
    """Measure two ranks in turns with independent processes, then restarts."""
    data = options.data[0] if options.data else None
    sizes = {"warm_up": QUICK, "batches": QUICK} if options.quick else {}
    rows = []
    for (model, batch), wanted in SPEEDS.items():
        work = Work(model, batch, data=None if data is None else str(data), **sizes)
        rows += speed_rows(work, wanted, options)
    if data is None:
        return [*rows, skipped(KILL_NAME, "s", {}, "needs a file: --data")]
    options.say("ranks: kill -9 to learning again")
    seconds = median(recoveries(data, 1 if options.quick else KILLS))
    params: Params = {"stream": data.name.split(".")[0], "ranks": 2}
    return [*rows, Row(KILL_NAME, seconds, "s", params, KILL_SECONDS)]


def speed_rows(work: Work, wanted: float, options: Options) -> list[Row]:
    """Return events per second of two ranks, one process and the control."""
    together, alone, alone_2, control = (
        "2 ranks", "1 process", "1 process, 2 threads", "2 processes, half batches"
    )  # fmt: skip
    contenders = {
        together: replace(work, world=2),
        alone: work,
        alone_2: replace(work, threads=2),
        control: replace(
            work,
            batch=work.batch // 2,
            warm_up=2 * work.warm_up,
            batches=2 * work.batches,
            copies=2,
        ),
    }
    took: dict[str, list[float]] = {name: [] for name in contenders}
    order = [*contenders]
    for _ in range(1 if options.quick else ROUNDS):
        for name in order:
            options.say(f"ranks: {work.model}, micro-batches of {work.batch}: {name}")
            took[name].append(max(start(contenders[name])))
        order.reverse()
    events = work.batch * work.batches
    speeds = {
        name: contenders[name].copies * events / median(seconds) for name, seconds in took.items()
    }
    best = max(speeds[alone], speeds[alone_2])
    goal = {"baseline": best, "target_ratio": wanted}
    if CONTROL_SHARE * speeds[control] < wanted * best:
        goal = {"baseline": speeds[control], "target_ratio": CONTROL_SHARE}
    stream = Path(work.data).name.split(".")[0] if work.data else "wikipedia-shaped"
    params: Params = {"stream": stream, "model": work.model, "batch": work.batch}
    title = f"ranks, {work.model.upper()}"
    return [
        Row(title, speed, "events/s", {**params, "by": name}, **(goal if name == together else {}))
        for name, speed in speeds.items()
    ]


def start(work: Work) -> list[float]:
    """Run the processes of a contender together; return the seconds of each after the warm-up.

    Raises:
        RuntimeError: If one fails, or takes half an hour.
    """
    threads = {"OMP_NUM_THREADS": str(work.threads)}
    environ = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    how = "joined" if work.world else "alone"
    command = [sys.executable, "-m", "benchmarks.ranks"]
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        worlds = []
        for number in range(work.copies):
            own = [*command, str(folder / str(number)), json.dumps(asdict(work)), how]
            worlds.append(opened.enter_context(RankProcesses(own, max(work.world, 1), environ)))
        for world in worlds:
            if not world.wait(LIMIT_SECONDS) or any(world.codes):
                raise RuntimeError(f"ranks of the benchmark ended with {world.codes}")
        files = sorted(folder.iterdir())
        return [float(path.read_text(encoding="ascii")) for path in files]


def measure(work: Work, peers: Peers) -> float:
    """Learn with these ranks; return the seconds after the warm-up."""
    torch.set_num_threads(work.threads)
    _core.set_num_threads(work.threads)
    events = options.wikipedia() if work.data is None else options.read(Path(work.data))
    events = events[: (work.warm_up + work.batches) * work.batch]
    torch.manual_seed(0)
    widths: dict[str, Any] = {"time_dim": work.dim, "embedding_dim": work.dim, "neighbors": 10}
    widths["pair_features"] = ()
    model = (
        TGAT(**widths, strategy="recent")
        if work.model == "tgat"
        else TGN(**widths, memory_dim=work.dim)
    )
    slices = max(work.world, 1)
    config = ContinualConfig(batch_size=work.batch, slices=slices, mrr_negatives=1)
    trainer = ContinualTrainer(model, TemporalGraph(), config, peers=peers)
    steps = trainer.steps([events])
    for _ in range(work.warm_up):
        next(steps)
    began = time.perf_counter()
    for _ in steps:
        pass
    return time.perf_counter() - began


def recoveries(data: Path, kills: int) -> Iterator[float]:
    """Yield seconds from each kill to the first new record.

    Two ranks run over a file with `--nproc 2`, at full rate; the one that started last is killed.

    Raises:
        RuntimeError: If the run ends before, or takes minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        how = ["--nproc", "2", "--threads", "1", "--checkpoint-batches", str(BATCHES)]
        command = [sys.executable, "-m", "tgflow", "run", "--stream", str(data), "--out", str(out)]
        with subprocess.Popen([*command, *how], stdout=subprocess.DEVNULL) as runner:
            try:
                for _ in range(kills):
                    _wait(runner, out, records(out) + BATCHES)
                    before, began = records(out), time.perf_counter()
                    os.kill(ranks_of(runner.pid)[-1], signal.SIGKILL)
                    _wait(runner, out, before + 1)
                    yield time.perf_counter() - began
            finally:
                runner.terminate()


def records(run: Path) -> int:
    """Return the number of recorded micro-batches of a run."""
    path = run / "metrics.jsonl"
    *lines, _ = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
    return 1 + int(json.loads(lines[-1])["index"]) if lines else 0


def ranks_of(pid: int) -> list[int]:
    """Return the child processes of a process, in order."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()))


def _wait(runner: subprocess.Popen[bytes], run: Path, due: int) -> None:
    limit = time.monotonic() + KILL_LIMIT_SECONDS
    while records(run) < due:
        if runner.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"ranks that run over {run} did not get to micro-batch {due}")
        time.sleep(0.005)


if __name__ == "__main__":
    to, work, how = sys.argv[1:]
    ranks = join() if how == "joined" else Peers()
    took = measure(Work(**json.loads(work)), ranks)
    rank = ranks.rank
    ranks.close()
    Path(f"{to}-{rank}").write_text(str(took), encoding="ascii")
