"""What `make gpu` runs: stages that do not stop one another, each with its own log and limit.

    python tests/helpers/gpu_stages.py [build smoke tests bench train long sanitize]
                                       [--wheels FOLDER] [--logs FOLDER]

Uses no network and no environment of ours: a GPU machine has its own PyTorch, CuPy and tools. Logs,
rows and results go to FOLDER: by default $OUT, where a machine brings back what is there, or
build/gpu-log. Results go to tests/benchmarks/results as well, from where
`python -m benchmarks.report` writes them to BENCHMARKS.md: files that a machine brought back are
put there first. Ends with a table of stages and one of figures beside their goals; status 1 if a
stage failed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "gpu"
LOGS = Path(os.environ.get("OUT") or ROOT / "build" / "gpu-log")
RESULTS = ROOT / "tests" / "benchmarks" / "results"
ROWS = Path("rows")
"""Where rows go, in the folder of logs."""
MOST_SECONDS = 480
"""Of a stage: a machine may end a command after ten minutes."""
BACKEND = {"scikit_build_core": "scikit-build-core>=0.11", "pybind11": "pybind11>=3"}
"""What builds the core, by what Python imports."""
ON_GPU = re.compile(r"needs_cuda|for_each_(device|gpu|kind|place)|mark\.gpu")
"""Found in the files of tests that have some for a GPU."""
NEED_SETTINGS = ("tests/cli", "tests/runtime", "tests/config")
"""Folders whose tests need pydantic."""
Bench = tuple[str, str, int]
"""A benchmark, its options, and the seconds that it may take."""
BENCHES: Sequence[Bench] = (  # the sizes rise, so that the small ones are there
    ("store", "--entries 1e6,1e7", 80),
    ("sample", "--entries 1e6,1e7", 80),
    ("table", "", 130),
    ("cache", "", 50),
    ("store", "--entries 5e7", 60),
    ("sample", "--entries 5e7", 80),
)
TRAININGS: Sequence[Bench] = (  # the first one is a look: its rows are in the log alone
    ("train", "--quick", 120),
    ("train", "", 360),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a stage."""

    name: str
    command: Sequence[str | Path]
    limit_s: int = MOST_SECONDS
    environment: dict[str, str] = field(default_factory=dict)
    output: Path | None = None
    """Where its standard output goes, in the folder of logs, if not to the log."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended."""

    name: str
    status: str
    seconds: float
    log: Path | None = None

    @property
    def is_failure(self) -> bool:
        """Whether the whole is to fail for it: what was left out says why, and is none."""
        return self.status != "passed" and not self.status.startswith("left out")


def run_step(step: Step, logs: Path) -> Outcome:
    """Run a command with its limit, whatever comes; it and all that it started end with it."""
    log = logs / f"{step.name.replace(' ', '-')}.log"
    to = log if step.output is None else logs / step.output
    to.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with log.open("w") as said:
        said.write(f"$ {' '.join(map(str, step.command))}\n\n")
        said.flush()
        with to.open("a" if step.output is None else "w") as output:
            try:
                status = _status(_started(step, output, said), step.limit_s)
            except OSError as error:
                status = f"cannot be run: {error}"
    return Outcome(step.name, status, time.monotonic() - begin, log)


def _started(step: Step, output: IO[str], said: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(part) for part in step.command],
        stdout=output,
        stderr=said,
        cwd=ROOT,
        env=os.environ | step.environment,
        start_new_session=True,
    )


def _status(process: subprocess.Popen[bytes], limit_s: int) -> str:
    try:
        code = process.wait(limit_s)
        return "passed" if code == 0 else f"failed with status {code}"
    except subprocess.TimeoutExpired:
        return f"not done after {limit_s} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def with_core(**more: str) -> dict[str, str]:
    """Return the environment in which Python finds what the build stage has installed."""
    paths = os.pathsep.join([str(BUILT), str(ROOT / "tests")])
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": paths} | more


def build(wheels: Path | None) -> Iterator[Step | Outcome]:
    """Install the wheels that were given, then the core; say what is missing for that."""
    shutil.rmtree(BUILT, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    files = sorted(wheels.glob("*.whl")) if wheels else []
    if files:
        yield Step("build wheels", [*pip, "--no-deps", "--target", BUILT, *files], 120)
    missing = missing_backend(BUILT)
    if missing:
        yield Outcome("build core", f"not possible without {', '.join(missing)}: {_WAYS}", 0.0)
        return
    built_in = with_core(CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count() or 1))
    options = ["--no-build-isolation", "--no-deps", "--upgrade", "--target", BUILT, "."]
    yield Step("build core", [*pip, *options], MOST_SECONDS - 120, built_in)


_WAYS = "install them for this Python, or name a folder of wheels: make gpu WHEELS=folder"


def missing_backend(folder: Path) -> list[str]:
    """Return what the build needs and neither Python nor `folder` has."""
    return [
        wanted
        for module, wanted in BACKEND.items()
        if find_spec(module) is None and not (folder / module).is_dir()
    ]


def smoke(_: Path | None) -> Iterator[Step | Outcome]:
    """Compile all kernels, and run each of them once; name versions and driver."""
    if shutil.which("nvidia-smi") is None:
        yield Outcome("smoke driver", "left out: there is no nvidia-smi", 0.0)
    else:
        yield Step("smoke driver", ["nvidia-smi"], 30)
    yield Step("smoke compile", [sys.executable, "-m", "tgflow.cuda.warm"], 180, with_core())
    yield Step("smoke run", [sys.executable, ROOT / "tests/helpers/small_run.py"], 240, with_core())


