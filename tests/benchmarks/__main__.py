"""`make bench ARGS="store sample --quick"`; without names, all benchmarks that are not slow."""

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from benchmarks.options import Options
from benchmarks.results import Row, markdown_table

_TABLE = """
prepare      prepare:run        preparing whole batches for TGN and TGAT, on one thread
store        graph:store        inserting batches of events into the block store
sample       graph:sample       the samplers, recent and uniform
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


class Benchmark(NamedTuple):
    """A benchmark of the command line."""

    function: str
    """`module:name` of a function from `Options` to rows."""
    description: str

    def run(self, options: Options) -> list[Row]:
        """Measure."""
        module, _, name = self.function.partition(":")
        rows: list[Row] = getattr(import_module(f"benchmarks.{module}"), name)(options)
        return rows


BENCHMARKS = {
    name: Benchmark(*rest)
    for name, *rest in (line.split(maxsplit=2) for line in _TABLE.strip().splitlines())
}


def parser(prog: str, about: str | None) -> ArgumentParser:
    """Return a parser of benchmarks' names and of the options that say what is measured."""
    made = ArgumentParser(prog, description=about, formatter_class=RawDescriptionHelpFormatter)
    made.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="NAME")
    made.add_argument("--data", type=Path, action="append", default=[], help="files of events")
    made.add_argument("--entries", type=_sizes, default=(), help="sizes of graphs, as in 1e6,1e7")
    made.add_argument("--events", type=int, help="the stream's first events, where models learn")
    return made


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(float(size)) for size in text.split(","))


def options_of(given: Namespace) -> Options:
    """Return the options of parsed arguments."""
    measured = {key: value for key, value in vars(given).items() if key not in ("names", "json")}
    return Options(**measured, say=partial(print, file=sys.stderr))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    command = parser("python -m benchmarks", f"{__doc__}\n{_TABLE}")
    command.add_argument("--quick", action="store_true", help="measure once, on small inputs")
    command.add_argument("--device", help="cuda adds rows of a GPU; default: if available")
    command.add_argument("--only-device", action="store_true", help="leave out rows of the CPU")
    command.add_argument("--json", action="store_true", help="print rows as JSON")
    given = command.parse_args(arguments)
    names = given.names or [x for x, each in BENCHMARKS.items() if each.description[0] != "*"]
    rows = [row for name in names for row in BENCHMARKS[name].run(options_of(given))]
    if given.json:
        print(json.dumps([row.to_json() for row in rows], indent=2))
    else:
        print("\n".join(markdown_table(rows)))


if __name__ == "__main__":
    main()
