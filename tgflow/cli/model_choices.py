"""Models that a comparison chooses by its settings, lists of models, and presets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch

from tgflow.base.units import seconds_per_tick
from tgflow.graph.events import concat
from tgflow.models import MODELS
from tgflow.nn.model import has_parameters
from tgflow.report.compare.lineup import LEARNING, Entrant
from tgflow.report.compare.presets import MEASURED, Family, StreamFacts, measure, settings_of
from tgflow.run.config import ConfigError, model_settings
from tgflow.run.config.load import WIDTHS
from tgflow.run.config.schema import CompareConfig, ModelConfig
from tgflow.run.model_maker import make_model, model_class
from tgflow.streams import EventSource, playback
from tgflow.train.config import TrainingConfig
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.labels import embeds

QUICK = ("edgebank-tw", "poptrack", "recency", "counts")
LINEUPS = {"quick": QUICK, "auto": (*QUICK, "jodie", "tgn", "tgn+pairs", "graphmixer", "tpnet")}
"""Named lists of models."""
PAIRS = "+pairs"
FROZEN = " frozen"
"""Suffix of the label of a frozen copy."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model named on the command line, with all of its settings."""

    label: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Any] = field(default_factory=dict)
    """Settings set by the preset."""


def choose(
    model: ModelConfig, task: TaskConfig, c: CompareConfig, opened: Callable[[], EventSource]
) -> tuple[list[ModelChoice], bool, str]:
    """Return the models to compare, `cuts_at_steps` and `preset_line`, by the stream's facts."""
    facts = None
    if c.preset != "none":
        source = opened()
        events = concat(list(playback(source, limit=MEASURED)))
        facts = measure(events, seconds_per_tick(source.unit))
    choices = chosen(model, task, c, facts)
    return choices, cuts_at_steps(c, facts), preset_line(c, facts, choices)


def family_of(wanted: str, facts: StreamFacts | None) -> Family | None:
    """Return the kind of stream whose preset applies; None with --preset none."""
    if facts is None:
        return None
    return facts.family if wanted == "auto" else wanted  # type: ignore[return-value]


def cuts_at_steps(c: CompareConfig, facts: StreamFacts | None) -> bool:
    """Return whether micro-batches end where the time changes."""
    own = c.cut_at_steps
    return family_of(c.preset, facts) == "discrete" if own is None else own


def chosen(
    common_model: ModelConfig, task: TaskConfig, c: CompareConfig, facts: StreamFacts | None
) -> list[ModelChoice]:
    """Return the models to compare, with their settings; `facts` of the stream choose a preset."""
    models: dict[str, str] = {}
    for text in _named_models(c, facts)[0]:
        label, equals, name = text.partition("=")
        name, label = name if equals else label, label.rpartition(":")[2]
        if ":" not in name and name not in MODELS:
            raise ConfigError(
                f"--models: there is no model {name!r}; there are {', '.join(MODELS)}, and your "
                "own as path/to/file.py:Class or package.module:Class"
            )
        if label in models:
            raise ConfigError(
                f"--models: {label} is repeated; give one a label of its own: other={label}"
            )
        models[label] = name
    if not models:
        raise ConfigError("--models requires names, such as --models recency,tgn,tgn+pairs")
    kinds = [model_class(name) for name in models.values()]
    if task.has_decoder and not any(map(embeds, kinds)):
        raise ConfigError(
            f"--task {task.kind}: none of the models makes embeddings of single nodes, "
            "which labels are predicted from; add one that does: tgn, tgat, jodie or graphmixer"
        )
    known = {
        label: {each.name for each in fields(settings)} if is_dataclass(settings) else set[str]()
        for label, kind in zip(models, kinds, strict=True)
        for settings in (getattr(kind, "config_type", None),)
    }
    own: dict[str, dict[str, Any]] = {label: {} for label in models}
    common: dict[str, Any] = {}
    for key, value in model_settings(common_model).items():  # of one, as tgn.memory_dim, or of all
        label, dot, name = key.rpartition(".")
        if dot and label not in models:
            raise ConfigError(
                f"--model-set: {label} does not take part; there are {', '.join(models)}"
            )
        if not dot and key not in set(WIDTHS).union(*known.values()):
            raise ConfigError(f"--model-set: none of the models has a setting {key!r}")
        (own[label] if dot else common)[name] = value
    family = family_of(c.preset, facts)
    presets = settings_of(family, facts) if family is not None and facts is not None else {}
    found = []
    for label, name in models.items():
        given = {k: v for k, v in common.items() if k in known[label] | LEARNING} | own[label]
        preset = presets.get(name.removesuffix(PAIRS), {})
        preset = {key: value for key, value in preset.items() if key not in given}
        found.append(ModelChoice(label, name, preset | given, preset))
    return found


