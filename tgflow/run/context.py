"""What a run is made of: its inputs, and its parts once they are opened."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tgflow.base.choices import Direction
from tgflow.base.peers import Peers
from tgflow.checkpoint import Checkpoint, CheckpointStore
from tgflow.checkpoint.durable.log import DurableLog
from tgflow.cuda.device import Device, device_of
from tgflow.graph.ids import NodeIds
from tgflow.nn.model import TemporalModel
from tgflow.ranks.broadcast import Lead
from tgflow.report.compare.lineup import Lineup
from tgflow.run.checkpoints import SavedSettings
from tgflow.run.config import Config
from tgflow.run.directory import RunDirectory
from tgflow.run.log import RunLog
from tgflow.run.micro_batch_ends import MicroBatchEnds
from tgflow.run.node_features import NodeFeatures, NodeTypes
from tgflow.run.records import RunNote
from tgflow.run.serving import FramePublisher
from tgflow.run.stream import FlowControl
from tgflow.serve.endpoint import Endpoint
from tgflow.streams.decorators import PacedStream
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ingest_state import IngestState
from tgflow.streams.rows.row_batch import PartitionedSource
from tgflow.train.stream_trainer import StreamTrainer


@dataclass(slots=True, kw_only=True)
class RunContext:
    """Inputs and parts of a run that learns from a stream, on rank 0 or on a follower.

    The command opens the inputs; `open_runner` and `open_follower` open the rest in this order.
    """

    directory: RunDirectory
    peers: Peers
    device: torch.device = field(init=False)
    threads: int = field(init=False)
    unit: str
    """Of a tick of the events; with their widths, what a follower receives from rank 0."""
    x_dim: int
    node_x_dim: int
    direction: Direction
    newest: Checkpoint | None = None
    """Checkpoint to resume from; None for a new run."""
    model: TemporalModel | Lineup = field(init=False)
    """The model, with parameters initialized by the seed; or the models to compare."""
    title: str | None = None
    """Display name of the models; None: the name of the model."""
    cut_at_steps: bool = False
    """Whether micro-batches also end where the time changes."""
    flow: FlowControl = field(init=False)
    run_log: RunLog = field(init=False)
    console: Console = field(init=False)
    trainer: StreamTrainer = field(init=False)

    # Of rank 0 alone:
    lead: Lead = field(default_factory=Lead)
    source: PartitionedSource = field(init=False)
    """Not started."""
    label_source: PartitionedSource | None = None
    """Source of labels that come after their events, not started."""
    nodes: NodeFeatures | None = None
    types: NodeTypes | None = None
    served_at: tuple[Endpoint, str | None] | None = None
    """Address and token of a served run."""
    lasting: ExitStack = field(default_factory=ExitStack)
    """Closes the replicas of a served run, some time after the end of the stream."""
    build: dict[str, Any] = field(init=False)
    note: RunNote = field(default_factory=RunNote)
    """Build, time and settings of the newest checkpoint."""
    ids: NodeIds | None = None
    state: IngestState | None = None
    """State of ingestion in the newest checkpoint, or after the events of an initial run."""
    store: CheckpointStore = field(init=False)
    log: DurableLog | None = None
    ingest: Ingest = field(init=False)
    stream: PacedStream = field(init=False)
    settings: SavedSettings = field(init=False)
    ends: MicroBatchEnds | None = None
    publisher: FramePublisher | None = None

    @property
    def config(self) -> Config:
        return self.directory.config

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def gpu(self) -> Device | None:
        """GPU of graph, tables and caches; None if they are in host memory."""
        return device_of(self.device) if self.config.has_gpu_graph else None
