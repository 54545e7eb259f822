"""Who may know whom: the directions between the rooms, and what stays out of all of them."""

from __future__ import annotations

import ast
import functools
import graphlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What a room may import of tgflow, itself included.
ALLOWED = {
    "streams": {
        *("tgflow.streams", "tgflow.describe", "tgflow.events", "tgflow.ids", "tgflow.units"),
        *("tgflow.iso", "tgflow.lazy", "tgflow.setting", "tgflow.text"),
        "tgflow.durable",  # what was read is logged before it is used
    },
    "models": {
        "tgflow.models",
        "tgflow.nn",
        "tgflow.model",
        *("tgflow.batch", "tgflow.messages"),
        *("tgflow.counts", "tgflow.describe"),
        "tgflow.events",
        *("tgflow.choices", "tgflow.setting"),
        "tgflow.sampler",  # a model says which strategy its paper samples with
    },
}
# From the ground up: a package imports itself, what stands before it, and nothing else of tgflow.
GROUND = [
    *("tgflow._core", "tgflow.choices", "tgflow.describe", "tgflow.lazy", "tgflow.units"),
    "tgflow.peers",
]
# Plans, trainers and models may know of ranks the protocol, and what is written over it alone;
# process groups, and whoever starts them, are for those who put the rooms together.
OVER_PEERS = ("parcel", "reduce", "control")
ASKING = ("asking", "hop_parcel")
TO_OWNERS = ("mail_routes",)
FEEDING = ("feed", "segment")
LAYERS = {
    "tgflow.graph": [
        *("tgflow.graph", "tgflow.cuda", "tgflow.tables", "tgflow.events", "tgflow.sampler"),
    ],
    "tgflow.peers": ["tgflow.peers"],
    "tgflow.tree_sum": ["tgflow.tree_sum"],
    "tgflow.schedule": ["tgflow.schedule"],
    **{
        f"tgflow.distributed.{name}": [
            *(f"tgflow.distributed.{other}" for other in OVER_PEERS),
            *("tgflow.tree_sum", "tgflow.schedule"),
        ]
        for name in OVER_PEERS
    },
    **{
        f"tgflow.distributed.{name}": [
            *(f"tgflow.distributed.{other}" for other in (*ASKING, "parcel")),
            *("tgflow.graph", "tgflow.sampler", "tgflow.sampling", "tgflow.events"),
        ]
        for name in ASKING
    },
    **{
        f"tgflow.distributed.{name}": [
            *("tgflow.distributed.parcel", "tgflow.schedule", "tgflow.batch", "tgflow.messages"),
        ]
        for name in TO_OWNERS
    },
    **{
        f"tgflow.distributed.{name}": [
            *(f"tgflow.distributed.{other}" for other in (*FEEDING, *OVER_PEERS)),
            "tgflow.events",
        ]
        for name in FEEDING
    },
    "tgflow.distributed.supervise": [
        "tgflow.distributed.rank_processes",
        "tgflow.distributed.launch",
    ],
    "tgflow.cuda": ["tgflow.cuda"],
    "tgflow.tables": ["tgflow.tables", "tgflow.cuda"],
    "tgflow.cache": ["tgflow.cache", "tgflow.tables", "tgflow.cuda"],
    "tgflow.inference": [
        *("tgflow.inference", "tgflow.plan", "tgflow.sampling", "tgflow.graph", "tgflow.model"),
        *("tgflow.batch", "tgflow.state", "tgflow.sampler"),
    ],
    "tgflow.serve": [
        *("tgflow.serve", "tgflow.inference", "tgflow.train", "tgflow.graph", "tgflow.ids"),
        *("tgflow.config.schema", "tgflow.config.stream", "tgflow.iso", "tgflow.text"),
        "tgflow._id_columns",
    ],
}
# The rooms of streams/, from the ground up: a file imports from its own line and the lines before.
# Files, ingestion and Kafka meet in the modules of the last line only.
STREAMS = (
    {"errors", "clock", "prefetch"},
    {"rows"},
    {"files"},
    {"ingest"},
    {"transports"},
    {"kafka"},
    {"open", "pacing", "source", "tgb", "write"},
)
STRANGERS = {"ingest": {"files"}}
# Kernels take structs of addresses; a host table's memory is registered with a GPU by its address,
# and ids must not lie in what a gather fills.
KNOW_ADDRESSES = [
    *("tgflow.cuda", "tgflow.tables.gpu_rows", "tgflow.cache.device"),
    *("tgflow.tables.host", "tgflow.tables.validation"),
    "tgflow.bench",
]
NOT_BETWEEN_RANKS = r"dist\.(\w+_object|\w*reduce\w*)|torch\.(save|load)\b"
# Imported within a function by what it is built on: `ContinualTrainer.save` writes a run directory.
WITHIN = {("tgflow.train.continual", "tgflow.runtime.saved_run")}
# These put the rooms together, or test that they fit.
COMPOSERS = (
    "tgflow.datasets",
    "tgflow.cli",
    "tgflow.config",
    "tgflow.runtime",
    "tgflow.bench",
    "tgflow.testing",
)


