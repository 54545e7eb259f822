"""The pictures of the guides: drawn from results, and shown where a page has a place for them.

A picture stands between `<!-- picture: NAME -->` and `<!-- end -->`, where NAME is a file of
benchmarks/results. What stands there stays until there are such results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import FOLDER, load
from tgflow.bench import pipeline, reuse
from tgflow.bench.row import Row

_MARKED = re.compile(r"(<!-- picture: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GuidePicture:
    """A picture of the rows of one benchmark."""

    file: str
    """Beside the guide that shows it."""
    shows: str
    draw: Callable[[Sequence[Row]], str]
    """Returns it as SVG."""


PICTURES = {
    "pipeline": GuidePicture(
        "how-fast-ladder.svg",
        "Speed of training by loader, and of preparation by threads",
        pipeline.draw,
    ),
    "reuse": GuidePicture(
        "how-fast-reuse.svg", "Speed and average precision by staleness", reuse.draw
    ),
}
"""By the names of their results."""


def draw_pictures(guides: Path, folder: Path = FOLDER) -> None:
    """Write those pictures whose results are there."""
    for name, picture in PICTURES.items():
        results = folder / f"{name}.json"
        if results.exists():
            (guides / picture.file).write_text(picture.draw(load(results).rows), encoding="utf-8")


def with_pictures(page: str, folder: Path = FOLDER) -> str:
    """Return the page with the pictures whose results are there, and who measured them on what."""

    def shown(match: re.Match[str]) -> str:
        results, picture = folder / f"{match[2]}.json", PICTURES[match[2]]
        if not results.exists():
            return match[0]
        result = load(results)
        measured = f"Drawn from what `{result.command}` measured: {result.machine}."
        return f"{match[1]}![{picture.shows}]({picture.file})\n\n{measured}\n{match[3]}"

    return _MARKED.sub(shown, page)
