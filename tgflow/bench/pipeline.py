"""SALIENT's ladder: what each step from a loader in Python to slabs is worth, at equal batches.

SALIENT (MLSys 2022) goes from 50.4 s an epoch by a faster sampler to 34.6, by threads over shared
memory to 27.8, and by pipelined transfers to 16.5. Here the rungs below the transfer are climbed
on one stream. All of them make the same batches to the bit, so accuracy is the same by design, and
measured beside.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from tgflow import _core
from tgflow.batch import Batch
from tgflow.bench.options import Options
from tgflow.bench.own import Own, own_tgat, own_tgn
from tgflow.bench.row import Params, Row
from tgflow.bench.task import Laps, Task
from tgflow.bench.train import QUICK_EVENTS, THREADS, TURN, set_threads, task_of
from tgflow.bench.turns import restored_threads
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import Neighbors
from tgflow.plan.assembly import RootColumns, assemble_hops, walk_of
from tgflow.plan.device_batches import DeviceBatches
from tgflow.plan.loader import Loader
from tgflow.plan.plan import Plan
from tgflow.plan.preparer import with_features
from tgflow.report.chart import Chart, Line
from tgflow.report.formatting import compact
from tgflow.report.svg import render_svg
from tgflow.sampling.hops import HopQueries, answer_walk

EVENTS = 20_000
"""The first ones of the stream: a loader in Python takes a minute for them."""
PREPARED_WITH = (1, 2, 4)
"""Threads."""
SLEPT_BATCHES = 100
MOST_OVER_LONGER = 1.15
"""Of a step's time over that of the slower of consumer and preparation."""
LADDER = "pipeline, training"
PREPARATION = "pipeline, preparation"


class PythonNeighbors:
    """The recent neighbors of every node, in lists, as a loader in Python has them.

    Args:
        events: All of a log.
    """

    def __init__(self, events: EventBatch) -> None:
        self._of: dict[int, tuple[list[int], list[int], list[int]]] = defaultdict(
            lambda: ([], [], [])
        )
        columns = (events.src.tolist(), events.dst.tolist(), events.t.tolist())
        for eid, (src, dst, t) in enumerate(zip(*columns, strict=True)):
            for node, other in {(src, dst), (dst, src)}:
                times, others, eids = self._of[node]
                times.append(t)
                others.append(other)
                eids.append(eid)

    def answer(self, asked: HopQueries) -> Neighbors:
        """Return the `k` latest neighbors before each query's time and log position."""
        size = len(asked.nodes)
        found = Neighbors.empty(size, asked.k, torch.device("cpu"))
        limits = asked.as_of
        cuts = limits.tolist() if isinstance(limits, torch.Tensor) else [limits] * size
        rows = [
            self._row(*query, asked.k)
            for query in zip(asked.nodes.tolist(), asked.t.tolist(), cuts, strict=True)
        ]
        for name, column in zip(("nodes", "t", "eid"), zip(*rows, strict=True), strict=True):
            getattr(found, name).copy_(torch.tensor(column))
        return found

    def _row(self, node: int, t: int, cut: int, k: int) -> tuple[list[int], list[int], list[int]]:
        times, others, eids = self._of.get(node, ([], [], []))
        end = min(bisect_left(times, t), bisect_left(eids, cut))
        begin, missing = max(end - k, 0), max(k - end, 0)
        return (
            others[begin:end][::-1] + [-1] * missing,
            times[begin:end][::-1] + [0] * missing,
            eids[begin:end][::-1] + [-1] * missing,
        )


@dataclass(frozen=True)
class Rung:
    """The batches of a plan, made as a loader of some kind would; as a source for the loader."""

    plan: Plan
    make: Callable[[int, int], Batch]
    gpu: Device | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.plan)

    def batch(self, epoch: int, index: int) -> Batch:
        """Return a batch."""
        return self.make(epoch, index)

    def batches_on(self, gpu: Device, num_slabs: int, clock: WorkClock) -> DeviceBatches:
        """Return what makes them on a GPU, as the plan does."""
        return self.plan.batches_on(gpu, num_slabs, clock)


def by_python(plan: Plan) -> Rung:
    """Return batches whose neighbors are looked up by Python."""
    neighbors = PythonNeighbors(plan.graph.log.read(0, plan.graph.num_events))

    def make(epoch: int, index: int) -> Batch:
        roots = plan.draw(epoch, index)
        columns = RootColumns.on_host(roots)
        hops = answer_walk(walk_of(plan, roots, columns), neighbors.answer)
        return with_features(plan, assemble_hops(plan, roots, columns, hops))

    return Rung(plan, make)


def by_steps(plan: Plan) -> Rung:
    """Return batches that Python puts together from a dozen calls of the core."""
    return Rung(plan, lambda epoch, index: plan.preparer.of_roots(plan.draw(epoch, index)))


def by_slabs(plan: Plan) -> Rung:
    """Return batches by one call each, as a plan makes them."""
    return Rung(plan, plan.batch)


RUNGS: Sequence[tuple[str, Callable[[Plan], Rung], int]] = (
    ("Python", by_python, 0),
    ("native sampler", by_steps, 0),
    ("+ threads", by_steps, THREADS),
    ("+ slabs", by_slabs, THREADS),
)
"""Name, how batches are made, and by how many threads beside the one that trains."""


