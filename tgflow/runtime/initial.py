"""What a run begins with, if another one has learned something before: model, events and ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tgflow.checkpoint import Checkpoint
from tgflow.checkpoint.parts import Ids
from tgflow.config import Config, ConfigError, replaced
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.runtime.opened_run import find_checkpoint, saved_model
from tgflow.runtime.restore import Start
from tgflow.streams.ingest.config import BEFORE_ALL
from tgflow.streams.ingest.state import IngestState


def find_initial(config: Config, world: int = 1) -> Checkpoint | None:
    """Return the checkpoint of the run that this one begins with; None if it begins with nothing.

    Args:
        config: The settings.
        world: How many ranks begin.

    Raises:
        ConfigError: If there are several: they can resume, and not begin so.
        FileNotFoundError: If there is no such run, or it has no checkpoint.
        CheckpointError: If it cannot be used.
    """
    path = config.start.init_from
    if path is None:
        return None
    if world > 1:
        raise ConfigError(
            "--init-from: one process begins with what another run has left; leave out --nproc, "
            "and resume with as many ranks as you like once there is a checkpoint"
        )
    return find_checkpoint(path)[1]


def with_initial_model(config: Config, stated: Mapping[str, Any]) -> Config:
    """Return settings with those of the model that a run begins with, where nothing else is said.

    Args:
        config: The settings.
        stated: Those that somebody asked for, by "section.key".
    """
    initial = find_initial(config)
    if initial is None:
        return config
    found = {key: value for key, value in saved_model(initial).items() if key not in stated}
    return replaced(config, found)


def start_of(initial: Checkpoint, graph: TemporalGraph, direction: str) -> Start:
    """Return where ingestion begins, whose events follow those of another run.

    Args:
        initial: Of the other run.
        graph: With its events.
        direction: How events become edges here.

    Raises:
        ConfigError: If they became other edges there.
    """
    if graph.direction != direction:
        raise ConfigError(
            f"--init-from: events are {graph.direction} there, and {direction} here; give both the "
            "same --direction"
        )
    ids = NodeIds()
    Ids(ids).load(initial)
    last = BEFORE_ALL if graph.log.t_last is None else graph.log.t_last
    num = graph.num_events
    return Start(ids, IngestState(num_released=num, watermark=last, last_t=last), history=num)
