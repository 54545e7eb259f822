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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks import rank_restart
from benchmarks.rank_work import Work, WorkFigures
from benchmarks.results import skipped
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options
from tgflow.distributed.rank_processes import RankProcesses

ROUNDS = 3
CPU_ROUNDS = 5
"""Where CPU time is compared: other work on the machine's cores makes it longer too."""
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
CPU_SHARES = {600: 0.65, 2000: 0.55}
"""CPU time of a rank of two over that of one process, by micro-batch."""
JOINED_SHARE = 1.03
COLLECTIVES, COLLECTIVES_SHARDED = 2, 3
"""Of the training thread a micro-batch: where memory is on every rank, and where it is sharded."""
MEMORY_SHARE = 0.2
"""Of the bytes that sharded memory sends, by memory that is on every rank."""
WORLDS = (2, 4)
"""Ranks of worlds that are compared by what they send."""
EVENTS_OF_A_RANK = 500
GROWTH_SHARE = 1.6
"""Of what a rank of two sends, by a rank of four, with as many events a rank and micro-batch."""
TURN_SHARE = 0.35
"""Of the wait for neighbors on other ranks, one micro-batch a turn, by 8 a turn."""
_ASKING = ("queries", "answers")
_REPLICATED = ("rows",)
_SHARDED = ("memory", "memory queries", "memory rows", "memory clocks", "memory stored")
_TRAINING = ("step", "gradient", "memory")
_TOGETHER = "2 ranks"
_CONTROL = "2 processes, half batches"
_ALONE = "1 process"
_ALONE_2 = "1 process, 2 threads"
_JOINED = "1 rank, joined"


@dataclass(frozen=True, slots=True)
class RankContender:
    """Processes that do some work at the same time."""

    work: Work
    world: int = 1
    """Ranks that it is shared by; or 0: one process that joins nobody."""
    copies: int = 1
    """Worlds beside each other."""


def run(options: Options) -> list[Row]:
    """Measure worlds of one, two and four ranks, in turns with processes that join nobody."""
    rows = []
    for (model, batch), wanted in SPEEDS.items():
        rows += speed_rows(_work(options, model, batch), wanted, options)
    for batch, share in CPU_SHARES.items():
        rows.append(cpu_row(_work(options, "tgn", batch), share, options))
    rows.append(joined_row(_work(options, "tgn", 200), options))
    rows += shards_rows(_work(options, "tgn", 1000), options)
    for world in WORLDS:
        rows += memory_rows(_work(options, "tgn", 200), world, options)
    work = _work(options, "tgn", EVENTS_OF_A_RANK)
    rows += [growth_row(replace(work, memory_shards=each), options) for each in (False, True)]
    return [*rows, _restart_row(options)]


def speed_rows(work: Work, wanted: float, options: Options) -> list[Row]:
    """Return events a second of two ranks, one process and the control; and what was sent."""
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
    return [*rows, *traffic_rows(work, found[_TOGETHER][0], params)]


def traffic_rows(work: Work, ranks: list[WorkFigures], params: Params) -> Iterator[Row]:
    """Yield collectives, and bytes of gradients and in all, of a rank and micro-batch."""
    first, num = ranks[0], work.batches
    calls = sum(first.calls.values()) / num
    yield Row("ranks, collectives", calls, "collectives", params, target=COLLECTIVES)
    for name, size in (
        ("gradient", max(each.bytes["gradient"] for each in ranks)),
        ("all", max(sum(each.bytes.values()) for each in ranks)),
    ):
        yield Row("ranks, sent", size / num / 1e3, "kB", {**params, "what": name})


def cpu_row(work: Work, share: float, options: Options) -> Row:
    """Return CPU time a micro-batch of a rank of two, beside that of one process."""
    ours = {_TOGETHER: RankContender(replace(work, slices=2), world=2)}
    return _cpu_row("ranks, CPU a rank", ours, work, share, options)


def joined_row(work: Work, options: Options) -> Row:
    """Return CPU time a micro-batch of a world of one, beside a process that joins nobody."""
    ours = {_JOINED: RankContender(work, world=1)}
    return _cpu_row("ranks, CPU of a world of one", ours, work, JOINED_SHARE, options)


def _cpu_row(
    name: str, ours: Mapping[str, RankContender], work: Work, share: float, options: Options
) -> Row:
    """Return CPU time a micro-batch, beside that of one process that joins nobody."""
    contenders = {**ours, _ALONE: RankContender(work, world=0)}
    found = take_rounds(contenders, options, CPU_ROUNDS)
    mine, alone = (_cpu_ms(rounds, work) for rounds in found.values())
    params = _params(work, options)
    return Row(name, mine, "ms", params, baseline=alone, target_ratio=1 / share)


