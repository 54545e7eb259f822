"""Rejected rows of a stream and the reasons, as text; contents are escaped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tgflow.base.text import printable
from tgflow.run.config import in_flags


def rejections(stream: Mapping[str, Any]) -> list[tuple[str, str, str, str, str, str]]:
    """Return a line for each code and partition, those with most rows first."""
    lines = [
        (seen["count"], code, partition, seen)
        for partition, counts in stream["counts"]["partitions"].items()
        for code, seen in counts["refused"].items()
    ]
    return [
        (
            printable(code),
            printable(str(partition)),
            f"{count:,}",
            _location(seen["first"]),
            _location(seen["last"]),
            printable(in_flags(str(next(iter(seen["examples"]), "")))),
        )
        for count, code, partition, seen in sorted(lines, key=lambda line: -line[0])
    ]


def _location(place: Mapping[str, Any]) -> str:
    return printable(", ".join(f"{name} {value}" for name, value in place.items()))
