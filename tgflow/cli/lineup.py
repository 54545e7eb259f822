"""From the settings of a comparison to its entrants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch

from tgflow.cli import assemble
from tgflow.cli.chosen_preset import family_of, preset_settings
from tgflow.compare.lineup import LEARNING, Entrant
from tgflow.config import Config, ConfigError
from tgflow.config.model import WIDTHS, model_settings
from tgflow.models import MODELS
from tgflow.presets import StreamFacts
from tgflow.runtime.model_maker import make_model, own_model
from tgflow.streams import playback
from tgflow.train.config import TrainingConfig

QUICK = ("edgebank-tw", "poptrack", "recency", "counts")
AUTO = (*QUICK, "jodie", "tgn", "tgn+pairs", "graphmixer", "tpnet")
LINEUPS = {"auto": AUTO, "quick": QUICK}
"""Line-ups by name, of the models that there are."""
PAIRS = "+pairs"
FROZEN = " frozen"
"""Behind the label of a copy that learns no more."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model as it is named on the command line, with all of its settings."""

    label: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Any] = field(default_factory=dict)
    """Those of its settings that the preset has set."""


def chosen(config: Config, facts: StreamFacts | None) -> list[ModelChoice]:
    """Return the models to compare, with their settings.

    Args:
        config: The comparison's.
        facts: Of the stream, by which presets go; None for no preset.

    Raises:
        ConfigError: If a model or setting is unknown.
    """
    found = [_named(text) for text in _texts(config, facts)]
    labels = [choice.label for choice in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f"--models: {twice[0]} is there twice; give one a label of its own: other={twice[0]}"
        )
    own, common = _split(config, labels)
    known = set(WIDTHS).union(*(_known(choice.name) for choice in found))
    if unused := [key for key in common if key not in known]:
        raise ConfigError(f"--model-set: none of the models has a setting {unused[0]!r}")
    preset = preset_settings(config, facts)
    return [
        _with_settings(
            choice, preset.get(choice.name.removesuffix(PAIRS), {}), common, own[choice.label]
        )
        for choice in found
    ]


def left_out(config: Config, facts: StreamFacts | None) -> list[str]:
    """Return the models that the preset leaves out of a line-up that is asked for by its name."""
    if family_of(config, facts) != "sparse":
        return []
    return [
        name
        for text in _stated(config)
        for name in LINEUPS.get(text, ())
        if name.endswith(PAIRS)  # where pairs hardly come again, their history says little
    ]


def _stated(config: Config) -> list[str]:
    return [text.strip() for text in config.compare.models.split(",") if text.strip()]


def _texts(config: Config, facts: StreamFacts | None) -> Iterator[str]:
    """Yield the models as they are named, those of line-ups as far as they are there."""
    if not _stated(config):
        raise ConfigError("--models: which? name some, such as --models recency,tgn,tgn+pairs")
    without = left_out(config, facts)
    for text in _stated(config):
        if text not in LINEUPS:
            yield text
            continue
        yield from (name for name in LINEUPS[text] if name in MODELS and name not in without)


def _named(text: str) -> ModelChoice:
    label, equals, name = text.partition("=")
    name = name if equals else label
    if ":" not in name and name not in MODELS:
        raise ConfigError(
            f"--models: there is no model {name!r}; there are {', '.join(MODELS)}, and your own as "
            "module:Class"
        )
    return ModelChoice(label.rpartition(":")[2], name)


def _known(name: str) -> set[str]:
    """Return the settings that a model has; of an own model those of its dataclass."""
    kind = MODELS[name].config if name in MODELS else None
    if kind is None:
        kind = getattr(own_model(name), "config_type", None)
    return {each.name for each in fields(kind)} if is_dataclass(kind) else set()


def _split(config: Config, labels: list[str]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return what is set of one model, as in tgn.memory_dim=32, and what of all that have it."""
    own: dict[str, dict[str, Any]] = {label: {} for label in labels}
    common: dict[str, Any] = {}
    for key, value in model_settings(config.model).items():
        label, dot, name = key.rpartition(".")
        if not dot:
            common[key] = value
        elif label in own:
            own[label][name] = value
        else:
            raise ConfigError(
                f"--model-set: {label} does not take part; there are {', '.join(labels)}"
            )
    return own, common


def _with_settings(
    choice: ModelChoice,
    preset: Mapping[str, Any],
    common: Mapping[str, Any],
    own: Mapping[str, Any],
) -> ModelChoice:
    known = _known(choice.name) | set(LEARNING)
    stated = {k: v for k, v in common.items() if k in known} | dict(own)
    left = {key: value for key, value in preset.items() if key not in stated}
    return replace(choice, settings={**choice.settings, **left, **stated}, preset=left)


def freezing_point(config: Config) -> int | None:
    """Return the event from which on copies learn no more; of a share, the stream is counted."""
    at = config.compare.frozen_at
    if at is None or at >= 1:
        return None if at is None else int(at)
    source = assemble.open_source(config)
    return int(at * sum(len(batch) for batch in playback(source, limit=config.stream.limit)))


def entrants(
    config: Config,
    choices: list[ModelChoice],
    x_dims: tuple[int, int],
    device: torch.device,
    frozen_at: int | None,
) -> Iterator[Entrant]:
    """Yield the entrants of a comparison: each model with each seed, and frozen copies.

    A model without parameters has one seed, as others would make no difference.
    """
    for choice in choices:
        for seed in range(config.continual.seed, config.continual.seed + config.compare.seeds):
            entrant = _entrant(config, choice, seed, x_dims, device)
            yield entrant
            if not any(True for _ in entrant.model.parameters()):
                break
            if frozen_at is not None:
                copy = _entrant(config, choice, seed, x_dims, device)
                yield replace(
                    copy,
                    label=choice.label + FROZEN,
                    frozen_of=choice.label,
                    frozen_at=frozen_at,
                )


def _entrant(
    config: Config, choice: ModelChoice, seed: int, x_dims: tuple[int, int], device: torch.device
) -> Entrant:
    learning = {key: choice.settings[key] for key in choice.settings if key in LEARNING}
    training = replace(config.continual, seed=seed)
    model = make_choice(config, choice, training, x_dims, device)
    return Entrant(choice.label, seed, model, learning)


def make_choice(
    config: Config,
    choice: ModelChoice,
    training: TrainingConfig,
    x_dims: tuple[int, int],
    device: torch.device,
) -> Any:
    """Return a model, its first parameters drawn with the seed of `training`.

    Args:
        config: The settings of the comparison.
        choice: Which model.
        training: The settings of its trainer.
        x_dims: Widths of the features of edges and of nodes.
        device: Where it is to be.
    """
    settings = {key: value for key, value in choice.settings.items() if key not in LEARNING}
    model = type(config.model)(name=choice.name, settings=settings)
    edge_x_dim, node_x_dim = x_dims
    return make_model(
        replace(config, model=model), training, edge_x_dim, device, node_x_dim=node_x_dim
    )
