"""Settings as fields, as TOML, and as flags in messages."""

from __future__ import annotations

import functools
import json
import re
import shlex
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, Literal

from tgflow.base.describe import docstrings
from tgflow.base.setting import (
    Effect,
    Setting,
    alternatives,
    describe_bounds,
    field_hints,
    setting_of,
)
from tgflow.base.units import INT64_MAX, INT64_MIN
from tgflow.run.config.schema import Config, Section
from tgflow.train.config import ContinualConfig, OfflineConfig


@dataclass(frozen=True, slots=True)
class Field:
    """A setting, with its section; `help` is from the docstring of the field."""

    key: str
    hint: Any
    default: Any
    help: str
    setting: Setting
    section: Section

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flags; the first one is used in messages."""
        if self.setting.expert:
            return (f"--set {self.key}",)
        return self.setting.flags or ("--" + self.name.replace("_", "-"),)

    @property
    def effect(self) -> Effect:
        return self.setting.resume or self.section.resume


@functools.cache
def sections() -> Mapping[str, tuple[type, Section]]:
    """Return the dataclass of each section, and the section's annotation."""
    hints = typing.get_type_hints(Config, include_extras=True)
    found = {name: next(alternatives(hint)) for name, hint in hints.items()}
    return {
        name: (kind, metadata[0])
        for name, (kind, metadata) in found.items()
        if metadata and isinstance(metadata[0], Section)
    }


@functools.cache
def fields() -> tuple[Field, ...]:
    """Return every setting in the schema's order; sections are not included."""
    found = []
    for name, (kind, section) in sections().items():
        hints, texts = field_hints(kind), docstrings(kind)
        for each in dataclass_fields(kind):
            hint, factory = hints[each.name], each.default_factory
            default = each.default if factory is MISSING else factory()
            key, text = f"{name}.{each.name}", texts.get(each.name, "")
            if not is_dataclass(hint):
                found.append(Field(key, hint, default, text, setting_of(hint), section))
    return tuple(found)


LEARNING_OF: Mapping[str, tuple[str, ...]] = {
    name: tuple(
        field.key
        for field in fields()
        if field.key.startswith("learning.")
        and field.name in {each.name for each in dataclass_fields(kind)}
    )
    for name, kind in (("continual", ContinualConfig), ("offline", OfflineConfig))
}
"""Settings that the continual and the offline trainer read."""


@functools.cache
def by_key() -> Mapping[str, Field]:
    return {field.key: field for field in fields()}


def flag_of(key: str) -> str:
    """Return the name of "section.name" in messages: its flag, or a key without a field."""
    return by_key()[key].flags[0] if key in by_key() else key


def describe_type(hint: Any) -> str:
    """Describe the values that a type allows, such as "a whole number at least 1"."""
    return " or ".join(
        " ".join(filter(None, [_describe(kind), describe_bounds(metadata)]))
        for kind, metadata in alternatives(hint)
    )


_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def _describe(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    origin = typing.get_origin(kind) or kind
    if origin is Literal:
        choices = [json.dumps(choice) for choice in typing.get_args(kind)]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if issubclass(origin, Mapping):
        return "a table"
    assert issubclass(origin, Sequence)
    inner = typing.get_args(kind)[0]
    if typing.get_origin(inner) is Literal:
        return f"a list of {_describe(inner)}"
    numbers = [bounds for each, bounds in alternatives(inner) if each is int]
    if numbers:
        return " ".join(filter(None, ["a list of whole numbers", *map(describe_bounds, numbers)]))
    return "a list of strings"


def is_unset(value: object) -> bool:
    """Whether a value means unset: None, or the limit of the type."""
    return value is None or value in (INT64_MIN, INT64_MAX)


def to_toml(config: Config) -> str:
    """Return `config` as TOML that `load_config` reads back, with the help of each key."""
    lines: list[str] = []
    last = ""
    for field in fields():
        section, name = field.key.split(".")
        if section != last:
            lines += ["", f"[{section}]"]
            last = section
        value = getattr(getattr(config, section), name)
        if field.key == "model.settings":  # a model's own settings are written as ordinary keys
            lines += [f"{_key(key)} = {_toml_value(each)}" for key, each in value.items()]
            continue
        setting = f"# {name} =" if is_unset(value) else f"{name} = {_toml_value(value)}"
        lines.append(f"{setting:<28} # {field.help}")
    return "\n".join(lines[1:]) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        items = (f"{_key(key)} = {_toml_value(each)}" for key, each in value.items())
        return f"{{ {', '.join(items)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


_QUOTED = r"(?<![-\w])'[^']*'(?!\w)"
_VALUE = re.compile(
    _QUOTED + r"|(?<![-\w.])([a-z]\w*)=(?:'([^']*)'|\"([^\"]*)\"|(True)\b|(\.\.\.)|(\w+))"
)
_NAME = re.compile(r"(?<![-\w.'\"])[a-z]+(?:_[a-z]+)+(?![-\w.'\"=(])")


def in_flags(text: str, *names: object) -> str:
    """Return a message with settings as flags: `id_kind='string'` becomes `--id-kind string`.

    Values are quoted for a shell. `False` becomes `--no-NAME`. Single words count as settings only
    before a value; other words stay, and so do all in quotes, and `names`, as of files.
    """
    named = "|".join(re.escape(str(name)) for name in names if name)
    parts = re.split(rf"((?<![^ (])(?:{named})(?![^ :,;)]))", text) if named else [text]
    for i in range(0, len(parts), 2):
        parts[i] = _NAME.sub(_name, _VALUE.sub(_assignment, parts[i]))
    return "".join(parts)


def _assignment(match: re.Match[str]) -> str:
    if (flag := _flags().get(match[1])) is None:
        return match[0]
    value = match[2] or match[3] or match[6] or ""
    if flag.startswith("--set "):
        return f"{flag} ..." if match[5] else f"{flag}={shlex.quote(value or 'true')}"
    if value == "False":
        return f"--no-{flag.removeprefix('--')}"
    shown = f"{flag} {value and shlex.quote(value)}".rstrip()
    return shown + (match[5] or "").replace("...", " ...")


def _name(match: re.Match[str]) -> str:
    return _flags().get(match[0], match[0])


@functools.cache
def _flags() -> Mapping[str, str]:
    """Return the flag of each setting name, if all settings of that name share it."""
    found: dict[str, set[str]] = {}
    for field in fields():
        found.setdefault(field.name, set()).add(field.flags[0])
    return {name: flags.pop() for name, flags in found.items() if len(flags) == 1}
