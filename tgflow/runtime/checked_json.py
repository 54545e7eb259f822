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


def checked_line(value: Mapping[str, Any]) -> str:
    """Return `value`, which strict JSON can hold and has a key, with its checksum, on a line."""
    text = _compact(value)
    return f'{text[:-1]},"{KEY}":{zlib.crc32(text.encode())}}}'


def checked_text(value: Mapping[str, Any]) -> str:
    """Return the same with an entry a line, as people read it."""
    entries = [_compact({key: item})[1:-1] for key, item in value.items()]
    crc = zlib.crc32(f"{{{','.join(entries)}}}".encode())
    lines = ",\n".join([*entries, f'"{KEY}":{crc}'])
    return f"{{\n{lines}\n}}"


def read_checked(text: str | bytes) -> dict[str, Any]:
    """Return the value that a text holds, without its checksum.

    Raises:
        DamagedJson: If it is not what was written.
    """
    try:
        value = json.loads(text)
    except ValueError as error:  # of JSON, or of UTF-8
        raise DamagedJson(f"it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DamagedJson("its checksum differs")
    found = value.pop(KEY, None)
    if found != zlib.crc32(_compact(value).encode()):
        raise DamagedJson("its checksum differs")
    return value


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
