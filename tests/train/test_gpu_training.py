"""What only a GPU can say of training on one: waits, repeated bits, memory that stays, accuracy."""

from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch

from benchmarks import train_device
from helpers.devices import needs_cuda
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from tgflow.bench import setup, train
from tgflow.bench.setup import Options
from tgflow.graph import TemporalGraph
from tgflow.models.tgat import TGAT
from tgflow.models.tgn import TGN
from tgflow.streams import open_stream, playback
from tgflow.tables import FeatureTable
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.continual import ContinualTrainer

pytestmark = needs_cuda
COLLEGEMSG = Path(__file__).parents[2] / "examples" / "data" / "collegemsg.csv.gz"
CONFIG = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=5)
for_each_model = pytest.mark.parametrize("make", [small_tgn, small_tgat])
for_each_way = pytest.mark.parametrize("capture", [False, True])


def trainer_of(make, *, capture=True):
    table = FeatureTable(2, placement="device")
    graph = TemporalGraph("undirected", edge_x=table, device="cuda", device_budget="1MB")
    execution = ExecutionConfig(capture=capture)
    return ContinualTrainer(make().to("cuda"), graph, CONFIG, execution=execution)


def state_of(trainer):
    sections = trainer.checkpoint().sections
    names = ("model", "state", "optimizer")
    parts = [part for part in names if part in sections]
    return {(part, k): x.cpu() for part in parts for k, x in sections[part].items()}


def assert_same_bits(left, right):
    left, right = state_of(left), state_of(right)
    assert left.keys() == right.keys()
    for name, x in left.items():
        assert torch.equal(x, right[name]), name


@for_each_model
@for_each_way
def test_the_steady_state_waits_for_nothing(make, capture):
    steps = trainer_of(make, capture=capture).steps(pieces(made_events(3000), 64))
    for _ in range(20):
        next(steps)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@for_each_model
def test_captured_steps_have_the_bits_of_those_that_are_not(make):
    trainers = [trainer_of(make, capture=capture) for capture in (False, True)]
    for trainer in trainers:
        trainer.run(pieces(made_events(2000), 64))
    assert_same_bits(*trainers)


@for_each_model
@for_each_way
def test_a_resumed_training_has_the_bits_of_one_that_was_not_stopped(make, capture):
    events, whole = made_events(1600), trainer_of(make, capture=capture)
    whole.run(pieces(events, 64))
    first = trainer_of(make, capture=capture)
    first.run(pieces(events[:800], 64))
    resumed = ContinualTrainer.from_checkpoint(
        make().to("cuda"),
        first.checkpoint(),
        execution=ExecutionConfig(capture=capture),
        device="cuda",
        device_budget="1MB",
        edge_x=FeatureTable(2, placement="device"),
    )
    resumed.run(pieces(events[800:], 64))
    assert_same_bits(whole, resumed)


@for_each_model
def test_peak_memory_is_flat(make):
    steps = trainer_of(make).steps(pieces(made_events(8000), 64))
    for _ in range(100):
        next(steps)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        next(steps)
    assert torch.cuda.max_memory_allocated() < before + (8 << 20)  # the stream's own features


def accuracy_of(model, device, seed):
    """The AP of a stream's first events, each predicted before it was learned."""
    graph = TemporalGraph("undirected", device=device)
    torch.manual_seed(seed)
    config = ContinualConfig(seed=seed, mrr_negatives=1)
    trainer = ContinualTrainer(model.for_graph(graph).to(device), graph, config)
    stream = playback(open_stream(str(COLLEGEMSG), time_unit="s"), limit=12_000)
    return trainer.run(stream)["prequential.ap"]


@pytest.mark.slow
@pytest.mark.parametrize("model", [TGN, TGAT])
def test_accuracy_on_a_real_stream_is_within_a_standard_deviation_of_the_cpus(model):
    seeds = range(3)
    on_cpu, on_gpu = ([accuracy_of(model, at, seed) for seed in seeds] for at in ("cpu", "cuda"))
    spread = stdev(on_cpu)
    print(f"{model.__name__}: {fmean(on_cpu):.4f} ± {spread:.4f}, on a GPU {fmean(on_gpu):.4f}")
    assert fmean(on_gpu) == pytest.approx(fmean(on_cpu), abs=spread)


@pytest.mark.slow
def test_a_million_events_appended_a_second_hardly_slow_training():
    task = train.task_of(setup.wikipedia())
    row = train_device.beside_row(task, {}, "cuda", Options(device="cuda"))
    assert row.params["appended/s"] > 0.9e6
    assert row.value < train_device.BESIDE_TARGET, row
