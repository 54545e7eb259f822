"""Saved runs: trainers saved as run directories, and runs opened for queries or as a start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from tgflow.checkpoint import Checkpoint, CheckpointDamaged, CheckpointStore, load
from tgflow.checkpoint.durable.fs import replace_file
from tgflow.checkpoint.names import CheckpointError, list_checkpoints
from tgflow.checkpoint.sections import Ids
from tgflow.checkpoint.typed import read_as
from tgflow.graph import TemporalGraph
from tgflow.graph.ids import NodeIds
from tgflow.graph.log import NodeCount
from tgflow.models import MODELS, name_of
from tgflow.nn.model import TemporalModel, feature_widths
from tgflow.run.config import Config, StreamConfig, flag_of, to_toml
from tgflow.run.config.load import ConfigError, flat, load_config, plain, quote_json, replaced
from tgflow.run.config.schema import GraphConfig, LearningConfig, ModelConfig, RunConfig
from tgflow.run.directory import fixed_settings
from tgflow.run.ingestion import (
    before_all,
    load_classes,
    load_features,
    load_ingest,
    save_columns,
    save_ingest,
)
from tgflow.run.model_maker import make_model, model_class
from tgflow.run.node_features import FeaturedStream, NodeFeatures
from tgflow.run.records import RunNote, run_note
from tgflow.run.restore import current_build
from tgflow.serve.predictor import Predictor
from tgflow.streams.errors import StreamError
from tgflow.streams.ingest.config import BEFORE_ALL
from tgflow.streams.ingest.ingest_state import IngestState
from tgflow.streams.ingest.tail import LogTail
from tgflow.streams.options import StreamOptions, TextLayout
from tgflow.train.alerts import AlertList
from tgflow.train.calibration import Calibration
from tgflow.train.config import TrainingConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.inference import Inference
from tgflow.train.observe import StepRecord
from tgflow.train.plans import sampler_span
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.labels import make_task
from tgflow.train.trainer_state import graph_of, load_model


class Run(Predictor):
    """A run at one of its checkpoints; see `Predictor` for its queries.

    Args:
        path: The run's directory.
        config: Its settings.
        checkpoint: Checkpoint of the run.
        model: As in `open_run`.

    Raises:
        CheckpointError: If the checkpoint is not of `tgflow run` or `train`, or is incompatible.
        ConfigError: If the model cannot be built.

    Example:
        >>> run = tg.open_run("runs/pay")
        >>> run.score(["acc_1", "acc_2"], ["shop_1", "shop_2"]).src
        ['acc_1', 'acc_2']
        >>> len(run.top_k("acc_1", k=3))
        3
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        checkpoint: Checkpoint,
        model: type[TemporalModel] | None = None,
    ) -> None:
        self.path, self.config, self._checkpoint = path, config, checkpoint
        assert checkpoint.path is not None
        self.checkpoint_path = checkpoint.path
        self._own = model_class(config.model.name, model) and model  # before events are read
        ids = NodeIds()
        graph = graph_of(checkpoint, table=config.graph.table, directory=path)
        Ids(ids).load(checkpoint)
        self.calibration = Calibration()
        if "scores" in checkpoint.meta:
            self.calibration.load(checkpoint)
        self._storing: Iterator[StepRecord] | None = None
        self.model = self._new_model(graph)
        load_model(self.model, checkpoint)
        engine = make_engine(self._training(), self.model, graph)
        self.classes = load_classes(checkpoint)
        """Texts of the numbers 0, 1, ... of relations and of labels, if they have any."""
        task, has_labels = make_task(config.task), self.model.label_decoder is not None
        super().__init__(
            str(path),
            config.stream,
            ids,
            graph,
            engine,
            self.calibration,
            lambda: self.classes,
            features=load_features(checkpoint, feature_widths(graph)["edge_x_dim"]),
            has_inverses=not self.is_continual and config.offline.inverse,
            labels=task.labels_of(graph) if task is not None and has_labels else None,
            label_names=config.stream.label_shown,
            label_columns=config.label_columns,
        )
        if self.labels is not None:
            self.labels.history.load(checkpoint)
        if config.scores.alert_budget is not None:
            self.alerts = AlertList.load(checkpoint)
        if config.graph.node_features is not None:
            self.node_rows = node_rows_of(lambda: self._node_features, graph)

    @cached_property
    def _node_features(self) -> NodeFeatures:
        c = self.config.graph
        assert c.node_features is not None
        return NodeFeatures(
            c.node_features,
            id=c.node_id,
            columns=c.node_columns,
            side=c.node_side,
            fill_missing=self.config.stream.fill_missing,
        )

    def add_labels(self, *args: object, **kwargs: object) -> None:
        """Raise TypeError: an opened run is read-only."""
        raise TypeError(
            f"{self.path} was opened to be asked, and is read-only; labels are added to a run that "
            "learns: trainer.add_labels(...), tgflow run --label-stream, or POST /labels"
        )

    def warm(self) -> None:
        """Score the last event, so that later questions do not wait for counts of all events."""
        if self.position:
            last = self.graph.log.read(self.position - 1, self.position)
            self.engine.score(last.src, last.dst, int(last.t) + 1, relation=last.relation)

    def advance(self, limit: int) -> bool:
        """Store a micro-batch of the events that an active run has logged since, up to `limit` in
        all.

        Answers then include them, with the parameters of the checkpoint. False if there are none: a
        run of `tgflow train`, without a log or with features of nodes has none.
        """
        if self._logged is None:
            return False
        trainer, log = self._logged
        log.limit = limit
        if self._storing is None:
            self._storing = trainer.steps(log)
        if next(self._storing, None) is None:
            self._storing = None
            return False
        self.classes |= log.classes
        return True

    @cached_property
    def _logged(self) -> tuple[ContinualTrainer, LogTail] | None:
        """The trainer that stores logged events, and these."""
        if not self.is_continual or self.graph.node_x is not None:
            return None
        state = load_ingest(self._checkpoint)
        if state.log is None:
            return None
        settings = replace(
            self.config.continual,
            protocol=None,
            updates=0,
            slices=1,
            mrr_negatives=1,
            warmup=0,
            metrics=(),
            task=TaskConfig(),
        )
        trainer = ContinualTrainer(self.model, self.graph, settings)
        trainer.ids, position = self.ids, self.position
        self.follow(trainer, self.engine)
        return trainer, LogTail(self.path / "log", state, self.ids, position)

    @property
    def is_continual(self) -> bool:
        return bool(self._checkpoint.meta["trainer"] == "continual")

    def trainer(self, *, scores: bool = False) -> ContinualTrainer:
        """Return a trainer that continues from here; answers of this run then reflect its progress.

        A model of `tgflow train` continues with continual learning, with its events as history. The
        stream that it learns from must use the run's ids: `tg.open_stream(..., ids=run.ids)`. For
        features of new nodes use `tg.NodeFeatures(...).along(stream, trainer.graph)`.

        Args:
            scores: As `ContinualTrainer`.

        Raises:
            CheckpointError: If the checkpoint does not fit the model.
        """
        settings = self.config.continual
        if self.is_continual:
            trainer = ContinualTrainer.from_checkpoint(
                self._new_model(self.graph), self._checkpoint, settings, scores=scores
            )
        else:
            trainer = ContinualTrainer(self.model, self.graph, settings, scores=scores)
        self.labels = None if self.labels is None else trainer.labels
        trainer.ids, saved = self.ids, self.classes
        self._classes = lambda: {**saved, **trainer.stream.classes}
        self.model = trainer.model
        self.follow(trainer, make_engine(self._training(), trainer.model, trainer.graph))
        return trainer

    def _training(self) -> TrainingConfig:
        return self.config.continual if self.is_continual else self.config.offline

    def _new_model(self, graph: TemporalGraph) -> TemporalModel:
        edge_x_dim, node_x_dim = feature_widths(graph).values()
        training = replace(self._training(), metrics=())  # queries measure nothing
        c, own = self.config, self._own
        return make_model(c.model, c.task, training, edge_x_dim, node_x_dim=node_x_dim, own=own)


