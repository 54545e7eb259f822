"""All benchmarks in one list: those of `tgflow bench`, with more beside them, and developers' own.

`make bench ARGS="store sample --quick"`; without names, all that are not slow.
"""

from __future__ import annotations

import typer

from tgflow.cli.bench import BENCHMARKS, Benchmark, bench_command
from tgflow.cli.errors import report

CALL = "python -m benchmarks"
DEVELOPERS = {
    "sample": Benchmark(
        "benchmarks.sample", "the samplers, beside a static CSR, the peers and plain Python"
    ),
    "prepare": BENCHMARKS["prepare"],
    "pipeline": BENCHMARKS["pipeline"],
    "store": Benchmark(
        "benchmarks.store", "the block store in one tier and two, beside a CSR and the peers"
    ),
    "stream": BENCHMARKS["stream"],
    "reorder": Benchmark("benchmarks.reorder", "putting events in order, and whole ingestion"),
    "kafka": Benchmark("benchmarks.kafka", "reading a topic into the durable log"),
    "table": Benchmark(
        "benchmarks.table", "rows of features by id, from every placement that a table can be in"
    ),
    "cache": Benchmark(
        "benchmarks.cache", "hit rates of caches, what planning is worth, and gathers through them"
    ),
    "models": Benchmark(
        "benchmarks.models", "models on counts of the past over whole streams, and counting itself"
    ),
    "durable": Benchmark(
        "benchmarks.durable", "the durable log and checkpoints, beside bare writes"
    ),
    "disk": Benchmark(
        "benchmarks.disk", "a 4 GB table under 1 GB: planned cache, LRU and the page cache", True
    ),
    "checkpoint": Benchmark(
        "benchmarks.checkpoint", "what checkpoints cost a training that continues", True
    ),
    "compare": Benchmark(
        "benchmarks.compare",
        "comparisons, beside what their models compute and runs one by one",
        True,
    ),
    "train": Benchmark(
        "benchmarks.train", "training TGN and TGAT, beside the peers that are installed", True
    ),
    "train-models": Benchmark(
        "benchmarks.train_models",
        "training JODIE and TGN with pairs beside TGN, other models beside a peer, where installed",
        True,
    ),
    "threads": BENCHMARKS["threads"],
    "serve": BENCHMARKS["serve"],
    "reuse": BENCHMARKS["reuse"],
    "ranks": BENCHMARKS["ranks"],
    "reliability": Benchmark(
        "benchmarks.reliability", "kills, crash states, faults and a soak, none with a loss", True
    ),
    "kills": Benchmark(
        "benchmarks.kills", "500 kills on a machine with odd disks and clocks, no difference", True
    ),
}


def main() -> None:
    """Run the command line."""
    command = bench_command(DEVELOPERS, CALL)
    app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    app.command("bench", help=command.__doc__)(command)
    try:
        app(prog_name=CALL)
    except Exception as error:
        raise SystemExit(report(error)) from error


if __name__ == "__main__":
    main()
