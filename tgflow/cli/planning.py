"""What `tgflow plan` does: batches are cut as a world would cut them, and their costs added up."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

import torch

from tgflow.batch import Batch
from tgflow.cli import assemble
from tgflow.cli.errors import DATA, USAGE, CliError
from tgflow.cli.footprint import Measured, misfits, structures
from tgflow.cli.plan_table import print_plan
from tgflow.cli.rank_plan import RankPlan, World
from tgflow.config import Config
from tgflow.distributed.costs import RankCosts, Widths
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel, feature_widths
from tgflow.nn import NodeMemory
from tgflow.nn.history import LINK_WIDTH, ORIGIN_WIDTH, ROWS_PER_EVENT
from tgflow.nn.memory_rows import CLOCK_WIDTH
from tgflow.peers import WorldError
from tgflow.plan.counts import CountHistory
from tgflow.plan.negatives import PairHistory
from tgflow.runtime.model_maker import make_model
from tgflow.schedule import SliceSchedule
from tgflow.train.config import ContinualConfig
from tgflow.train.leaves import Leaves
from tgflow.train.microbatch import PREDICT, MicroBatchPlans
from tgflow.train.plans import micro_batch_plans
from tgflow.train.stepper import kept_past
from tgflow.units import parse_bytes

SLICES = "continual.slices"


def plan_ranks(config: Config, stated: dict[str, Any], world: World, *, as_json: bool) -> None:
    """Read the stream of `config` and print what each rank of a world would do with it.

    Args:
        config: The settings of the run.
        stated: Those that were given: without slices there are as many as ranks.
        world: What is asked about.
        as_json: Print JSON.

    Raises:
        CliError: If there cannot be such a world, or the stream has no events.
    """
    slices = config.continual.slices if SLICES in stated else max(world.size, 1)
    schedule = _schedule(slices, world.size)
    settings = replace(config.continual, slices=slices)
    source = assemble.open_source(config)
    nodes = assemble.open_node_features(config, source.ids)
    graph = assemble.read_graph(config, source, nodes=nodes)
    if not graph.num_events:
        raise CliError(f"{config.stream.path} has no events to plan", DATA)
    edge_x_dim, node_x_dim = feature_widths(graph).values()
    model = make_model(config, settings, edge_x_dim, node_x_dim=node_x_dim)
    found = plan_of(graph, model, settings, schedule, world)
    limit = config.operate.memory_limit
    found = replace(found, stream=config.stream.path, limit=_limit(limit))
    found = replace(found, misfits=_misfits(found))
    if as_json:
        sys.stdout.write(json.dumps(found.to_json(), indent=2) + "\n")
    else:
        print_plan(found)


def plan_of(
    graph: TemporalGraph,
    model: TemporalModel,
    config: ContinualConfig,
    schedule: SliceSchedule,
    world: World,
) -> RankPlan:
    """Return what a world would do with the events of a graph; nothing is learned.

    Args:
        graph: All events of the stream.
        model: What would learn them.
        config: How, with the slices of `schedule`.
        schedule: Slices and ranks.
        world: What else is asked about.
    """
    counts, pairs = CountHistory(graph, model.counts), PairHistory(graph.log)
    plans = micro_batch_plans(graph, model, config, counts=counts, pairs=pairs)
    updates = config.updates if any(p.requires_grad for p in model.parameters()) else 0
    widths = widths_of(graph, model, config, plans.batch(PREDICT, 0, 0))
    costs = RankCosts(schedule, widths)
    indices = _spread(len(plans), world.num_batches)
    for index in indices:
        add_micro_batch(costs, plans, index, updates)
    counts.figures(graph.num_events)
    measured = _measured(graph, model, config, counts, pairs, widths)
    num_events = world.num_events or graph.num_events
    num_nodes = world.num_nodes or round(graph.num_nodes * num_events / graph.num_events)
    here = {"num_events": graph.num_events, "num_nodes": graph.num_nodes}
    there = {"num_events": num_events, "num_nodes": num_nodes}
    return RankPlan(
        stream="",
        **here,
        world=schedule.world,
        slices=schedule.slices,
        batch_size=config.batch_size,
        num_batches=len(indices),
        costs=costs,
        memory=structures(measured, schedule.world, **here),
        scaled_events=num_events,
        scaled_nodes=num_nodes,
        scaled_memory=structures(measured, schedule.world, **there),
        limit=0,
        misfits=(),
    )


def add_micro_batch(costs: RankCosts, plans: MicroBatchPlans, index: int, updates: int) -> None:
    """Add what a micro-batch costs: it is predicted, learned and stored."""
    wanted = range(costs.schedule.slices)
    predicted = plans.predict.share(PREDICT, index, wanted)
    costs.add(
        predicted, [plans.learn.share(update, index, wanted) for update in range(1, updates + 1)]
    )


def widths_of(
    graph: TemporalGraph, model: TemporalModel, config: ContinualConfig, batch: Batch
) -> Widths:
    """Return how wide is what travels; the model is called once, on a batch of the graph."""
    parameters = [each for each in model.parameters() if each.requires_grad]
    leaves = Leaves(parameters, model.marks(), torch.device("cpu"))
    with torch.no_grad():
        model.eval()
        messages = model.messages(batch, model(batch))
    edge = 0 if graph.edge_x is None else 4 * graph.edge_x.dim
    return Widths(
        leaf=leaves.size if parameters else 0,
        leaf_bytes=leaves.dtype.itemsize,
        messages=messages,
        memory=_memory_bytes(model),
        edge=edge,
        event=_log_bytes(graph) + edge,
        with_cut_offs=config.visibility == "batch",
    )


def _schedule(slices: int, world: int) -> SliceSchedule:
    try:
        return SliceSchedule(slices, world)
    except WorldError as error:
        raise CliError(f"--world {world}: {error}", USAGE) from None


def _spread(size: int, wanted: int) -> list[int]:
    """Return `wanted` of the numbers below `size`, in order, spread over them; 0: all."""
    num = size if wanted == 0 else min(wanted, size)
    return [size * i // num for i in range(num)]


def _memory_bytes(model: TemporalModel) -> int:
    """Return the bytes of a node in the model's memory, 0 without."""
    state = model.state
    return 4 * state.table.dim + 8 * CLOCK_WIDTH if isinstance(state, NodeMemory) else 0


