"""The emulated device: it fails and synchronizes where a GPU does, and runs work late.

Streams run in any order that events allow: missing waits give wrong values.
"""

import copy
import threading

import pytest
import torch

from helpers.devices import needs_apart
from helpers.effort import cases
from helpers.emulator import tensors
from helpers.emulator.device import EmulatedDevice
from helpers.emulator.tensors import pin, watching
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from helpers.plans import plan_of
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from tgflow.checkpoint import store as checkpoint_store
from tgflow.cuda.device import register_device
from tgflow.cuda.pinned import PinnedPool
from tgflow.graph import TemporalGraph
from tgflow.graph.tables import FeatureTable
from tgflow.plan.device_preparer import LentBatches
from tgflow.plan.loader import SideStream
from tgflow.train import captured
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer

pytestmark = needs_apart
SEEDS = (0, 1, 2, 3)
HERE, THERE = 1, 2


@pytest.fixture(params=SEEDS)
def gpu(request):
    with (
        torch.autograd.set_multithreading_enabled(False),
        EmulatedDevice.with_late_streams(request.param) as gpu,
    ):
        yield gpu


@pytest.fixture
def lazy_gpu():
    with EmulatedDevice.with_late_streams(0) as gpu:
        yield gpu


def ones_on(gpu, stream):
    with gpu.on(stream):
        return torch.ones(4, device=gpu.device) + 1


def doubled(gpu, x, *, waits):
    """`x` of stream HERE times two, on THERE."""
    with gpu.on(HERE):
        made = gpu.record_event()
    with gpu.on(THERE):
        if waits:
            gpu.wait_event(made)
        return x * 2


def on_host(gpu, x):
    with gpu.on(THERE):
        return x.cpu().tolist()


def test_results_do_not_depend_on_the_order(gpu):
    assert on_host(gpu, doubled(gpu, ones_on(gpu, HERE), waits=True)) == [4.0] * 4


def test_missing_wait_reads_memory_before_it_is_written(lazy_gpu):
    found = on_host(lazy_gpu, doubled(lazy_gpu, ones_on(lazy_gpu, HERE), waits=False))
    assert found != [4.0] * 4


@pytest.mark.parametrize("keeps", [False, True])
def test_memory_freed_under_another_stream_is_overwritten(lazy_gpu, keeps):
    gpu, x = lazy_gpu, ones_on(lazy_gpu, HERE)
    y = doubled(gpu, x, waits=True)
    if keeps:
        with gpu.on(THERE):
            gpu.keep_for_current_stream(x)
    del x
    with gpu.on(HERE):
        gpu.record_event().synchronize()
    assert (on_host(gpu, y) == [4.0] * 4) is keeps
    assert gpu.late.overwritten > 0


def test_pinned_memory_refilled_before_its_copy_gives_the_later_bytes(lazy_gpu):
    memory, pool = pin(torch.zeros(8, dtype=torch.uint8)), PinnedPool(lazy_gpu)
    copies = []
    for value in range(3):
        memory.fill_(value)
        copies.append(lazy_gpu.copy_from_host(memory))
    for value in range(3):
        with pool.lend(8) as room:
            room.fill_(value)
            copies.append(lazy_gpu.copy_from_host(room))
    assert [int(x[0]) for x in copies] == [2, 2, 2, 0, 1, 2]


def test_capture_runs_nothing_and_permits_no_host_wait(lazy_gpu):
    gpu, x = lazy_gpu, torch.zeros(3, device=lazy_gpu.device)
    graph = gpu.capture(lambda: [x.add_(1)])
    for _ in range(3):
        graph.replay()
    assert x.tolist() == [3.0] * 3
    event = gpu.record_event()
    for work in (event.query, event.synchronize, x.tolist, gpu.synchronize):
        with pytest.raises(RuntimeError, match="not permitted while a stream is being captured"):
            gpu.capture(work)


def test_wait_for_a_device_begins_after_the_captures_of_other_threads(lazy_gpu):
    gpu, refused = lazy_gpu, []
    waiting = threading.Thread(target=gpu.synchronize)

    def try_at_once():
        with pytest.raises(RuntimeError, match="not permitted beside a capture"):
            gpu._synchronize()
        refused.append(True)

    def work():
        other = threading.Thread(target=try_at_once)
        for thread in (other, waiting):
            thread.start()
        other.join()
        waiting.join(0.05)
        assert waiting.is_alive()
        return [torch.ones(1, device=gpu.device)]

    gpu.capture(work)
    waiting.join()
    assert refused == [True]
    assert gpu.synchronized == 1


def pooled(gpu):
    """Streams as of PyTorch's pool: the next of a few at each call, here of one."""
    return lambda role: 1000


