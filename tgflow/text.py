"""Text from elsewhere in messages: escaped, and no longer than there is room."""

from __future__ import annotations


def printable(text: str, limit: int | None = None) -> str:
    r"""Return `text` on one line, with all that a terminal would obey escaped as in `\x1b`.

    Args:
        text: Any, such as what came with a stream.
        limit: Characters at most, see `shortened`; None for all.
    """
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )
    return safe if limit is None else shortened(safe, limit)


def shortened(text: str, limit: int) -> str:
    """Return `text`, cut to `limit` characters, the last three of them dots, if it is longer."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
