"""Stages of `make gpu`: each step has its own log and time limit; failures are independent.

    python tests/helpers/gpu_stages.py [build smoke tests bench train long sanitize]
                                       [--wheels FOLDER] [--data FILE] [--logs FOLDER]

Uses no network and no environment of ours: a GPU machine has its own PyTorch, CuPy and tools. Logs,
rows and results go to FOLDER, by default $OUT or build/gpu-log; results go to
tests/benchmarks/results as well, which `python -m benchmarks.report` writes to BENCHMARKS.md. Ends
with a table of steps and one of figures beside their goals; exits with 1 if a step failed.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "gpu"
LOGS = Path(os.environ.get("OUT") or ROOT / "build" / "gpu-log")
RESULTS = ROOT / "tests" / "benchmarks" / "results"
MOST_SECONDS = 480
"""Time limit of a stage; a machine may end commands after ten minutes."""
BACKEND = {"scikit_build_core": "scikit-build-core>=0.11", "pybind11": "pybind11>=3"}
"""Packages that build the core, by the modules that Python imports."""
ON_GPU = re.compile(r"needs_cuda|for_each_(device|gpu|kind|place)|mark\.gpu")
"""Pattern of test files with GPU tests."""
NEED_SETTINGS = ("tests/cli", "tests/run", "tests/run/config")
"""Folders whose tests need pydantic."""
KERNEL = re.compile(r"__global__ void\s+(?:__launch_bounds__\(\w+\)\s+)?(\w+)\(")
BENCHES = (  # name, options, seconds; the sizes rise, so that the small ones are there
    ("store", "--entries 1e6,1e7", 80),
    ("sample", "--entries 1e6,1e7", 80),
    ("table", "", 180),
    ("store", "--entries 5e7", 60),
    ("sample", "--entries 5e7", 80),
)
TRAININGS = (("train", "--quick", 120), ("train", "", 360))
"""Rows of a quick benchmark are only in the log."""
PYTEST = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--durations=20"]
SIDE_BY_SIDE = ["-n", "8", "--dist", "loadfile"] if find_spec("xdist") else []
SMALL_RUN = [sys.executable, ROOT / "tests/helpers/small_run.py"]


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a stage, or the reason it is skipped."""

    name: str
    command: Sequence[str | Path] = ()
    limit_s: int = MOST_SECONDS
    environment: dict[str, str] = field(default_factory=dict)
    output: str | None = None
    """File of its standard output in the folder of logs; None: the log."""
    status: str = ""
    """Result of a step without a command."""

    def run(self, logs: Path) -> str:
        """Run the command and return its status; at its limit all that it started is killed."""
        log = self.log(logs)
        to = log if self.output is None else logs / self.output
        to.parent.mkdir(parents=True, exist_ok=True)
        command = ["timeout", "--signal=KILL", str(self.limit_s), *map(str, self.command)]
        environment = os.environ | self.environment
        with log.open("w") as said, to.open("a" if self.output is None else "w") as output:
            said.write(f"$ {' '.join(command)}\n\n")
            said.flush()
            done = subprocess.run(
                command, stdout=output, stderr=said, cwd=ROOT, env=environment, check=False
            )
        status = {0: "passed", -9: f"not done after {self.limit_s} s"}
        return status.get(done.returncode, f"failed with status {done.returncode}")

    def log(self, logs: Path) -> Path:
        """Return the path of its log."""
        return logs / f"{self.name.replace(' ', '-')}.log"


def with_core(**more: str) -> dict[str, str]:
    """Return the environment with the packages of the build stage."""
    paths = os.pathsep.join(map(str, (BUILT, ROOT / "tests", ROOT)))
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": paths} | more


def build(given: Namespace) -> Iterator[Step]:
    """Install the given wheels, then the core."""
    shutil.rmtree(BUILT, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    files = sorted(given.wheels.glob("*.whl")) if given.wheels else []
    if files:
        yield Step("build wheels", [*pip, "--no-deps", "--target", BUILT, *files], 120)
    missing = [
        wanted
        for module, wanted in BACKEND.items()
        if find_spec(module) is None and not (BUILT / module).is_dir()
    ]
    if missing:
        ways = "install them for this Python, or name a folder of wheels: make gpu WHEELS=folder"
        yield Step("build core", status=f"not possible without {', '.join(missing)}: {ways}")
        return
    built_in = with_core(CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count() or 1))
    options = ["--no-build-isolation", "--no-deps", "--upgrade", "--target", BUILT, "."]
    yield Step("build core", [*pip, *options], MOST_SECONDS - 120, built_in)


def smoke(_: Namespace) -> Iterator[Step]:
    """Show the driver, compile all kernels, and run each of them once."""
    yield Step("smoke driver", ["nvidia-smi"], 30)
    yield Step("smoke compile", [sys.executable, "-m", "tgflow.cuda.warm"], 180, with_core())
    yield Step("smoke run", SMALL_RUN, 240, with_core())


