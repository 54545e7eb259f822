"""Untrusted text in messages: escaped and shortened."""

from __future__ import annotations


def printable(text: str, limit: int | None = None) -> str:
    r"""Return `text` on one line, with terminal control characters escaped as in `\x1b`."""
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )
    return safe if limit is None else shortened(safe, limit)


def shortened(text: str, limit: int) -> str:
    """Return `text`, shortened to `limit` characters, the last three of them dots."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
