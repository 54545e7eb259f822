"""Work on an emulated device whose streams run late, in any order that events allow."""

import threading

import pytest
import torch

from helpers.devices import needs_apart
from helpers.effort import cases
from helpers.emulator import tensors
from helpers.emulator.device import EmulatedDevice
from helpers.emulator.tensors import watching
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from helpers.plans import plan_of
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from tgflow.checkpoint import store as checkpoint_store
from tgflow.cuda.device import register_device
from tgflow.graph import TemporalGraph
from tgflow.graph.tables import FeatureTable
from tgflow.plan.device_preparer import LentBatches
from tgflow.plan.loader import SideStream
from tgflow.train import captured
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer

pytestmark = needs_apart
SEEDS = (0, 1, 2, 3)
HERE = 1


@pytest.fixture
def lazy_gpu():
    with EmulatedDevice.with_late_streams(0) as gpu:
        yield gpu


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
def test_host_synchronizations_are_counted(name):
    x = torch.arange(4, device=tensors.emulated_device())
    with watching() as watch:
        WAITS[name](x)
    assert len(watch.waits) == 1
    assert "test_emulator.py" in watch.waits[0]
