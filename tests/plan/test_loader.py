"""The loader: order, laziness, failure and early ends. Nothing may hang."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from helpers.effort import cases, slow
from helpers.made_streams import made_events, small_tgn
from helpers.plans import plan_of
from helpers.processes import environment
from tgflow import Batch, ContinualTrainer, Loader, Plan, TemporalGraph
from tgflow.cuda.device import Device
from tgflow.graph.cache import ScheduleMismatch, cached
from tgflow.graph.tables import FeatureTable
from tgflow.plan import BatchError
from tgflow.plan.device_preparer import MakeBatches, one_by_one
from tgflow.plan.in_order import Task

pytestmark = pytest.mark.timeout(20)


class FakePlan:
    """Prepares `(epoch, index)` in place of a batch, slower for even indices; fails at `broken`."""

    gpu = None

    def __init__(self, size: int = 20, broken: int = -1) -> None:
        self.size = size
        self.broken = broken
        self.in_flight = 0
        self.most_in_flight = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.size

    def batch(self, epoch: int, index: int) -> Batch:
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        time.sleep(0.004 if index % 2 == 0 else 0.001)
        with self._lock:
            self.in_flight -= 1
        if index == self.broken:
            raise ValueError("no such thing")
        return cast(Batch, (epoch, index))

    def batches_on(self, gpu: Device, num_slots: int) -> MakeBatches:
        return one_by_one(self.batch)


def loader_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("tgflow-loader")]


@pytest.fixture(autouse=True)
def _no_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    gc.collect()
    until = time.monotonic() + 10 * ("planned" in request.node.name)
    while loader_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert loader_threads() == []


@pytest.mark.parametrize("num_threads", [0, 1, 2, 5])
@pytest.mark.parametrize("lookahead", [1, 3])
def test_batches_are_delivered_in_order(num_threads: int, lookahead: int) -> None:
    loader = Loader(FakePlan(), 3, num_threads=num_threads, lookahead=lookahead)
    assert list(loader) == [(3, i) for i in range(20)]
    assert list(loader) == [(3, i) for i in range(20)], "a second pass starts over"


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_failure_is_raised_in_order_and_names_the_batch(num_threads: int) -> None:
    batches = iter(Loader(FakePlan(broken=7), 2, num_threads=num_threads))
    assert [next(batches) for _ in range(7)] == [(2, i) for i in range(7)]
    with pytest.raises(BatchError, match="batch 7 of epoch 2 failed: no such thing") as failure:
        next(batches)
    assert isinstance(failure.value.__cause__, ValueError)
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_failing_stream_raises_after_its_batches(num_threads: int) -> None:
    def tasks() -> Iterator[Task]:
        yield from ((0, i) for i in range(3))
        raise OSError("the stream broke")

    batches = iter(Loader.of_tasks(FakePlan(), tasks(), num_threads=num_threads))
    assert [next(batches) for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]
    with pytest.raises(OSError, match="the stream broke"):
        next(batches)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_loader_pulls_at_most_lookahead_batches(num_threads: int) -> None:
    pulled = []

    def tasks() -> Iterator[Task]:
        for i in range(30):
            pulled.append(i)
            yield 0, i

    plan = FakePlan()
    for taken, _ in enumerate(Loader.of_tasks(plan, tasks(), num_threads=num_threads, lookahead=2)):
        time.sleep(0.002)
        assert len(pulled) <= taken + 1 + 2
    assert plan.most_in_flight <= min(num_threads, 2)


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_ready_batches_are_delivered_while_the_stream_waits(num_threads: int) -> None:
    """The stream yields its next task only after the previous batch was taken."""
    taken = threading.Semaphore(0)

    def tasks() -> Iterator[Task]:
        for i in range(10):
            yield 0, i
            assert taken.acquire(timeout=10), "the loader waits for the stream with a batch in hand"

    batches = iter(Loader.of_tasks(FakePlan(), tasks(), num_threads=num_threads))
    for i in range(10):
        assert next(batches) == (0, i)
        taken.release()
    assert list(batches) == []


def test_close_does_not_wait_for_a_silent_stream() -> None:
    silence = threading.Event()

    def tasks() -> Iterator[Task]:
        yield 0, 0
        silence.wait()

    batches = iter(Loader.of_tasks(FakePlan(), tasks(), num_threads=3))
    assert next(batches) == (0, 0)
    began = time.monotonic()
    batches.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 5
    silence.set()
    for thread in loader_threads():
        thread.join(5)


@pytest.mark.parametrize("arguments", [{"num_threads": -1}, {"lookahead": 0}])
def test_invalid_loaders_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        Loader(FakePlan(), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_external_change_of_a_planned_cache_raises_a_mismatch(num_threads: int) -> None:
    cache = cached(FeatureTable(2), rows=40, policy="belady")
    graph = TemporalGraph.from_events(made_events(400), edge_x=cache)
    batches = iter(Loader(plan_of(graph), 3, num_threads=num_threads, lookahead=20))
    next(batches)
    cache.restore(cache.snapshot())  # unchanged: no effect
    cache.truncate(5)
    with pytest.raises((ScheduleMismatch, BatchError), match=r"batch \d+ of epoch 3.*\bid \d+"):
        list(batches)


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("broken", cases([0, 5, 33], [5]))
def test_failure_of_a_planned_batch_is_raised_in_order(
    num_threads: int, broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Plan.pending

    def draft(self: Plan, epoch: int, index: int) -> Any:
        if index == broken:
            raise OSError("the disk is gone")
        return original(self, epoch, index)

    monkeypatch.setattr(Plan, "pending", draft)
    cache = cached(FeatureTable(2), rows=40, policy="belady")
    graph = TemporalGraph.from_events(made_events(400), edge_x=cache)
    batches = iter(Loader(plan_of(graph), num_threads=num_threads, lookahead=16))
    assert [next(batches).index for _ in range(broken)] == list(range(broken))
    with pytest.raises(BatchError, match=f"batch {broken} of epoch 0 failed: the disk is gone"):
        next(batches)


def test_belady_cache_is_refused_for_live_streams() -> None:
    graph = TemporalGraph(node_x=cached(FeatureTable(2), rows=4, policy="belady"))
    with pytest.raises(ValueError, match=r"node_x has policy=.* are unknown; use"):
        ContinualTrainer(small_tgn(), graph)


LEFT = """
import torch
import tgflow as tg
from tgflow.plan.loader import Loader

generator = torch.Generator().manual_seed(0)
src, dst = torch.randint(1_000, (2, 100_000), generator=generator)
graph = tg.TemporalGraph.from_events(tg.EventBatch(src, dst, torch.arange(100_000)))
plan = tg.Plan(
    graph, seed=0, batch_size=200, fanouts=(20, 20), strategy="recent", visibility="batch",
    negatives=tg.plan.NegativeSampler(random=1), with_memory=False,
)
batches = iter(Loader(plan, 0, range(len(plan)), num_threads=2))
next(batches)
"""


@pytest.mark.timeout(60)  # starts a process, on a machine that may be busy
@pytest.mark.parametrize(("last", "code"), [slow("", 0), ("raise ValueError('mine')", 1)])
def test_program_with_an_open_loader_exits_with_its_own_code(last, code):
    command = [sys.executable, "-c", LEFT + last]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    assert ran.returncode == code, ran.stderr
    assert "terminate called" not in ran.stderr
    assert ran.stderr.strip().endswith("ValueError: mine") == bool(code)
