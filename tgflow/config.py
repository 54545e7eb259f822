"""One typed schema for everything that can be set, by a TOML file or by flags.

Read it with `load_config`, write it with `to_toml`; what is written reads back to the same.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tgflow.sections import Config, StreamConfig

__all__ = [
    "Config",
    "ConfigError",
    "StreamConfig",
    "fields",
    "flag_of",
    "load_config",
    "stated_settings",
    "to_toml",
]


class ConfigError(ValueError):
    """A setting that is unknown, of another type or out of range; the message names its key."""


FLAGS = {"stream.path": "--stream", "model.name": "--model", "kafka.options": "--kafka-option"}
"""Flags that are not called after their key."""


def flag_of(key: str) -> str:
    """Return the flag that sets "section.key", such as "--batch-size"."""
    return FLAGS.get(key, "--" + key.split(".")[1].replace("_", "-"))


def fields() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting as ("section.key", its field), in the schema's order."""
    for section, info in Config.model_fields.items():
        assert isinstance(info.annotation, type)
        assert issubclass(info.annotation, BaseModel)
        for key, field in info.annotation.model_fields.items():
            yield f"{section}.{key}", field


def load_config(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    unknown: list[str] | None = None,
) -> Config:
    """Return the settings of `file`, with `flags` over them and `defaults` under them.

    Args:
        file: TOML file with the schema's sections, or None.
        flags: Values by "section.key"; they win over the file. None stands for "not given".
        defaults: Values by "section.key" that replace the schema's defaults.
        unknown: Is told of the file's keys that do not exist, which are then left out.

    Raises:
        ConfigError: If a key is unknown, or a value has another type or is out of range.
        OSError: If `file` cannot be read.
    """
    table = _read_toml(file) if file is not None else {}
    if unknown is not None:
        unknown += _drop_unknown(table)
    for key, value in (defaults or {}).items():
        section, name = key.split(".")
        if isinstance(table.setdefault(section, {}), dict):
            table[section].setdefault(name, value)
    flags = _stated(flags or {})
    for key, value in flags.items():
        section, name = key.split(".")
        if isinstance(table.setdefault(section, {}), dict):
            table[section][name] = value
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_explain(error, file, flags)) from None


def replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """Return `config` with other `values`, by "section.key"; what is no setting is left out.

    Raises:
        ConfigError: If one has another type or is out of range.
    """
    table = config.model_dump()
    for key, value in values.items():
        section, _, name = key.partition(".")
        if name in table.get(section, {}):
            table[section][name] = value
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_explain(error, None, values)) from None


def stated_settings(file: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `file` and `flags` themselves say, by "section.key"; flags win.

    Raises:
        ConfigError: If `file` is not TOML.
        OSError: If it cannot be read.
    """
    table = _read_toml(file) if file is not None else {}
    stated = {
        f"{section}.{key}": value
        for section, settings in table.items()
        if isinstance(settings, dict)
        for key, value in settings.items()
    }
    return stated | _stated(flags)


def to_toml(config: Config) -> str:
    """Return `config` as TOML that `load_config` reads back, each key with what it means."""
    lines: list[str] = []
    last = ""
    for key, field in fields():
        section, name = key.split(".")
        if section != last:
            lines += ["", f"[{section}]"]
            last = section
        value = getattr(getattr(config, section), name)
        setting = f"# {name} =" if value is None else f"{name} = {_toml_value(value)}"
        lines.append(f"{setting:<28} # {field.description}")
    return "\n".join(lines[1:]) + "\n"


def _stated(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flags.items() if value is not None}


def _drop_unknown(table: dict[str, Any]) -> list[str]:
    """Remove from `table` what is no section or setting; returns what that was."""
    known = {key for key, _ in fields()}
    gone = []
    for section in list(table):
        if section not in Config.model_fields:
            gone.append(section)
            del table[section]
        elif isinstance(table[section], dict):
            extra = [name for name in table[section] if f"{section}.{name}" not in known]
            gone += [f"{section}.{name}" for name in extra]
            table[section] = {k: v for k, v in table[section].items() if k not in extra}
    return gone


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _toml_value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _explain(error: ValidationError, file: Path | None, flags: Mapping[str, Any]) -> str:
    """Say of the first problem which key it is, what arrived and what is allowed."""
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path[:2])
    origin = flag_of(key) if key in flags else str(file or "configuration")
    if problem["type"] == "extra_forbidden":
        return f"{origin}: {_unknown_key(path)}"
    if len(path) == 1:
        return f"{origin}: [{key}] must be a section, got {_shown(problem['input'])}"
    if problem["type"] == "value_error":
        return f"{origin}: {key}: {problem['ctx']['error']}"
    more = len(error.errors()) - 1
    also = f" ({more} more like this)" if more else ""
    return f"{origin}: {key} must be {_allowed(key)}, got {_shown(problem['input'])}{also}"


def _unknown_key(path: list[str]) -> str:
    """Say that the key at `path` does not exist, and which one may have been meant."""
    known = [key for key, _ in fields()]
    if len(path) == 1:
        choices = list(Config.model_fields)
        what, allowed = f"unknown section [{path[0]}]", f"sections are {', '.join(choices)}"
    else:
        choices = [key.split(".")[1] for key in known if key.startswith(f"{path[0]}.")]
        what, allowed = f"unknown key {path[0]}.{path[1]}", f"[{path[0]}] has {', '.join(choices)}"
    elsewhere = [key for key in known if key.split(".")[1] == path[-1]]
    meant = difflib.get_close_matches(path[-1], choices, n=1) or elsewhere
    hint = f"; did you mean {meant[0]}?" if meant else ""
    return f"{what}{hint} ({allowed})"


def _allowed(key: str) -> str:
    """Describe the values that the setting `key` accepts, from the schema."""
    section, name = key.split(".")
    schema = Config.model_json_schema()
    part = schema["$defs"][Config.model_fields[section].annotation.__name__]["properties"][name]  # type: ignore[union-attr]
    choices = [choice for choice in part.get("anyOf", [part]) if choice.get("type") != "null"]
    return " or ".join(_described(choice) for choice in choices)


def _described(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return "one of " + ", ".join(json.dumps(choice) for choice in part["enum"])
    if "const" in part:
        return json.dumps(part["const"])
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "a string",
        "array": "a list of strings",
        "boolean": "true or false",
    }
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    bounds = [f"{word} {part[limit]:g}" for limit, word in limits.items() if limit in part]
    return " ".join([words[part["type"]], " and ".join(bounds)]).strip()


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
