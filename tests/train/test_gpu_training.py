"""What only a GPU can say of training on one: waits, repeated bits, memory that stays, accuracy."""

import pytest
import torch

from helpers.devices import needs_cuda
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from tgflow.graph import TemporalGraph
from tgflow.tables import FeatureTable
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.continual import ContinualTrainer

pytestmark = needs_cuda
CONFIG = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=5)
for_each_model = pytest.mark.parametrize("make", [small_tgn, small_tgat])
for_each_way = pytest.mark.parametrize("capture", [False, True])


def trainer_of(make, *, capture=True):
    table = FeatureTable(2, placement="device")
    graph = TemporalGraph("undirected", edge_x=table, device="cuda", device_budget="1MB")
    execution = ExecutionConfig(capture=capture)
    return ContinualTrainer(make().to("cuda"), graph, CONFIG, execution=execution)


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
def test_peak_memory_is_flat(make):
    steps = trainer_of(make).steps(pieces(made_events(8000), 64))
    for _ in range(100):
        next(steps)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        next(steps)
    assert torch.cuda.max_memory_allocated() < before + (8 << 20)  # the stream's own features