def modules():
    """Yield (room, module name, path) of every Python file that is shipped."""
    for room, package in (
        ("tgflow", "tgflow"),
        ("streams", "tgflow.streams"),
        ("models", "tgflow.models"),
    ):
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT / room).with_suffix("").parts
            name = ".".join([package, *parts])
            yield room, name.removesuffix(".__init__"), path


@functools.cache
def imports(name, path):
    """Return the modules that a file imports, those for type checkers and within functions too."""
    found = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level])
            module = ".".join(filter(None, [base if node.level else "", node.module]))
            # `from tgflow import streams` names a module, `from tgflow.ids import Side` does not.
            found |= {
                f"{module}.{alias.name}" if is_module(f"{module}.{alias.name}") else module
                for alias in node.names
            }
    return frozenset(found)


def is_module(name):
    path = name.replace(".", "/")
    path = re.sub(r"^tgflow/(streams|models)\b", r"\1", path)
    return any((ROOT / f"{path}{end}").exists() for end in (".py", ".pyi", "/__init__.py"))


def within(module, packages):
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("room", ["streams", "models"])
def test_a_room_imports_only_what_it_may_know(room):
    for name, path in ((n, p) for r, n, p in modules() if r == room):
        ours = {m for m in imports(name, path) if within(m, ["tgflow", "streams", "models"])}
        wrong = {m for m in ours if not within(m, ALLOWED[room])}
        assert not wrong, f"{name} imports {wrong}"


@pytest.mark.parametrize("package", LAYERS)
def test_a_layer_imports_only_what_is_below_it(package):
    for _, name, path in modules():
        if within(name, [package]):
            ours = {m for m in imports(name, path) if within(m, ["tgflow"])}
            wrong = {m for m in ours if not within(m, [*GROUND, *LAYERS[package]])}
            assert not wrong, f"{name} imports {wrong}"


def test_rooms_of_streams_import_downward():
    heights = {room: height for height, rooms in enumerate(STREAMS) for room in rooms}
    for _, name, path in (m for m in modules() if m[1].startswith("tgflow.streams.")):
        room = name.split(".")[2]
        known = {m.split(".")[2] for m in imports(name, path) if m.startswith("tgflow.streams.")}
        wrong = {other for other in known if heights[other] > heights[room]}
        assert not wrong | known & STRANGERS.get(room, set()), f"{name} imports {wrong or known}"


def known_modules():
    """Return the modules of tgflow that each one imports.

    What a package names for type checkers, and imports when it is asked for, is not its own need.
    """
    names = {name for _, name, _ in modules()}
    known = {}
    for _, name, path in modules():
        lazy = path.name == "__init__.py" and "TYPE_CHECKING" in path.read_text()
        known[name] = set() if lazy else {nearest(m, names) for m in imports(name, path)} - {name}
        known[name] -= {other for importer, other in WITHIN if importer == name}
    return known


def nearest(module, names):
    """Return the module, or the package that it is in, or tgflow for what is not of ours."""
    while module not in names and "." in module:
        module = module.rpartition(".")[0]
    return module if module in names else "tgflow"


def test_no_modules_import_each_other_in_a_circle():
    graphlib.TopologicalSorter(known_modules()).prepare()


def test_no_rooms_import_each_other_in_a_circle():
    rooms = defaultdict(set)
    for name, others in known_modules().items():
        rooms[room_of(name)] |= {room_of(other) for other in others} - {room_of(name)}
    graphlib.TopologicalSorter(rooms).prepare()


def room_of(module):
    return ".".join(module.split(".")[:2])


def test_only_joined_ranks_know_process_groups():
    for _, name, path in modules():
        known = imports(name, path)
        if not within(name, ["tgflow.distributed"]):
            groups = {module for module in known if within(module, ["torch.distributed"])}
            assert not groups, f"{name} imports {groups}"
        if not within(name, ["tgflow.distributed", *COMPOSERS]) and name != "tgflow":
            rooms = known_rooms(known, "tgflow.distributed")
            assert rooms <= {*OVER_PEERS, *ASKING, *TO_OWNERS, *FEEDING}, (
                f"{name} imports {rooms} of tgflow.distributed"
            )


