"""What ranks cost and bring: processes that learn a stream together, beside one, in turns.

Each contender is a set of new processes, a thread each unless its row says more, so that nothing is
warm for one and not for another. The control is two processes that know nothing of each other, with
half of each micro-batch: what two ranks could reach if they sent nothing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks import rank_restart
from benchmarks.rank_work import Work, WorkFigures
from benchmarks.results import skipped
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options
from tgflow.distributed.supervise import RankProcesses

ROUNDS = 3
WARM_UP = 10
MEASURED = 40
QUICK = 4
"""Micro-batches of both with `quick`."""
LIMIT_SECONDS = 1800.0
CONTROL_SHARE = 0.9
"""Of the control, where it does not reach `CONTROL_SPEED` times one process."""
CONTROL_SPEED = 1.8
SPEEDS = {("tgn", 1000): 1.5, ("tgat", 1000): 1.4, ("tgn", 200): 1.1}
"""Times the better of one process with one thread and two, by model and micro-batch."""
_TOGETHER = "2 ranks"
_CONTROL = "2 processes, half batches"
_ALONE = "1 process"
_ALONE_2 = "1 process, 2 threads"


@dataclass(frozen=True, slots=True)
class RankContender:
    """Processes that do some work at the same time."""

    work: Work
    world: int = 1
    """Ranks that it is shared by; or 0: one process that joins nobody."""
    copies: int = 1
    """Worlds beside each other."""


def run(options: Options) -> list[Row]:
    """Measure two ranks in turns with independent processes."""
    rows = []
    for (model, batch), wanted in SPEEDS.items():
        rows += speed_rows(_work(options, model, batch), wanted, options)
    return [*rows, _restart_row(options)]


def speed_rows(work: Work, wanted: float, options: Options) -> list[Row]:
    """Return events per second of two ranks, one process and the control."""
    half = replace(work, batch=work.batch // 2)
    found = take_rounds(
        {
            _TOGETHER: RankContender(replace(work, slices=2), world=2),
            _ALONE: RankContender(work, world=0),
            _ALONE_2: RankContender(replace(work, threads=2), world=0),
            _CONTROL: RankContender(half, world=0, copies=2),
        },
        options,
    )
    events = work.batch * work.batches
    speeds = {name: median(events / _slowest(each) for each in found[name]) for name in found}
    best = max(speeds[_ALONE], speeds[_ALONE_2])
    name, params = f"ranks, {work.model.upper()}", _params(work, options)
    goal = {"baseline": best, "target_ratio": wanted}
    if speeds[_CONTROL] < CONTROL_SPEED * best:
        goal = {"baseline": speeds[_CONTROL], "target_ratio": CONTROL_SHARE}
    rows = [Row(name, speeds[_TOGETHER], "events/s", {**params, "by": _TOGETHER}, **goal)]
    rows += [
        Row(name, speeds[each], "events/s", {**params, "by": each})
        for each in (_ALONE, _ALONE_2, _CONTROL)
    ]
    return rows


def take_rounds(
    contenders: Mapping[str, RankContender], options: Options
) -> dict[str, list[list[WorkFigures]]]:
    """Return the figures of all processes of each contender, round by round, in turns."""
    found: dict[str, list[list[WorkFigures]]] = {name: [] for name in contenders}
    order = [*contenders]
    for _ in range(1 if options.quick else ROUNDS):
        for name in order:
            work = contenders[name].work
            options.say(f"ranks: {work.model}, micro-batches of {work.batch}: {name}")
            found[name].append(start(contenders[name]))
        order.reverse()
    return found


def start(contender: RankContender) -> list[WorkFigures]:
    """Run a contender's processes, all at the same time; return the figures of each.

    Raises:
        RuntimeError: If one fails, or takes half an hour.
    """
    threads = {"OMP_NUM_THREADS": str(contender.work.threads)}
    environ = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as opened:
        folders = [
            Path(opened.enter_context(tempfile.TemporaryDirectory()))
            for _ in range(contender.copies)
        ]
        worlds = [
            opened.enter_context(_processes(contender, folder, environ)) for folder in folders
        ]
        for world in worlds:
            if not world.wait(LIMIT_SECONDS) or any(world.codes):
                raise RuntimeError(f"ranks of the benchmark ended with {world.codes}")
        files = [path for folder in folders for path in sorted(folder.glob("*.json"))]
        return [WorkFigures(**json.loads(path.read_text(encoding="utf-8"))) for path in files]


def _processes(contender: RankContender, folder: Path, environ: Mapping[str, str]) -> RankProcesses:
    how = "alone" if contender.world == 0 else "joined"
    work = json.dumps(asdict(contender.work))
    command = [sys.executable, "-m", "benchmarks.rank_work", str(folder), work, how]
    return RankProcesses(command, max(contender.world, 1), environ)


def _slowest(processes: list[WorkFigures]) -> float:
    return max(each.seconds for each in processes)


def _work(options: Options, model: str, batch: int) -> Work:
    data = next((path for path in options.data), None)
    num = (QUICK, QUICK) if options.quick else (WARM_UP, MEASURED)
    return Work(model, batch, 1, *num, data=None if data is None else str(data))


def _params(work: Work, options: Options) -> Params:
    name = Path(work.data).name.split(".")[0] if work.data else "wikipedia-shaped"
    return {"stream": name, "model": work.model, "batch": work.batch}


def _restart_row(options: Options) -> Row:
    """Return how long ranks take to learn on, where there is a file for them to run over."""
    if not options.data:
        return skipped(rank_restart.NAME, "s", {}, "needs a file: --data")
    options.say("ranks: kill -9 to learning again")
    data = options.data[0]
    kills = 1 if options.quick else rank_restart.KILLS
    return rank_restart.restart_row(data, kills, {"stream": data.name.split(".")[0]})