@pytest.mark.parametrize("has_pool", [False, True])
def test_batches_are_made_beside_a_capture_only_on_streams_by_role(lazy_gpu, has_pool, monkeypatch):
    gpu = lazy_gpu
    if has_pool:
        monkeypatch.setattr(gpu, "stream", pooled(gpu))
    plan = plan_of(TemporalGraph.from_events(made_events(60), device=gpu))
    side, errors = SideStream(gpu), []

    def prepare():
        try:
            side.make(lambda index: LentBatches([plan.batch(0, index)]), 1)
        except RuntimeError as error:
            errors.append(str(error))

    def work():
        thread = threading.Thread(target=prepare)
        thread.start()
        thread.join()
        return [torch.ones(1, device=gpu.device)]

    gpu.capture(work)
    assert [("captured by another thread" in error) for error in errors] == [True] * has_pool


@pytest.mark.parametrize("waits", [False, True])
def test_checkpoint_waits_for_copies_on_the_stream_of_the_trainer(
    lazy_gpu, waits, tmp_path, monkeypatch
):
    gpu = lazy_gpu
    if not waits:
        monkeypatch.setattr(checkpoint_store, "has_device", lambda device: False)
    store = CheckpointStore(tmp_path)
    writer = CheckpointWriter(store)
    with gpu.on(HERE):
        copied = (torch.zeros(5, device=gpu.device) + 7).clone()
        writer.submit(1, Checkpoint({"state": {"x": copied}}))
    writer.wait()
    saved = store.newest()[1].get("state")["x"]
    assert (saved.tolist() == [7.0] * 5) is waits


def test_features_are_appended_on_the_stream_of_inserts_without_a_wait(lazy_gpu):
    gpu, rows = lazy_gpu, torch.arange(40.0).view(20, 2)
    table = FeatureTable(2, placement="device", device=gpu)
    with gpu.on(HERE):
        before = gpu.late.point(HERE), gpu.synchronized
        for start in range(0, 20, 5):
            part = rows[start : start + 5].clone()
            table.append(part)
            part.fill_(-1)  # its copy is queued
        assert (gpu.late.point(HERE), gpu.synchronized) == before
        assert torch.equal(table.gather(torch.arange(20, device=gpu.device)).cpu(), rows)


def records_of(gpu, make, has_graph):
    graph = TemporalGraph("undirected", 2)
    if has_graph:
        table = FeatureTable(2, placement="device", device=gpu)
        graph = TemporalGraph("undirected", edge_x=table, device=gpu)
    config = ContinualConfig(batch_size=10, learning_rate=1e-2, mrr_negatives=3)
    trainer = ContinualTrainer(make().to(gpu.device), graph, config)
    records = list(trainer.steps(pieces(made_events(120), 64)))
    return [(r.loss, r.metrics) for r in records]


@pytest.mark.parametrize("make", cases([small_tgn, small_tgat], [small_tgn]))
@pytest.mark.parametrize("has_graph", cases([True, False], [True]))
@pytest.mark.parametrize("seed", cases(SEEDS, (2,)))
def test_training_on_late_streams_has_the_bits_of_immediate_ones(
    seed, make, has_graph, monkeypatch
):
    monkeypatch.setattr(captured, "WARM_UPS", 1)
    with torch.autograd.set_multithreading_enabled(False):
        immediate = EmulatedDevice.apart()
        register_device(immediate)
        expected = records_of(immediate, make, has_graph)
        with EmulatedDevice.with_late_streams(seed) as gpu:
            assert records_of(gpu, make, has_graph) == expected
            assert gpu.late.overwritten > 0


@pytest.fixture
def there():
    return tensors.emulated_device()


def test_tensors_and_results_stay_on_the_emulated_device(there):
    x = torch.arange(4, device=there)
    for each in (x, x + 1, x[1:], x.view(2, 2).t(), x.clone(), torch.zeros_like(x), x.cumsum(0)):
        assert (each.device, each.is_cpu) == (there, False)
    assert (x.cpu().is_cpu, x.to("cpu").tolist()) == (True, [0, 1, 2, 3])
    assert torch.tensor([1.5], device=there).to(torch.float64).device == there
    assert copy.deepcopy(x).device == there


WAITS = {
    "item": lambda x: x[0].item(),
    "int": lambda x: int(x[1]),
    "bool": lambda x: bool((x > 0).any()),
    "list": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 1],
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "up": lambda x: torch.ones(3).to(x.device),
    "made": lambda x: torch.tensor([1, 2], device=x.device),
    "repeat": lambda x: x.repeat_interleave(x),
    "down": lambda x: torch.ones(4, dtype=torch.int64).copy_(x, non_blocking=True),
}


@pytest.mark.parametrize("name", WAITS)
def test_host_synchronizations_are_counted(name, there):
    x = torch.arange(4, device=there)
    with watching() as watch:
        WAITS[name](x)
    assert len(watch.waits) == 1
    assert "test_emulator.py" in watch.waits[0]
