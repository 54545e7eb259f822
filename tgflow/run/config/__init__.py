"""Typed schema of all settings: `load_config` reads TOML and flags, `to_toml` writes it back."""

from tgflow.run.config.fields import LEARNING_OF as LEARNING_OF
from tgflow.run.config.fields import Field as Field
from tgflow.run.config.fields import fields as fields
from tgflow.run.config.fields import flag_of as flag_of
from tgflow.run.config.fields import in_flags as in_flags
from tgflow.run.config.fields import is_unset as is_unset
from tgflow.run.config.fields import to_toml as to_toml
from tgflow.run.config.load import ConfigError as ConfigError
from tgflow.run.config.load import flat as flat
from tgflow.run.config.load import load_config as load_config
from tgflow.run.config.load import model_settings as model_settings
from tgflow.run.config.load import plain as plain
from tgflow.run.config.load import quote_json as quote_json
from tgflow.run.config.load import replaced as replaced
from tgflow.run.config.load import validate_model as validate_model
from tgflow.run.config.schema import Config as Config
from tgflow.run.config.schema import StreamConfig as StreamConfig
