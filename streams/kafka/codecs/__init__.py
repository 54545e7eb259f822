"""What the records of a topic hold, one module for each form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.streams.kafka.codecs.arrow import ArrowCodec
from tgflow.streams.kafka.codecs.codec import Codec
from tgflow.streams.kafka.codecs.csv import CsvCodec
from tgflow.streams.kafka.codecs.fields import Fields
from tgflow.streams.kafka.codecs.json import JsonCodec

if TYPE_CHECKING:
    from tgflow.streams.kafka.config import KafkaConfig


def codec_of(config: KafkaConfig) -> Codec:
    """Return the codec that reads the records of `config`."""
    fields = Fields(config.form, config.event_id)
    reject = config.checks.unknown_keys == "reject"
    match config.codec:
        case "json":
            return JsonCodec(fields, reject)
        case "csv":
            return CsvCodec(fields)
        case "arrow":
            return ArrowCodec(fields, reject)
