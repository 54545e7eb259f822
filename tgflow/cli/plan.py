"""`tgflow plan`: load and memory of each rank, and exceeded limits."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from tgflow.cli.errors import USAGE, CliError
from tgflow.cli.options import STREAM_OF_FILES, Json, with_config
from tgflow.report.formatting import compact, num_bytes
from tgflow.report.table_text import print_table
from tgflow.run.config import Config

if TYPE_CHECKING:
    from tgflow.base.slice_schedule import SliceSchedule
    from tgflow.graph import TemporalGraph
    from tgflow.nn.model import TemporalModel
    from tgflow.train.config import ContinualConfig

SETTINGS = (*STREAM_OF_FILES, "graph", "model", "continual", "operate.memory_limit")
WORLD = "World"
HEAD_BYTES, ID_BYTES, INDEX_BYTES = 8, 8, 12
"""Bytes per node: the head of its neighbors; an integer id; at most its entry in a hash table."""
DESTINATION_BYTES, PAIR_BYTES = 24, 24
"""Bytes per destination: first event, and entry in an index by node; per pair: entry in a table."""
MARKS_PER_BYTE = 7
"""Events per byte of marks of the first event of each pair."""
SOURCE_BYTES = 12
"""Bytes per event in lists by source, which negatives of kind source read."""
EVENT_BYTES = 24
"""Bytes per event in the log: source, destination and time; a label adds 8, a weight 4."""
RELATION_BYTES = 2
"""Bytes per event that has a relation: of samplers."""
UNMAPPED = 2
"""Segments of events or ids in memory: those since the last checkpoint, and an incomplete one."""
MAX_EVENTS, MAX_NODES = 2**34, 2**31 - 1


class Structure(NamedTuple):
    """Memory of one data structure on the rank that holds most of it."""

    name: str
    replicated: int
    """Bytes if every rank holds all of it."""
    sharded: int | None = None
    """Bytes if every rank holds its shard; None: it cannot be sharded."""
    rank_0_only: bool = False
    mapped: int = 0
    """Further bytes in files of checkpoints, of which memory holds the pages that are read."""

    @property
    def least(self) -> int:
        return self.replicated if self.sharded is None else self.sharded


@with_config(SETTINGS)
def plan(
    config: Config,
    stated: dict[str, Any],
    *,
    world: Annotated[
        int,
        typer.Option("--world", help="Ranks, 1 to 64.", rich_help_panel=WORLD, show_default=False),
    ],
    events: Annotated[
        float | None,
        typer.Option(
            "--events",
            help="Scale memory to this number of events, such as 1e10.",
            min=1,
            rich_help_panel=WORLD,
        ),
    ] = None,
    nodes: Annotated[
        float | None,
        typer.Option(
            "--nodes",
            help="Also to this number of nodes; unset: in proportion to --events.",
            min=1,
            rich_help_panel=WORLD,
        ),
    ] = None,
    batches: Annotated[
        int,
        typer.Option(
            "--batches",
            help="Micro-batches to sample, evenly spaced; 0: all.",
            min=0,
            rich_help_panel=WORLD,
        ),
    ] = 100,
    json: Json = False,
) -> None:
    """Estimate the load and memory of each rank from the stream, without training.

    The rows of a batch that a rank computes follow from the stream and the settings, so they are
    counted batch by batch, and nothing is trained. Graph and memory may be replicated or sharded:
    both are shown. The log and ids are mapped from the files of checkpoints. With --events and
    --nodes the memory is scaled to a larger stream of the same kind. What exceeds --memory-limit,
    or the memory of this machine, is listed.

    [bold]Examples[/bold]

      tgflow plan --data examples/data/collegemsg.csv.gz --world 4 --batch-size 1000
      tgflow plan --data wikipedia.csv.gz --world 16 --events 1e10 --nodes 1e9 --mrr-negatives 1
      tgflow plan --data u.csv --world 8 --batches 0 --json | jq .loads
    """
    from tgflow.base.peers import WorldError
    from tgflow.base.slice_schedule import SliceSchedule
    from tgflow.cli import inputs as assemble
    from tgflow.nn.model import feature_widths
    from tgflow.run.model_maker import make_model
    from tgflow.train.plans import negatives_learned

    slices = config.continual.slices if "continual.slices" in stated else max(world, 1)
    try:
        schedule = SliceSchedule(slices, world)
    except WorldError as error:
        raise CliError(f"--world {world}: {error}", USAGE) from None
    settings = replace(config.continual, slices=slices)
    source = assemble.open_source(config)
    node_features = assemble.open_node_features(config, source.ids)
    graph = assemble.read_graph(config, source, nodes=node_features)
    edge_x_dim, node_x_dim = feature_widths(graph).values()
    model = make_model(config, settings, edge_x_dim, node_x_dim=node_x_dim)
    num_batches, loads, count_bytes = _loads(graph, model, settings, schedule, batches)
    num_events = graph.num_events if events is None else round(events)
    scaled = graph.num_nodes * num_events / graph.num_events
    num_nodes = round(scaled if nodes is None else nodes)
    memory = _structures(graph, model, settings, count_bytes, world, num_events, num_nodes)
    limit = config.operate.memory_bytes
    if limit is None:  # the installed memory
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = {
        "stream": config.stream.path,
        "world": world,
        "slices": slices,
        "slices_of_rank": [[*schedule.slices_of(rank)] for rank in range(world)],
        "batch_size": settings.batch_size,
        "negatives": negatives_learned(model, settings),
        "num_batches": num_batches,
        "num_events": num_events,
        "num_nodes": num_nodes,
        "loads": loads,
        "memory": [each._asdict() for each in memory],
        "limit": limit,
        "misfits": [*_misfits(memory, num_events, num_nodes, limit)],
    }
    if json:
        sys.stdout.write(jsonlib.dumps(found, indent=2) + "\n")
    else:
        _print(found, memory)


def _loads(
    graph: TemporalGraph,
    model: TemporalModel,
    config: ContinualConfig,
    schedule: SliceSchedule,
    num_batches: int,
) -> tuple[int, dict[str, list[int]], int]:
    """Return the number of micro-batches, their loads by kind and rank, and bytes of counts."""
    from tgflow.plan.count_lookup import CountHistory
    from tgflow.train.plans import PREDICT, micro_batch_plans

    counts = CountHistory(graph, model.counts)
    plans = micro_batch_plans(graph, model, config, counts=counts)
    updates = config.updates if any(p.requires_grad for p in model.parameters()) else 0
    size, slices = len(plans), range(schedule.slices)
    num = size if num_batches == 0 else min(num_batches, size)
    loads = {name: [0] * schedule.world for name in ("rows", "inputs", "neighbors")}
    for index in (size * i // num for i in range(num)):
        shares = [plans.predict.share(PREDICT, index, slices)]
        shares += [plans.learn.share(each, index, slices) for each in range(1, updates + 1)]
        for rank in range(schedule.world):
            for batch in (share.slices[n] for share in shares for n in schedule.slices_of(rank)):
                loads["rows"][rank] += len(batch)
                loads["inputs"][rank] += len(batch.nodes)
                loads["neighbors"][rank] += sum(int(block.mask.sum()) for block in batch.blocks)
    counts.figures(graph.num_events)
    return num, loads, counts.nbytes if model.counts else 0


def _structures(
    graph: TemporalGraph,
    model: TemporalModel,
    config: ContinualConfig,
    count_bytes: int,
    world: int,
    num_events: int,
    num_nodes: int,
) -> list[Structure]:
    """Return the memory of a rank, for a stream like `graph` scaled to the given size."""
    from tgflow.checkpoint.sections import ID_PIECE
    from tgflow.nn import NodeMemory
    from tgflow.nn.history import LINK_WIDTH, ORIGIN_WIDTH, ROWS_PER_EVENT
    from tgflow.nn.memory import CLOCK_WIDTH
    from tgflow.plan.negatives import PairHistory
    from tgflow.train.config import parse_negatives
    from tgflow.train.plans import negatives_learned
    from tgflow.train.stepper import kept_past
    from tgflow.train.trainer_state import PIECE

    size = graph.num_events
    by_events, by_nodes = num_events / size, num_nodes / graph.num_nodes
    learned = parse_negatives(negatives_learned(model, config))
    draws_pairs = config.hist_negatives or learned.get("historical")
    pairs = PairHistory(graph.log).upto(size, pairs=bool(draws_pairs))
    num_pairs = pairs.num_pairs(size) if draws_pairs else 0
    destinations = DESTINATION_BYTES * pairs.num_destinations(size) * by_nodes
    state = model.state
    row = 4 * state.table.dim + 8 * CLOCK_WIDTH if isinstance(state, NodeMemory) else 0
    past = ROWS_PER_EVENT * kept_past(config) * (row + 8 * (LINK_WIDTH + ORIGIN_WIDTH))
    heads = HEAD_BYTES * graph.num_nodes
    neighbors = (graph.stats().bytes - heads) * by_events + HEAD_BYTES * num_nodes
    first = graph.log.read(0, 1)
    optional = (first.relation, first.label, first.weight)
    event = EVENT_BYTES + sum(each.itemsize for each in optional if each is not None)
    relations = 0 if first.relation is None else RELATION_BYTES * num_events
    edge = 0 if graph.edge_x is None else 4 * graph.edge_x.dim
    parameters = sum(each.nbytes for each in model.parameters())

    def shards(name: str, amount: float) -> Structure:
        return Structure(name, round(amount), -(-round(amount) // world))

    found = [
        Structure(
            "event log",
            event * min(num_events, UNMAPPED * PIECE) + relations,
            mapped=event * num_events,
        ),
        Structure("destinations", round(destinations)),
        shards("distinct pairs", PAIR_BYTES * num_pairs * by_events),
        Structure("marks of pairs", num_events // MARKS_PER_BYTE if draws_pairs else 0),
        shards("counts of pairs", count_bytes * by_events),
        Structure(
            "sources' destinations", SOURCE_BYTES * num_events if learned.get("source") else 0
        ),
        Structure("edge features", edge * num_events),
        Structure("parameters and optimizer", 4 * parameters),
        Structure(
            "node ids",
            INDEX_BYTES * num_nodes + ID_BYTES * min(num_nodes, UNMAPPED * ID_PIECE),
            rank_0_only=True,
            mapped=ID_BYTES * num_nodes,
        ),
        shards("neighbors", neighbors),
        shards("node memory", row * num_nodes + (past if row else 0)),
    ]
    return [each for each in found if each.replicated]


def _misfits(
    memory: Sequence[Structure], num_events: int, num_nodes: int, limit: int
) -> Iterator[str]:
    """Yield a sentence for each limit that is exceeded even with sharding."""
    if num_events > MAX_EVENTS:
        yield (
            f"a log holds at most 2^34 events ({MAX_EVENTS / 1e9:.1f} thousand million), got "
            f"{num_events / 1e9:.3g} thousand million"
        )
    if num_nodes > MAX_NODES:
        yield f"there can be at most 2^31 - 1 nodes, got {num_nodes:.3g}"
    least = sum(each.least for each in memory)
    if least > limit:
        yield f"rank 0 needs {num_bytes(least)} with sharding, and has {num_bytes(limit)}; largest:"
        for each in sorted(memory, key=lambda each: each.least, reverse=True):
            if each.least > limit / len(memory):
                where = "on rank 0" if each.rank_0_only else "on every rank"
                how = f"all of it {where}" if each.sharded is None else "a shard on each rank"
                yield f"{each.name}: {num_bytes(each.least)}, {how}"


def _print(found: Mapping[str, Any], memory: Sequence[Structure]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    title = (
        f"{found['stream']}: {compact(found['num_events'])} events, "
        f"{compact(found['num_nodes'])} nodes; {found['world']} ranks, {found['slices']} slices; "
        f"{found['num_batches']} micro-batches of {found['batch_size']}, "
        f"learned from {found['negatives']}"
    )
    console.print(escape(title), style="bold")
    slices = [len(each) for each in found["slices_of_rank"]]
    rows = [_load("slices", slices, 1)]
    rows += [_load(name, each, found["num_batches"]) for name, each in found["loads"].items()]
    print_table(("load of a rank and micro-batch", "mean", "max", "max/mean"), rows)
    console.print()
    cells = [
        (each.name + " (rank 0)" * each.rank_0_only, num_bytes(each.replicated),
         "" if each.sharded is None else num_bytes(each.sharded),
         num_bytes(each.mapped) if each.mapped else "")
        for each in memory
    ]  # fmt: skip
    replicated, least = sum(m.replicated for m in memory), sum(m.least for m in memory)
    mapped = sum(m.mapped for m in memory)
    cells.append(("total, rank 0", num_bytes(replicated), num_bytes(least), num_bytes(mapped)))
    print_table(("memory of a rank", "replicated", "sharded", "mapped"), cells)
    console.print()
    if found["misfits"]:
        console.print("does not fit:")
        for text in found["misfits"]:
            console.print(f"  {escape(text)}")
    else:
        form = "replicated" if replicated <= found["limit"] else "sharded"
        console.print(f"fits in {num_bytes(found['limit'])} a rank, {form}")


def _load(name: str, totals: Sequence[int], num_batches: int) -> list[str]:
    mean, most = sum(totals) / len(totals), max(totals)
    ratio = f"{most / mean:.2f}" if mean else "1.00"
    return [name, compact(mean / num_batches), compact(most / num_batches), ratio]
