"""Typed schema of all settings: `load_config` reads TOML and flags, `to_toml` writes it back."""

from tgflow.run.config.fields import (
    LEARNING_OF,
    Field,
    fields,
    flag_of,
    in_flags,
    is_unset,
    to_toml,
)
from tgflow.run.config.load import (
    ConfigError,
    flat,
    load_config,
    model_settings,
    plain,
    quote_json,
    replaced,
    validate_model,
)
from tgflow.run.config.schema import Config, StreamConfig

__all__ = [
    "LEARNING_OF",
    "Config",
    "ConfigError",
    "Field",
    "StreamConfig",
    "fields",
    "flag_of",
    "flat",
    "in_flags",
    "is_unset",
    "load_config",
    "model_settings",
    "plain",
    "quote_json",
    "replaced",
    "to_toml",
    "validate_model",
]
