"""Trainings that reuse rows, as a whole or step by step."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import tgflow as tg
from helpers.made_streams import made_events, small_tgat
from tgflow.batch import Batch
from tgflow.checkpoint import Checkpoint
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import TGAT
from tgflow.plan import Loader, NegativeSampler, Plan
from tgflow.train.config import ExecutionConfig, OfflineConfig
from tgflow.train.observe import Callback
from tgflow.train.offline import OfflineTrainer
from tgflow.train.plans import make_plan
from tgflow.train.reuse import TrainingReuse
from tgflow.train.state import load_learner, save_learner
from tgflow.train.step import TrainStep

EVENTS = made_events(280)
REUSE = tg.train.Reuse(staleness=4, refresh=0.3)
EAGER = ExecutionConfig(capture=False)  # an emulated device does what it captures


def recent_tgat(**changes: Any) -> TGAT:
    """A small TGAT whose rows can be reused."""
    return small_tgat(strategy="recent", **changes)


def trainer_of(
    model: TemporalModel | None = None,
    graph: TemporalGraph | None = None,
    device: str | torch.device = "cpu",
    observer: Callback | None = None,
    **changes: Any,
) -> OfflineTrainer:
    """A short training; `changes` are settings."""
    settings: dict[str, Any] = {"batch_size": 20, "learning_rate": 1e-2, "epochs": 2}
    graph = TemporalGraph.from_events(EVENTS) if graph is None else graph
    model = (recent_tgat() if model is None else model).to(device)
    config = OfflineConfig(**settings | {"mrr_negatives": 5} | changes)
    return OfflineTrainer(model, graph, config, observer, execution=EAGER)


class Pass:
    """Learning from the batches of a plan, of which some steps are taken at a time."""

    def __init__(
        self,
        model: TGAT | None = None,
        num_threads: int = 0,
        reuse: tg.train.Reuse = REUSE,
        device: str | Device = "cpu",
    ) -> None:
        self.model = recent_tgat() if model is None else model
        graph = TemporalGraph.from_events(EVENTS, device=device)
        config = OfflineConfig(batch_size=20, seed=1, learning_rate=1e-2)
        self.plan = make_plan(graph, self.model, config, NegativeSampler(), seed=3)
        self.learner = TrainStep(self.model, config, execution=EAGER)
        self.reuse = TrainingReuse(reuse, self.model, self.plan, self.learner.device)
        self.num_threads = num_threads

    def batches(self, begin: int = 0) -> Generator[Batch]:
        """The batches from `begin` on, where the model is."""
        tasks = ((0, index) for index in range(begin, len(self.plan)))
        source, decided = self.reuse.batches(tasks, self.num_threads)
        device = self.learner.device
        loader = Loader.of_tasks(source, decided, num_threads=self.num_threads, device=device)
        yield from loader

    def learn(self, begin: int = 0, stop: int | None = None) -> list[Batch]:
        """Learn from these, up to `stop`, and return them."""
        batches = self.batches(begin)
        seen = []
        for batch in batches:
            self.reuse.learn(self.learner, batch)
            seen.append(batch)
            if batch.index + 1 == stop:
                batches.close()
                break
        return seen

    def saved(self) -> Checkpoint:
        """What goes on from here."""
        checkpoint = Checkpoint({})
        save_learner(checkpoint, self.learner)
        self.reuse.save(checkpoint)
        return checkpoint

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from there."""
        load_learner(self.learner, checkpoint)
        self.reuse.load(checkpoint)


def parameters(model: nn.Module) -> Tensor:
    """All numbers that are learned."""
    return torch.cat([x.detach().flatten() for x in model.parameters()])


def rows_at(layer: nn.Module, plan: Plan, nodes: Tensor, t: Tensor) -> Tensor:
    """What a layer without node features makes of nodes at times."""
    hops = tg.sample_hops(plan.graph, nodes, t, plan.fanouts[-1:])
    (block,) = hops.blocks
    assert plan.graph.edge_x is not None
    x = plan.graph.edge_x.gather(block.eid.reshape(-1).clamp(min=-1))
    rows = torch.arange(x.shape[0]).view(block.eid.shape)
    with torch.no_grad():
        made: Tensor = layer(None, replace(block, edge_row=rows, edge_table=x))
    return made
