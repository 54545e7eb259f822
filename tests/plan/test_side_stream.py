"""Batches for a GPU, made on a stream of their own: right, in order, no memory used early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from helpers.emulator.device import EmulatedDevice
from helpers.made_plans import plan_of
from helpers.made_streams import made_events
from helpers.padding import pad
from helpers.plan_reference import assert_same_batch
from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.graph import TemporalGraph
from tgflow.plan import Loader
from tgflow.plan.loader import SideStream
from tgflow.plan.padding import shape_of
from tgflow.plan.plan import LentBatch, PinnedCopies

pytestmark = pytest.mark.timeout(60)

EVENTS = made_events(200)


@dataclass(eq=False)
class Later:
    """An event that is done when the test says."""

    is_done: bool = False

    def query(self) -> bool:
        return self.is_done


@dataclass(eq=False)
class SlowDevice(EmulatedDevice):
    """Copies when the test lets it: whoever fills pinned memory too early spoils a copy."""

    queue: list[Callable[[], object] | Later] = field(default_factory=list)

    def copy_from_host(self, pinned: Tensor) -> Tensor:
        there = torch.full_like(pinned, 0xAB)
        self.queue.append(lambda: there.copy_(pinned))
        return there

    def record_event(self) -> Later:  # type: ignore[override]
        self.queue.append(Later())
        return self.queue[-1]  # type: ignore[return-value]

    def wait_event(self, event: Later) -> None:  # type: ignore[override]
        pass

    def proceed(self, num: int) -> None:
        """Do the next of what is queued."""
        for work in self.queue[:num]:
            if isinstance(work, Later):
                work.is_done = True
            else:
                work()
        del self.queue[:num]


@pytest.mark.parametrize("behind", [0, 1, 3, 8])
def test_no_memory_is_filled_again_before_it_is_copied(behind: int) -> None:
    """The copies are so many pieces of work behind the host."""
    gpu, plan = SlowDevice(), plan_of(TemporalGraph.from_events(EVENTS))
    pinned, batches = PinnedCopies(gpu, WorkClock()), [plan.batch(0, index) for index in range(20)]
    copies = []
    for batch in batches:
        copies.append(pinned.of_batch(batch))
        gpu.proceed(max(len(gpu.queue) - behind, 0))
    gpu.proceed(len(gpu.queue))
    for copy, batch in zip(copies, batches, strict=True):
        assert_same_batch(copy, pad(batch, shape_of(batch).rounded()))


def test_the_stream_that_takes_a_batch_waits_for_the_one_that_made_it() -> None:
    gpu = EmulatedDevice()
    side, plan = SideStream(gpu), plan_of(TemporalGraph.from_events(EVENTS, device=gpu))
    gpu.waits.clear()
    made = [side.make(lambda index: LentBatch(plan.batch(0, index)), index) for index in range(3)]
    assert gpu.current_stream() == 0
    assert [ready.done.stream for ready in made] == [1000] * 3  # type: ignore[attr-defined]
    gpu.current = 7
    taken = [side.take(ready) for ready in made]
    assert [wait for wait in gpu.waits if wait[0] == 7] == [(7, 1000)] * 3
    kept = [id(tensor) for stream, tensor in gpu.kept if stream == 7]
    assert kept == [id(tensor) for batch in taken for tensor in batch.tensors()]
    assert gpu.synchronized == 0


def taken(gpu: EmulatedDevice, *, busy: bool) -> list[Batch]:
    plan = plan_of(TemporalGraph.from_events(EVENTS, device=gpu))
    loader, side = iter(Loader(plan, num_threads=0, device=gpu)), 999 + gpu.num_streams
    batches = []
    for _ in range(4):
        gpu.busy |= {side} if busy else set()
        batches.append(next(loader))
    return batches


def test_the_host_waits_for_a_batch_that_is_not_prepared_when_it_is_taken_and_for_no_other() -> (
    None
):
    """And knows its size in both cases: nothing depends on who was earlier."""
    late, early = EmulatedDevice(), EmulatedDevice()
    of_late, of_early = taken(late, busy=True), taken(early, busy=False)
    assert (late.synchronized, early.synchronized) == (4, 0)
    for a, b in zip(of_late, of_early, strict=True):
        assert_same_batch(a, b)


def test_a_loader_names_the_device_that_it_cannot_deliver_to() -> None:
    other = EmulatedDevice(device=torch.device("meta"))
    plan = plan_of(TemporalGraph.from_events(EVENTS, device=EmulatedDevice()))
    for device in (other, other.device):
        with pytest.raises(ValueError, match="batches are made on cpu, and asked for on meta"):
            Loader(plan, device=device)