def _log_bytes(graph: TemporalGraph) -> int:
    """Return the bytes of an event in the log: source, destination, time and perhaps a label."""
    return 24 if graph.log.read(0, 1).label is None else 32


def _measured(
    graph: TemporalGraph,
    model: TemporalModel,
    config: ContinualConfig,
    counts: CountHistory,
    pairs: PairHistory,
    widths: Widths,
) -> Measured:
    size = graph.num_events
    index = pairs.upto(size)
    past = ROWS_PER_EVENT * kept_past(config) if widths.memory else 0
    return Measured(
        num_events=size,
        num_nodes=graph.num_nodes,
        num_destinations=index.num_destinations(size),
        num_pairs=index.num_pairs(size),
        store_bytes=graph.stats().bytes,
        count_bytes=counts.nbytes if model.counts else 0,
        memory_bytes=widths.memory,
        past_bytes=past * (widths.memory + 8 * (LINK_WIDTH + ORIGIN_WIDTH)),
        edge_bytes=widths.edge,
        parameter_bytes=sum(each.nbytes for each in model.parameters()),
        log_bytes=_log_bytes(graph),
    )


def _limit(given: int | str | None) -> int:
    """Return the bytes that a rank may have: what was given, or what this machine has."""
    if given is not None:
        return parse_bytes(given)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _misfits(plan: RankPlan) -> list[str]:
    return misfits(
        plan.scaled_memory,
        num_events=plan.scaled_events,
        num_nodes=plan.scaled_nodes,
        limit=plan.limit,
    )
