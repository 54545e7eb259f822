"""What `tgflow train` keeps on the disk while it trains, so that it goes on after a kill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tgflow.checkpoint.parts import SectionReader, SectionWriter
from tgflow.checkpoint.typed import read_natural
from tgflow.compare.offline_saves import OfflineSaves, Trained
from tgflow.config import ConfigError
from tgflow.graph import TemporalGraph
from tgflow.runtime.checkpoint_parts import SavedRecords
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.features import check_unused, edge_file
from tgflow.runtime.log import RunLog
from tgflow.runtime.open_saves import LoadedPart, open_saves

COMMAND: Final = "train"
"""Which trainer checkpoints name."""


def check_kind(directory: RunDirectory) -> None:
    """Refuse what another command has left.

    Raises:
        ConfigError: If it has.
    """
    found = directory.newest_meta().get("trainer", COMMAND) if directory.resumed else COMMAND
    if found != COMMAND:
        command = "compare" if found == "compare" else "run"
        raise ConfigError(
            f"{directory.path} is of tgflow {command}; resume it with tgflow {command} --resume, "
            "or give another --out"
        )


def prepare_directory(directory: RunDirectory, world: int) -> None:
    """Make sure that a training may use its directory; files of a killed one are made again.

    Raises:
        ConfigError: If it resumes among ranks, or names a file of features that is another run's.
    """
    config = directory.config
    if not directory.resumed:
        check_unused(config)
        return
    if world > 1:
        raise ConfigError(
            "--resume: what several ranks train together is not kept from epoch to epoch; leave "
            "out --nproc, or start over with another --out"
        )
    if (path := edge_file(config, directory.path)) is not None:
        path.unlink(missing_ok=True)


def open_training(
    directory: RunDirectory,
    graph: TemporalGraph,
    num_seeds: int | None,
    build: dict[str, Any],
    run_log: RunLog,
) -> tuple[OfflineSaves, int]:
    """Return what keeps a training, with what its newest checkpoint has of it; and how many seeds.

    Args:
        directory: Taken.
        graph: All events.
        num_seeds: How many were asked for; None: one, or as many as before.
        build: The machine and versions that results depend on.
        run_log: Gets what was found.

    Raises:
        ConfigError: If other settings are there, or another number of seeds.
        SourceMismatch: If the events are others than they were.
    """
    seeds = _SavedSeeds(num_seeds)
    parts: list[LoadedPart] = [SavedRecords(directory.files), seeds]
    return open_saves(directory, graph, COMMAND, build, run_log, parts), seeds.num


def result_of(seed: int, result: Mapping[str, Any]) -> Trained:
    """Return what a training came to; scores of single events it has none."""
    return Trained(str(seed), np.empty((0, 3)), result)


class _SavedSeeds:
    """How many seeds there are.

    Args:
        wanted: How many were asked for; None: one, or as many as before.
    """

    def __init__(self, wanted: int | None) -> None:
        self._wanted, self.num = wanted, wanted or 1

    def save(self, writer: SectionWriter) -> None:
        """Note it."""
        writer.note("num_seeds", self.num)

    def load(self, reader: SectionReader) -> None:
        """Be as many as were noted.

        Raises:
            ConfigError: If others were asked for.
        """
        self.num = read_natural(reader.meta, "num_seeds")
        if self._wanted not in (None, self.num):
            raise ConfigError(
                f"--seeds: the training was started with {self.num}, got {self._wanted}; leave it "
                "out to resume, or give another --out"
            )

    def clear(self) -> None:
        """Do nothing."""

    def saved(self) -> None:
        """Do nothing."""
