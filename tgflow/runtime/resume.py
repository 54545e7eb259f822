"""A run that resumes keeps the settings it was started with, or says what others would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tgflow.checkpoint.typed import read_as
from tgflow.config import Config, fields, flag_of, plain, quote_json
from tgflow.setting import Effect

EFFECTS = {
    "any_time": "changes no result",
    "from_now": "counts from here on",
    "fixed_model": "starts model, optimizer and memory afresh; the events are kept",
    "fixed": "cannot change within a run: give another --out",
}
"""What another value does, in the order of gravity."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that has another value than the run was started with."""

    key: str
    effect: Effect
    old: Any
    new: Any


def changes(saved: Config, wanted: Config) -> list[SettingChange]:
    """Return the settings in which `wanted` differs from `saved`, in the schema's order."""
    old, new = plain(saved), plain(wanted)
    return [
        SettingChange(field.key, field.effect, old[section][name], new[section][name])
        for field in fields()
        for section, _, name in [field.key.partition(".")]
        if old[section][name] != new[section][name] and field.key != "run.out"
    ]


def fixed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that a checkpoint stands for, by "section.key"."""
    values = plain(config)
    return {
        field.key: values[section][name]
        for field in fields()
        for section, _, name in [field.key.partition(".")]
        if field.effect != "any_time"
    }


def saved_settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `fixed_settings` were when a checkpoint was written; none if it has none.

    Args:
        meta: The checkpoint's.

    Raises:
        UntrustedCheckpoint: If they are nothing that is ever noted.
    """
    run = read_as(dict[str, Any], meta.get("run", {}), "run")
    found: dict[str, Any] = read_as(dict[str, Any], run.get("settings", {}), "run.settings")
    return found


def gravest(changed: Sequence[SettingChange]) -> Effect:
    """Return the gravest effect among `changed`, "any_time" if there is none."""
    order: list[Effect] = ["any_time", "from_now", "fixed_model", "fixed"]
    return max((change.effect for change in changed), key=order.index, default="any_time")


def table(changed: Sequence[SettingChange], *, with_effects: bool) -> list[str]:
    """Return one line for each change that matters: flag, old and new value, perhaps what it does.

    Args:
        changed: The changes.
        with_effects: Whether it can be allowed, and so does anything.
    """
    rows = [
        (
            flag_of(change.key),
            f"{_cut(change.old)} -> {_cut(change.new)}",
            EFFECTS[change.effect] if with_effects else "",
        )
        for change in changed
        if change.effect != "any_time"
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    lines = (f"  {flag:<{widths[0]}}  {values:<{widths[1]}}  {what}" for flag, values, what in rows)
    return [line.rstrip() for line in lines]


def differences(saved: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return how the machine and build `found` differ from those in `saved`."""
    return [
        f"{name} was {saved[name]}, is {found[name]}"
        for name in found
        if name in saved and saved[name] != found[name]
    ]


def _cut(value: object) -> str:
    return quote_json(value, most=40)
