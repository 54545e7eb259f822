"""How much of what a model gathers a cache holds, under every policy and at every size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tgflow.bench.cache_gather import gather_rows
from tgflow.bench.cache_live import live_rows
from tgflow.bench.cache_planner import planner_rows
from tgflow.bench.cache_rounds import round_rows
from tgflow.bench.cache_trace import Trace, replay, tgn_plan, traces
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.run.chart import Chart, Line
from tgflow.run.figures import compact
from tgflow.run.svg import render_svg

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
QUICK_SHARES = (0.005, 0.1)
WIDTHS = (100, 172)
POLICIES = ("lru", "lfu", "fifo", "static", "belady-256", "belady")
HIT_RATE = "hit rate"


def run(options: Options) -> list[Row]:
    """Replay each stream's batches under every policy; then rounds; then the gather alone."""
    rows: list[Row] = []
    for name, events in options.streams().items():
        options.tell(f"cache: the batches of {name}")
        plan = tgn_plan(events)
        for trace in traces(plan):
            options.tell(f"cache: {trace.kind} of {name}")
            rows += replay_rows(name, trace, options)
            if trace.kind == "edges":
                rows += live_rows(name, trace)
        options.tell(f"cache: the planner on {name}")
        rows += planner_rows(name, events, options)
        options.tell(f"cache: rounds of {name}")
        rows += round_rows(name, events, options)
    options.tell("cache: gathers of 12,000 rows")
    rows += gather_rows(options)
    return rows


def replay_rows(name: str, trace: Trace, options: Options) -> Iterator[Row]:
    """Hit rates by size.

    Which rows are held does not depend on how wide they are: widths are for the bytes.
    """
    for share in QUICK_SHARES if options.quick else SHARES:
        capacity = max(round(share * trace.num_rows), 1)
        for policy in POLICIES:
            counters = replay(trace, capacity, policy).counters
            params: Params = {
                "stream": name,
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
    """Return hit rate against size as SVG: a chart for each stream and kind of rows."""
    cached = [row for row in rows if row.name == "cache"]
    kinds = dict.fromkeys((row.params["stream"], row.params["rows of"]) for row in cached)
    charts = [
        Chart(
            title=f"{stream}: rows of {kind}",
            note="hit rate; batches of TGN, 200 events, 10 recent neighbours",
            lines=[_line(cached, stream, kind, i) for i in range(len(POLICIES))],
            show_x=lambda x: f"{100 * x:g} %",
            show_y=compact,
            x_name="cache, share of the rows",
            low=0.0,
        )
        for stream, kind in kinds
    ]
    return render_svg(charts, log_x=True)


def _line(rows: Sequence[Row], stream: object, kind: object, number: int) -> Line:
    policy = POLICIES[number]
    of = {"stream": stream, "rows of": kind, "policy": policy}
    points = [(row.params["share"], row.value) for row in rows if of.items() <= row.params.items()]
    x = [float(share) for share, _ in points]
    style = "dashed" if policy == "belady" else "bold"
    color = 5 if policy.startswith("belady") else number + 1
    return Line(policy, x, [y for _, y in points], color, style)
