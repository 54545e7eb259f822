"""Import directions between rooms, forbidden imports, unique names and consistent spelling."""

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

# From the ground up: each room and the rooms that it imports, also within functions and for type
# checkers. A room is a package of tgflow; nothing else but the files of FILES lies in tgflow.
ROOMS = {
    "base": "",
    "cuda": "base",
    "graph": "base cuda",
    "nn": "base cuda graph",
    "models": "base graph nn",
    "plan": "base cuda graph nn",
    "checkpoint": "base cuda graph",
    "streams": "base graph checkpoint",
    "ranks": "base graph nn plan checkpoint",
    "train": "base cuda graph nn plan checkpoint streams ranks",
    "serve": "base graph plan streams train",
    "report": "base cuda graph nn plan checkpoint train",
    "run": "base cuda graph nn models plan checkpoint streams ranks train serve report",
    "testing": "base graph nn plan train",
    "cli": "base cuda graph nn models checkpoint streams ranks train serve report run",
}
FILES = {"__init__", "__main__"}
MOST_FLOORS, MOST_ARROWS = 10, 75
BINARY = {".gz", ".npy", ".png", ".parquet", ".arrow", ".safetensors", ".log"}
# Kernels take structs of addresses; a host table's memory is registered with a GPU by its address,
# and ids must not lie in what a gather fills.
KNOW_ADDRESSES = [
    *("tgflow.cuda", "tgflow.graph.tables.gpu_rows", "tgflow.graph.cache.device"),
    *("tgflow.graph.tables.host", "tgflow.graph.tables.table"),
    "tgflow.base.free_memory",
]
NOT_BETWEEN_RANKS = r"dist\.(\w+_object|\w*reduce\w*)|(?<!safetensors\.)torch\.(save|load)\b"
ONLY_IN = {
    "torch.distributed": ["tgflow.ranks"],
    "tgflow.cli": ["tgflow.cli", "tgflow.__main__"],
    "typer": ["tgflow.cli"],
}


def modules():
    """Yield (package, module name, path) of every shipped Python file."""
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
    """Return the modules a file imports, including for type checkers and within functions."""
    found = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level])
            module = ".".join(filter(None, [base if node.level else "", node.module]))
            # `from tgflow import streams` names a module, `from tgflow.run import Run` does not.
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


def known_modules():
    """Return the tgflow modules that each module imports; `tgflow` itself lists names alone."""
    names = {name for _, name, _ in modules()}
    known = {
        name: {nearest(m, names) for m in imports(name, path)} - {name}
        for _, name, path in modules()
    }
    return known | {"tgflow": set()}


def nearest(module, names):
    """Return the module or its package; tgflow for a name that is neither."""
    while module not in names and "." in module:
        module = module.rpartition(".")[0]
    return module if module in names else "tgflow"


def test_there_are_no_import_cycles():
    """The lazy names of a package's `__init__`, listed for type checkers, do not count."""
    lazy = {name for _, name, path in modules() if "lazy_names(" in path.read_text()}
    known = {n: set() if n in lazy else others for n, others in known_modules().items()}
    graphlib.TopologicalSorter(known).prepare()


def test_rooms_import_only_the_rooms_below_them():
    found = {room: set() for room in ROOMS}
    for name, others in known_modules().items():
        room = room_of(name)
        if room not in FILES:
            found[room] |= {room_of(other) for other in others} - {room, *FILES}
    assert {room: set(below.split()) for room, below in ROOMS.items()} == found
    floors = {}
    for room, below in ROOMS.items():  # those below come first
        floors[room] = 1 + max((floors[other] for other in below.split()), default=0)
    assert max(floors.values()) <= MOST_FLOORS
    assert sum(len(below.split()) for below in ROOMS.values()) <= MOST_ARROWS


def test_no_loose_files():
    loose = {path.stem for path in (ROOT / "tgflow").glob("*.py*")}
    assert loose == FILES


def room_of(module):
    return [*module.split("."), "__init__"][1]


@pytest.mark.parametrize("package", ONLY_IN)
def test_restricted_packages_are_imported_only_by_listed_modules(package):
    for _, name, path in modules():
        if not within(name, ONLY_IN[package]):
            found = {m for m in imports(name, path) if within(m, [package])}
            assert not found, f"{name} imports {found}"


