"""All benchmarks: those of `tgflow bench` with additional baselines, and developers' own.

`make bench ARGS="store sample --quick"`; without names, all that are not slow.
"""

import typer

from tgflow.cli.bench import BENCHMARKS, Benchmark, bench_command
from tgflow.cli.errors import report

CALL = "python -m benchmarks"
_TABLE = """
sample       graph:sample       the samplers, and hops in order
kafka        kafka:run          reading a topic into the durable log
table        table:run          rows of features by id, from every placement that a table can be in
disk         disk:run           * a 4 GB table under 1 GB: planned cache, LRU and the page cache
train        train:run          * training TGN and TGAT, beside the peers that are installed
first        first_gpu:run      * what decides the speed on a GPU, in a minute or two
libraries    train:libraries    * the README's table: training, sampling and inserting, beside peers
held-out     train:held_out     * held-out AP of TGN beside the peers, and its causes
train-models train:models       * training the other models, beside a peer where one is installed
rules        rules:run          * heuristics and counts, and ranking one against many
step         step:run           a continual step of TGN by kind of work
host         step:host_rows     the host's time for a micro-batch on a GPU, by part
stream       stream:run         reading CSV and Parquet into the durable log
threads      train:threads      * training on one thread and on all
serve        serve:run          * answers over HTTP beside learning
reuse        reuse:run          * training a TGAT that reuses rows, by staleness
ranks        ranks:run          * two ranks beside one process
reliability  reliability:run    * kills, crash states and faults, none with a loss
endless      endless:run        * memory, time and checkpoints within a horizon
"""
"""Name, function in `benchmarks`, `*` if it runs only if it is named, and description."""
_LINES = (line.split(maxsplit=2) for line in _TABLE.strip().splitlines())
DEVELOPERS = {"prepare": BENCHMARKS["prepare"], "store": BENCHMARKS["store"]} | {
    name: Benchmark(f"benchmarks.{function}", text.removeprefix("* "), text.startswith("*"))
    for name, function, text in _LINES
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
