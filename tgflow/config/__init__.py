"""One typed schema for everything that can be set, by a TOML file or by flags.

Read it with `load_config`, write it with `to_toml`, which reads back to the same.
"""

from tgflow.config.fields import Field, fields, flag_of, is_unset, to_toml
from tgflow.config.load import (
    ConfigError,
    flat,
    load_config,
    plain,
    quote_json,
    replaced,
    stated_settings,
)
from tgflow.config.schema import Config
from tgflow.config.stream import StreamConfig

__all__ = [
    "Config",
    "ConfigError",
    "Field",
    "StreamConfig",
    "fields",
    "flag_of",
    "flat",
    "is_unset",
    "load_config",
    "plain",
    "quote_json",
    "replaced",
    "stated_settings",
    "to_toml",
]
