"""Every benchmark runs at a tiny size, and the pages are generated from recorded results."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

import benchmarks.graph
import benchmarks.kafka
import benchmarks.train
from benchmarks import (
    disk,
    first_gpu,
    peers,
    prepare,
    ranks,
    reuse,
    rules,
    serve,
    step,
    stream,
    table,
    train_device,
)
from benchmarks.__main__ import main
from benchmarks.accuracy import rows_of_run
from benchmarks.options import Options, PowerLaw, restored_threads
from benchmarks.own import Task, own_tgn
from benchmarks.reliability import campaign_rows
from benchmarks.report import BESIDE, PAGES, ROOT, filled
from benchmarks.results import Result, Row
from helpers.devices import opened, place_of
from helpers.effort import slow
from helpers.live_runs import SMALL, write_events
from helpers.made_streams import made_events
from tgflow.graph.events import EventBatch

QUICK = Options(quick=True, device="cpu")


def made_task():
    draw = torch.Generator().manual_seed(0)
    src = torch.randint(8, (120,), generator=draw)
    x = torch.randn(120, 6, generator=draw)
    events = EventBatch(src, 8 + src % 3, torch.arange(120) * 5, x)
    return Task(events, 100, batch_size=10, dim=8, neighbors=3, lr=1e-2)


def graph_options(tmp_path):
    """Return options with small graphs and a file of 2,000 events."""
    path, events = tmp_path / "wikipedia.csv", PowerLaw(100).read(0, 2_000)
    columns = zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True)
    path.write_text("src,dst,t\n" + "".join(f"{s},{d},{t}\n" for s, d, t in columns))
    return Options(data=[path], quick=True, entries=(10_000, 60_000), device="cpu")


def sample_rows(monkeypatch, tmp_path):
    return benchmarks.graph.sample(graph_options(tmp_path))


def prepare_rows(monkeypatch, tmp_path):
    return prepare.run(graph_options(tmp_path))


def emulated(monkeypatch):
    """Return an emulated device that is the GPU of this process."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    place_of("apart")
    return opened("apart")


def gpu_graph_rows(monkeypatch, tmp_path):
    options = Options(quick=True, entries=(10_000,))
    growing, params = next(benchmarks.graph.grown_graphs(options, emulated(monkeypatch)))
    rows = benchmarks.graph.store_rows(growing, params, 2)
    return [
        *rows,
        *benchmarks.graph.rebuild_rows(
            Options(quick=True, entries=(20_000,)), emulated(monkeypatch)
        ),
    ]


def table_rows(monkeypatch, tmp_path):
    for name, value in {"WIDTHS": (100,), "GPU_CALL": 50, "SMALL_CALL": 20}.items():
        monkeypatch.setattr(table, name, value)
    return [*table.run(QUICK), *table.gpu_rows(128, emulated(monkeypatch), QUICK)]


def disk_values(monkeypatch, tmp_path):
    path = str(tmp_path / "x.rows")
    disk.write_table(tmp_path / "x.rows", 3_000, 172)
    tasks = (disk.Pass(each, path, 3_000, 1_000, 172, 50, 8 << 20, 60.0) for each in disk.METHODS)
    read = [disk.take(each).rows for each in tasks]
    assert len({tuple(rows) for rows in read}) == 1, "every method reads the same rows"
    return read[0]


def stream_rows(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stream, "NUM_ROWS", 20_000)
    return stream.run(QUICK)


def kafka_rows(monkeypatch, tmp_path):
    for name in ("kafka", "crc32c", "confluent_kafka"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    monkeypatch.setattr(benchmarks.kafka, "EVENTS", {"arrow": 20_000, "json": 2_000})
    return benchmarks.kafka.run(Options(quick=True))


def models_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "load", lambda peer, *given: peers.NOT_INSTALLED)
    return benchmarks.train.model_rows(made_task(), {"stream": "made"}, Options())


def libraries_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "load", lambda peer, *given: peers.NOT_INSTALLED)
    monkeypatch.setattr(benchmarks.train, "has_bfloat16", lambda: False)
    rows = benchmarks.train.libraries(Options(quick=True, events=2_000, device="cpu"))
    for pick in BESIDE.values():  # of the README's table
        shown = pick.of({pick.result: Result("", "", "", "", tuple(rows))})
        assert "tgflow" in {row.params["library"] for row in shown}
    return rows


