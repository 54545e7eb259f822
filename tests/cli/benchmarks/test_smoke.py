"""The benchmarks without a file of their own run at tiny sizes, and all their values are finite."""

import importlib.util
import json
import math
import os
import subprocess
import sys

import pytest

import benchmarks.kafka
from benchmarks import rules, step
from helpers.made_streams import made_events
from tgflow.cli.benchmarks.setup import Options, restored_threads


def rules_rows(monkeypatch, tmp_path):
    events = made_events(2_000, x_dim=0)
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
step.HOST_STEPS = 2
step.ContinualConfig = partial(step.ContinualConfig, batch_size=20)
step.main(["host", "0"])
"""
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", code]
    made = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return json.loads(made.stdout).values()


def kafka_rows(monkeypatch, tmp_path):
    for name in ("kafka", "crc32c", "confluent_kafka"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    monkeypatch.setattr(benchmarks.kafka, "EVENTS", {"arrow": 20_000, "json": 2_000})
    return benchmarks.kafka.run(Options(quick=True))


@pytest.mark.parametrize("run", [rules_rows, step_values, host_values, kafka_rows])
def test_benchmark_runs(run, monkeypatch, tmp_path):
    with restored_threads():
        values = [getattr(each, "value", each) for each in run(monkeypatch, tmp_path)]
    assert values
    assert all(math.isfinite(value) and value >= 0 for value in values)