def _named_models(c: CompareConfig, facts: StreamFacts | None) -> tuple[list[str], list[str]]:
    """Return the models in --models, with lists expanded, and those that the preset leaves out."""
    taken: list[str] = []
    left_out: list[str] = []
    # Where pairs rarely recur, models that read pair history are left out of lists.
    is_sparse = family_of(c.preset, facts) == "sparse"
    for text in filter(None, map(str.strip, ",".join(c.models).split(","))):
        for name in LINEUPS.get(text, (text,)):
            is_left_out = is_sparse and text in LINEUPS and name.endswith(PAIRS)
            (left_out if is_left_out else taken).append(name)
    return taken, left_out


def preset_line(c: CompareConfig, facts: StreamFacts | None, choices: list[ModelChoice]) -> str:
    """Return one line with the settings of the preset and the statistics that chose it."""
    wanted, family = c.preset, family_of(c.preset, facts)
    if family is None and wanted == "none":
        return "no preset"
    sets = [
        f"{choice.label}.{key}={float(f'{value:.4g}') if isinstance(value, float) else value}"
        for choice in choices
        for key, value in choice.preset.items()
    ]
    if c.cut_at_steps is None and cuts_at_steps(c, facts):
        sets.append("cut_at_steps=True")
    measured = "" if facts is None else f" (stream measured: {facts.line()})"
    without = "".join(f"; leaves out {name}" for name in _named_models(c, facts)[1])
    return f"preset {family or wanted}{measured} sets {', '.join(sets) or 'nothing'}{without}"


def freezing_point(
    at: float | None, limit: int | None, opened: Callable[[], EventSource]
) -> int | None:
    """Return the event at which copies are frozen; for a share, the stream is counted."""
    if at is None or at >= 1:
        return None if at is None else int(at)
    return int(at * sum(len(batch) for batch in playback(opened(), limit=limit)))


def entrants(
    choices: list[ModelChoice],
    num_seeds: int,
    common: TrainingConfig,
    task: TaskConfig,
    x_dims: tuple[int, int],
    device: torch.device,
    frozen_at: int | None,
) -> Iterator[Entrant]:
    """Yield the entrants of a comparison: each model with each seed, and frozen copies."""

    def make(choice: ModelChoice, seed: int) -> Entrant:
        settings = choice.settings
        learning = {key: settings[key] for key in settings if key in LEARNING}
        own = {key: value for key, value in settings.items() if key not in LEARNING}
        named = ModelConfig(name=choice.name, settings=own)
        training, (edge_x_dim, node_x_dim) = replace(common, seed=seed), x_dims
        model = make_model(
            named, task, training, edge_x_dim, device, node_x_dim=node_x_dim, must_embed=False
        )
        return Entrant(choice.label, seed, model, learning)

    for choice in choices:
        for seed in range(common.seed, common.seed + num_seeds):
            entrant = make(choice, seed)
            yield entrant
            if not has_parameters(entrant.model):
                break
            if frozen_at is not None:
                yield replace(
                    make(choice, seed),
                    label=choice.label + FROZEN,
                    frozen_of=choice.label,
                    frozen_at=frozen_at,
                )
