"""Anchors: what a file held where reading stopped, so that another file is not mistaken for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tgflow.streams.errors import SourceMismatch, SourceTruncated

ANCHOR_BYTES = 1 << 16


def digest(before: bytes) -> str:
    """Return the anchor of the bytes before a place, of which the last 64 KiB count."""
    return hashlib.sha256(before[-ANCHOR_BYTES:]).hexdigest()


def check_digest(name: str, before: bytes, position: Mapping[str, Any], what: str) -> None:
    """Raise `SourceMismatch` unless `before` is what stood before `position` when it was read."""
    if digest(before) != position["sha256"]:
        text = f"what stands before {what} is not what was read there; it is another file: "
        raise SourceMismatch(name, "schema", f"{text}put the old one back, or start afresh")


def check_size(name: str, size: int, position: Mapping[str, Any]) -> None:
    """Raise `SourceTruncated` if a file is shorter than it was."""
    if size < position["size"]:
        text = f"it has {size} bytes, but had {position['size']} when it was read; put it back"
        raise SourceTruncated(name, "schema", text)


def tail(path: Path, end: int) -> bytes:
    """Return the last 64 KiB of a file before byte `end`."""
    with path.open("rb") as file:
        file.seek(max(0, end - ANCHOR_BYTES))
        return file.read(min(end, ANCHOR_BYTES))