def held_out_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "load", lambda peer, task: own_tgn(task))
    return benchmarks.train.held_out(Options(quick=True, events=400))


def device_rows(monkeypatch, tmp_path):
    for name, value in {"BATCHES": (8,), "BESIDE_BATCH": 8, "APPENDED": 50}.items():
        monkeypatch.setattr(train_device, name, value)
    monkeypatch.setattr(train_device, "APPENDS_A_SECOND", 5)
    device, options = emulated(monkeypatch), Options(quick=True)
    with torch.autograd.set_multithreading_enabled(False):  # the device has no thread of its own
        return list(train_device.device_rows(made_task(), {}, device, options))


def first_rows(monkeypatch, tmp_path):
    for name, value in {"BATCHES": (10, 20), "DEFAULT_EVENTS": 40, "PAUSES": 4}.items():
        monkeypatch.setattr(first_gpu, name, value)
    gpu, small = emulated(monkeypatch), ["--limit=400", "--model-set=memory_dim=4"]
    task = replace(made_task(), events=made_task().events[:70])
    with torch.autograd.set_multithreading_enabled(False):
        rows = list(first_gpu.rows_on(gpu, task, {}))
    [pauses] = [row for row in rows if row.name == "memory after pauses"]
    assert pauses.params["captures"] > 0
    return [*rows, first_gpu.command_row(step.DATA, "cpu", *small)]


def threads_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmarks.train, "num_cores", lambda: 2)
    return benchmarks.train.training_rows(
        made_task(), own_tgn, {"model": "TGN"}, Options(quick=True)
    )


def reuse_rows(monkeypatch, tmp_path):
    for name, value in {"BATCH": 10, "X_DIM": 3, "NEIGHBORS": 2}.items():
        monkeypatch.setattr(reuse, name, value)
    rows = reuse.speed_rows(made_events(240, x_dim=0), (0, 1, 4), {"stream": "wikipedia"})
    return [row for row in rows if row.unit]


def rules_rows(monkeypatch, tmp_path):
    events = made_events(1_500, x_dim=0)
    return [*rules.prequential_rows(events, {}, Options()), *rules.pass_rows(events, {}, Options())]


def step_values(monkeypatch, tmp_path):
    monkeypatch.setattr(step, "WARM_UP", 2)
    monkeypatch.setattr(step, "STEPS", 2)
    found = step.profiled_step("fp32", str(step.DATA))
    return [*found.pop("ms").values(), *found.values()]


def host_values(monkeypatch, tmp_path):
    """In a process of its own: it leaves a device whose kernels do nothing."""
    code = """
from functools import partial
from benchmarks import step
step.HOST_WARM_UP, step.HOST_STEPS = 40, 2  # its last capture, at step 28, needs kernels that run
step.ContinualConfig = partial(step.ContinualConfig, batch_size=20)
step.main(["host", "default"])
"""
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", code]
    made = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return json.loads(made.stdout).values()


def ranks_values(monkeypatch, tmp_path):
    return ranks.start(ranks.Work("tgn", batch=20, warm_up=1, batches=2, dim=4, world=2))


def serve_rows(monkeypatch, tmp_path):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    monkeypatch.setattr(serve, "WARM_EVENTS", 400)
    monkeypatch.setattr(serve, "CLIENTS", 3)
    path, ids = serve.write_laps(write_events(tmp_path / "made.csv", 2_000), tmp_path, 40)
    with serve.Served(path, ids, tmp_path / "run", flags=[*map(str, SMALL)]) as served:
        latency = serve.rows_of_latency(served, {}, 0.5, 1)
        return [*latency, *serve.rows_of_share(served, {}, 0.5, 1)]


def accuracy_rows(monkeypatch, tmp_path):
    found = {"stream": "enron.csv", "model": "counts", "num_seeds": 3, "test.ap": 0.9}
    (tmp_path / "metrics.json").write_text(json.dumps(found | {"num_parameters": 9}))
    (tmp_path / "config.toml").write_text(
        "[learning]\nlearning_rate = 0.00030\nepochs = 5\nbatch_size = 100\nseed = 4\n"
        '[model]\nname = "counts"\ndepth = 5\ngroups = [ "shares",]\nhalf_life = 1e+7\n'
    )
    [row] = rows_of_run(tmp_path)
    assert row.params["settings"] == (
        "--batch-size 100 --learning-rate 0.0003 --epochs 5 "
        '--model-set groups=["shares"] --model-set half_life=10000000.0'
    )
    return [row]


