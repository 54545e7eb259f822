"""Python in a process of its own that finds what tests share."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """Return this process's environment, with `helpers` to be imported."""
    path = (str(TESTS), os.environ.get("PYTHONPATH"))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
