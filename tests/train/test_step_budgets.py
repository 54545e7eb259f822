"""Budgets of a step on a GPU: launches, torch operations, host waits, calls. They only fall."""

import sys
from pathlib import Path

import pytest

import tgflow
from helpers.devices import (
    needs_apart,
    without_autograd_threads,  # noqa: F401
)
from helpers.emulator.device import Budget, EmulatedDevice, spent
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from tgflow import ContinualConfig, ContinualTrainer, Plan, TemporalGraph
from tgflow.cuda.device import register_device
from tgflow.graph.tables import FeatureTable
from tgflow.nn import decoder
from tgflow.train.config import ExecutionConfig
from tgflow.train.step import TrainStep

pytestmark = [*needs_apart, pytest.mark.usefixtures("without_autograd_threads")]


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


@pytest.mark.parametrize("make", [small_tgn, small_tgat])
def test_parts_of_a_step_stay_within_their_budgets(make, monkeypatch):
    monkeypatch.setattr(decoder, "_AT_ONCE", 7)  # no matter how many pairs
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
        found["prepare"], _, batch = spent(gpu, lambda i=index: plan.batch(0, i))
        found["predict"], *_ = spent(gpu, lambda b=batch: step.predict(b))
        found["learn"], work, learned = spent(gpu, lambda b=batch: step.learn(b))
        found["commit"], *_ = spent(gpu, lambda b=batch, of=learned: step.commit(b, of.scores))
    assert "sort" not in work
    assert found == {part: BUDGETS[make, part] for part in found}, work


MOST_CALLS = 119
"""Python calls of the product for a micro-batch of captured steps, and calls from them into C."""
_PRODUCT = (f"{Path(tgflow.__file__).parent}/", f"{Path(tgflow.__file__).parents[1]}/models/")


def calls_of(work):
    """Return the number of calls that the product's code gets and makes to C in this thread."""
    num = 0

    def count(frame, event, of):
        nonlocal num
        is_call = event in ("call", "c_call")
        num += is_call and frame.f_code.co_filename.startswith(_PRODUCT)

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return num


def test_host_work_of_a_micro_batch_stays_within_its_budget():
    """From its events to its record; the size of a batch does not matter."""
    gpu = EmulatedDevice.apart()
    register_device(gpu)
    edge_x = FeatureTable(2, placement="device", device=gpu)
    graph = TemporalGraph("undirected", edge_x=edge_x, device=gpu)
    config = ContinualConfig(batch_size=20, num_threads=0)
    trainer = ContinualTrainer(small_tgn().to(gpu.device), graph, config)
    steps = trainer.steps(pieces(made_events(500), 160))
    found = [calls_of(lambda: next(steps).to_json()) for _ in range(22)]
    assert min(found) <= MOST_CALLS, found
