"""JSON for people and programs that shows whether it is still what was written.

Its last key, `crc32`, is the CRC-32 of the value without it, as compact JSON. White space does not
count.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

KEY = "crc32"


class DamagedJson(ValueError):
    """A text is not JSON, or not what was written."""


def with_checksum(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value`, which strict JSON can hold, with its checksum."""
    return {**value, KEY: _checksum(value)}


def read_checked(text: str | bytes) -> dict[str, Any]:
    """Return the value that a text holds, without its checksum.

    Raises:
        DamagedJson: If it is not what was written.
    """
    try:
        value = json.loads(text)
    except ValueError as error:  # of JSON, or of UTF-8
        raise DamagedJson(f"it is not JSON: {error}") from None
    if not isinstance(value, dict) or value.pop(KEY, None) != _checksum(value):
        raise DamagedJson("its checksum differs")
    return value


def _checksum(value: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(value, separators=(",", ":")).encode())
