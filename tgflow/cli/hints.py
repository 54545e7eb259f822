"""Lines on stderr that no figure depends on: what was found out, and what looks wrong."""

from __future__ import annotations

from rich.console import Console


def hint(text: str, style: str | None = None) -> None:
    """Write a line to stderr."""
    console = Console(stderr=True, highlight=False)
    console.print(text, style=style, markup=False, soft_wrap=True)