def reliability_rows(monkeypatch, tmp_path):
    return [*campaign_rows(Counter({("test_killed_over_kafka[whole]", "kills"): 3}))]


RUNS = [
    *(
        sample_rows,
        prepare_rows,
        table_rows,
        disk_values,
        stream_rows,
        libraries_rows,
        threads_rows,
    ),
    *(accuracy_rows, reliability_rows),
    *map(slow, (gpu_graph_rows, kafka_rows, models_rows, held_out_rows, reuse_rows)),
    *map(slow, (rules_rows, step_values, device_rows, first_rows, host_values, ranks_values)),
    slow(serve_rows),
]


@pytest.mark.parametrize("run", RUNS)
def test_benchmark_runs(run, monkeypatch, tmp_path):
    with restored_threads():
        found = list(run(monkeypatch, tmp_path))
    rows = [each for each in found if isinstance(each, Row)]
    named = {(row.name, json.dumps(row.params, sort_keys=True)) for row in rows}
    assert len(named) == len(rows), "no two rows look alike"
    skipped = [row for row in rows if "skipped" in row.params]
    assert all(math.isnan(row.value) and row.ratio is None for row in skipped)
    values = [getattr(each, "value", each) for each in found if each not in skipped]
    assert values
    assert all(map(math.isfinite, values))


@pytest.mark.slow
@pytest.mark.parametrize(
    "peer",
    [peers.TGN, peers.TGAT, peers.GRAPHMIXER, peers.DYGFORMER, peers.TPNET],
    ids=lambda peer: peer.adapter,
)
def test_installed_peers_run_the_same_task(peer):
    contender = peers.load(peer, made_task())
    if contender == peers.NOT_INSTALLED:
        pytest.skip(f"{peer.library} is {contender}")
    assert not isinstance(contender, str), contender
    losses = contender.train(4) + contender.train(100)
    assert len(losses) == made_task().num_batches
    assert all(math.isfinite(loss) for loss in losses)
    positive, negative = contender.evaluate()
    assert len(positive) == len(negative) == 20


def test_rows_are_printed_as_a_table_or_json(monkeypatch, capsys):
    rows = [
        Row("recent", 2e7, "roots/s", {"k": 10, "entries": 1000}, 1e7, 5e6),
        Row("recent", 1e6, "roots/s", {"k": 10, "entries": 2_000_000}, 1e7, 5e6),
        Row("step", math.nan, "ms"),
    ]
    asked = []
    monkeypatch.setattr(benchmarks.graph, "store", lambda options: asked.append(options) or rows)
    main(["store", "--json", "--entries", "1e6,2e4"])
    first, _, third = json.loads(capsys.readouterr().out)
    assert (first["value"], first["ratio"], first["params"]) == (2e7, 4.0, rows[0].params)
    assert (third["value"], third["ratio"]) == (None, None)
    assert asked[0].sizes == (20_000, 1_000_000)
    main(["store"])
    text = capsys.readouterr().out
    assert "| recent | entries 1000 | 20M roots/s | 5M | 4.00x | 10M |" in text
    assert "| 1M roots/s | 5M | 0.20x | **10M: missed** |" in text


def test_ratio_and_targets_of_a_row():
    assert Row("rate", 6.0, "events/s", baseline=3.0, target=100.0).ratio == 2
    assert Row("cost", 6.0, "us", baseline=3.0).ratio == 0.5
    assert Row("rate", 6.0, "events/s", target=2.0).ratio == 3
    assert Row("rate", 6.0, "events/s").ratio is None
    assert Row("rate", 6.0, "events/s", target=5.0).reached
    assert not Row("rate", 6.0, "events/s", target=7.0).reached
    assert Row("cost", 6.0, "us", target=7.0).reached
    assert Row("rate", 6.0, "events/s", {}, 5.0, 3.0, 2.0).reached
    assert not Row("rate", 6.0, "events/s", {}, 5.0, 4.0, 2.0).reached
    assert Row("rate", 6.0, "events/s", target_ratio=2.0).reached is None


@pytest.mark.parametrize("page", PAGES)
def test_all_figures_of_a_page_come_from_results(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text) == text


def test_benchmarks_page_is_short():
    assert (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8").count("\n") <= 255
