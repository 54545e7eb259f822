"""Settings from a file and flags, checked, and the messages about wrong ones."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tgflow.config.fields import by_key, describe_type, fields, flag_of, sections
from tgflow.config.schema import Config
from tgflow.text import shortened
from tgflow.train.protocols import PROTOCOLS

DEDUP_WINDOW = 100_000
"""Default number of event ids to remember."""


class ConfigError(ValueError):
    """A setting that is unknown, of another type or out of range; the message names its key."""


def load_config(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    unknown: list[str] | None = None,
) -> Config:
    """Return the settings of `file`, with `flags` over them.

    Args:
        file: TOML file with the schema's sections, or None.
        flags: Values by "section.key"; they win over the file. None stands for "not given".
        unknown: Gets the file's keys that do not exist, which are then left out.

    Raises:
        ConfigError: If a key is unknown, or a value has another type or is out of range.
        OSError: If `file` cannot be read.
    """
    flags = {key: value for key, value in (flags or {}).items() if value is not None}
    table = _table(file, flags, unknown)
    _add_stream_defaults(table)
    return _validate(table, file, flags)


def replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """Return `config` with other `values`, by "section.key"; what is no setting is left out.

    Raises:
        ConfigError: If one has another type or is out of range.
    """
    table = plain(config)
    for key, value in values.items():
        if key in by_key():
            section, _, name = key.partition(".")
            table[section][name] = value
    return _validate(table, None, values)


def plain(config: Config) -> dict[str, Any]:
    """Return the settings as nested dicts of values that JSON holds."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return values


def flat(config: Config) -> dict[str, Any]:
    """Return the settings as values that JSON holds, by "section.key"."""
    values = plain(config)
    return {
        field.key: values[section][name]
        for field in fields()
        for section, _, name in [field.key.partition(".")]
    }


def stated_settings(file: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `file` and `flags` themselves say, by "section.key"; flags win.

    Raises:
        ConfigError: If `file` is not TOML.
        OSError: If it cannot be read.
    """
    return {
        f"{section}.{key}": value
        for section, settings in _table(file, flags).items()
        if isinstance(settings, dict)
        for key, value in settings.items()
    }


def _table(
    file: Path | None, flags: Mapping[str, Any], unknown: list[str] | None = None
) -> dict[str, Any]:
    """Return what `file`, `flags` and the protocol that they name say, by section."""
    table = {} if file is None else _read_toml(file)
    if unknown is not None:
        unknown += _drop_unknown(table)
    for key, value in flags.items():
        section, name = key.split(".")
        if value is None or not isinstance(table.setdefault(section, {}), dict):
            continue
        old = table[section].get(name)
        is_merged = isinstance(value, Mapping) and isinstance(old, Mapping)
        table[section][name] = {**old, **value} if is_merged else value
    _add_protocol_settings(table)
    return table


def _add_protocol_settings(table: dict[str, Any]) -> None:
    """Add the settings of the protocol that is named; what is set otherwise stays."""
    compared = table.get("compare")
    if isinstance(compared, dict) and compared.get("protocol") in PROTOCOLS:
        wanted = str(compared["protocol"])
        trainer = "continual" if wanted.startswith("prequential") else "offline"
        table.setdefault(trainer, {}).setdefault("protocol", wanted)
    sections = [section for part, section in table.items() if part != "compare"]
    for section in sections:
        if isinstance(section, dict) and isinstance(name := section.get("protocol"), str):
            for key, value in PROTOCOLS.get(name, {}).items():
                section.setdefault(key, value)


def _add_stream_defaults(table: dict[str, Any]) -> None:
    """Add the defaults that depend on the stream: what to do with late events and repeats."""
    stream, order = table.get("stream", {}), table.setdefault("order", {})
    if not (isinstance(stream, dict) and isinstance(order, dict)):
        return
    if "://" not in str(stream.get("path", "")):
        order.setdefault("late", "error")
    if stream.get("event_id") is not None:
        order.setdefault("dedup_window", DEDUP_WINDOW)


def _read_toml(file: Path) -> dict[str, Any]:
    """Return the tables of a file; what [model] has beyond the schema is in `model.settings`."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    model = table.get("model")
    if isinstance(model, dict):
        own = {key: model.pop(key) for key in list(model) if f"model.{key}" not in by_key()}
        if own:
            model["settings"] = own
    return table


def _drop_unknown(table: dict[str, Any]) -> list[str]:
    """Remove from `table` what is no section or setting; returns what that was."""
    gone = []
    for section in list(table):
        if section not in sections():
            gone.append(section)
            del table[section]
        elif isinstance(table[section], dict):
            extra = [name for name in table[section] if f"{section}.{name}" not in by_key()]
            gone += [f"{section}.{name}" for name in extra]
            table[section] = {k: v for k, v in table[section].items() if k not in extra}
    return gone


@functools.cache
def _adapter() -> TypeAdapter[Config]:
    return TypeAdapter(Config)


def _validate(table: dict[str, Any], file: Path | None, flags: Mapping[str, Any]) -> Config:
    try:
        return _adapter().validate_json(json.dumps(table, default=str))
    except ValidationError as error:
        raise ConfigError(_explain(error, file, flags)) from None


def _explain(error: ValidationError, file: Path | None, flags: Mapping[str, Any]) -> str:
    """Say of the first problem which key it is, what arrived and what is allowed."""
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path[:2])
    origin = flag_of(key) if key in flags else str(file or "configuration")
    if problem["type"] == "unexpected_keyword_argument":
        return f"{origin}: {_unknown_key(path)}"
    if problem["type"] == "value_error":
        return _explain_value(path, str(problem["ctx"]["error"]), file, flags)
    if len(path) == 1:
        return f"{origin}: [{key}] must be a section, got {quote_json(problem['input'])}"
    more = len({error["loc"][:2] for error in error.errors()}) - 1
    also = f" ({more} more like this)" if more else ""
    allowed = describe_type(by_key()[key].hint)
    return f"{origin}: {key} must be {allowed}, got {quote_json(problem['input'])}{also}"


def _explain_value(path: list[str], text: str, file: Path | None, flags: Mapping[str, Any]) -> str:
    """Name the flag where `text`, of a section as a whole, begins with one of its settings."""
    if not path:  # of several sections
        return f"{file or 'configuration'}: {text}"
    key = f"{path[0]}.{text.split(maxsplit=1)[0].rstrip(':')}"
    if key in flags:
        return f"{flag_of(key)}: {path[0]}.{text}"
    return f"{file or 'configuration'}: [{path[0]}] {text}"


def _unknown_key(path: list[str]) -> str:
    """Say that the key at `path` does not exist, and which one may have been meant."""
    known = [field.key for field in fields()]
    if len(path) == 1:
        choices = list(sections())
        what, allowed = f"unknown section [{path[0]}]", f"sections are {', '.join(choices)}"
    else:
        choices = [key.split(".")[1] for key in known if key.startswith(f"{path[0]}.")]
        what, allowed = f"unknown key {path[0]}.{path[1]}", f"[{path[0]}] has {', '.join(choices)}"
    elsewhere = [key for key in known if key.split(".")[1] == path[-1]]
    meant = difflib.get_close_matches(path[-1], choices, n=1) or elsewhere
    hint = f"; did you mean {meant[0]}?" if meant else ""
    return f"{what}{hint} ({allowed})"


def quote_json(value: object, most: int = 60) -> str:
    """Return a value as JSON of at most `most` characters, for a message; "not set" for None."""
    if value is None:
        return "not set"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return shortened(text, most)
