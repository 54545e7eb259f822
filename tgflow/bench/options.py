"""What the command line asks of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tgflow.bench import made
from tgflow.events import EventBatch

SIZES = (1_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000, 100_000_000)
QUICK_SIZES = (50_000, 200_000)
LEAST_SIZE = 10_000


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure, and on what."""

    data: Sequence[Path] = ()
    """Files of events with columns src, dst, t, sorted by t; without any, made streams."""
    quick: bool = False
    """Measure once, on little: seconds instead of minutes."""
    entries: Sequence[int] = ()
    """Graph sizes, in entries; empty for the usual ones."""
    events: int | None = None
    """Of the stream, the first ones to use, where models learn or answer; None: the usual ones."""
    device: str | None = None
    """"cuda" adds the rows of a graph in device memory; None does where there is a GPU."""
    only_device: bool = False
    """Whether the CPU's rows are left out, and what stands beside them."""
    say: Callable[[str], None] = lambda _: None
    """Called with what is measured next."""

    @property
    def rounds(self) -> int:
        """How often a figure is taken; the best counts."""
        return 1 if self.quick else 5

    @property
    def sizes(self) -> tuple[int, ...]:
        """Graph sizes, in entries, rising."""
        return tuple(sorted(self.entries)) or (QUICK_SIZES if self.quick else SIZES)

    @property
    def devices(self) -> tuple[str, ...]:
        """Where graphs are measured."""
        there = "cuda" if torch.cuda.is_available() else "cpu"
        here = self.device or there
        return (here,) if self.only_device else tuple(dict.fromkeys(("cpu", here)))

    @property
    def standard_file(self) -> Path | None:
        """The standard stream's: one that is called so, or the first; None without any."""
        ordered = sorted(self.data, key=lambda path: not path.name.startswith("wikipedia"))
        return ordered[0] if ordered else None

    def wikipedia(self) -> tuple[str, EventBatch]:
        """Return the standard stream and its name: that of `standard_file`, or made."""
        path = self.standard_file
        if path is None:
            return "wikipedia-shaped", made.wikipedia()
        return made.name_of(path), made.read(path)

    def streams(self) -> Mapping[str, EventBatch]:
        """Return the files' streams by name; a made one without files."""
        if not self.data:
            return dict([self.wikipedia()])
        return {made.name_of(path): made.read(path) for path in self.data}
