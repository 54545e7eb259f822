"""What the records of a topic hold, by the name of their form."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tgflow.streams.kafka.codecs.arrow import ArrowCodec
from tgflow.streams.kafka.codecs.codec import Codec, Decoded
from tgflow.streams.kafka.codecs.text import CsvCodec, JsonCodec
from tgflow.streams.kafka.config import CodecName
from tgflow.streams.rows.validate import RowSchema

_CODECS: Mapping[CodecName, Callable[[RowSchema], Codec]] = {
    "json": JsonCodec,
    "csv": CsvCodec,
    "arrow": ArrowCodec,
}


def make_codec(name: CodecName, schema: RowSchema) -> Codec:
    """Return the codec of that name, for records whose rows must fit `schema`."""
    return _CODECS[name](schema)


__all__ = ["Codec", "Decoded", "make_codec"]
