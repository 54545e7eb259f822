"""The self-contained HTML page of reports, needing neither network nor JavaScript."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tgflow.base.page_style import page_style

Tile = tuple[str, str, str]


class Bar(NamedTuple):
    """A bar from the middle of a cell, to the right above 0 and to the left below."""

    share: float
    """Its length, -1 to 1."""

    @property
    def style(self) -> str:
        """Its place, and its color by sign."""
        left, color = 50 + min(50 * self.share, 0), 1 if self.share >= 0 else 3
        return f"left:{left:.1f}%;width:{50 * abs(self.share):.1f}%;background:var(--c{color})"


Cell: TypeAlias = str | tuple[str, ...] | Bar
Rows: TypeAlias = Sequence[Sequence[Cell]]
"""Cells of a table, as texts, (text, small text, "best"), or bars."""


@dataclass(frozen=True, slots=True)
class Card:
    """A section of a page: one or several tables with a heading, and notes; or charts."""

    title: str = ""
    rows: Rows = ()
    head: Sequence[str] = ()
    notes: Sequence[str] = ()
    groups: Sequence[tuple[str, Rows]] = ()
    folded: Sequence[tuple[str, Rows]] = ()
    """Groups that are shown on request."""
    figures: Sequence[dict[str, Any]] = ()
    """Charts, without a table."""
    picture: Mapping[str, Any] | None = None
    """Events over time, above the tables; see `tgflow.run.explanation`."""


def render_page(
    kind: str,
    title: str,
    lead: str,
    tiles: Sequence[Tile],
    parts: Sequence[Card],
    version: str,
    *,
    is_of_run: bool = True,
) -> str:
    """Return a self-contained page; all texts are escaped.

    `is_of_run`: Whether it lies beside metrics.json and config.toml, which its footer names.
    """
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup, escape

    here = Path(__file__).parent
    pages = Environment(loader=FileSystemLoader(here), autoescape=True)
    units = [
        (name, Markup(re.sub(r" ([a-zA-Zµ]+) ?", r"<small>\1</small>", str(escape(value)))), note)
        for name, value, note in tiles
    ]
    css = Markup(page_style())
    js = Markup((here / "page.js").read_text(encoding="utf-8"))
    return pages.get_template("page.html").render(
        kind=kind, title=title, lead=lead, tiles=units, parts=parts, version=version, css=css,
        js=js, is_of_run=is_of_run,
    )  # fmt: skip


def stream_name(path: str) -> str:
    """Return the name of a stream's file without its folder and suffixes."""
    return path.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0] or "a stream"
