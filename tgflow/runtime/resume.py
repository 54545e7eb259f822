"""A run that goes on does so with the settings it began with, or says what others would change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tgflow.config import Config, fields, flag_of

Effect = Literal["free", "onward", "model", "all"]
"""What another value does: nothing to the result; changes what follows; starts the model afresh,
with the events kept; starts everything afresh."""

SAID = {
    "onward": "counts from here on",
    "model": "starts model, optimizer and memory afresh; the events are kept",
    "all": "starts everything afresh; what there is moves to before-N/",
}

_EFFECTS: dict[str, Effect] = {
    "operate": "free",
    "checkpoint": "free",
    "checkpoint.log": "all",
    "kafka": "free",
    "run": "free",
    "run.seed": "onward",
    "plan": "onward",
    "plan.workers": "free",
    "plan.lookahead": "free",
    "tables": "free",
    "train": "onward",
    "train.replay_ratio": "model",
    "train.replay_horizon": "model",
    "model": "model",
    "order": "onward",
    "checks": "onward",
    "checks.max_bad_ratio": "free",
    "graph": "all",
    "stream": "all",
    "stream.path": "onward",
    "stream.event_id": "onward",
    "stream.limit": "free",
    "stream.speed": "free",
    "stream.until_end": "free",
}
"""By setting, or by section for its others."""


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that is to be another one."""

    key: str
    old: Any
    new: Any

    @property
    def effect(self) -> Effect:
        """What it does to the run."""
        return _effect(self.key)


def changes(saved: Config, wanted: Config) -> list[Change]:
    """Return the settings in which `wanted` differs from `saved`, in the schema's order."""
    found = []
    for key, _ in fields():
        section, name = key.split(".")
        old, new = (getattr(getattr(config, section), name) for config in (saved, wanted))
        if old != new and key != "run.out":
            found.append(Change(key, old, new))
    return found


def counting(config: Config) -> dict[str, Any]:
    """Return the settings that are not free, by "section.key": what a checkpoint stands for."""
    plain = config.model_dump()
    keys = (key.split(".") for key, _ in fields() if _effect(key) != "free")
    return {f"{section}.{name}": plain[section][name] for section, name in keys}


def gravest(changed: Sequence[Change]) -> Effect:
    """Return the gravest effect among `changed`, "free" if there is none."""
    order: tuple[Effect, ...] = ("free", "onward", "model", "all")
    return max((change.effect for change in changed), key=order.index, default="free")


def table(changed: Sequence[Change]) -> list[str]:
    """Return one line for each change that matters: flag, old and new value, what it does."""
    rows = [
        (flag_of(change.key), f"{_shown(change.old)} -> {_shown(change.new)}", SAID[change.effect])
        for change in changed
        if change.effect != "free"
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    return [f"  {flag:<{widths[0]}}  {values:<{widths[1]}}  {what}" for flag, values, what in rows]


def differences(saved: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return how the machine and build `found` differ from those that `saved` tells of."""
    return [
        f"{name} was {saved[name]}, is {found[name]}"
        for name in found
        if name in saved and saved[name] != found[name]
    ]


def _effect(key: str) -> Effect:
    return _EFFECTS.get(key, _EFFECTS[key.partition(".")[0]])


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."
