"""Stages of `make gpu`: each step has its own log and time limit; failures are independent.

    python tests/helpers/gpu_stages.py [build smoke first train tests sanitize bench long]
        [--wheels FOLDER] [--data FILE] [--logs FOLDER] [--seconds N] [--base COMMIT]

Uses no network and no environment of ours: a GPU machine has its own PyTorch, CuPy and tools. Logs,
rows and results go to FOLDER, by default build/gpu-log, and after each step to log.tar.gz in $OUT;
results go to tests/benchmarks/results as well, which `python -m benchmarks.report` writes to
BENCHMARKS.md. Ends with a table of steps and one of figures beside their goals; exits with 1 if a
step failed, and before the first if a package is missing.
"""

import math
import os
import re
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "gpu"
LOGS = ROOT / "build" / "gpu-log"
RESULTS = ROOT / "tests" / "benchmarks" / "results"
MOST_SECONDS = 480
"""Time limit of a stage; a machine may end commands after ten minutes."""
PACKAGES = ("pydantic", "pydantic_core", "annotated_types", "typing_inspection")
"""Packages that training imports and machines with a GPU may lack, by their modules' names."""
BACKEND = ("scikit_build_core", "pybind11")
"""Packages that build the core."""
ON_GPU = re.compile(r"needs_cuda|for_each_(device|gpu|kind|place)|mark\.gpu")
"""Pattern of test files with GPU tests."""
KERNEL = re.compile(r"__global__ void\s+(?:__launch_bounds__\(\w+\)\s+)?(\w+)\(")
KERNELS = re.compile(r"^KERNELS_BY_\w+\(\d+, (\w+),", re.MULTILINE)
BENCHES = (("sample", "--entries 1e7,5e7", 120), ("store", "--entries 1e7", 60), ("table", "", 180))
"""Names, options and seconds."""
FIRST, TRAININGS = (("first", "", 240),), (("train", "", 420),)
PYTEST = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--durations=20"]
SIDE_BY_SIDE = ["-n", "8", "--dist", "loadfile"] if find_spec("xdist") else []
SMALL_RUN = [sys.executable, ROOT / "tests/helpers/small_run.py"]
FAULT = """
import cupy
code = 'extern "C" __global__ void planted(int* x) { x[1000] = 1; }'
cupy.RawKernel(code, "planted")((1,), (1,), (cupy.zeros(1, dtype=cupy.int32),))
cupy.cuda.Device().synchronize()
"""
"""A write beyond the end of an array, which memcheck must report."""


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
    passes: int = 0
    """Exit status of success."""

    def run(self, logs, most_s=MOST_SECONDS):
        """Run the command and return its status; at its limit all that it started is killed."""
        limit_s = min(self.limit_s, int(most_s))
        log = self.log(logs)
        to = log if self.output is None else logs / self.output
        to.parent.mkdir(parents=True, exist_ok=True)
        command = ["timeout", "--signal=KILL", str(limit_s), *map(str, self.command)]
        environment = os.environ | self.environment
        with log.open("w") as said, to.open("a" if self.output is None else "w") as output:
            said.write(f"$ {' '.join(command)}\n\n")
            said.flush()
            done = subprocess.run(
                command, stdout=output, stderr=said, cwd=ROOT, env=environment, check=False
            )
        status = {self.passes: "passed", -9: f"not done after {limit_s} s"}
        return status.get(done.returncode, f"failed with status {done.returncode}")

    def log(self, logs):
        """Return the path of its log."""
        return logs / f"{self.name.replace(' ', '-')}.log"


def with_core(**more):
    """Return the environment with the packages of the build stage."""
    paths = os.pathsep.join(map(str, (BUILT, ROOT / "tests", ROOT)))
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": paths} | more


def build(given):
    """Install the given wheels, then the core."""
    shutil.rmtree(BUILT, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    files = sorted(given.wheels.glob("*.whl")) if given.wheels else []
    if files:
        yield Step("build wheels", [*pip, "--no-deps", "--target", BUILT, *files], 120)
    built_in = with_core(CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count() or 1))
    options = ["--no-build-isolation", "--no-deps", "--upgrade", "--target", BUILT, "."]
    yield Step("build core", [*pip, *options], MOST_SECONDS - 120, built_in)


def missing(stages, wheels):
    """Return the packages that the stages need and neither Python nor the wheels have."""
    builds = "build" in stages
    there = {file.name.partition("-")[0] for file in wheels.glob("*.whl")} if wheels else set()
    if not builds:
        there = {name for name in PACKAGES if (BUILT / name).is_dir()}
    wanted = [*PACKAGES, *(BACKEND if builds else ())]
    return [name for name in wanted if name not in there and find_spec(name) is None]


def smoke(_):
    """Show the driver, compile all kernels, and run each of them once."""
    yield Step("smoke driver", ["nvidia-smi"], 30)
    yield Step("smoke compile", [sys.executable, "-m", "tgflow.cuda.warm"], 180, with_core())
    yield Step("smoke run", SMALL_RUN, 240, with_core())


def tests(_):
    """Run the GPU tests except the long ones."""
    marked = ["-m", "gpu and not slow", "--maxfail=30", "--timeout=90"]
    yield Step("tests", [*PYTEST, *SIDE_BY_SIDE, *marked, *gpu_tests()], 480, with_core())


def long(_):
    """Run the long tests that need a GPU: further cases."""
    marked = ["-m", "gpu and slow", "--maxfail=30", "--timeout=240"]
    yield Step("long", [*PYTEST, *SIDE_BY_SIDE, *marked, *gpu_tests()], 480, with_core())


