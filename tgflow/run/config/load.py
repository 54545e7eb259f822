"""Load and validate settings from a file and flags, and those of models."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tgflow.base.choices import OfflineProtocol
from tgflow.base.secret import check_url
from tgflow.base.setting import field_hints
from tgflow.base.text import shortened
from tgflow.run.config.fields import by_key, describe_type, fields, flag_of, sections
from tgflow.run.config.schema import Config, ModelConfig
from tgflow.train.protocols import PROTOCOLS

Settings = TypeVar("Settings")
WIDTHS = ("memory_dim", "time_dim", "embedding_dim")
"""Model settings that `dim` sets."""
DEDUP_WINDOW = 100_000
"""Default number of event ids to remember."""


class ConfigError(ValueError):
    """Raised for a setting that is unknown, mistyped or out of range; the message names its key."""


def load_config(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    unknown: list[str] | None = None,
    stated: dict[str, Any] | None = None,
) -> Config:
    """Return the settings of `file`, with `flags` ("section.key": value; None: not given) over
    them.

    `unknown` receives the file's unknown keys, which are then ignored; without it they are errors.
    `stated` receives the values of `file`, `flags` and their protocol, by "section.key".

    Raises:
        ConfigError: If a key is unknown, or a value has the wrong type or is out of range.
    """
    flags = {key: value for key, value in (flags or {}).items() if value is not None}
    table = _table(file, flags, unknown)
    if stated is not None:
        stated |= {
            f"{section}.{key}": value
            for section, settings in table.items()
            if isinstance(settings, dict)
            for key, value in settings.items()
        }
    _add_stream_defaults(table)
    return _validate(table, file, flags)


def replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """Return `config` with other `values`, by "section.key"; unknown keys are ignored."""
    table = plain(config)
    for key, value in values.items():
        if key in by_key():
            section, _, name = key.partition(".")
            table[section][name] = value
    return _validate(table, None, values)


def plain(config: Config) -> dict[str, Any]:
    """Return the settings as nested dicts of JSON values."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return values


def flat(config: Config) -> dict[str, Any]:
    """Return the settings as JSON values, by "section.key"."""
    values = plain(config)
    return {
        field.key: values[section][name]
        for field in fields()
        for section, _, name in [field.key.partition(".")]
    }


def _table(
    file: Path | None, flags: Mapping[str, Any], unknown: list[str] | None
) -> dict[str, Any]:
    """Return the settings of `file`, `flags` and their protocol, by section."""
    table = {} if file is None else _read_toml(file)
    if unknown is not None:
        unknown += _drop_unknown(table)
    for key, value in flags.items():
        section, name = key.split(".")
        if not isinstance(table.setdefault(section, {}), dict):
            continue
        old = table[section].get(name)
        is_merged = isinstance(value, Mapping) and isinstance(old, Mapping)
        table[section][name] = {**old, **value} if is_merged else value
    _add_protocol_settings(table)
    return table


def _add_protocol_settings(table: dict[str, Any]) -> None:
    learning, graph = table.get("learning"), table.setdefault("graph", {})
    name = learning.get("protocol") if isinstance(learning, dict) else None
    if not isinstance(name, str) or name not in PROTOCOLS:
        return
    table["learning"] = {**PROTOCOLS[name], **table["learning"]}
    if name in get_args(OfflineProtocol) and isinstance(graph, dict):  # as they were published
        graph.setdefault("feature_scale", "none")


def _add_stream_defaults(table: dict[str, Any]) -> None:
    stream, order = table.get("stream", {}), table.setdefault("order", {})
    if not (isinstance(stream, dict) and isinstance(order, dict)):
        return
    if "://" not in str(stream.get("path", "")):
        order.setdefault("late", "error")
    if stream.get("event_id") is not None:
        order.setdefault("dedup_window", DEDUP_WINDOW)


def _read_toml(file: Path) -> dict[str, Any]:
    """Read the tables of a file; unknown keys of [model] go to `model.settings`."""
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
    _check_urls(table, file, flags)
    try:
        return _adapter().validate_json(json.dumps(table, default=str))
    except ValidationError as error:
        raise ConfigError(_explain(error, file, flags)) from None


