"""A process of the benchmark of ranks: it learns a stream, alone or with others, and says how."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tgflow import _core
from tgflow.bench import setup
from tgflow.distributed.join import join
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import TGAT, TGN
from tgflow.peers import Flow, Peers
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


@dataclass(frozen=True, slots=True)
class WorkFigures:
    """Measurements after the warm-up."""

    seconds: float
    cpu_seconds: float
    """Of all threads of the process."""
    calls: dict[str, int]
    """Collectives by kind."""
    bytes: dict[str, int]
    """Sent by kind."""


def measure(work: Work, peers: Peers) -> WorkFigures:
    """Learn by `work` with these ranks."""
    torch.set_num_threads(work.threads)
    _core.set_num_threads(work.threads)
    events = setup.wikipedia() if work.data is None else setup.read(Path(work.data))
    events = events[: (work.warm_up + work.batches) * work.batch]
    torch.manual_seed(0)
    config = ContinualConfig(batch_size=work.batch, slices=work.slices, mrr_negatives=1)
    graph = TemporalGraph()
    trainer = ContinualTrainer(_model(work), graph, config, peers=peers)
    steps = trainer.steps([events])
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
    )


def _model(work: Work) -> TemporalModel:
    dim = work.dim
    widths: dict[str, Any] = {"time_dim": dim, "embedding_dim": dim, "neighbors": 10}
    widths["pair_features"] = False
    if work.model == "tgat":
        return TGAT(**widths, strategy="recent")
    return TGN(**widths, memory_dim=dim)


if __name__ == "__main__":
    folder, work, how = sys.argv[1:]
    ranks: Peers = join() if how == "joined" else Peers()
    figures = measure(Work(**json.loads(work)), ranks)
    name = f"{ranks.rank}.json"
    ranks.close()
    (Path(folder) / name).write_text(json.dumps(asdict(figures)), encoding="utf-8")
