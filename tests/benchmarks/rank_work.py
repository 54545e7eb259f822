"""A process of the benchmark of ranks: it learns a stream, alone or with others, and says how."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tgflow import _core
from tgflow.bench import setup
from tgflow.distributed.join import join
from tgflow.distributed.memory import ShardedMemory
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import TGAT, TGN
from tgflow.nn import NodeMemory
from tgflow.peers import Alone, Flow, Peers
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer


@dataclass(frozen=True, slots=True)
class Work:
    """What each process of a contender does."""

    model: str
    """tgn or tgat."""
    batch: int
    """Events of a micro-batch."""
    slices: int
    warm_up: int
    """Micro-batches before the clock starts."""
    batches: int
    """Micro-batches that are measured."""
    data: str | None = None
    """A file of events; None: a made stream."""
    threads: int = 1
    dim: int = 100
    shards: bool = False
    """Whether each rank has the neighbors of its own nodes alone."""
    memory_shards: bool = False
    """Whether each rank has the memory of its own nodes alone."""
    handed: int | None = None
    """Micro-batches that the stream hands over at once; None: all."""


@dataclass(frozen=True, slots=True)
class WorkFigures:
    """What came of it, from behind the warm-up on."""

    seconds: float
    cpu_seconds: float
    """Of all threads of the process."""
    calls: dict[str, int]
    """Collectives by kind."""
    bytes: dict[str, int]
    """Sent by kind."""
    waits: dict[str, float] = field(default_factory=dict)
    """Seconds in collectives by kind."""


def measure(work: Work, peers: Peers) -> WorkFigures:
    """Learn by `work` with these ranks."""
    torch.set_num_threads(work.threads)
    _core.set_num_threads(work.threads)
    events = setup.wikipedia() if work.data is None else setup.read(Path(work.data))
    events = events[: (work.warm_up + work.batches) * work.batch]
    torch.manual_seed(0)
    config = ContinualConfig(batch_size=work.batch, slices=work.slices, mrr_negatives=1)
    graph = TemporalGraph(shard=peers.shard if work.shards else None)
    trainer = ContinualTrainer(_model(work, peers), graph, config, peers=peers)
    handed = len(events) if work.handed is None else work.handed * work.batch
    steps = trainer.steps(events[at : at + handed] for at in range(0, len(events), handed))
    for _ in range(work.warm_up):
        next(steps)
    before = {kind: replace(flow) for kind, flow in peers.traffic.flows.items()}
    began, cpu = time.perf_counter(), time.process_time()
    for _ in steps:
        pass
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    flows = {kind: (flow, before.get(kind, Flow())) for kind, flow in peers.traffic.flows.items()}
    return WorkFigures(
        seconds,
        cpu,
        calls={kind: now.calls - was.calls for kind, (now, was) in flows.items()},
        bytes={kind: now.bytes - was.bytes for kind, (now, was) in flows.items()},
        waits={kind: now.seconds - was.seconds for kind, (now, was) in flows.items()},
    )


def _model(work: Work, peers: Peers) -> TemporalModel:
    dim = work.dim
    widths: dict[str, Any] = {"time_dim": dim, "embedding_dim": dim, "neighbors": 10}
    widths["pair_features"] = False
    if work.model == "tgat":
        return TGAT(**widths, strategy="recent")
    model: TemporalModel = TGN(**widths, memory_dim=dim)
    if work.memory_shards and isinstance(model.state, NodeMemory):
        model.state = ShardedMemory(model.state, peers)
    return model


if __name__ == "__main__":
    folder, work, how = sys.argv[1:]
    ranks: Peers = join() if how == "joined" else Alone()
    figures = measure(Work(**json.loads(work)), ranks)
    name = f"{ranks.rank}.json"
    ranks.close()
    (Path(folder) / name).write_text(json.dumps(asdict(figures)), encoding="utf-8")