def node_rows_of(
    features: Callable[[], NodeFeatures], graph: TemporalGraph
) -> Callable[[Sequence[Any], Tensor | None], Tensor]:
    """Return a function of ids and sides of new nodes to their features, scaled as if added now."""
    scale = graph.node_scale

    def rows(names: Sequence[Any], is_dst: Tensor | None) -> Tensor:
        try:
            x = features().of(names, is_dst)
        except (OSError, StreamError) as error:
            raise ValueError(f"the features of a new node are unknown: {error}") from None
        return x if scale is None else scale.scaled(x)[0]

    return rows


def make_engine(config: TrainingConfig, model: TemporalModel, graph: TemporalGraph) -> Inference:
    """Return an engine that predicts as a trainer with these settings does."""
    return Inference(
        model, graph, strategy=config.strategy, span=sampler_span(graph, config), seed=config.seed
    )


@overload
def open_run(path: ContinualTrainer) -> Predictor: ...


@overload
def open_run(path: str | os.PathLike[str], model: type[TemporalModel] | None = None) -> Run: ...


def open_run(
    path: str | os.PathLike[str] | ContinualTrainer, model: type[TemporalModel] | None = None
) -> Predictor:
    """Open a run for queries: from a directory, or from a trainer that keeps learning.

    The directory is not changed, and may belong to an active run. All events are read. Nothing in
    the directory is trusted: no code that its files name is imported.

    Args:
        path: The directory written by `tgflow run`, `tgflow train` or `trainer.save`; for `train`
            with several seeds such as `runs/x/checkpoint/0`. Or a trainer: answers then reflect
            its progress, with the ids of its streams.
        model: Class of the run's model, if it is not one of tgflow's.

    Raises:
        FileNotFoundError: If there is no run, or it has no checkpoint yet.
        CheckpointError: If its checkpoints are damaged, or belong to a comparison.
        CodeNotGiven: If its model is not one of tgflow's, and `model` is not given.
        ConfigError: If its model cannot be built, or `model` is another class.

    Example:
        >>> run = tg.open_run("runs/pay")
        >>> run.top_k("acc_1", k=3).to_arrow().column_names
        ['src', 'dst', 'place', 'ranked_by', 'logit', 'probability', 'anomaly', 'new']
    """
    if isinstance(path, ContinualTrainer):
        engine = make_engine(path.config, path.model, path.graph)
        stream, ids = _stream_of(path), _ids_of(path)
        run = Predictor(
            "the trainer",
            stream,
            ids,
            path.graph,
            engine,
            Calibration(),
            lambda: path.stream.classes,
            features=path.stream.features,
            labels=None if path.model.label_decoder is None else path.labels,
            label_names=stream.label_shown,
        )
        run.follow(path, engine)
        if isinstance(stream_of := path.stream, FeaturedStream):
            run.node_rows = node_rows_of(lambda: stream_of.node_features, path.graph)
        return run
    home, found = find_checkpoint(path)
    return Run(home, saved_config(home, found), found, model)


