"""What the preset of a comparison comes to on its stream."""

from __future__ import annotations

from itertools import islice
from typing import Any

from tgflow.cli import assemble
from tgflow.config import Config
from tgflow.events import concat
from tgflow.presets import MEASURED, Family, StreamFacts, measure, settings_of
from tgflow.streams import playback
from tgflow.units import seconds_per_tick


def stream_facts(config: Config) -> StreamFacts | None:
    """Return the facts of the beginning of a stream of files; None if no preset goes by them."""
    if config.compare.preset == "none":
        return None
    source = assemble.open_source(config)
    batches = list(islice(playback(source, limit=MEASURED), MEASURED))
    return measure(concat(batches), seconds_per_tick(source.unit))


def family_of(config: Config, facts: StreamFacts | None) -> Family | None:
    """Return the kind of stream that the preset goes by; None if it goes by none."""
    if facts is None:
        return None
    wanted = config.compare.preset
    return facts.family if wanted == "auto" else wanted  # type: ignore[return-value]


def preset_settings(config: Config, facts: StreamFacts | None) -> dict[str, dict[str, Any]]:
    """Return what the preset sets, by model."""
    family = family_of(config, facts)
    if family is None or facts is None:
        return {}
    return settings_of(family, facts)


def cuts_at_steps(config: Config, facts: StreamFacts | None) -> bool:
    """Return whether micro-batches end where the time changes."""
    own = config.compare.cut_at_steps
    return family_of(config, facts) == "discrete" if own is None else own
