"""How much of what a model gathers a cache holds, under every policy and at every size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tgflow.bench.cache_trace import MODELS, TGN, Model, Trace, plan_of, replay, traces
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.events import EventBatch
from tgflow.report.chart import Chart, Line
from tgflow.report.formatting import compact
from tgflow.report.svg import render_svg

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
LONG_SHARES = (0.02, 0.05, 0.1, 0.2)
"""Of models whose batches read far."""
QUICK_SHARES = (0.005, 0.1)
WIDTHS = (100, 172)
POLICIES = ("lru", "lfu", "fifo", "static", "belady-256", "belady")
HIT_RATE = "hit rate"


def run(options: Options) -> list[Row]:
    """Replay each stream's batches under every policy, at every size."""
    rows: list[Row] = []
    for name, events in options.streams().items():
        for model in MODELS:
            rows += model_rows(name, events, model, options)
    return rows


def model_rows(name: str, events: EventBatch, model: Model, options: Options) -> Iterator[Row]:
    """Hit rates of what a model reads of edges and nodes."""
    for trace, params in named_traces(name, events, model, options):
        yield from replay_rows(trace, params, _shares(model, options))


def named_traces(
    name: str, events: EventBatch, model: Model, options: Options
) -> Iterator[tuple[Trace, Params]]:
    """Yield what a model reads, of edges and of nodes, and what rows say of it."""
    options.say(f"cache: the batches of {name}, {model.note}")
    plan = plan_of(model, events, quick=options.quick)
    params: Params = {"stream": name, "model": model.note, "batches": len(plan)}
    for trace in traces(plan):
        options.say(f"cache: {trace.kind} of {name}, {model.note}")
        yield trace, params


def _shares(model: Model, options: Options) -> tuple[float, ...]:
    if options.quick:
        return QUICK_SHARES
    return SHARES if model is TGN else LONG_SHARES


def replay_rows(trace: Trace, of: Params, shares: Sequence[float]) -> Iterator[Row]:
    """Hit rates by size.

    Which rows are held does not depend on how wide they are: widths are for the bytes.
    """
    for share in shares:
        capacity = max(round(share * trace.num_rows), 1)
        for policy in POLICIES:
            counters = replay(trace, capacity, policy).counters
            params: Params = {
                **of,
                "rows of": trace.kind,
                "share": share,
                "rows": capacity,
                "policy": policy,
            }
            for dim in WIDTHS:
                read = counters.misses * 4 * dim
                params[f"GB read at {dim}"] = round(read / 1e9, 3)
            yield Row("cache", counters.hit_rate, HIT_RATE, params)


def draw(rows: Sequence[Row]) -> str:
    """Return hit rate against size as SVG: a chart for each stream, model and kind of rows."""
    cached = [row for row in rows if row.name == "cache"]
    keys = ("stream", "model", "rows of")
    kinds = dict.fromkeys(tuple(row.params[key] for key in keys) for row in cached)
    charts = [
        Chart(
            title=f"{kind[0]}: rows of {kind[2]}",
            note=f"hit rate; batches of 200 events, {kind[1]}",
            lines=[
                _line(cached, dict(zip(keys, kind, strict=True)), i) for i in range(len(POLICIES))
            ],
            show_x=lambda x: f"{100 * x:g} %",
            show_y=compact,
            x_name="cache, share of the rows",
            low=0.0,
        )
        for kind in kinds
    ]
    return render_svg(charts, log_x=True)


def _line(rows: Sequence[Row], kind: Params, number: int) -> Line:
    policy = POLICIES[number]
    of = {**kind, "policy": policy}
    points = [(row.params["share"], row.value) for row in rows if of.items() <= row.params.items()]
    x = [float(share) for share, _ in points]
    style = "dashed" if policy == "belady" else "bold"
    color = 5 if policy.startswith("belady") else number + 1
    return Line(policy, x, [y for _, y in points], color, style)