def saved_config(home: Path, checkpoint: Checkpoint) -> Config:
    model = read_as(dict[str, Any], checkpoint.meta.get("model", {}), "model")
    saved = {f"model.{name}": value for name, value in model.items()}
    saved |= run_note(checkpoint.meta).settings
    return replaced(load_config(home / "config.toml", unknown=[]), saved)


def save_run(trainer: ContinualTrainer, path: str | os.PathLike[str]) -> None:
    """Write a trainer as a run directory, for `open_run`, `tgflow predict`, `info` and `run`.

    It has the ids of the stream's nodes. `tgflow run --resume --out PATH` continues the latest
    stream after the events that were learned; give `--stream` if that was not a file.

    Args:
        trainer: The trainer; not modified.
        path: The directory; one written by an earlier call for this trainer is updated.

    Raises:
        FileExistsError: If it holds other files, or a later state.
        ValueError: If the model cannot be built from its class and its `config`, or an optimizer,
            schedule or loss was given beside the trainer's `config`.
        OSError: If it cannot be written.

    Example:
        >>> trainer = tg.ContinualTrainer(tg.TGN(), tg.TemporalGraph())
        >>> _ = trainer.run(tg.open_stream((["ann", "bob"], ["cy", "ann"], [1, 2])))
        >>> tg.save_run(trainer, "runs/saved")
        >>> tg.open_run("runs/saved").score("ann", "cy").dst
        ['cy']
    """
    home, position = Path(path), trainer.position
    there = {entry.name for entry in home.iterdir()} if home.exists() else set()
    is_later = any(entry.step > position for entry in list_checkpoints(home / "checkpoints"))
    if is_later or not there <= {"config.toml", "checkpoints"}:
        what = "a later state" if is_later else "files already"
        raise FileExistsError(f"{home} holds {what}; choose another path, or remove it")
    config = _config_of(trainer)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)  # private, as those of `tgflow run`
    checkpoint, start = trainer.checkpoint(), trainer.stream_start
    last = int(trainer.graph.log.read(start - 1, start).t) if start else BEFORE_ALL
    Ids(_ids_of(trainer), NodeCount(trainer.graph.log).upto(position)).save(checkpoint)
    parts = before_all(trainer.stream.classes)
    state = IngestState(num_released=start, watermark=last, last_t=last, partitions=parts)
    save_ingest(state, checkpoint)
    features = trainer.stream.features
    if sum(features.values()) != feature_widths(trainer.graph)["edge_x_dim"]:
        features = {}  # those of a stream that the graph does not store
    save_columns(trainer.stream.classes, features, checkpoint)
    checkpoint.note("records", {"lines": 0})
    build = current_build(torch.get_num_threads(), trainer.device)
    checkpoint.note("model", plain(config)["model"])
    note = RunNote(build, settings=fixed_settings(flat(config)), history=start)
    checkpoint.note("run", asdict(note))
    CheckpointStore(home / "checkpoints").save(position, checkpoint)
    replace_file(home / "config.toml", [to_toml(config).encode()])


