"""What looks wrong in a stream though it can be read, each in a line that names the way out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgflow.cli import assemble
from tgflow.cli.hints import hint
from tgflow.config import Config
from tgflow.events import EventBatch
from tgflow.streams import StreamError
from tgflow.streams.rows.times import YEARS
from tgflow.units import seconds_per_tick

FIRST_EVENTS = 1_000
"""Events that are looked at where a stream is not read as a whole before."""
HUGE = 1_000.0
"""Absolute value from which a feature makes others vanish beside it."""
UNEQUAL = 3
"""Times that one side has as many ids as the other, as users and items have."""
OTHER_UNITS = ("s", "ms", "us", "ns")


def warn_of_first(config: Config) -> None:
    """Warn of what looks wrong in the first events of files; what cannot be read is for others."""
    if not config.stream.path or "://" in config.stream.path or config.stream.path == "-":
        return
    source = assemble.open_first(config)
    try:
        events = source.first(FIRST_EVENTS)
    except StreamError:  # the run itself says it
        return
    warn(config, events, source.unit, source.ids.bipartite, source.feature_names)


def warn(
    config: Config, events: EventBatch, unit: str, bipartite: bool, names: Sequence[str]
) -> None:
    """Write a yellow line for each thing that looks wrong in events."""
    if not len(events):
        return
    found = [time_guard(int(events.t[0]), unit)]
    if not bipartite:
        found.append(sides_guard(events.src, events.dst))
    if events.x is not None:
        is_scaled = config.graph.feature_scale != "none"
        found += [None if is_scaled else huge_guard(events.x, names)]
        found += [constant_guard(events.x, names)] if len(events) > 1 else []
    for text in found:
        if text is not None:
            hint(text, "yellow")


def time_guard(first: int, unit: str) -> str | None:
    """Return what to say of a first time that is no date of our days; one that is 0 counts from 0.

    Args:
        first: The time in ticks.
        unit: What a tick is.
    """
    if unit == "tick" or first == 0:
        return None
    seconds = first * seconds_per_tick(unit)
    if _is_recent(seconds):
        return None
    others = (u for u in OTHER_UNITS if u != unit and _is_recent(first * seconds_per_tick(u)))
    meant = next((f"--time-unit {u}?" for u in others), "is --t the right column?")
    side = "before 1980" if seconds < 0 or seconds < _second_of(0) else "after 2100"
    return f"the first time, {first:,} {unit}, is {side} if it counts from 1970: {meant}"


def _is_recent(seconds: float) -> bool:
    return _second_of(0) <= seconds < _second_of(1)


def _second_of(end: int) -> float:
    return (YEARS[end].toordinal() - 719_163) * 86_400.0


def sides_guard(src: Tensor, dst: Tensor) -> str | None:
    """Return what to say if sources and destinations look like two kinds that share their ids.

    That is so if one side has several times the ids of the other, most ids of that are on both
    sides, and hardly any pair is there in both directions.
    """
    sources, destinations = torch.unique(src), torch.unique(dst)
    few, many = sorted((sources, destinations), key=len)
    shared = int(torch.isin(few, many).sum())
    if len(few) < 2 or len(many) < UNEQUAL * len(few) or 2 * shared < len(few):
        return None
    size = int(max(sources.max(), destinations.max())) + 1
    pairs, turned = torch.unique(src * size + dst), torch.unique(dst * size + src)
    if 20 * int(torch.isin(pairs, turned).sum()) > len(pairs):
        return None
    return (
        f"{shared:,} ids are on both sides, of {len(sources):,} sources and "
        f"{len(destinations):,} destinations that are hardly one kind: --direction bipartite?"
    )


def huge_guard(x: Tensor, names: Sequence[str]) -> str | None:
    """Return what to say of features beside whose values others vanish."""
    largest = x.abs().amax(0)
    found = (largest > HUGE).nonzero().flatten().tolist()
    if not found:
        return None
    return (
        f"{_listed(found, names)} as large as {float(largest[found].max()):,.6g}, beside which a "
        "model sees little else: --feature-scale auto?"
    )


def constant_guard(x: Tensor, names: Sequence[str]) -> str | None:
    """Return what to say of features that never change."""
    found = (x == x[:1]).all(0).nonzero().flatten().tolist()
    if not found or len(found) == x.shape[1] == 0:
        return None
    way_out = "name others with --features" if len(found) < x.shape[1] else "leave out --features"
    return f"{_listed(found, names)} the same in all {len(x):,} events looked at: {way_out}"


def _listed(columns: Sequence[int], names: Sequence[str]) -> str:
    shown = ", ".join(names[i] for i in columns[:3])
    more = f" and {len(columns) - 3} more" if len(columns) > 3 else ""
    return f"feature {shown} is" if len(columns) == 1 else f"features {shown}{more} are"