def test_ranks_need_torch_alone_and_send_nothing_that_is_run_or_added_in_another_order():
    """Not pickle, which receives code, nor what torch builds on it; nor sums of torch's own."""
    strange = {"pickle", "marshal", "shelve", "multiprocessing", "torch.distributed.rpc"}
    for _, name, path in modules():
        if within(name, ["tgflow.distributed", "tgflow.peers"]):
            known = imports(name, path)
            assert not known & strange, f"{name} imports {known & strange}"
            roots = {module.partition(".")[0] for module in known}
            assert roots <= {*sys.stdlib_module_names, "torch", "tgflow"}, name
            assert not re.search(NOT_BETWEEN_RANKS, path.read_text()), name


def known_rooms(modules, package):
    """Return the modules of a package among `modules`, by their names in it."""
    return {m.removeprefix(f"{package}.") for m in modules if m.startswith(f"{package}.")}


def test_tgflow_knows_neither_streams_nor_models():
    for room, name, path in modules():
        # the package itself names all that is public; it imports it when it is asked for
        if room == "tgflow" and name != "tgflow" and not within(name, COMPOSERS):
            wrong = {
                m for m in imports(name, path) if within(m, ["tgflow.streams", "tgflow.models"])
            }
            assert not wrong, f"{name} imports {wrong}"


def test_nothing_but_the_command_line_imports_the_command_line():
    for _, name, path in modules():
        if not within(name, ["tgflow.cli", "tgflow.__main__"]):
            wrong = {m for m in imports(name, path) if within(m, ["tgflow.cli", "typer"])}
            assert not wrong, f"{name} imports {wrong}"


def test_a_room_meets_the_core_in_its_native_module_only():
    for _, name, path in modules():
        if name.endswith("._native") or within(name, KNOW_ADDRESSES):
            continue
        assert "tgflow._core" not in set(imports(name, path)), f"{name} imports the core"
        assert "data_ptr" not in path.read_text(), f"{name} hands addresses around"


def test_reports_know_nothing_of_the_runs_they_are_about():
    for _, name, path in modules():
        if within(name, ["tgflow.report"]):
            ours = {m for m in imports(name, path) if within(m, ["tgflow"])}
            wrong = {
                m
                for m in ours
                if not within(
                    m,
                    [
                        *("tgflow.report", "tgflow.config", "tgflow.train.config"),
                        *("tgflow.text", "tgflow.units"),
                    ],
                )
            }
            assert not wrong, f"{name} imports {wrong}"


def test_the_core_knows_neither_python_nor_torch():
    wrong = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|pybind11|Python\.h|numpy)")
    for path in (ROOT / "csrc").rglob("*.[chi]*"):
        if "bindings" not in path.parts and path.is_file():
            assert not wrong.search(path.read_text()), path


def test_no_file_names_a_machine_or_a_package_host():
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if git.returncode != 0:
        pytest.skip("git does not list the files")
    hosts = ("pypi" + ".org", "python" + "hosted.org", "download." + "pytorch", "conda" + ".org")
    folder = re.compile(r"/(?<![\w.$)}]/)(?:work|root|home|opt|Users)/")
    for name in filter(None, git.stdout.decode().split("\0")):
        path = ROOT / name
        if path == Path(__file__) or path.suffix in {
            ".gz",
            ".npy",
            ".png",
            ".parquet",
            ".arrow",
            ".safetensors",
            ".log",
        }:
            continue
        text = path.read_text() if path.is_file() else ""
        found = [host for host in hosts if host in text] + folder.findall(text)
        assert not found, f"{name} names {found}"


def test_import_is_quick_and_light():
    script = (
        "import sys, time, torch, numpy, pyarrow; start = time.process_time()\n"
        "import tgflow, tgflow.models\n"
        "print(time.process_time() - start, *sys.modules)"
    )
    command = [sys.executable, "-c", script]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, *loaded = out.split()
    assert float(seconds) < 1.5
    heavy = {"matplotlib", "typer", "rich", "pandas", "scipy", "sklearn", "hypothesis", "pytest"}
    assert not heavy & set(loaded)
    assert "tgflow.models.tgn" not in loaded, "a model is imported when it is first asked for"


@pytest.mark.parametrize(("given", "expected"), [(None, "5000"), ("7", "7")])
def test_idle_threads_of_torch_soon_sleep_unless_somebody_has_said_otherwise(given, expected):
    settings = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    settings |= {} if given is None else {"GOMP_SPINCOUNT": given}
    code = "import tgflow, os; print(os.environ['GOMP_SPINCOUNT'])"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == expected


def test_a_model_needs_fewer_than_50_modules():
    code = "import sys, tgflow.models.tgn; print(*(m for m in sys.modules if m[:6] == 'tgflow'))"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(found) < 50, found