def _config_of(trainer: ContinualTrainer) -> Config:
    """Return the settings with which `tgflow run` continues a trainer."""
    if trainer.not_in_config:
        text = f"a run directory cannot hold {', '.join(trainer.not_in_config)} of this trainer; "
        raise ValueError(f"{text}set it in the trainer's config, or use {_BY_HAND}")
    model, graph, scale = trainer.model, trainer.graph, trainer.graph.feature_scale
    name = name_of(model)
    fixed: Mapping[str, Any] = MODELS[name].settings if name in MODELS else {}
    if name not in MODELS:
        module = type(model).__module__
        if module == "__main__":
            module = Path(getattr(sys.modules[module], "__file__", None) or module).stem
        name = f"{module}:{type(model).__qualname__}"
    own: Any = getattr(model, "config", None)
    left_out = {"edge_x_dim", "node_x_dim", *fixed}
    settings = {
        field.name: asdict(own)[field.name]
        for field in ([] if own is None else fields(own))
        if field.name not in left_out and getattr(own, field.name) != field.default
    }
    config = Config(
        stream=_stream_of(trainer),
        graph=GraphConfig(
            direction=graph.direction, feature_scale="none" if scale is None else scale.kind
        ),
        model=ModelConfig(name=name, settings=settings, precision=trainer.execution.precision),
        learning=LearningConfig(**{**vars(trainer.config), "task": TaskConfig()}),
        task=trainer.config.task,
        run=RunConfig(device=str(trainer.device), capture=trainer.execution.capture),
    )
    edge_x_dim, node_x_dim = feature_widths(graph).values()
    try:
        kind = None if name in MODELS else type(model)
        again = make_model(
            config.model, config.task, trainer.config, edge_x_dim, node_x_dim=node_x_dim, own=kind
        )
    except (ConfigError, TypeError) as error:
        raise ValueError(
            f"a run directory needs a model that can be built again: {error}; use {_BY_HAND}"
        ) from None
    shapes = [{k: v.shape for k, v in each.state_dict().items()} for each in (model, again)]
    if shapes[0] != shapes[1]:
        text = f"{name} built from its config has other parameters; keep all its settings in its "
        raise ValueError(f"{text}config, or use {_BY_HAND}")
    return config


_BY_HAND = "tg.save(path, trainer.checkpoint()) and build the model in Python"


def _stream_of(trainer: ContinualTrainer) -> StreamConfig:
    """Return the settings of a trainer's latest stream; without a path if it was not a file."""
    origin = dict(trainer.stream.origin)
    if isinstance(origin.get("features"), str):
        origin["features"] = [origin["features"] + "*"]
    if origin.get("columns") is not None and not isinstance(origin["columns"], str):
        origin["columns"] = ",".join(origin["columns"])
    tick = trainer.graph.time_unit
    unit = trainer.stream.time_unit or tick
    origin["id_kind"] = "string" if "ends" in _ids_of(trainer).columns() else "int"
    origin |= {"time_unit": unit, "tick_unit": None if unit == tick else tick}
    return StreamConfig(**origin)


def _ids_of(trainer: ContinualTrainer) -> NodeIds:
    """Return the ids of a trainer's nodes; the numbers in its batches if no stream had ids."""
    if trainer.ids is not None:
        return trainer.ids
    ids, numbers = NodeIds(), torch.arange(trainer.graph.num_nodes)
    ids.encode(numbers, numbers)
    return ids


