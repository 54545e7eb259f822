"""The style sheet of all pages: reports and served ones."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def page_style() -> str:
    """Return the CSS."""
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")
