"""What a run has learned, to be asked: scores, rankings and embeddings by the ids of its stream."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from tgflow.checkpoint import Checkpoint, CheckpointDamaged, CheckpointError, load
from tgflow.checkpoint.parts import Ids
from tgflow.config import Config, load_config, replaced
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds, Side
from tgflow.inference import Inference
from tgflow.model import TemporalModel
from tgflow.runtime.model_maker import make_model
from tgflow.runtime.scored_pairs import ScoredPairs
from tgflow.tasks.labels import make_task
from tgflow.train.calibration import Calibration
from tgflow.train.config import TrainingConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.state import graph_of, load_model
from tgflow.units import ticks_per_unit


class UnknownNode(LookupError):
    """An id that no event of a run has had."""


class Run:
    """What a run has learned, as of a checkpoint. Questions append nothing, and change nothing.

    Safe to use from any number of threads. Ids are those of the stream: one of them, or any
    sequence, array or column. A time is in the unit of the stream's times (`--time-unit`), or a
    `datetime`; without one a question is about the tick after the last event. An answer is what the
    run would have said of the event, but for last bits where it is asked with other pairs beside.

    Args:
        path: The run's directory.
        config: Its settings.
        checkpoint: What it has learned.

    Raises:
        CheckpointError: If the checkpoint is not of `tgflow run` or `train`, or does not fit.
        ConfigError: If the model cannot be built.

    Example:
        >>> run = tg.open_run("runs/pay")
        >>> run.score(["acc_1", "acc_2"], ["shop_9", "shop_3"]).to_pandas()
        >>> run.top_k("acc_1", k=3).dst
    """

    def __init__(self, path: Path, config: Config, checkpoint: Checkpoint) -> None:
        self.path, self.config, self._checkpoint = path, config, checkpoint
        self.ids = NodeIds()
        """Of the stream; what goes on with it has them: `tg.open_stream(..., ids=run.ids)`."""
        Ids(self.ids).load(checkpoint)
        self.graph: TemporalGraph = graph_of(checkpoint)
        self.model = self._new_model()
        load_model(self.model, checkpoint)
        self._calibration = Calibration()
        if "scores" in checkpoint.meta:
            self._calibration.load(checkpoint)
        self.engine = self._engine()
        """What answers, by dense ids and ticks."""

    @property
    def is_continual(self) -> bool:
        """Whether `tgflow run` has left it, and not `tgflow train`."""
        return bool(self._checkpoint.meta["trainer"] == "continual")

    @property
    def position(self) -> int:
        """Events that it has learned."""
        return self.graph.num_events

    def score(self, src: Any, dst: Any = None, at: Any = None) -> ScoredPairs:
        """Return what the run says of pairs.

        Args:
            src: Ids of sources; or a table (pandas, polars, Arrow) with the columns that the run's
                stream has for both ends, and for times if they are there.
            dst: Ids of destinations, as many.
            at: When: one time for all, or one for each.

        Raises:
            UnknownNode: If the run knows no such node.
            TypeError: If ids are of another kind than the stream's.
            ValueError: If there are not as many of each, or a time is between two ticks.
        """
        if dst is None:
            src, dst, at = self._ends_of(src, at)
        left, right = self._nodes(src, "src"), self._nodes(dst, "dst")
        if len(left) != len(right):
            raise ValueError(f"src and dst must be as many, got {len(left)} and {len(right)}")
        logits = self.engine.score(left, right, self._ticks(at, len(left))).cpu()
        return self._scored(left, right, logits)

    def embed(self, ids: Any, at: Any = None, *, side: Side = "src") -> Tensor:
        """Return the embeddings of nodes, float `[N, dim]`.

        Args:
            ids: Of nodes.
            at: When: one time for all, or one for each.
            side: Of a bipartite stream: whether they are sources or destinations.

        Raises:
            UnknownNode: If the run knows no such node.
            TypeError: If ids are of another kind than the stream's.
            ValueError: If the model makes no embeddings of single nodes.
        """
        return self.embed_nodes(self._nodes(ids, side), at)

    def embed_nodes(self, nodes: Tensor, at: Any = None) -> Tensor:
        """Return the embeddings of nodes by their dense ids, int64 `[N]`; see `embed`."""
        return self.engine.embed(nodes, self._ticks(at, len(nodes))).cpu()

    def top_k(
        self,
        src: Any,
        k: int = 10,
        candidates: Any = None,
        exclude_known: bool = False,
        at: Any = None,
    ) -> ScoredPairs:
        """Return the likeliest destinations of each source, best first, one source after another.

        Args:
            src: Ids of sources.
            k: How many of each; fewer, if there are fewer.
            candidates: Ids of destinations to choose among; None: all that there are.
            exclude_known: Leave out destinations that a source has had an event with.
            at: When: one time for all, or one for each source.

        Raises:
            UnknownNode: If the run knows no such node.
            TypeError: If ids are of another kind than the stream's.
            ValueError: If `k` is below 1, or there are no candidates.
        """
        nodes = self._nodes(src, "src")
        times = self._ticks(at, len(nodes))
        others = None if candidates is None else self._nodes(candidates, "dst")
        found = [
            self.engine.rank(node, t, self._candidates(node, others, exclude_known), k)
            for node, t in zip(torch.split(nodes, 1), torch.split(times, 1), strict=True)
        ]
        counts = torch.tensor([each.nodes.shape[1] for each in found], dtype=torch.int64)
        none = torch.empty(0, dtype=torch.int64)
        right = torch.cat([none, *(each.nodes.view(-1).cpu() for each in found)])
        logits = torch.cat([torch.empty(0), *(each.scores.view(-1).cpu() for each in found)])
        place = torch.cat([none, *(torch.arange(1, int(num) + 1) for num in counts)])
        return self._scored(nodes.repeat_interleave(counts), right, logits, place)

    def trainer(self, *, scores: bool = False) -> ContinualTrainer:
        """Return a trainer that goes on from here; answers of this run then follow what it learns.

        What `tgflow train` has left goes on learning continually, with its events as history. The
        stream that it learns from has the run's ids: `tg.open_stream(..., ids=run.ids)`.

        Args:
            scores: As `ContinualTrainer`.

        Raises:
            CheckpointError: If the checkpoint does not fit the model.
        """
        settings, task = self.config.continual, make_task(self.config.task)
        if self.is_continual:
            trainer = ContinualTrainer.from_checkpoint(
                self._new_model(), self._checkpoint, settings, scores=scores, task=task
            )
        else:
            trainer = ContinualTrainer(self.model, self.graph, settings, scores=scores, task=task)
        self.model, self.graph = trainer.model, trainer.graph
        if trainer.scorer is not None:
            self._calibration = trainer.scorer.calibration
        self.engine = self._engine()
        trainer.changing = self.engine.changing
        return trainer

    def _training(self) -> TrainingConfig:
        return self.config.continual if self.is_continual else self.config.offline

    def _new_model(self) -> TemporalModel:
        edge_x = self.graph.edge_x
        return make_model(self.config, self._training(), 0 if edge_x is None else edge_x.dim)

    def _engine(self) -> Inference:
        c = self._training()
        return Inference(self.model, self.graph, strategy=c.strategy, span=c.span, seed=c.seed)

    def _scored(
        self, src: Tensor, dst: Tensor, logits: Tensor, place: Tensor | None = None
    ) -> ScoredPairs:
        values, calibration = logits.double().numpy(), self._calibration
        return ScoredPairs(
            [*self.ids.decode(src)],
            [*self.ids.decode(dst)],
            logits,
            torch.from_numpy(calibration.probabilities(values)),
            torch.from_numpy(calibration.anomalies(values)),
            place,
        )

    def _nodes(self, ids: Any, side: Side) -> Tensor:
        """Return the dense ids of nodes."""
        column = [ids] if isinstance(ids, str | int | np.integer) else ids
        if not isinstance(column, list | Tensor | np.ndarray | pa.Array | pa.ChunkedArray):
            column = pa.array(column.to_numpy() if hasattr(column, "to_numpy") else [*column])
        nodes = self.ids.find(column, side)
        unknown = (nodes < 0).nonzero()
        if len(unknown):
            name = column[int(unknown[0])]
            shown = repr(name.as_py() if isinstance(name, pa.Scalar) else name)
            what = {"src": "source", "dst": "destination"}[side] if self.ids.bipartite else "node"
            raise UnknownNode(
                f"{shown} is no {what} of {self.path}: no event that it has learned has it"
            )
        return nodes

    def _candidates(
        self, node: Tensor, others: Tensor | None, exclude_known: bool
    ) -> Tensor | None:
        """Return who may be chosen for a source; None: all destinations."""
        if not exclude_known:
            return others
        events = self.graph.log.read(0, self.graph.num_events)
        known = events.dst[events.src == node]
        every = torch.unique(events.dst) if others is None else others
        return every[~torch.isin(every, known)]

    def _ends_of(self, table: Any, at: Any) -> tuple[Any, Any, Any]:
        """Return sources, destinations and times of a table."""
        if hasattr(table, "to_arrow"):
            table = table.to_arrow()
        elif not isinstance(table, pa.Table | pa.RecordBatch):
            if not hasattr(table, "columns"):
                raise ValueError("score needs src and dst, or one table with both; dst is missing")
            table = pa.Table.from_pandas(table, preserve_index=False)
        c, names = self.config.stream, table.schema.names
        missing = [name for name in (c.src, c.dst) if name not in names]
        if missing:
            raise ValueError(
                f"the table has no column {missing[0]!r}, which the run's stream has for one end; "
                f"it has {', '.join(names)}"
            )
        times = table[c.t].to_pylist() if at is None and c.t in names else at
        return table[c.src], table[c.dst], times

    def _ticks(self, at: Any, size: int) -> Tensor:
        """Return the times of questions, int64 `[size]`."""
        if at is None:
            last = self.graph.log.t_last
            return torch.full((size,), 0 if last is None else last + 1)
        if isinstance(at, int | float | Decimal | datetime):
            return torch.full((size,), self._tick(at))
        times = at.tolist() if hasattr(at, "tolist") else [*at]
        if len(times) != size:
            raise ValueError(f"at must be one time, or one for each of {size}, got {len(times)}")
        return torch.tensor([self._tick(time) for time in times], dtype=torch.int64)

    def _tick(self, time: Any) -> int:
        """Return the tick of a time."""
        unit, tick = self.config.stream.time_unit, self.graph.time_unit
        if isinstance(time, datetime):
            unit = "us"
            since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
            time = since // timedelta(microseconds=1)
        per_unit = 1 if tick == "tick" else ticks_per_unit(unit, tick)
        ticks = Fraction(str(time)) * per_unit
        if ticks.denominator != 1:
            raise ValueError(f"{time} {unit} is between two ticks of the run, which are 1 {tick}")
        return int(ticks)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def open_run(path: str | os.PathLike[str]) -> Run:
    """Return what `tgflow run` or `tgflow train` has left in a directory, to be asked.

    Nothing in the directory is changed: it may be of a run that goes on. All events are read.

    Args:
        path: The run's directory; of `train` with several seeds such as `runs/x/checkpoint/0`.

    Raises:
        FileNotFoundError: If there is no run, or it has no checkpoint yet.
        CheckpointError: If its checkpoints are damaged, or of a comparison.
        ConfigError: If its model cannot be built, as one of yours that is not there.

    Example:
        >>> run = tg.open_run("runs/collegemsg-tgn")
        >>> run.top_k(5, k=3).to_pandas()
    """
    home, found = find_checkpoint(path)
    config = replaced(load_config(home / "config.toml", unknown=[]), _saved_settings(found))
    return Run(home, config, found)


def find_checkpoint(path: str | os.PathLike[str]) -> tuple[Path, Checkpoint]:
    """Return the directory of a run and what it has learned; `path` and errors as `open_run`."""
    directory = Path(path)
    home, checkpoint = directory, directory
    if (directory / "config.toml").exists():
        checkpoint = directory / "checkpoint"
    else:
        home = directory.parent if directory.name == "checkpoint" else directory.parent.parent
    if not (home / "config.toml").exists():
        raise FileNotFoundError(
            f"{directory} is no run: it has no config.toml; make one with tgflow run --out "
            f"{directory}"
        )
    found = _newest(home) if (home / "checkpoints").is_dir() else _offline(checkpoint)
    if found.meta.get("trainer") not in ("continual", "offline"):
        raise CheckpointError(f"{home} compares models; open what tgflow run or train has left")
    return home, found


def _newest(home: Path) -> Checkpoint:
    """Return the newest checkpoint that is whole; others may come and go meanwhile."""
    error: Exception | None = None
    for entry in sorted((home / "checkpoints").glob("ckpt-*"), reverse=True):
        try:
            return load(entry)
        except (CheckpointDamaged, OSError) as damaged:
            error = damaged
    if error is not None:
        raise error
    raise FileNotFoundError(
        f"{home} has no checkpoint yet: a run writes one now and then (--checkpoint-every), and at "
        "its end"
    )


def _offline(checkpoint: Path) -> Checkpoint:
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"{checkpoint} is not there: the training has not come to its end")
    seeds: Sequence[Path] = sorted(checkpoint.glob("[0-9]*"))
    if seeds:
        names = ", ".join(str(seed) for seed in seeds[:3])
        raise FileNotFoundError(f"{checkpoint} has a model for each seed; open one: {names}")
    return load(checkpoint)


def saved_model(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the settings of a checkpoint's model, by "model.key"."""
    return {f"model.{name}": value for name, value in checkpoint.meta.get("model", {}).items()}


def _saved_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the settings that a checkpoint stands for, by "section.key"."""
    found = saved_model(checkpoint)
    with suppress(KeyError):
        found |= checkpoint.meta["run"]["settings"]
    return found
