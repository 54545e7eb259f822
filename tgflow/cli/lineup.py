"""From the settings of a comparison to its entrants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import Any

import torch

from tgflow.cli import assemble
from tgflow.compare.lineup import LEARNING, Entrant
from tgflow.config import Config, ConfigError
from tgflow.config.model import PAIR_FEATURES, WIDTHS, model_settings
from tgflow.events import concat
from tgflow.models import MODELS
from tgflow.presets import MEASURED, StreamFacts, measure, settings_of
from tgflow.runtime.model_maker import make_model, own_model
from tgflow.streams import playback
from tgflow.train.config import TrainingConfig
from tgflow.units import seconds_per_tick

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
    found = [_named(text) for text in _texts(config.compare.models)]
    labels = [choice.label for choice in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f"--models: {twice[0]} is there twice; give one a label of its own: other={twice[0]}"
        )
    own, common = _split(config, labels)
    known = set(WIDTHS).union(*(_known(choice.name) for choice in found))
    if unused := [key for key in common if key not in known]:
        raise ConfigError(f"--model-set: none of the models has a setting {unused[0]!r}")
    return [_with_settings(config, choice, facts, common, own[choice.label]) for choice in found]


def _texts(models: str) -> list[str]:
    texts = [text.strip() for text in models.split(",") if text.strip()]
    if not texts:
        raise ConfigError("--models: which? name some, such as --models recency,tgn,tgn+pairs")
    named = [LINEUPS.get(text, (text,)) for text in texts]
    return [name for names in named for name in names if len(names) == 1 or _base(name) in MODELS]


def _base(name: str) -> str:
    return name.removesuffix(PAIRS)


def _named(text: str) -> ModelChoice:
    label, equals, name = text.partition("=")
    name = name if equals else label
    base = _base(name)
    if ":" not in base and base not in MODELS:
        raise ConfigError(
            f"--models: there is no model {base!r}; there are {', '.join(MODELS)}, and your own as "
            "module:Class"
        )
    if name != base and PAIR_FEATURES not in _known(base):
        raise ConfigError(f"--models: {base} has no +pairs: it does not read the history of pairs")
    settings = {PAIR_FEATURES: name != base} if PAIR_FEATURES in _known(base) else {}
    return ModelChoice(label.rpartition(":")[2], base, settings)


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
    config: Config,
    choice: ModelChoice,
    facts: StreamFacts | None,
    common: Mapping[str, Any],
    own: Mapping[str, Any],
) -> ModelChoice:
    known = _known(choice.name) | set(LEARNING)
    preset: dict[str, Any] = {}
    if facts is not None:
        wanted = config.compare.preset
        family = facts.family if wanted in ("auto", "none") else wanted
        preset = settings_of(family, facts).get(choice.name, {})  # type: ignore[arg-type]
    stated = {k: v for k, v in common.items() if k in known and k != PAIR_FEATURES} | dict(own)
    preset = {key: value for key, value in preset.items() if key not in stated}
    return replace(choice, settings={**choice.settings, **preset, **stated}, preset=preset)


def stream_facts(config: Config) -> StreamFacts:
    """Return the facts of the beginning of the stream of files that `config` names."""
    source = assemble.open_source(config)
    batches = list(islice(playback(source, limit=MEASURED), MEASURED))
    return measure(concat(batches), seconds_per_tick(source.unit))


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
    x_dim: int,
    device: torch.device,
    frozen_at: int | None,
) -> Iterator[Entrant]:
    """Yield the entrants of a comparison: each model with each seed, and frozen copies.

    A model without parameters has one seed, as others would make no difference.
    """
    for choice in choices:
        for seed in range(config.continual.seed, config.continual.seed + config.compare.seeds):
            entrant = _entrant(config, choice, seed, x_dim, device)
            yield entrant
            if not any(True for _ in entrant.model.parameters()):
                break
            if frozen_at is not None:
                copy = _entrant(config, choice, seed, x_dim, device)
                yield replace(
                    copy,
                    label=choice.label + FROZEN,
                    frozen_of=choice.label,
                    frozen_at=frozen_at,
                )


def _entrant(
    config: Config, choice: ModelChoice, seed: int, x_dim: int, device: torch.device
) -> Entrant:
    learning = {key: choice.settings[key] for key in choice.settings if key in LEARNING}
    training = replace(config.continual, seed=seed)
    model = make_choice(config, choice, training, x_dim, device)
    return Entrant(choice.label, seed, model, learning)


def make_choice(
    config: Config, choice: ModelChoice, training: TrainingConfig, x_dim: int, device: torch.device
) -> Any:
    """Return a model, its first parameters drawn with the seed of `training`."""
    settings = {key: value for key, value in choice.settings.items() if key not in LEARNING}
    model = type(config.model)(name=choice.name, settings=settings)
    return make_model(replace(config, model=model), training, x_dim, device)