def find_checkpoint(path: str | os.PathLike[str]) -> tuple[Path, Checkpoint]:
    """Return the directory of a run and its checkpoint; `path` and errors as `open_run`."""
    directory = home = checkpoint = Path(path)
    if (directory / "config.toml").exists():
        checkpoint = directory / "checkpoint"
    else:
        home = directory.parent if directory.name == "checkpoint" else directory.parent.parent
    if not (home / "config.toml").exists():
        text = f"{directory} is not a run: it has no config.toml; create one by tgflow run --out "
        raise FileNotFoundError(f"{text}{directory}")
    unfinished = FileNotFoundError(
        f"{checkpoint} does not exist: the training has not ended; continue with tgflow train "
        "--resume"
    )
    if (home / "checkpoints").is_dir() and not checkpoint.is_dir():
        found = _newest(home)
    elif not checkpoint.is_dir():
        raise unfinished
    elif seeds := sorted(checkpoint.glob("[0-9]*")):
        names = ", ".join(str(seed) for seed in seeds[:3])
        raise FileNotFoundError(f"{checkpoint} has a model for each seed; open one: {names}")
    else:
        found = load(checkpoint)
    trainer = read_as(str, found.meta.get("trainer"), "trainer")
    if trainer == "train":
        raise unfinished
    if trainer not in ("continual", "offline"):
        raise CheckpointError(f"{home} is a comparison; open a directory of tgflow run or train")
    return home, found


def _newest(home: Path) -> Checkpoint:
    """Return the newest intact checkpoint; others may be added and removed concurrently."""
    error: Exception = FileNotFoundError(
        f"{home} has no checkpoint yet: a run writes one periodically (--checkpoint-every), and at "
        "its end"
    )
    for entry in reversed(list_checkpoints(home / "checkpoints")):
        try:
            return load(entry.path)
        except (CheckpointDamaged, OSError) as damaged:
            error = damaged
    raise error


def initial_settings(
    path: str | None, stated: Mapping[str, Any], stream: str = ""
) -> dict[str, Any]:
    """Return the settings that a run takes from the initial run at `path`, if any.

    They are those of columns, features, graph, model and task, but for those in `stated`; and the
    layout of files like `stream`.
    """
    if path is None:
        return {}
    there = flat(saved_config(*find_checkpoint(path)))
    is_alike = Path(stream).suffix == Path(there["stream.path"]).suffix
    layout, task = {*_names(TextLayout)}, there["task.kind"]
    left_out = {"graph.node_types_digest", "graph.device_budget", "graph.table"}
    left_out |= {"stream.max_file_bytes"}
    left_out |= set() if is_alike else {f"stream.{name}" for name in layout}
    if "task.kind" in stated or there["task.node_labels"]:
        left_out |= {f"task.{name}" for name in _names(TaskConfig)}
    if there["stream.label"] == there["task.target"] and task != "link":
        left_out.add("stream.label")  # which the task sets
    columns = {f"stream.{name}" for name in _names(StreamOptions)}
    return {
        key: value
        for key, value in there.items()
        if (key in columns or key.partition(".")[0] in ("graph", "model", "task"))
        and key not in left_out | stated.keys()
    }


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def misfit(path: str, now: Mapping[str, Any], error: CheckpointError) -> Exception:
    there = initial_settings(path, {})
    found = [
        f"{flag_of(key)} is {quote_json(there[key])} there and {quote_json(now[key])} here"
        for key in there
        if (key.startswith("model.") or key in ("task.kind", "task.classes"))
        and there[key] != now[key]
    ]
    if not found:
        return error
    return ConfigError(f"--init-from: the model of {path} has other parameters: {'; '.join(found)}")


def find_initial(path: str | Path, world: int = 1) -> Checkpoint:
    if world > 1:
        text = "--init-from: only a single process can start from another run; leave out --nproc, "
        raise ConfigError(f"{text}and resume with any number of ranks once there is a checkpoint")
    return find_checkpoint(path)[1]


def start_of(
    initial: Checkpoint, graph: TemporalGraph, direction: str
) -> tuple[NodeIds, IngestState, RunNote]:
    """Return ids, ingestion and note for events that follow those of the initial run."""
    if graph.direction != direction:
        text = f"--init-from: events are {graph.direction} there, and {direction} here; give both "
        raise ConfigError(f"{text}the same --direction")
    ids = NodeIds()
    Ids(ids).load(initial)
    last = BEFORE_ALL if graph.log.t_last is None else graph.log.t_last
    num = graph.num_events
    begun = before_all(load_classes(initial))
    state = IngestState(num_released=num, watermark=last, last_t=last, partitions=begun)
    return ids, state, RunNote(history=num)
