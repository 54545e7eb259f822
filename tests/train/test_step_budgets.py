"""Budgets of a training step on a GPU: launches, torch operations, host waits. They only fall."""

from typing import NamedTuple

import pytest

from helpers.devices import needs_apart
from helpers.emulated_training import without_autograd_threads  # noqa: F401
from helpers.emulator.device import EmulatedDevice
from helpers.emulator.tensors import watching
from helpers.made_streams import made_events, small_tgat, small_tgn
from tgflow.cuda.device import register_device
from tgflow.graph import TemporalGraph
from tgflow.plan import Plan
from tgflow.tables import FeatureTable
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.step import TrainStep

pytestmark = [*needs_apart, pytest.mark.usefixtures("without_autograd_threads")]


class Budget(NamedTuple):
    launches: int
    operations: int
    waits: int = 0


BUDGETS = {
    (small_tgn, "prepare"): Budget(11, 43),
    (small_tgn, "predict"): Budget(5, 24),
    (small_tgn, "learn"): Budget(13, 80),
    (small_tgn, "commit"): Budget(3, 1),
    (small_tgat, "prepare"): Budget(15, 60),
    (small_tgat, "predict"): Budget(3, 31),
    (small_tgat, "learn"): Budget(12, 108),
    (small_tgat, "commit"): Budget(0, 0),
}
"""Of uncaptured calls."""


def spent(gpu, call):
    gpu.kernels.launches.clear()
    gpu.synchronized = 0
    with watching() as watch:
        result = call()
    waits = len(watch.waits) + gpu.synchronized
    return (
        Budget(len(gpu.kernels.launches), watch.operations.total(), waits),
        watch.operations,
        result,
    )


@pytest.mark.parametrize("make", [small_tgn, small_tgat])
def test_parts_of_a_step_stay_within_their_budgets(make):
    gpu = EmulatedDevice.apart()
    register_device(gpu)
    events, model = made_events(120), make().to(gpu.device)
    edge_x = FeatureTable(2, placement="device", device=gpu)
    graph = TemporalGraph.from_events(events, edge_x=edge_x, device=gpu)
    plan = Plan.for_model(model, graph, batch_size=20, for_gradients=True)
    step = TrainStep(
        model,
        ContinualConfig(),
        num_nodes=lambda: graph.num_nodes,
        execution=ExecutionConfig(capture=False),
    )
    found = {}
    for index in range(3):  # the first ones also allocate
        found["prepare"], *_, batch = spent(gpu, lambda i=index: plan.batch(0, i))
        found["predict"], *_ = spent(gpu, lambda b=batch: step.predict(b))
        found["learn"], work, learned = spent(gpu, lambda b=batch: step.learn(b))
        found["commit"], *_ = spent(gpu, lambda b=batch, of=learned: step.commit(b, of.scores))
    assert "sort" not in work
    assert found == {part: BUDGETS[make, part] for part in found}, work
