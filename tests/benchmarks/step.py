"""Time of a continual step of TGN by kind of work, and the rate of its matrix products.

Also the host's time for a micro-batch on a GPU: captured steps whose kernels do nothing.

python -m benchmarks.step AVX-512 fp32 events.csv.gz    profile in this process, as JSON
python -m benchmarks.step host default                  host's time of the default model, as JSON
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import tgflow as tg
from benchmarks.options import Options, wikipedia
from benchmarks.results import Params, Row
from tgflow import TGN, ContinualConfig, TemporalGraph, _core
from tgflow.base import _native
from tgflow.cuda.device import register_device
from tgflow.cuda.structs import Totals
from tgflow.graph.tables import FeatureTable
from tgflow.models import TGNConfig
from tgflow.nn import linear
from tgflow.plan.draws import Draws
from tgflow.train.config import ExecutionConfig
from tgflow.train.stepper import Stepper

WARM_UP, STEPS = 100, 40
DATA = Path(__file__).parents[2] / "examples/data/collegemsg.csv.gz"
KINDS = {
    "matrix products": ("_CoreProduct",),
    "attention": ("Attend",),
    "gather, copy, concatenate": ("index", "gather", "cat", "copy", "scatter", "where", "fill"),
    "elementwise": ("cos", "tanh", "sigmoid", "mul", "add", "lerp", "sub", "div", "relu", "exp"),
    "optimizer": ("Optimizer", "_fused_adam"),
}
"""Parts of the names of operations, the first that fits counts; all else is Python and the rest."""
REST = "Python and the rest"

HOST_PARTS = {
    "append": (TemporalGraph, ("append",)),
    "draws": (Draws, ("request", "fill_all")),
    "metrics": (Stepper, ("collect",)),
}
"""Parts of the host's time, as methods that do not call each other; the rest is the loader's."""
HOST_REST = "steps, packing and loader"
HOST_MS = {
    ("no pair features", "CPU"): 1.5,
    ("no pair features", "GIL"): 0.4,
    ("default", "CPU"): 3.0,
    ("default", "GIL"): 0.5,
}
"""Targets by model: of all threads, and of Python, outside of the core's long calls."""
WITHOUT_GIL: list[tuple[Any, str]] = [
    (_core.Slab, "fill"),
    (_core.TemporalGraph, "stage"),
    (_core.PairIndex, "read"),
    (_native, "link_figures"),
]
"""Calls of the core that release the GIL and take long. torch's operations count as Python."""
HOST_WARM_UP, HOST_STEPS = 15, 100


def run(options: Options) -> list[Row]:
    """Profile TGN as `tgflow run` trains it, on one thread, at each level and precision."""
    file = options.data[0] if options.data else DATA
    levels = [level for level in _core.simd_levels() if level != "baseline"]
    settings = [(level, "fp32") for level in reversed(levels)]
    if _core.has_bfloat16():
        settings.insert(1, ("AVX-512", "bf16"))
    profiles = {}
    for level, precision in settings:
        options.say(f"step: {level}, {precision}")
        profiles[level, precision] = _in_process(level, precision, str(file))
    rows: list[Row] = []
    for (level, precision), found in profiles.items():
        params: Params = {"level": level, "precision": precision}
        rows += [
            Row("step, time", value, "ms", {**params, "kind": kind})
            for kind, value in found["ms"].items()
        ]
        rows.append(
            Row("step, matrix products", found["rate"], "FLOP/s", params, baseline=found["best"])
        )
    return rows


def host_rows(options: Options) -> list[Row]:
    """Measure the host's time for a micro-batch of captured steps, the loader in line."""
    rows = []
    for model in ("no pair features", "default"):
        options.say(f"host: {model}")
        params: Params = {"batch": ContinualConfig().batch_size, "model": model}
        for kind, ms in _in_process("host", model).items():
            target = HOST_MS.get((model, kind))
            rows.append(Row(f"host, micro-batch, {kind}", ms, "ms", params, target))
    return rows


def _in_process(*arguments: str) -> dict[str, Any]:
    """Return the result of `main`; torch reads its level from the environment when it starts."""
    names = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    env = os.environ | (names if arguments[0] == "AVX2" else {})
    command = [sys.executable, "-m", "benchmarks.step", *arguments]
    found = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    profiled: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return profiled


