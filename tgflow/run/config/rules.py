"""Rules between settings: combinations that a command refuses before anything is created."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from tgflow.base.units import parse_bytes
from tgflow.run.config.load import ConfigError
from tgflow.run.config.schema import FILED, Config, LabelsConfig, StreamConfig
from tgflow.streams.files.reader import is_pipe
from tgflow.streams.transports import Transport, find_transport

Command = Literal["run", "train", "compare", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """How a command was started, and the transport of a stream that it learns as it arrives."""

    command: Command
    live: bool
    world: int
    resumed: bool
    transport: Transport | None

    @property
    def other(self) -> Command:
        return "run" if self.command == "train" else "train"

    @property
    def allowing(self) -> str:
        return " --allow-config-change" if self.resumed and self.command == "run" else ""


CONCERNS: Mapping[str, Callable[[Invocation], object]] = {
    "all": lambda by: True,
    "learning": lambda by: by.command != "info",
    "live": lambda by: by.live,
    "endless": lambda by: by.transport and not by.transport.ends,
    "transport": lambda by: by.transport,
    "run": lambda by: by.command == "run",
    "run, train": lambda by: by.command in ("run", "train"),
    "run, compare": lambda by: by.command in ("run", "compare"),
    "compare": lambda by: by.command == "compare",
    "ranks": lambda by: by.world > 1,
}
"""Invocations that a rule concerns, by the first column of `RULES`."""

RULES: tuple[tuple[str, Callable[[Config, Invocation], object], str], ...] = (
    ("run, train", lambda c, by: c.learning.protocol and c.is_offline == by.live,
     "--protocol {c.learning.protocol} is for tgflow {by.other}; leave it out, or use that"),
    # Stream and order
    ("live", lambda c, by: min(c.order.timeouts()) < inf and not c.checkpoint.log,
     "--idle-timeout and --order-timeout require the log, which records what they release; leave "
     "out --no-log"),
    ("live", lambda c, by: c.stream.sort and c.stream.follow,
     "--sort: a file that is followed has no end; use --allowed-lateness"),
    ("live", lambda c, by: c.stream.follow and (by.transport or is_pipe(c.stream.path)),
     "--follow requires files or folders; leave it out"),
    ("endless", lambda c, by: c.stream.sort,
     "--sort: a topic has no end to wait for; use --allowed-lateness"),
    ("live", lambda c, by: c.stream.sort and (
        c.order.allowed_lateness or c.order.late != "error" or min(c.order.timeouts()) < inf),
     "--sort sorts all events, so none is late; leave out --sort, or else --allowed-lateness, "
     "--late, --idle-timeout and --order-timeout"),
    ("live", lambda c, by: c.order.dedup_window and c.stream.event_id is None,
     "--set order.dedup_window requires event ids: --event-id COLUMN"),
    ("transport", lambda c, by: c.stream.categorical is not None,
     "--categorical is for files; convert the values before they are published"),
    ("live", lambda c, by: c.graph.horizon and (c.order.max_time_jump == "none" or (
        c.order.max_time_jump is None and not by.transport and not c.stream.follow)),
     "--horizon: one event of a far year would let it forget all others; give the largest jump of "
     "time that is right, --max-time-jump 1d"),
    ("learning", lambda c, by: not by.live and (c.graph.horizon or c.graph.horizon_events),
     "--horizon and --horizon-events are for learning online; use tgflow run"),
    ("learning", lambda c, by: c.graph.table == "disk" and by.command != "run",
     "--graph-table disk is for runs, which have a directory for its files; use tgflow run"),
    ("run", lambda c, by: c.graph.table == "disk" and c.has_gpu_graph,
     "--graph-table disk: the graph is in the GPU's memory, and older neighbors with "
     "--set graph.device_budget in host memory; leave it out"),
    # Features and their tables
    ("all", lambda c, by: c.graph.node_columns and c.graph.node_features is None,
     "--node-columns requires --node-features nodes.parquet"),
    ("all", lambda c, by: c.graph.node_side and c.graph.node_features is None,
     "--set graph.node_side requires --node-features nodes.parquet"),
    ("learning", lambda c, by: c.graph.device_budget is not None and c.run.device == "cpu",
     "--set graph.device_budget requires --device cuda"),
    ("learning", lambda c, by: c.tables.edge_budget and c.placement != "auto",
     "--set tables.edge_budget requires --edge-table auto, got {c.placement}"),
    ("learning", lambda c, by: c.tables.edge_path and c.placement not in FILED,
     "--edge-path requires --edge-table disk or auto, got {c.placement}"),
    ("learning", lambda c, by: c.tables.cache_policy and not c.tables.edge_cache,
     "--set tables.cache_policy requires a cache: --edge-cache 256MiB"),
    ("learning", lambda c, by: c.tables.cache_policy and c.has_gpu_graph,
     "--set tables.cache_policy={c.tables.cache_policy}: leave it out, a GPU always uses clock"),
    ("live", lambda c, by: c.tables.cache_policy == "belady",
     "--set tables.cache_policy=belady plans future reads, and a live stream has no known ones; "
     "use lru, lfu or fifo (tgflow train supports belady)"),
    ("live", lambda c, by: c.tables.edge_cache and c.tables.edge_cache.endswith("%"),
     "--edge-cache {c.tables.edge_cache}: a percentage needs a known number of rows; for a stream "
     "give a size such as 256MiB"),
    ("live", lambda c, by: c.tables.edge_cache and c.operate.memory_bytes is not None
     and parse_bytes(c.tables.edge_cache) >= c.operate.memory_bytes,
     "--edge-cache {c.tables.edge_cache}: the cache would take all of --memory-limit "
     "{c.operate.memory_limit}; give it less"),
    ("learning", lambda c, by: c.tables.edge_cache and c.placement not in FILED
     and not c.has_gpu_graph,
     "--edge-cache: a cache in host memory slows reads of --edge-table {c.placement}; add "
     "--edge-table disk, or leave it out"),
    # Tasks
    ("learning", lambda c, by: c.task.target not in (None, c.stream.label),
     "label and target name two columns, {c.stream.label} and {c.task.target}: give target alone "
     "(--target)"),
    ("all", lambda c, by: by.command != "info" and not c.stream.label and not c.task.node_labels
     and (c.stream.positive_label or c.stream.unknown_label),
     "--positive-label and --unknown-label are for labels: name their column (--target)"),
    ("run", lambda c, by: c.labels.are_given and not c.task.has_decoder,
     "--label-stream and --label-token need a task with labels of events: --task edge --target "
     "COLUMN"),
    ("run", lambda c, by: c.labels.are_given and c.task.label_delay is not None,
     "--label-delay is for labels that the events have; those that come later have times of their "
     "own: leave it out"),
    ("run", lambda c, by: c.labels.token is not None and c.serve.at is None,
     "--label-token is for POST /labels of a served run: --serve PORT"),
    ("run", lambda c, by: not c.checkpoint.log and (c.labels.token is not None
     or (c.labels.stream and comes_live(c.stream, c.labels))),
     "labels that are placed as they arrive require the log, which records where; leave out "
     "--no-log"),
    ("run", lambda c, by: c.labels.are_given and c.has_label_ids and not c.order.dedup_window,
     "--set order.dedup_window=0 forgets ids that labels name; leave it out, or pass --set "
     "labels.by=edge"),
    ("run", lambda c, by: c.labels.by == "id" and c.stream.event_id is None,
     "--set labels.by=id requires event ids: --event-id COLUMN"),
    ("ranks", lambda c, by: c.labels.are_given,
     "--label-stream and --label-token require a single process; leave out --nproc"),
    ("run, compare", lambda c, by: c.task.node_labels,
     "--node-labels is measured at the end of a training; use tgflow train"),
    ("run", lambda c, by: c.task.freeze and c.start.init_from is None,
     "--freeze requires a model that has learned links: --init-from RUN"),
    # Comparisons
    ("compare", lambda c, by: c.stream.path and is_pipe(c.stream.path)
     and (c.compare.preset != "none" or c.compare.frozen_at is not None),
     "compare reads the stream twice: write the pipe to a file first"),
    ("compare", lambda c, by: c.task.freeze,
     "--freeze is for one model: use tgflow train, or run with --init-from"),
    ("compare", lambda c, by: c.compare.frozen_at is not None and not by.live,
     "--frozen-at: --protocol {c.learning.protocol} trains offline; leave one out"),
    ("compare", lambda c, by: c.compare.cut_at_steps and not by.live,
     "--cut-at-steps: --protocol {c.learning.protocol} trains offline; leave one out"),
    # Ranks
    ("ranks", lambda c, by: c.serve.at is not None,
     "--serve requires a single process with the whole model; leave out --nproc, or serve the "
     "checkpoints of the run: tgflow serve RUN"),
    ("ranks", lambda c, by: c.learning.slices < by.world,
     "--slices: a batch has {c.learning.slices}, so at most {c.learning.slices} of {by.world} "
     "ranks can share it; start {c.learning.slices}, or pass --slices {by.world}{by.allowing}"),
    ("ranks", lambda c, by: c.tables.cache_policy == "belady",
     "--set tables.cache_policy=belady supports one process; use lru"),
    ("ranks", lambda c, by: c.graph.node_types is not None,
     "--node-types requires node names, which only rank 0 has; leave out --nproc"),
    ("ranks", lambda c, by: not by.live and c.learning.fixed_negatives is not None,
     "--fixed-negatives requires node names, which only rank 0 has; leave out --nproc"),
    *((("ranks"), lambda c, by, what=what: not by.live and getattr(c.ranks, what) == "sharded",
       f'[ranks] {what} = "sharded": offline training has all of it on every rank; leave it out '
       "of the file, or use tgflow run") for what in ("graph", "memory")),
    *((("ranks"), lambda c, by, what=what: getattr(c.ranks, what) == "sharded"
       and c.run.device != "cpu",
       f"--rank-{what}: sharded is for models on the CPU, and --device is {{c.run.device}}; use "
       "replicated") for what in ("graph", "memory")),
)  # fmt: skip
"""Invocations that are concerned, the combination that is refused, and the message."""


def comes_live(stream: StreamConfig, labels: LabelsConfig) -> bool:
    """Return whether labels are placed as they arrive, for want of an end to read up to."""
    paths = [path for path in (stream.path, labels.stream) if path]
    if stream.follow or any(is_pipe(path) for path in paths):
        return True
    return any(find_transport(path) is not None for path in paths)


def check_rules(config: Config, command: Command, world: int = 1, *, resumed: bool = False) -> None:
    """Raise `ConfigError` for the first rule that the settings of a command break."""
    live = command == "run" or (command == "compare" and not config.is_offline)
    try:
        transport = find_transport(config.stream.path) if live else None
    except ValueError as error:
        raise ConfigError(f"--stream: {error}") from None
    by = Invocation(command=command, live=live, world=world, resumed=resumed, transport=transport)
    for where, is_refused, text in RULES:
        if CONCERNS[where](by) and is_refused(config, by):
            raise ConfigError(text.format(c=config, by=by))
