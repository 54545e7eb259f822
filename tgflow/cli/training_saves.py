"""What `tgflow train` keeps on the disk while it trains, so that it goes on after a kill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tgflow.checkpoint.parts import SectionWriter
from tgflow.compare.offline_saves import OfflineSaves, Trained
from tgflow.config import ConfigError
from tgflow.graph import TemporalGraph
from tgflow.runtime.checkpoint_parts import SavedRecords, SavedSettings
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.features import check_unused, edge_file
from tgflow.runtime.log import RunLog
from tgflow.runtime.restore import check_build, find_newest, open_store
from tgflow.runtime.saved_events import SavedEvents

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


def open_saves(
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
        ConfigError: If other settings are there, or so many seeds were not asked for.
        SourceMismatch: If the events are others than they were.
    """
    store = open_store(directory)
    newest = find_newest(store, directory, run_log)
    meta = {} if newest is None else newest.meta
    events, records = SavedEvents(graph), SavedRecords(directory.files)
    if newest is None:
        records.clear()
    else:
        events.check(meta, directory)
        records.load(newest)
    seeds = _SavedSeeds(_num_seeds(meta.get("num_seeds"), num_seeds))
    run = meta.get("run", {})
    check_build(run.get("build"), build, directory.config, run_log)
    directory.accept_settings()
    path, elapsed = directory.config.stream.path, run.get("elapsed", 0.0)
    settings = SavedSettings(directory, build, path, elapsed=elapsed)
    saves = OfflineSaves(
        store,
        newest,
        every=directory.config.checkpoint.checkpoint_every,
        parts=[events, records, seeds, settings],
        command=COMMAND,
        warn=lambda text: run_log.warning("checkpoint", text),
    )
    return saves, seeds.num


def result_of(seed: int, result: Mapping[str, Any]) -> Trained:
    """Return what a training came to; scores of single events it has none."""
    return Trained(str(seed), np.empty((0, 3)), result)


def _num_seeds(noted: int | None, wanted: int | None) -> int:
    if noted is not None and wanted not in (None, noted):
        raise ConfigError(
            f"--seeds: the training was started with {noted}, got {wanted}; leave it out to "
            "resume, or give another --out"
        )
    return noted or wanted or 1


class _SavedSeeds:
    """How many seeds there are."""

    def __init__(self, num: int) -> None:
        self.num = num

    def save(self, writer: SectionWriter) -> None:
        """Note it."""
        writer.note("num_seeds", self.num)

    def saved(self) -> None:
        """Do nothing."""
