"""Steps that are captured and replayed: the bits of those that are not."""

import pytest
import torch

from helpers.devices import apart, cuda, opened, place_of
from helpers.effort import cases
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from tgflow.graph import TemporalGraph
from tgflow.models import TGN, TGNConfig
from tgflow.plan.plan import Plan
from tgflow.tables import FeatureTable
from tgflow.train import captured
from tgflow.train.captured import CapturedCalls
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.step import TrainStep

for_each_place = pytest.mark.parametrize("device", [apart, cuda])


@pytest.fixture(autouse=True)
def _without_threads_of_autograd():
    with torch.autograd.set_multithreading_enabled(False):
        yield


def state_of(learner):
    """Every tensor that a step changes."""
    moments = [x for entry in learner.optimizer.state.values() for x in entry.values()]
    return [*learner.model.parameters(), *learner.model.buffers(), *moments, learner.is_lost]


def capture_without_effect(learner, monkeypatch):
    """Take back what an emulated capture does, which has to run the work; a GPU's does nothing."""
    made = CapturedCalls._capture

    def capture(*arguments):
        with torch.no_grad():
            before = [(x, x.detach().clone()) for x in state_of(learner)]
        captured = made(*arguments)
        with torch.no_grad():
            for x, old in before:
                x.copy_(old)
        return captured

    monkeypatch.setattr(CapturedCalls, "_capture", capture)


def graph_there(device):
    """A graph on the device, which prepares its batches."""
    table = FeatureTable(2, placement="device", device=(gpu := opened(device)))
    return TemporalGraph("undirected", edge_x=table, device=gpu)


def graph_here(device):
    """A graph in host memory, whose batches come to the device in few sizes."""
    return TemporalGraph("undirected", 2)


def trained(device, make, graph, monkeypatch, *, capture):
    replays = []
    monkeypatch.setattr(captured, "WARM_UPS", 1)
    config = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=5)
    trainer = ContinualTrainer(
        make().to(place_of(device)),
        graph(device),
        config,
        execution=ExecutionConfig(capture=capture),
    )
    with monkeypatch.context() as patched:
        if device == "apart":
            capture_without_effect(trainer._learner, patched)
        call = CapturedCalls.call

        def counted(self, name, *rest, **options):
            result = call(self, name, *rest, **options)
            replays.extend([name] * self.was_replay)
            return result

        patched.setattr(CapturedCalls, "call", counted)
        records = list(trainer.steps(pieces(made_events(140), 64)))
    return trainer, records, replays


@for_each_place
@pytest.mark.parametrize("make", cases([small_tgn, small_tgat], [small_tgn]))
@pytest.mark.parametrize("graph", cases([graph_there, graph_here], [graph_there]))
def test_captured_steps_are_those_that_are_not(device, make, graph, monkeypatch):
    plain, expected, none = trained(device, make, graph, monkeypatch, capture=False)
    replayed, found, replays = trained(device, make, graph, monkeypatch, capture=True)
    assert not none
    assert "learn" in replays
    assert make is small_tgat or {"predict", "commit learn"} <= set(replays)
    assert [(r.loss, r.metrics) for r in found] == [(r.loss, r.metrics) for r in expected]
    for x, y in zip(state_of(plain._learner), state_of(replayed._learner), strict=True):
        assert torch.equal(x.cpu(), y.cpu())


class Noting(TGN):
    """Carries nothing on: what it stores is the scores themselves."""

    def __init__(self):
        super().__init__(TGNConfig(edge_x_dim=2, memory_dim=4, time_dim=4, embedding_dim=4))
        self.noted = []

    def forward(self, batch):
        return super().forward(batch)._replace(carry=None)

    def commit(self, batch, found):
        self.noted.append(found.positive.detach().clone())


@for_each_place
def test_scores_that_carry_nothing_are_stored_for_their_own_batch(device, monkeypatch):
    monkeypatch.setattr(captured, "WARM_UPS", 1)
    model, place = Noting(), place_of(device)
    learner = TrainStep(model.to(place), seed=0, learning_rate=1e-2, num_nodes=lambda: 32)
    graph = TemporalGraph.from_events(made_events(60))
    batch = Plan.for_model(model, graph, batch_size=10).batch(0, 5).to(place)
    later = batch.map(torch.clone)
    later.blocks[0].dt.mul_(7)
    for _ in range(3):
        first, second = learner.predict(batch), learner.predict(later)
    assert learner._whole.calls.was_replay
    assert not torch.equal(first.positive.cpu(), second.positive.cpu())
    learner.commit(batch, first)
    assert torch.equal(model.noted[-1].cpu(), first.positive.cpu())