def _check_urls(table: dict[str, Any], file: Path | None, flags: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for credentials in a URL, which other messages would quote."""
    for section, settings in table.items():
        for name, value in settings.items() if isinstance(settings, dict) else [("", settings)]:
            key = f"{section}.{name}"
            try:
                check_url(json.dumps(value, default=str))
            except ValueError as error:
                origin = flag_of(key) if key in flags else f"{file or 'configuration'}: {key}"
                raise ConfigError(f"{origin}: {error}") from None


def _explain(error: ValidationError, file: Path | None, flags: Mapping[str, Any]) -> str:
    """Return a message on the first problem: its key, the value received and the allowed ones."""
    problems = error.errors()
    problem = problems[0]
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path[:2])
    origin = flag_of(key) if key in flags else str(file or "configuration")
    if problem["type"] == "unexpected_keyword_argument":
        return f"{origin}: {_unknown_key(path)}"
    if problem["type"] == "value_error":
        return _explain_value(path, str(problem["ctx"]["error"]), file, flags)
    if len(path) == 1:
        return f"{origin}: [{key}] must be a section, got {quote_json(problem['input'])}"
    more = len({each["loc"][:2] for each in problems}) - 1
    also = f" ({more} more like this)" if more else ""
    allowed = describe_type(by_key()[key].hint)
    return f"{origin}: {key} must be {allowed}, got {quote_json(problem['input'])}{also}"


def _explain_value(path: list[str], text: str, file: Path | None, flags: Mapping[str, Any]) -> str:
    """Name the flag if `text`, which concerns a whole section, begins with one of its settings."""
    section = path[0] if path else ""  # without one it concerns several
    key = f"{section}.{text.split(maxsplit=1)[0].rstrip(':')}"
    if key in flags:
        return f"{flag_of(key)}: {section}.{text}"
    return f"{file or 'configuration'}: " + f"[{section}] " * bool(path) + text


def _unknown_key(path: list[str]) -> str:
    if len(path) == 1:
        names = list(sections())
        meant = difflib.get_close_matches(path[0], names, n=1)
        what, allowed = f"unknown section [{path[0]}]", f"sections are {', '.join(names)}"
    else:
        section, name = path[:2]
        names = [field.name for field in fields() if field.key.startswith(f"{section}.")]
        meant = difflib.get_close_matches(name, names, n=1)
        meant = meant or [field.key for field in fields() if field.name == name]
        what, allowed = f"unknown key {section}.{name}", f"[{section}] has {', '.join(names)}"
    return f"{what}{_did_you_mean(meant)} ({allowed})"


def _did_you_mean(names: list[str]) -> str:
    return f"; did you mean {names[0]}?" if names else ""


def quote_json(value: object, most: int = 60) -> str:
    """Return a value as JSON of at most `most` characters, for a message; "not set" for None."""
    if value is None:
        return "not set"
    return shortened(json.dumps(value, ensure_ascii=False, default=str), most)


def model_settings(model: ModelConfig) -> dict[str, Any]:
    """Return the settings given in [model], with `dim` expanded to the widths that it sets."""
    found = {} if model.neighbors is None else {"neighbors": model.neighbors}
    if model.dim is not None:
        found |= dict.fromkeys(WIDTHS, model.dim)
    return found | dict(model.settings)


def validate_model(
    kind: type[Settings], name: str, stated: Mapping[str, Any], derived: Mapping[str, Any]
) -> Settings:
    """Return a model's settings as its config dataclass `kind`, whose fields are the valid ones.

    `stated` are those of `model_settings`, of which `dim` sets the widths that exist; `derived`
    those of the stream, such as `edge_x_dim`; ones without a field are ignored.
    """
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in stated:
        if key not in known and key not in WIDTHS:
            choices = sorted(known - set(derived))
            meant = _did_you_mean(difflib.get_close_matches(key, choices, n=1))
            names = ", ".join(map(repr, choices))
            raise ConfigError(f"[model] {name} has no setting {key!r}{meant} (it has {names})")
    # `kind` inherits the strictness of the dataclass that holds it.
    strict = {"__pydantic_config__": ConfigDict(extra="forbid", strict=True)}
    holder: Any = dataclasses.make_dataclass("Holder", [("model", kind)], namespace=strict)
    values = {k: v for k, v in {**derived, **stated}.items() if k in known}
    try:
        text = json.dumps({"model": values}, default=str)
        settings: Settings = TypeAdapter(holder).validate_json(text).model
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] == "value_error":
            text = f"{name} is inconsistent: {problem['ctx']['error']}"
        else:
            wrong = str(problem["loc"][1])
            allowed = describe_type(field_hints(kind)[wrong])
            text = f"{wrong} must be {allowed}, got {quote_json(problem['input'])}"
        raise ConfigError(f"[model] {text}") from None
    return settings
