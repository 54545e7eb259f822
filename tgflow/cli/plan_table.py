"""What `tgflow plan` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.console import Console
from rich.markup import escape

from tgflow.cli.footprint import Structure, total_bytes
from tgflow.cli.rank_plan import RankPlan
from tgflow.report.formatting import compact, num_bytes
from tgflow.report.table_text import print_table

LOADS = {
    "rows": "rows of batches",
    "queries": "queries for neighbors",
    "inputs": "input rows",
    "edges": "rows of edge features",
}
KINDS = {
    "gradient": "always",
    "scores": "always, to rank 0",
    "feed": "always, by rank 0",
    "step": "always, headers",
    "rows": "memory replicated",
    "memory queries": "memory sharded",
    "memory rows": "memory sharded",
    "memory clocks": "memory sharded",
    "memory stored": "memory sharded",
    "queries": "graph sharded",
    "answers": "graph sharded",
    "edge rows": "edge rows sharded",
    "turns": "any of it sharded, at most",
}
"""What is sent, and where."""


def print_plan(plan: RankPlan) -> None:
    """Print loads, bytes and memory of the ranks, and what does not fit."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(escape(_title(plan)), style="bold")
    print_table(_header("a rank and micro-batch", plan.world), [*_loads(plan)])
    console.print()
    print_table(
        ("bytes that a rank sends", "where", *_header("", plan.world)[1:]),
        [*_sent(plan)],
        left=(0, 1),
    )
    console.print()
    print_table(_memory_header(plan), [*_memory(plan)])
    console.print()
    for line in _verdict(plan):
        console.print(escape(line))


def _title(plan: RankPlan) -> str:
    return (
        f"{plan.stream}: {plan.num_events:,} events, {plan.num_nodes:,} nodes; {plan.world} ranks, "
        f"{plan.slices} slices; {plan.num_batches} micro-batches of {plan.batch_size}"
    )


def _header(first: str, world: int) -> tuple[str, ...]:
    return (first, "mean", "max", "max/mean") if world > 1 else (first, "mean")


def _loads(plan: RankPlan) -> Iterator[Sequence[str]]:
    costs = plan.costs
    slices = [len(costs.schedule.slices_of(rank)) for rank in range(plan.world)]
    mean = sum(slices) / plan.world
    yield _cells("slices", [compact(mean)], [compact(max(slices))], max(slices) / mean, plan)
    for name, title in LOADS.items():
        if name in costs.loads:
            mean, most = _mean_and_max(costs.loads[name], plan)
            yield _cells(title, [compact(mean)], [compact(most)], most / mean if mean else 1, plan)


def _sent(plan: RankPlan) -> Iterator[Sequence[str]]:
    for name, where in KINDS.items():
        sent = plan.costs.sent.get(name)
        if sent is not None and any(sent):
            mean, most = _mean_and_max(sent, plan)
            columns = [where, num_bytes(mean)]
            yield _cells(name, columns, [num_bytes(most)], most / mean, plan)


def _mean_and_max(totals: Sequence[int], plan: RankPlan) -> tuple[float, float]:
    return sum(totals) / len(totals) / plan.num_batches, max(totals) / plan.num_batches


def _cells(
    name: str, mean: Sequence[str], most: Sequence[str], ratio: float, plan: RankPlan
) -> Sequence[str]:
    return (name, *mean, *most, f"{ratio:.2f}") if plan.world > 1 else (name, *mean)


def _memory_header(plan: RankPlan) -> Sequence[str]:
    header = ["memory of a rank", "replicated", "sharded"]
    if _is_scaled(plan):
        size = f"{compact(plan.scaled_events)} events, {compact(plan.scaled_nodes)} nodes"
        header += [f"{size}: replicated", "sharded"]
    return header


def _is_scaled(plan: RankPlan) -> bool:
    return (plan.scaled_events, plan.scaled_nodes) != (plan.num_events, plan.num_nodes)


def _memory(plan: RankPlan) -> Iterator[Sequence[str]]:
    scaled = plan.scaled_memory if _is_scaled(plan) else ()
    for here, there in zip_longest(plan.memory, scaled):
        note = " (rank 0)" if here.is_rank_0_only else ""
        yield [here.name + note, *_both(here), *([] if there is None else _both(there))]
    totals = [plan.memory, *([scaled] if scaled else [])]
    yield [
        "in all, rank 0",
        *(num_bytes(total_bytes(each, sharded=s)) for each in totals for s in (False, True)),
    ]


def _both(each: Structure) -> list[str]:
    return [num_bytes(each.whole), "" if each.shard is None else num_bytes(each.shard)]


def _verdict(plan: RankPlan) -> Iterator[str]:
    """Yield what does not fit; or in which form it does."""
    if plan.misfits:
        yield "does not fit:"
        yield from (f"  {text}" for text in plan.misfits)
        return
    replicated = total_bytes(plan.scaled_memory, sharded=False)
    form = "replicated" if replicated <= plan.limit else "sharded"
    yield f"fits in {num_bytes(plan.limit)} a rank, {form}"