def run(options: Options) -> list[Row]:
    """Train TGN and TGAT on each rung, then measure preparation alone and beside a consumer."""
    name, events = options.wikipedia()
    task = task_of(events[: options.events or (QUICK_EVENTS if options.quick else EVENTS)])
    params: Params = {"stream": name, "events": len(task.events)}
    with restored_threads():
        set_threads()
        rows: list[Row] = []
        for model, make in (("TGN", own_tgn), ("TGAT", own_tgat)):
            rows += ladder_rows(task, make, params | {"model": model}, options)
            rows += preparation_rows(make(task).plan, params | {"model": model}, options)
            rows.append(overlap_row(make(task).plan, params | {"model": model}))
        return rows


def ladder_rows(
    task: Task, own: Callable[[Task], Own], params: Params, options: Options
) -> Iterator[Row]:
    """Yield how fast a model trains on each rung, beside the one below it, and how well."""
    climbers: dict[str, Laps] = {}
    for name, rung, num_threads in RUNGS:
        climber = own(task)
        climber.source, climber.num_threads = rung(climber.plan), num_threads
        climbers[name] = Laps(climber, TURN, task.batch_size)
    while any(len(laps.losses) < task.num_batches for laps in climbers.values()):
        for name, laps in climbers.items():
            laps.run()
            options.say(f"pipeline: {params['model']}, {name}, {laps.turns[-1]:,.0f} events/s")
    before: float | None = None
    for name, laps in climbers.items():
        laps.evaluate()
        own_params = params | {"loader": name, "threads": THREADS}
        yield Row(LADDER, laps.median, "events/s", own_params, baseline=before, target_ratio=1.0)
        yield Row("pipeline, held-out AP", laps.held_out_ap, "", own_params)
        before = laps.median


def preparation_rows(plan: Plan, params: Params, options: Options) -> Iterator[Row]:
    """Yield how many events a second are prepared by threads, in slabs and step by step."""
    for num_threads in PREPARED_WITH:
        best: dict[str, float] = {}
        for _ in range(options.rounds):
            for name, rung in (("steps", by_steps(plan)), ("slabs", by_slabs(plan))):
                best[name] = max(best.get(name, 0.0), prepared_per_second(rung, num_threads))
        options.say(f"pipeline: {params['model']}, prepared by {num_threads} threads")
        yield Row(
            PREPARATION,
            best["slabs"],
            "events/s",
            params | {"threads": num_threads},
            baseline=best["steps"],
        )


def prepared_per_second(rung: Rung, num_threads: int) -> float:
    """Return how many events a second come out of a loader, of the second half of a plan."""
    indices, num = range(len(rung) // 2, len(rung)), 0
    with restored_threads():
        _core.set_num_threads(1)  # threads of the loader alone
        begin = time.perf_counter()
        for batch in Loader(rung, 0, indices, num_threads=num_threads):
            num += len(batch)
        return num / (time.perf_counter() - begin)


def overlap_row(plan: Plan, params: Params) -> Row:
    """Return how much longer a step takes than the slower of a sleeping consumer and preparation.

    The consumer sleeps as long as it takes to prepare a batch: nothing is hidden by one of them.
    """
    indices = range(max(len(plan) - SLEPT_BATCHES, 0), len(plan))
    begin = time.perf_counter()
    for index in indices:
        plan.batch(0, index)
    prepared = (time.perf_counter() - begin) / len(indices)
    sleep = max(prepared, 2e-3)
    begin = time.perf_counter()
    for _ in Loader(plan, 0, indices, num_threads=1):
        time.sleep(sleep)
    step = (time.perf_counter() - begin) / len(indices)
    return Row(
        "pipeline, a step over the longer of consumer and preparation",
        step / sleep,
        "of the longer",
        params | {"prepared in ms": round(1e3 * prepared, 2), "step in ms": round(1e3 * step, 2)},
        target=MOST_OVER_LONGER,
    )


def draw(rows: Sequence[Row]) -> str:
    """Return the ladder and the threads as SVG."""
    return render_svg([_ladder_chart(rows), _threads_chart(rows)])


def _ladder_chart(rows: Sequence[Row]) -> Chart:
    names = [name for name, _, _ in RUNGS]
    return Chart(
        title="The ladder",
        note="events/s of training, the same batches on each rung",
        lines=_lines(rows, LADDER, lambda row: float(names.index(str(row.params["loader"])))),
        show_x=lambda x: names[min(round(x), len(names) - 1)] if x == round(x) else "",
        show_y=compact,
        x_name="loader",
        low=0.0,
    )


def _threads_chart(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="Preparation by threads",
        note="events/s that come out of a loader, nobody training",
        lines=_lines(rows, PREPARATION, lambda row: float(row.params["threads"])),
        show_x=compact,
        show_y=compact,
        x_name="threads",
        low=0.0,
    )


def _lines(rows: Sequence[Row], name: str, x: Callable[[Row], float]) -> list[Line]:
    """Return a line through the rows of each model."""
    found = [row for row in rows if row.name == name]
    models = dict.fromkeys(str(row.params["model"]) for row in found)
    return [
        Line(
            model,
            [x(row) for row in found if row.params["model"] == model],
            [row.value for row in found if row.params["model"] == model],
            color,
        )
        for color, model in enumerate(models, 1)
    ]