def tests(_: Namespace) -> Iterator[Step]:
    """Run the GPU tests except the long ones, and those of the cache planner."""
    marked = ["-m", "gpu and not slow", "--maxfail=30", "--timeout=90"]
    yield Step("tests", [*PYTEST, *SIDE_BY_SIDE, *marked, *gpu_tests()], 410, with_core())
    quick = with_core(HYPOTHESIS_PROFILE="quick")
    yield Step("tests planner", [*PYTEST, "tests/plan/test_belady.py"], 70, quick)


def long(_: Namespace) -> Iterator[Step]:
    """Run the long tests that need a GPU: further cases."""
    marked = ["-m", "gpu and slow", "--maxfail=30", "--timeout=240"]
    yield Step("long", [*PYTEST, *SIDE_BY_SIDE, *marked, *gpu_tests()], 480, with_core())


def gpu_tests() -> list[str]:
    """Return the files with GPU tests; fewer without pydantic."""
    left_out = NEED_SETTINGS
    if find_spec("pydantic") is not None or (BUILT / "pydantic").is_dir():
        left_out = ()
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if ON_GPU.search(path.read_text(encoding="utf-8"))
        and not str(path.relative_to(ROOT)).startswith(left_out)
    ]


def sanitize(_: Namespace) -> Iterator[Step]:
    """Find bad memory accesses, races and bad barriers of our own kernels."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        yield Step("sanitize", status="left out: there is no compute-sanitizer")
        return
    filters = [f"--kernel-name=kernel_name={name}" for name in kernel_names()]
    # initcheck is of no use: with the filter, what PyTorch's kernels wrote counts as unwritten.
    for tool, limit_s in (("memcheck", 180), ("racecheck", 180), ("synccheck", 90)):
        command = [sanitizer, "--tool", tool, "--error-exitcode", "1", *filters, *SMALL_RUN]
        # memcheck sees only what PyTorch does not cut from larger allocations.
        uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool == "memcheck" else {}
        yield Step(f"sanitize {tool}", [*command, "--no-capture"], limit_s, with_core(**uncached))


def kernel_names() -> list[str]:
    """Return the unmangled names of all kernels."""
    files = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
    return [name for file in files for name in KERNEL.findall(file.read_text())]


def measured(benches: Sequence[tuple[str, str, int]], data: Path | None = None) -> Iterator[Step]:
    """Run benchmarks on the GPU alone, on a stream; the rows of each go to a separate file."""
    stream = [] if data is None else ["--data", str(data)]
    for number, (name, options, limit_s) in enumerate(benches):
        asked = [name, "--device", "cuda", "--only-device", "--json", *stream, *options.split()]
        command = [sys.executable, "-m", "benchmarks", *asked]
        rows = None if "--quick" in options else f"rows/{number}-{name}.json"
        yield Step(f"bench {name} {number}", command, limit_s, with_core(), rows)


STAGES: dict[str, Callable[[Namespace], Iterator[Step]]] = {
    "build": build,
    "smoke": smoke,
    "tests": tests,
    "bench": lambda _: measured(BENCHES),
    "train": lambda given: measured(TRAININGS, given.data),
    "long": long,
    "sanitize": sanitize,
}


def run(steps: Iterator[Step], logs: Path) -> list[tuple[str, bool]]:
    """Run steps in sequence; return a line for each, and whether it failed."""
    ended = []
    for step in steps:
        print(f"tgflow: {step.name}", flush=True)
        begin = time.monotonic()
        status = step.status or step.run(logs)
        is_failure = status != "passed" and not status.startswith("left out")
        ended.append((f"{step.name:<20} {time.monotonic() - begin:6.0f} s  {status}", is_failure))
        print(f"tgflow: {ended[-1][0]}", flush=True)
        if is_failure and step.command:
            lines = step.log(logs).read_text(errors="replace").splitlines()
            print("\n".join(f"    {line}" for line in lines[-15:]), flush=True)
    return ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = ArgumentParser(prog="gpu_stages.py", description=__doc__)
    parser.add_argument("stages", nargs="*", choices=[[], *STAGES], help="default: all of them")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    parser.add_argument("--data", type=Path, help="stream of the training benchmark")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder for logs")
    given = parser.parse_args(arguments)
    logs, names = given.logs.absolute(), given.stages or list(STAGES)
    ended = run((step for name in names for step in STAGES[name](given)), logs)
    if {"bench", "train"} & set(names):
        folders = [logs / "results", RESULTS]
        keep = [sys.executable, "-m", "benchmarks.gpu_goals", logs / "rows", *folders]
        figures = Step("figures", keep, 60, with_core())
        ended += run(iter([figures]), logs)
        print(figures.log(logs).read_text(errors="replace"))
    table = "\n".join(line for line, _ in ended)
    (logs / "summary.txt").write_text(f"{table}\n")
    print(table)
    return int(any(is_failure for _, is_failure in ended))


if __name__ == "__main__":
    sys.exit(main())