def host_ms(model: str) -> dict[str, float]:
    """Return the milliseconds of a micro-batch: wall, CPU of all threads, under the GIL, of parts.

    The device's memory is the host's. Its kernels run while steps are captured, and then do
    nothing: widths are small, so that torch's operations take as long as their launches. All of
    Python is in one thread, whose times parts are; the best of some rounds counts.
    """
    from helpers.emulator import device as emulator

    torch.set_num_threads(1)
    gpu = emulator.EmulatedDevice()
    register_device(gpu)
    gpu.allocate_host = partial(torch.empty, dtype=torch.uint8)
    sizes: dict[str, Any] = dict.fromkeys(("memory_dim", "time_dim", "embedding_dim"), 4)
    sizes |= {} if model == "default" else {"pair_features": ()}
    edge_x = FeatureTable(4, placement="device", device=gpu)
    graph = TemporalGraph("undirected", edge_x=edge_x, device=gpu)
    tgn = TGN(TGNConfig(**sizes, edge_x_dim=4, neighbors=1))
    trainer = tg.ContinualTrainer(tgn, graph, ContinualConfig(num_threads=0))
    events = wikipedia()
    events = replace(events, x=torch.zeros(len(events), 4))
    steps = trainer.steps(events[at : at + 2000] for at in range(0, len(events), 2000))

    def learn(num: int) -> None:
        for _ in range(num):
            next(steps).to_json()

    def stub(name: str, blocks: int, threads: int, arguments: list[Any]) -> None:
        if name == "insert_small_plan":  # the host reads what it needs: nothing
            ctypes.memset(arguments[0].totals, 0, ctypes.sizeof(Totals))

    emulator.EmulatedGraph.replay = lambda graph: None
    emulator.overwrite = lambda memory: None
    learn(HOST_WARM_UP)
    gpu.kernels._run = stub
    gpu.copy_from_host = lambda pinned, out=None: torch.empty_like(pinned) if out is None else out
    learn(HOST_STEPS // 2)
    spent = dict.fromkeys(HOST_PARTS, 0.0) | {_FREE: 0.0}
    for owner, name in WITHOUT_GIL:
        setattr(owner, name, _timed(getattr(owner, name), _FREE, spent))
    found: list[dict[str, float]] = []
    for _ in range(5):
        spent[_FREE] = 0.0
        wall, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
        learn(HOST_STEPS)
        own, cpu = time.thread_time() - own, time.process_time() - cpu
        wall = time.perf_counter() - wall
        found.append({"wall": wall, "CPU": cpu, "GIL": own - spent[_FREE]})
    for part, (owner, names) in HOST_PARTS.items():
        for name in names:
            setattr(owner, name, _timed(getattr(owner, name), part, spent))
    own = time.thread_time()
    learn(HOST_STEPS)
    parts = {part: spent[part] for part in HOST_PARTS}
    parts[HOST_REST] = time.thread_time() - own - sum(parts.values())
    best = {name: min(each[name] for each in found) for name in found[0]} | parts
    return {name: 1e3 * seconds / HOST_STEPS for name, seconds in best.items()}


_FREE = "without the GIL"


def _timed(call: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*given: Any, **options: Any) -> Any:
        begin = time.thread_time()
        try:
            return call(*given, **options)
        finally:
            spent[part] += time.thread_time() - begin

    return timed


def profiled_step(precision: Any, file: str) -> dict[str, Any]:
    """Return milliseconds of a step by kind, and FLOP/s of its products and of the best one."""
    torch.set_num_threads(1)
    _core.set_num_threads(1)
    trainer = tg.ContinualTrainer(
        tg.TGN(), tg.TemporalGraph(), execution=ExecutionConfig(precision=precision)
    )
    steps = iter(trainer.steps(tg.open_stream(file, time_unit="s")))
    for _ in range(WARM_UP):
        next(steps)
    begin = time.perf_counter()
    for _ in range(STEPS):
        next(steps)
    plain = time.perf_counter() - begin
    with profile(activities=[ProfilerActivity.CPU]) as found:
        begin = time.perf_counter()
        for _ in range(STEPS):
            next(steps)
        total = time.perf_counter() - begin
    seconds: dict[str, float] = dict.fromkeys((*KINDS, REST), 0.0)
    for event in found.key_averages():
        fitting = (kind for kind, parts in KINDS.items() if any(p in event.key for p in parts))
        seconds[next(fitting, REST)] += event.self_cpu_time_total / 1e6
    seconds[REST] = total - sum(seconds[kind] for kind in KINDS)
    scale = 1000 * plain / total / STEPS
    return {
        "ms": {kind: scale * seconds[kind] for kind in (*KINDS, REST)},
        "rate": _product_rate(steps),
        "best": max(linear.product_rates(512, 256, 512)[precision] for _ in range(5)) * 1e9,
    }


def _product_rate(steps: Any, module: Any = linear) -> float:
    """Return FLOP/s of the products of some steps, each timed by itself."""
    flops, seconds, multiply = 0, 0.0, module.multiply

    def timed(**given: Any) -> None:
        nonlocal flops, seconds
        begin = time.perf_counter()
        multiply(**given)
        seconds += time.perf_counter() - begin
        flops += 2 * given["a"].numel() * given["b"].shape[-1]

    module.multiply = timed
    for _ in range(STEPS):
        next(steps)
    module.multiply = multiply
    return flops / seconds


def main(arguments: Sequence[str]) -> None:
    """Print the profile of this process."""
    if arguments[0] == "host":
        print(json.dumps(host_ms(arguments[1])))
        return
    level, precision, file = arguments
    _core.set_simd_level(level)
    print(json.dumps(profiled_step(precision, file)))


if __name__ == "__main__":
    main(sys.argv[1:])
