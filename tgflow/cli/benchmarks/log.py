"""Benchmark of the memory of a rank while its log grows."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tgflow.base.peers import Shard
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from tgflow.checkpoint.sections import Ids
from tgflow.cli.benchmarks.row import Row
from tgflow.cli.benchmarks.setup import Options, PowerLaw
from tgflow.graph import EventLog, TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.graph.ids import NodeIds
from tgflow.plan import ExperienceReplay
from tgflow.plan.negatives import PairHistory
from tgflow.run.machine import anonymous_bytes
from tgflow.train.trainer_state import save_graph

PIECE = EventLog.piece
SIZES, QUICK_SIZES = tuple(PIECE * 4**i for i in range(1, 4)), (2 * PIECE, 4 * PIECE)
WORLD, BATCH, NODE_EVENTS = 16, 1 << 17, 20
NODES = 100_000
"""Nodes that are active; older ones are replaced by new ones as the stream goes on."""
ACTIVE = 1 << 22
"""Events after which all active nodes are others."""


def log(options: Options) -> list[Row]:
    """Return the memory of rank 0 of 16 by events in its log, mapped and in memory.

    The rank has ids, log, destinations and the neighbors of its nodes, the latest 20 of each; it
    draws replay, and takes a checkpoint per segment of the log.
    """
    sizes = tuple(sorted(options.entries)) or (QUICK_SIZES if options.quick else SIZES)
    options.say("log in memory")
    held = _grown_apart(sizes, None)
    options.say("log mapped")
    with tempfile.TemporaryDirectory(prefix="tgflow-bench-") as directory:
        mapped = _grown_apart(sizes, Path(directory))
    return [
        Row(
            "memory of a rank",
            mapped[i] / 1e6,
            "MB",
            {"events": size, "ranks": WORLD},
            baseline=held[i] / 1e6,
        )
        for i, size in enumerate(sizes)
    ]


def _grown_apart(sizes: Sequence[int], directory: Path | None) -> list[int]:
    """Return the result of `_grown` in a new process, which has no memory of others."""
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:
        return apart.submit(_grown, sizes, directory).result()


def _grown(sizes: Sequence[int], directory: Path | None) -> list[int]:
    """Return the bytes of memory that a rank takes at each number of events."""
    gc.collect()
    start, found = anonymous_bytes(), []
    stream, replay = PowerLaw(NODES), ExperienceReplay(0.5)
    graph, ids = TemporalGraph(shard=Shard(0, WORLD)), NodeIds()
    pairs = PairHistory(graph.log)
    writer = None if directory is None else CheckpointWriter(CheckpointStore(directory))
    saved = 0
    for size in sizes:
        while graph.num_events < size:
            at = graph.num_events
            events = stream.read(at, min(at + BATCH, size))
            names = (x + at // ACTIVE * NODES for x in (events.src, events.dst))
            src, dst = ids.encode(*names)
            graph.append(EventBatch(src, dst, events.t))
            graph.log.gather(replay.draw(1, graph.num_events, 1_000))
            pairs.upto(graph.num_events)
            if graph.num_events - saved >= PIECE:
                saved = graph.num_events
                graph.retain(max_count=NODE_EVENTS)
                graph.compact()
                if writer is not None:
                    checkpoint = Checkpoint({})
                    save_graph(checkpoint, graph, saved)
                    Ids(ids).save(checkpoint)
                    writer.submit(saved, checkpoint)
                    writer.wait()
        found.append(anonymous_bytes() - start)
    return found
