"""Settings as TOML, each with what it means."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tgflow.config.fields import fields, is_unset
from tgflow.config.schema import Config


def to_toml(config: Config) -> str:
    """Return `config` as TOML that `load_config` reads back, each key with what it means."""
    lines: list[str] = []
    last = ""
    for field in fields():
        section, name = field.key.split(".")
        if section != last:
            lines += ["", f"[{section}]"]
            last = section
        value = getattr(getattr(config, section), name)
        if field.key == "model.settings":  # a model's own settings are keys like the others
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
