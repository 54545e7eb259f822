"""`--device`: what is accepted, what a machine without a GPU reports, what a resume may change."""

import pytest
import torch

from tgflow.config import load_config
from tgflow.runtime import gpu


def config(**flags):
    return load_config(None, {"stream.path": "events.csv", **flags})


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("command", ["run", "train"])
def test_a_run_on_a_gpu_names_it(command, tgflow, events_csv):
    ran = tgflow(command, "--stream", events_csv, "--out", "out", "--device", "cuda", "--json")
    assert ran.json["machine"]["gpu"]
    assert ran.json["gpu_peak_bytes"] > 0