def tests(_: Path | None) -> Iterator[Step | Outcome]:
    """Run the tests that need a GPU but for the long ones, and those of the cache planner."""
    there = has_settings()
    if not there:
        yield Outcome("tests of settings", "left out: there is no pydantic", 0.0)
    marked = ["-m", "gpu and not slow", "--maxfail=30", "--timeout=90"]
    yield Step("tests", [*PYTEST, *marked, *gpu_tests(there)], 410, with_core())
    yield Step("tests planner", [*PYTEST, "tests/plan/test_belady.py"], 70, with_core(**_QUICK))


def long(_: Path | None) -> Iterator[Step | Outcome]:
    """Run the long tests that need a GPU: further cases, and accuracy on a real stream."""
    marked = ["-m", "gpu and slow", "--maxfail=30", "--timeout=240"]
    accuracy = ["tests/train/test_gpu_training.py"]
    others = [path for path in gpu_tests(has_settings()) if path not in accuracy]
    yield Step("long accuracy", [*PYTEST, *marked, *accuracy], 300, with_core())
    yield Step("long others", [*PYTEST, *marked, *others], 180, with_core())


# -v, so that the log of a step that its limit ended says how far it came
PYTEST = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--durations=20"]
_QUICK = {"HYPOTHESIS_PROFILE": "quick"}


def has_settings() -> bool:
    """Return whether there is pydantic, which the settings of commands are made with."""
    return find_spec("pydantic") is not None or (BUILT / "pydantic").is_dir()


def gpu_tests(with_settings: bool) -> list[str]:
    """Return the files of tests that have some for a GPU."""
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if ON_GPU.search(path.read_text(encoding="utf-8"))
    ]
    return [path for path in found if with_settings or not path.startswith(NEED_SETTINGS)]


def sanitize(_: Path | None) -> Iterator[Step | Outcome]:
    """Look for bad memory accesses and races of our own kernels: PyTorch's are not ours to mend."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        yield Outcome("sanitize", "left out: there is no compute-sanitizer", 0.0)
        return
    filters = [f"--kernel-name=kernel_name={name}" for name in kernel_names()]
    small_run = [sys.executable, ROOT / "tests/helpers/small_run.py"]
    for tool in ("memcheck", "racecheck"):
        command = [sanitizer, "--tool", tool, "--error-exitcode", "1", *filters, *small_run]
        # memcheck sees only what PyTorch does not cut from larger allocations.
        yield Step(f"sanitize {tool}", command, 235, with_core(PYTORCH_NO_CUDA_MEMORY_CACHING="1"))


def kernel_names() -> list[str]:
    """Return the names of all kernels, which are not mangled."""
    pattern = re.compile(r"__global__ void\s+(?:__launch_bounds__\(\w+\)\s+)?(\w+)\(")
    files = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
    return [name for file in files for name in pattern.findall(file.read_text())]


def bench(_: Path | None) -> Iterator[Step | Outcome]:
    """Measure what is on the GPU alone; each benchmark leaves its rows, however others end."""
    yield from measured(BENCHES)


def train(_: Path | None) -> Iterator[Step | Outcome]:
    """Measure training on the GPU, first for a look, then all of it."""
    yield from measured(TRAININGS)


def measured(benches: Sequence[Bench]) -> Iterator[Step]:
    """Run benchmarks on the GPU alone; the rows of each go to a file of their own."""
    for number, (name, options, limit_s) in enumerate(benches):
        asked = [name, "--device", "cuda", "--only-device", "--json", *options.split()]
        command = [sys.executable, "-m", "benchmarks", *asked]
        rows = None if "--quick" in options else ROWS / f"{number}-{name}.json"
        yield Step(f"bench {name} {number}", command, limit_s, with_core(), rows)


STAGES: dict[str, Callable[[Path | None], Iterator[Step | Outcome]]] = {
    each.__name__: each for each in (build, smoke, tests, bench, train, long, sanitize)
}
"""In this order: what says most is done first."""
MEASURING = ("bench", "train")


def run(names: Sequence[str], wheels: Path | None, logs: Path) -> list[Outcome]:
    """Run stages, one after the other, and all steps of each."""
    outcomes = []
    for name in names:
        for step in STAGES[name](wheels):
            print(f"tgflow: {step.name}", flush=True)
            ended = run_step(step, logs) if isinstance(step, Step) else step
            print(f"tgflow: {ended.name}: {ended.status}, {ended.seconds:.0f} s", flush=True)
            outcomes.append(ended)
            if ended.is_failure and ended.log is not None:
                print(tail(ended.log), flush=True)
    return outcomes


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log."""
    return "\n".join(
        f"    {line}" for line in log.read_text(errors="replace").splitlines()[-lines:]
    )


def stage_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of the table of what was run."""
    width = max((len(each.name) for each in outcomes), default=0)
    for each in outcomes:
        log = "" if each.log is None else f"  {each.log}"
        yield f"{each.name:<{width}}  {each.seconds:6.0f} s  {each.status}{log}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the status."""
    parser = ArgumentParser(prog="gpu_stages.py", description=__doc__)
    parser.add_argument("stages", nargs="*", choices=[[], *STAGES], help="default: all of them")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder for logs")
    given = parser.parse_args(arguments)
    names = given.stages or list(STAGES)
    outcomes = run(names, given.wheels, given.logs)
    if any(name in MEASURING for name in names):
        logs = given.logs.absolute()
        folders = [logs / "results", RESULTS]
        keep = [sys.executable, "-m", "benchmarks.gpu_goals", logs / ROWS, *folders]
        outcomes.append(run_step(Step("figures", keep, 60, with_core()), logs))
        print(outcomes[-1].log.read_text(errors="replace"))  # type: ignore[union-attr]
    table = "\n".join(stage_table(outcomes))
    (given.logs / "summary.txt").write_text(f"{table}\n")
    print(table)
    return int(any(each.is_failure for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
