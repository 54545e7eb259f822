"""All benchmarks: those of `tgflow bench` with additional baselines, and developers' own.

`make bench ARGS="store sample --quick"`; without names, all that are not slow.
"""

import typer

from tgflow.cli.bench import BENCHMARKS, Benchmark, bench_command
from tgflow.cli.errors import report

CALL = "python -m benchmarks"
DEVELOPERS = {
    "sample": Benchmark("benchmarks.graph:sample", "the samplers, and hops in order"),
    "prepare": BENCHMARKS["prepare"],
    "store": BENCHMARKS["store"],
    "kafka": Benchmark("benchmarks.kafka:run", "reading a topic into the durable log"),
    "table": Benchmark(
        "benchmarks.table:run",
        "rows of features by id, from every placement that a table can be in",
    ),
    "disk": Benchmark(
        "benchmarks.disk:run",
        "a 4 GB table under 1 GB: planned cache, LRU and the page cache",
        True,
    ),
    "train": Benchmark(
        "benchmarks.train:run", "training TGN and TGAT, beside the peers that are installed", True
    ),
    "libraries": Benchmark(
        "benchmarks.train:libraries",
        "the README's table: training, sampling and inserting, beside the peers",
        True,
    ),
    "held-out": Benchmark(
        "benchmarks.train:held_out", "held-out AP of TGN beside the peers, and its causes", True
    ),
    "train-models": Benchmark(
        "benchmarks.train:models",
        "training the other models, beside a peer where one is installed",
        True,
    ),
    "rules": Benchmark(
        "benchmarks.rules:run", "heuristics and counts, and ranking one against many", True
    ),
    "step": Benchmark("benchmarks.step:run", "a continual step of TGN by kind of work"),
    "host": Benchmark(
        "benchmarks.step:host_rows", "the host's time for a micro-batch on a GPU, by part"
    ),
    "stream": Benchmark("benchmarks.stream:run", "reading CSV and Parquet into the durable log"),
    "threads": Benchmark("benchmarks.train:threads", "training on one thread and on all", True),
    "serve": Benchmark("benchmarks.serve:run", "answers over HTTP beside learning", True),
    "reuse": Benchmark(
        "benchmarks.reuse:run", "training a TGAT that reuses rows, by staleness", True
    ),
    "ranks": Benchmark("benchmarks.ranks:run", "two ranks beside one process", True),
    "reliability": Benchmark(
        "benchmarks.reliability:run",
        "kills, crash states, faults and a soak, none with a loss",
        True,
    ),
    "endless": Benchmark(
        "benchmarks.endless:run", "memory, time and checkpoints within a horizon", True
    ),
    "kills": Benchmark(
        "benchmarks.reliability:kills",
        "500 kills on a machine with odd disks and clocks, no difference",
        True,
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