def shards_rows(work: Work, options: Options) -> Iterator[Row]:
    """Yield what ranks that sample from shards take, catching up: exchanges, and their wait.

    Exchanges are of a micro-batch and its hop. The wait is of ranks that ask for up to 8
    micro-batches in a turn, beside ranks that are handed the stream one by one.
    """
    name = "ranks, sampling from shards: "
    work = replace(work, slices=2, shards=True)
    by_one = replace(work, handed=1)
    turns = {"8 a turn": RankContender(work, world=2), "1 a turn": RankContender(by_one, world=2)}
    many, one = take_rounds(turns, options).values()
    params = _params(work, options)
    calls = sum(many[0][0].calls[kind] for kind in _ASKING) / work.batches
    yield Row(f"{name}a micro-batch", calls, "collectives", params, target=1)
    waited, baseline = (
        median(_waited_ms(each) / work.batches for each in two) for two in (many, one)
    )
    goal = {"baseline": baseline, "target_ratio": 1 / TURN_SHARE}
    yield Row(f"{name}wait, 8 a turn over 1", waited, "ms", params, **goal)


def _waited_ms(ranks: list[WorkFigures]) -> float:
    """Return milliseconds in exchanges of questions and answers, of the rank that waits less."""
    return 1e3 * min(sum(each.waits[kind] for kind in _ASKING) for each in ranks)


def memory_rows(work: Work, world: int, options: Options) -> Iterator[Row]:
    """Yield what memory on every rank sends, of what sharded memory does; and the collectives.

    From the first micro-batch on, as rows are asked for ahead.
    """
    options.say(f"ranks: memory of {world} ranks")
    work = replace(work, slices=world, warm_up=0, batches=work.warm_up + work.batches)
    whole = start(RankContender(work, world=world))
    parts = start(RankContender(replace(work, memory_shards=True), world=world))
    sent, theirs = _sent(whole, _REPLICATED), _sent(parts, _SHARDED)
    params = {**_params(work, options), "ranks": world}
    name = "ranks, replicated over sharded memory"
    yield Row(name, sent / theirs, "of sharded's", params, target=MEMORY_SHARE)
    for each, num_bytes in (("replicated", sent), ("sharded", theirs)):
        size = num_bytes / world / work.batches / 1e3
        yield Row("ranks, sent of memory", size, "kB", {**params, "memory": each})
    calls = sum(parts[0].calls.get(kind, 0) for kind in _TRAINING) / work.batches
    params["memory"] = "sharded"
    yield Row("ranks, collectives", calls, "collectives", params, target=COLLECTIVES_SHARDED)


def growth_row(work: Work, options: Options) -> Row:
    """Return what a rank of four sends, of what one of two does, with the events of `work` each."""
    sent = []
    for world in WORLDS:
        options.say(f"ranks: {world} ranks of {work.batch} events each")
        shared = replace(work, batch=work.batch * world, slices=world)
        ranks = start(RankContender(shared, world=world))
        sent.append(sum(sum(each.bytes.values()) for each in ranks) / world)
    few, many = sent
    memory = "sharded" if work.memory_shards else "replicated"
    params = {**_params(work, options), "ranks": WORLDS[1], "memory": memory}
    return Row("ranks, sent by a rank", many / few, "of 2 ranks'", params, target=GROWTH_SHARE)


def _sent(ranks: list[WorkFigures], kinds: Sequence[str]) -> int:
    return sum(each.bytes.get(kind, 0) for each in ranks for kind in kinds)


def take_rounds(
    contenders: Mapping[str, RankContender], options: Options, rounds: int = ROUNDS
) -> dict[str, list[list[WorkFigures]]]:
    """Return the figures of all processes of each contender, round by round, in turns."""
    found: dict[str, list[list[WorkFigures]]] = {name: [] for name in contenders}
    order = [*contenders]
    for _ in range(1 if options.quick else rounds):
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
    environ = {**os.environ, "OMP_NUM_THREADS": str(contender.work.threads)}
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


def _cpu_ms(rounds: list[list[WorkFigures]], work: Work) -> float:
    """Return CPU milliseconds a micro-batch of the busiest process."""
    each = (max(process.cpu_seconds for process in processes) for processes in rounds)
    return 1e3 * median(each) / work.batches


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
