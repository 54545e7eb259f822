"""`--device`: what is accepted, what a machine without a GPU reports, what a resume may change."""

import pytest
import torch

from tgflow.config import ConfigError, load_config
from tgflow.runtime import directory, gpu
from tgflow.runtime.restore import current_build


def config(**flags):
    return load_config(None, {"stream.path": "events.csv", **flags})


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_other_devices_are_refused(name):
    with pytest.raises(
        ConfigError, match=r"--device: run\.device must be cpu, cuda or cuda:N, got"
    ):
        config(**{"run.device": name})


@pytest.mark.parametrize(
    ("name", "local_rank", "expected"),
    [
        ("cuda", 0, "cuda:0"),
        ("cuda", 1, "cuda:1"),
        ("cuda", 2, "cuda:0"),  # shared, and over gloo
        ("cuda:1", 0, "cuda:1"),
        ("cuda", None, "cuda"),
        ("cpu", 1, "cpu"),
    ],
)
def test_a_rank_has_the_device_of_its_number_on_the_host(monkeypatch, name, local_rank, expected):
    used = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(gpu, "require_device", lambda device: device)
    monkeypatch.setattr(gpu, "require_cupy", lambda device: None)
    world = {} if local_rank is None else {"RANK": 4 + local_rank, "WORLD_SIZE": 8}
    world |= {} if local_rank is None else {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 4}
    for key, value in (world | {"TGFLOW_MEETING": "here"}).items():
        monkeypatch.setenv(key, str(value))
    found = gpu.use_device(config(**{"run.device": name}))
    assert found == torch.device(expected)
    assert used == ([] if name == "cpu" else [found])


def test_a_budget_needs_a_device():
    with pytest.raises(ConfigError, match=r"--device-budget requires --device cuda"):
        gpu.use_device(config(**{"graph.device_budget": "8GB"}))
    with pytest.raises(ConfigError, match="--device-budget"):
        config(**{"graph.device_budget": "much"})


def test_a_plain_resume_may_change_the_device_and_a_strict_one_may_not(monkeypatch):
    before, after = config(), config(**{"run.device": "cuda", "graph.device_budget": "8GB"})
    changed = directory.changes(before, after)
    assert [change.key for change in changed] == ["graph.device_budget", "run.device"]
    assert directory.gravest(changed) == "any_time"
    on_cpu = current_build(2, torch.device("cpu"))
    monkeypatch.setattr("tgflow.runtime.restore.describe_device", lambda device: {"gpu": "H200"})
    on_gpu = current_build(2, torch.device("cuda"))
    assert directory.differences(on_cpu, on_gpu) == ["device was cpu, is H200"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("command", ["run", "train"])
def test_a_run_on_a_gpu_names_it(command, tgflow, events_csv):
    ran = tgflow(command, "--stream", events_csv, "--out", "out", "--device", "cuda", "--json")
    assert ran.json["machine"]["gpu"]
    assert ran.json["gpu_peak_bytes"] > 0
