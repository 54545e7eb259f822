"""Build the configured model and initialize its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch

from tgflow.base.metrics import find_metrics
from tgflow.base.own_code import CodeNotGiven, find
from tgflow.base.units import parse_seconds
from tgflow.graph.sampling import Sampler
from tgflow.models import MODELS
from tgflow.nn.model import TemporalModel
from tgflow.run.config import ConfigError, model_settings, validate_model
from tgflow.run.config.load import WIDTHS
from tgflow.run.config.schema import ModelConfig
from tgflow.run.gpu import CPU
from tgflow.train.config import TrainingConfig
from tgflow.train.sliced_step import check_sliceable
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.labels import check_embeds, embeds, freeze, make_task


def make_model(
    model: ModelConfig,
    task: TaskConfig,
    training: TrainingConfig,
    edge_x_dim: int,
    device: torch.device = CPU,
    *,
    node_x_dim: int = 0,
    must_embed: bool = True,
    own: type[Any] | None = None,
) -> TemporalModel:
    """Build the model of `model` and `task`, with parameters initialized by the trainer's seed.

    `own` is the caller's class, for a name that is not built in; see `model_class`.

    They are initialized on the CPU, so that every device starts with the same values. A model
    without embeddings is refused by a task that needs them, or if not `must_embed` gets no decoder.

    Does not consume torch's default generators.
    """
    with _refusing("--metric: {}"):
        find_metrics(training.metrics)
    name, stated = model.name, model_settings(model)
    kind = model_class(name, own)
    if name in MODELS:
        fixed = MODELS[name].settings
        for key, value in fixed.items():
            if stated.get(key, value) != value:
                base = name.removesuffix("+pairs")
                raise ConfigError(
                    f"[model] {key} goes with the name: --model {base}+pairs or {base}"
                )
        stated = {**fixed, **stated}
    derived = {"edge_x_dim": edge_x_dim} | ({"node_x_dim": node_x_dim} if node_x_dim else {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        built: TemporalModel = _build(kind, name, stated, derived)
        missing = [key for key in ("fanouts", "strategy") if not hasattr(built, key)]
        if missing:
            raise ConfigError(f"{name} lacks {' and '.join(missing)}; see tgflow.TemporalModel")
        with _refusing(f"--task {task.kind}: {{}}"):
            if task.node_labels is not None:
                check_embeds(built)
            learned = make_task(task)
            if learned is not None and (must_embed or embeds(type(built))):
                learned.add_decoder(built, edge_x_dim)
            if task.freeze:
                freeze(built)
    with _refusing("{}; --set learning.strategy and learning.span=1h go together"):
        span = None if training.span is None else max(1, round(parse_seconds(training.span)))
        Sampler(training.strategy or built.strategy, span)
    with _refusing("{}"):
        check_sliceable(built, training.slices)
    return built.to(device)


@contextmanager
def _refusing(text: str) -> Iterator[None]:
    try:
        yield
    except (ConfigError, CodeNotGiven):
        raise
    except ValueError as error:
        raise ConfigError(text.format(error)) from error


def _build(kind: Any, name: str, stated: dict[str, Any], derived: dict[str, Any]) -> Any:
    """Return the model of class `kind`: with its settings as a dataclass, or as keywords."""
    parameters = inspect.signature(kind).parameters
    if "config" in parameters and is_dataclass(getattr(kind, "config_type", None)):
        settings = validate_model(kind.config_type, name, stated, derived)
        with _refusing(f"[model] {name} is inconsistent: {{}}"):
            return kind(settings)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [key for key in stated if key not in (*parameters, *WIDTHS) and not takes_all]
    if unknown:
        known = ", ".join(map(repr, parameters))
        raise ConfigError(f"[model] {name} has no setting {unknown[0]!r} (it has {known})")
    values = {**derived, **stated}
    return kind(**{k: v for k, v in values.items() if takes_all or k in parameters})


def model_class(name: str, own: type[Any] | None = None) -> Any:
    """Return the built-in model of a name, which may be from a file, or the caller's class `own`.

    Imports nothing else. Without `own` it is the class that the command line has given, if any.

    Raises:
        CodeNotGiven: If the name is that of a class, and the caller has given none.
        ConfigError: If there is no such model, or the class is no model.
    """
    if name in MODELS:
        if own is not None:
            raise ConfigError(f"--model: the run has the built-in model {name}; leave out --model")
        return MODELS[name].model
    if ":" not in name:
        known = ", ".join(MODELS)
        text = f"--model: model.name must be one of {known}, or your own as path/to/file.py:Class "
        raise ConfigError(f"{text}or package.module:Class, got {name!r}")
    kind = find(name) if own is None else own
    if kind is None:
        in_python = "tg.open_run(path, model=Class)"
        raise CodeNotGiven.of(f"the model {name!r}", "-m (--model)", in_python)
    if not (isinstance(kind, type) and issubclass(kind, TemporalModel)):
        raise ConfigError(f"--model: {name} is no subclass of tgflow.TemporalModel")
    if kind.__qualname__ != name.rpartition(":")[2]:
        raise ConfigError(f"--model: the run has the model {name}, got {kind.__qualname__}")
    return kind