def gpu_tests():
    """Return the files with GPU tests."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [path for path in files if ON_GPU.search(path.read_text(encoding="utf-8"))]
    return [str(path.relative_to(ROOT)) for path in found]


def sanitize(given):
    """Find bad accesses, races and bad barriers of kernels changed since a commit, or of all."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        yield Step("sanitize", status="left out: there is no compute-sanitizer")
        return
    fail = [sanitizer, "--error-exitcode", "9", "--kernel-name=kernel_name=planted"]
    yield Step("sanitize planted", [*fail, sys.executable, "-c", FAULT], 30, passes=9)
    filters = [f"--kernel-name=kernel_name={name}" for name in kernel_names(given.base)]
    if not filters:
        yield Step("sanitize", status=f"left out: no kernel has changed since {given.base}")
        return
    # initcheck is of no use: with the filter, what PyTorch's kernels wrote counts as unwritten.
    for tool, limit_s in (("memcheck", 180), ("racecheck", 180), ("synccheck", 80)):
        command = [sanitizer, "--tool", tool, "--error-exitcode", "1", *filters, *SMALL_RUN]
        # memcheck sees only what PyTorch does not cut from larger allocations.
        uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool == "memcheck" else {}
        yield Step(f"sanitize {tool}", [*command, "--no-capture"], limit_s, with_core(**uncached))


def kernel_names(base=None):
    """Return the unmangled names of all kernels, or of those changed since a commit."""
    files = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
    if base is not None:
        command = ["git", "diff", "--name-only", base, "--", "csrc/cuda", "csrc/include"]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        changed = found.stdout.split()
        # any file may include a header; without git all may have changed
        if found.returncode == 0 and not any(name.endswith(".hpp") for name in changed):
            files = [file for file in files if f"csrc/cuda/{file.name}" in changed]
    texts = [file.read_text() for file in files]
    several = [
        f"{name}_by_{n}" for text in texts for name in KERNELS.findall(text) for n in (16, 4, 1)
    ]
    return [name for text in texts for name in KERNEL.findall(text)] + several


def measured(benches, data=None):
    """Run benchmarks on the GPU alone, on a stream; the rows of each go to a separate file."""
    stream = [] if data is None else ["--data", str(data)]
    for number, (name, options, limit_s) in enumerate(benches):
        asked = [name, "--device", "cuda", "--only-device", "--json", *stream, *options.split()]
        command = [sys.executable, "-m", "benchmarks", *asked]
        yield Step(f"bench {name}", command, limit_s, with_core(), f"rows/{number}-{name}.json")


STAGES = {
    "build": build,
    "smoke": smoke,
    "first": lambda given: measured(FIRST, given.data),
    "train": lambda given: measured(TRAININGS, given.data),
    "tests": tests,
    "sanitize": sanitize,
    "bench": lambda _: measured(BENCHES),
    "long": long,
}
"""By what their results are worth, where there is not the time for all."""


def archive(logs):
    """Pack the logs into one file in $OUT, from which a machine may return only a few files."""
    if os.environ.get("OUT"):
        packed = shutil.make_archive(str(logs.with_name("log")), "gztar", logs)
        shutil.move(packed, Path(os.environ["OUT"]) / "log.tar.gz")


def run(steps, logs, seconds=math.inf):
    """Run steps in sequence, all within `seconds`; return a line for each, and if it failed."""
    ended, deadline = [], time.monotonic() + seconds
    for step in steps:
        print(f"tgflow: {step.name}", flush=True)
        begin = time.monotonic()
        left = min(deadline - begin, MOST_SECONDS)
        status = step.status or (step.run(logs, left) if left >= 1 else "left out: no time")
        is_failure = status != "passed" and not status.startswith("left out")
        ended.append((f"{step.name:<20} {time.monotonic() - begin:6.0f} s  {status}", is_failure))
        print(f"tgflow: {ended[-1][0]}", flush=True)
        archive(logs)
        if is_failure and step.command:
            lines = step.log(logs).read_text(errors="replace").splitlines()
            print("\n".join(f"    {line}" for line in lines[-15:]), flush=True)
    return ended


def main(arguments=None):
    """Run the command line; returns the exit code."""
    parser = ArgumentParser(prog="gpu_stages.py", description=__doc__)
    parser.add_argument("stages", nargs="*", choices=[[], *STAGES], help="default: all of them")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    parser.add_argument("--data", type=Path, help="stream of the training benchmark")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder for logs")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all steps together")
    parser.add_argument("--base", help="sanitize kernels of files changed since this commit")
    given = parser.parse_args(arguments)
    logs, names = given.logs.absolute(), given.stages or list(STAGES)
    if absent := missing(names, given.wheels):
        ways = "install them for this Python, or name a folder of wheels: make gpu WHEELS=folder"
        print(f"tgflow: there is no {', '.join(absent)} here; {ways}", file=sys.stderr)
        return 1
    logs.mkdir(parents=True, exist_ok=True)
    ended = run((step for name in names for step in STAGES[name](given)), logs, given.seconds)
    if {"first", "train", "bench"} & set(names):
        folders = [logs / "results", RESULTS]
        keep = [sys.executable, "-m", "benchmarks.gpu_goals", logs / "rows", *folders]
        figures = Step("figures", keep, 60, with_core())
        ended += run(iter([figures]), logs)
        print(figures.log(logs).read_text(errors="replace"))
    table = "\n".join(line for line, _ in ended)
    (logs / "summary.txt").write_text(f"{table}\n")
    archive(logs)
    print(table)
    return int(any(is_failure for _, is_failure in ended))


if __name__ == "__main__":
    sys.exit(main())
