"""Options, event streams and timing of the benchmarks."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from pyarrow import csv
from torch import Tensor

from tgflow import _core
from tgflow.graph.events import EventBatch

SIZES = (1_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000, 100_000_000)
QUICK_SIZES = (50_000, 200_000)
MOST_NODES = 2_500_000
X_DIM = 172
"""Width of the published features, which are not redistributed with the stream."""
BATCH_SIZE = 200
TURN = 25
"""Batches of one measurement."""
QUICK_EVENTS = 10_000
THREADS = 2


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure, and on which data."""

    data: Sequence[Path] = ()
    """Files of events with columns src, dst, t, sorted by t; if empty, a generated stream."""
    quick: bool = False
    """Measure once and on little data."""
    entries: Sequence[int] = ()
    """Graph sizes in entries; if empty, the default ones."""
    events: int | None = None
    """Number of the stream's first events that models train on; None: the default."""
    device: str | None = None
    """"cuda" adds rows of a graph in device memory; None does if a GPU is available."""
    only_device: bool = False
    """Whether to leave out the CPU's rows."""
    say: Callable[[str], None] = lambda _: None
    """Progress callback."""

    @property
    def rounds(self) -> int:
        """Number of measurements of a figure; the best one counts."""
        return 1 if self.quick else 5

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.entries)) or (QUICK_SIZES if self.quick else SIZES)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of graphs, the CPU first."""
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        return (device,) if self.only_device else tuple(dict.fromkeys(("cpu", device)))

    def wikipedia(self) -> tuple[str, EventBatch]:
        """Return name and events of the first file named wikipedia*, else of the first file.

        Without files it is a generated stream.
        """
        ordered = sorted(self.data, key=lambda path: not path.name.startswith("wikipedia"))
        if not ordered:
            return "wikipedia-shaped", wikipedia()
        return _name_of(ordered[0]), read(ordered[0])

    def streams(self) -> Mapping[str, EventBatch]:
        """Return the files' streams by name; a generated one without files."""
        if not self.data:
            return dict([self.wikipedia()])
        return {_name_of(path): read(path) for path in self.data}


def _name_of(path: Path) -> str:
    return path.name.split(".")[0]


def read(path: Path) -> EventBatch:
    """Return the events of a CSV file with columns src, dst, t, sorted by t; it may be gzipped."""
    table = csv.read_csv(path)
    src, dst, t = (torch.from_numpy(table[c].to_numpy().copy()) for c in ("src", "dst", "t"))
    return EventBatch(src, dst, t)


def wikipedia() -> EventBatch:
    """Return a seeded stream in the shape of the Wikipedia edits (Kumar et al., KDD 2019).

    157,474 edits of 1,000 pages by 8,227 users, most of whom return to one page.
    """
    generator = torch.Generator().manual_seed(2019)
    size, users, pages = 157_474, 8_227, 1_000
    src = _skewed(users, size, generator)
    favorite = _skewed(pages, users, generator)
    other = _skewed(pages, size, generator)
    stays = torch.rand(size, generator=generator) < 0.8
    t = torch.randint(0, 35, (size,), generator=generator).cumsum(0)
    return EventBatch(src, users + torch.where(stays, favorite[src], other), t)


class PowerLaw:
    """An endless seeded stream with power-law degrees: a few hubs, a long tail.

    Node ids are shuffled, and event `i` has time `i`. The events do not depend on how it is read.
    """

    CHUNK = 1 << 19

    def __init__(self, num_nodes: int, seed: int = 0) -> None:
        self.num_nodes, self.seed = num_nodes, seed
        self._name = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
        self._chunk = functools.lru_cache(maxsize=2)(self._make)

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Self:
        """Return the stream of graphs of up to some entries, with a twentieth of them as nodes."""
        return cls(max(min(max(sizes) // 20, MOST_NODES), 2))

    def read(self, start: int, stop: int) -> EventBatch:
        """Return the events at positions `[start, stop)`."""
        ends = [
            self._chunk(i)[:, max(start - i * self.CHUNK, 0) : stop - i * self.CHUNK]
            for i in range(start // self.CHUNK, -(-stop // self.CHUNK))
        ]
        src, dst = torch.cat(ends, dim=1) if ends else torch.empty(2, 0, dtype=torch.int64)
        return EventBatch(src, dst, torch.arange(start, stop))

    def _make(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed((self.seed << 32) + index)
        return self._name[_skewed(self.num_nodes, 2 * self.CHUNK, generator)].view(2, self.CHUNK)


def _skewed(bound: int, size: int, generator: torch.Generator) -> Tensor:
    """Return `size` numbers below `bound`, density falling as x^(-3/4)."""
    u = torch.rand(size, dtype=torch.float64, generator=generator)
    return (u.square_().square_() * bound).long().clamp_(max=bound - 1)


def seconds_of(call: Callable[[], object], device: str = "cpu") -> float:
    """Return the duration of `call`, including its work on the device."""
    on_device = device != "cpu"
    if on_device:
        torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    if on_device:
        torch.cuda.synchronize()
    return time.perf_counter() - started


@contextmanager
def restored_threads() -> Iterator[None]:
    own, torchs = _core.num_threads(), torch.get_num_threads()
    try:
        yield
    finally:
        _core.set_num_threads(own)
        torch.set_num_threads(torchs)


def set_threads() -> None:
    torch.set_num_threads(THREADS)
    _core.set_num_threads(THREADS)


def training_events(options: Options, limit: int | None = None) -> tuple[str, EventBatch]:
    """Return name and events of the standard stream, with standard normal edge features.

    `options.events`, else with `quick` `QUICK_EVENTS`, else `limit` is the number of events.
    """
    name, events = options.wikipedia()
    events = events[: options.events or (QUICK_EVENTS if options.quick else limit)]
    x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
    return name, replace(events, x=x)
