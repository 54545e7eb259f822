"""A model's own settings, checked by the dataclass that the model is configured with."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tgflow.config.fields import describe_type
from tgflow.config.load import ConfigError, quote_json
from tgflow.config.schema import ModelConfig
from tgflow.setting import field_hints

Settings = TypeVar("Settings")

WIDTHS = ("memory_dim", "time_dim", "embedding_dim")
"""Settings that `dim` sets."""


def model_settings(model: ModelConfig) -> dict[str, Any]:
    """Return what [model] says beside the name: what is set, `dim` as the widths it stands for."""
    shared = ("heads", "neighbors", "layers", "dropout")
    found = {name: getattr(model, name) for name in shared if getattr(model, name) is not None}
    if model.dim is not None:
        found |= dict.fromkeys(WIDTHS, model.dim)
    return found | dict(model.settings)


def validate_model(
    kind: type[Settings], name: str, stated: Mapping[str, Any], derived: Mapping[str, Any]
) -> Settings:
    """Return a model's settings as the dataclass `kind` that it is configured with.

    Args:
        kind: A dataclass; its fields are the settings that there are.
        name: Name of the model.
        stated: Settings of [model], see `model_settings`. `dim` sets the widths that there are.
        derived: Settings of the stream, such as `edge_x_dim`; those without a field are left out.

    Raises:
        ConfigError: If a setting is unknown, of another type, or does not fit the others.
    """
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = [key for key in stated if key not in known and key not in WIDTHS]
    if unknown:
        raise ConfigError(_unknown(unknown[0], name, known - set(derived)))
    values = {k: v for k, v in {**derived, **stated}.items() if k in known}
    adapter = TypeAdapter(_holder(kind))
    try:
        settings: Settings = adapter.validate_json(json.dumps({"model": values}, default=str)).model
    except ValidationError as error:
        raise ConfigError(_explain(error, kind, name)) from None
    return settings


def parse_value(text: str) -> Any:
    """Return the value of a flag KEY=VALUE: JSON where it can be, or else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _holder(kind: type) -> Any:
    """Return a dataclass with one field of type `kind`, whose strictness `kind` takes on."""
    config = ConfigDict(extra="forbid", strict=True)
    return dataclasses.make_dataclass(
        "Holder", [("model", kind)], namespace={"__pydantic_config__": config}
    )


def _explain(error: ValidationError, kind: type, name: str) -> str:
    problem = error.errors()[0]
    if problem["type"] == "value_error":
        return f"[model] {name} does not fit together: {problem['ctx']['error']}"
    key = str(problem["loc"][1])
    allowed = describe_type(field_hints(kind)[key])
    return f"[model] {key} must be {allowed}, got {quote_json(problem['input'])}"


def _unknown(key: str, name: str, known: set[str]) -> str:
    meant = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {meant[0]}?" if meant else ""
    names = ", ".join(map(repr, sorted(known)))
    return f"[model] {name} has no setting {key!r}{hint} (it has {names})"