def test_ranks_import_only_torch_and_use_no_pickle_or_unordered_sums():
    """Neither pickle (executes code), nor torch functions based on it, nor its reductions."""
    strange = {"pickle", "marshal", "shelve", "multiprocessing", "torch.distributed.rpc"}
    for _, name, path in modules():
        if within(name, ["tgflow.ranks", "tgflow.base.peers"]):
            known = imports(name, path)
            assert not known & strange, f"{name} imports {known & strange}"
            roots = {module.partition(".")[0] for module in known}
            assert roots <= {*sys.stdlib_module_names, "safetensors", "torch", "tgflow"}, name
            assert not re.search(NOT_BETWEEN_RANKS, path.read_text()), name


def test_packages_import_the_core_only_in_their_native_module():
    for _, name, path in modules():
        if name.endswith("._native") or within(name, KNOW_ADDRESSES):
            continue
        assert "tgflow._core" not in set(imports(name, path)), f"{name} imports the core"
        assert "data_ptr" not in path.read_text(), f"{name} hands addresses around"


def test_core_depends_on_neither_python_nor_torch():
    wrong = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|pybind11|Python\.h|numpy)")
    for path in (ROOT / "csrc").rglob("*.[chi]*"):
        if "bindings" not in path.parts and path.is_file():
            assert not wrong.search(path.read_text()), path


def test_no_file_contains_a_machine_or_package_host_name():
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if git.returncode != 0:
        pytest.skip("git does not list the files")
    hosts = ("pypi" + ".org", "python" + "hosted.org", "download." + "pytorch", "conda" + ".org")
    # The compose file names a program in the image of Kafka.
    folder = re.compile(r"/(?<![\w.$)}]/)(?:work|root|home|opt(?!/kafka/)|Users)/")
    for name in filter(None, git.stdout.decode().split("\0")):
        path = ROOT / name
        if path == Path(__file__) or path.suffix in BINARY or not path.is_file():
            continue
        text = path.read_text()
        found = [host for host in hosts if host in text] + folder.findall(text)
        assert not found, f"{name} names {found}"


def printed(code, env=None):
    """Return the words printed by a new Python process."""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return ran.stdout.split()


def test_import_is_quick_and_light_and_sets_a_short_spin_count():
    seconds, spins, *loaded = printed(
        "import os, sys, time, torch, numpy, pyarrow; start = time.process_time()\n"
        "import tgflow, tgflow.models\n"
        "print(time.process_time() - start, os.environ['GOMP_SPINCOUNT'], *sys.modules)\n"
        "import tgflow.train.continual; print('further', *sys.modules)",
        {name: x for name, x in os.environ.items() if name != "GOMP_SPINCOUNT"},
    )
    assert float(seconds) < 1.5
    assert spins == "5000"
    loaded, further = (loaded[: loaded.index("further")], loaded[loaded.index("further") :])
    found = {name for name in further if name.startswith("tgflow")} - {"tgflow.models"}
    assert len(found) <= 103, found
    heavy = {"matplotlib", "typer", "rich", "pandas", "scipy", "sklearn", "hypothesis", "pytest"}
    assert not heavy & set(loaded)
    assert "tgflow.models.tgn" not in loaded, "a model is imported when it is first asked for"


@pytest.mark.slow
def test_import_of_a_model_loads_few_modules_and_keeps_the_spin_count():
    spins, *found = printed(
        "import os, sys, tgflow.models.tgn\n"
        "print(os.environ['GOMP_SPINCOUNT'], *(m for m in sys.modules if m[:6] == 'tgflow'))",
        os.environ | {"GOMP_SPINCOUNT": "7"},
    )
    assert spins == "7"
    assert len(found) <= 49, found


FOLDERS = ("tgflow", "streams", "models")
CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
BRITISH = re.compile(
    r"neighbour|optimiser|(synchron|amort|normal|initial|serial|minim|maxim|organ|recogn)is(e|a|i)"
    r"|behaviour|colour|\blearnt\b|\bcancelled\b",
    re.IGNORECASE,
)


def sources(*endings, rooms=(*FOLDERS, "csrc")):
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in endings:
                yield path


def test_no_two_public_classes_share_a_name():
    homes = defaultdict(list)
    for path in sources(".py"):
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            homes[name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_sources_and_texts_use_american_spelling():
    endings = (".py", ".cpp", ".hpp", ".cu", ".md", ".ipynb")
    rooms = (*FOLDERS, "csrc", "tests", "examples")
    for path in (*sources(*endings, rooms=rooms), *ROOT.glob("*.md")):
        found = BRITISH.search(path.read_text(encoding="utf-8"))
        assert not found or path == Path(__file__), f"{path}: {found.group()}"
