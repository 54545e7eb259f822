"""The emulated device must fail and synchronize where a GPU does."""

from __future__ import annotations

import copy

import pytest
import torch

from helpers.emulator import tensors
from helpers.emulator.tensors import watching

pytestmark = pytest.mark.skipif(
    not tensors.IS_THERE, reason="this PyTorch lets no Python be a device"
)


@pytest.fixture
def there() -> torch.device:
    return tensors.emulated_device()


def test_tensors_and_results_stay_on_the_emulated_device(there):
    x = torch.arange(4, device=there)
    for each in (x, x + 1, x[1:], x.view(2, 2).t(), x.clone(), torch.zeros_like(x), x.cumsum(0)):
        assert (each.device, each.is_cpu) == (there, False)
    assert (x.cpu().is_cpu, x.to("cpu").tolist()) == (True, [0, 1, 2, 3])
    assert torch.tensor([1.5], device=there).to(torch.float64).device == there
    assert copy.deepcopy(x).device == there


WAITS = {
    "item": lambda x: x[0].item(),
    "int": lambda x: int(x[1]),
    "bool": lambda x: bool((x > 0).any()),
    "list": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 1],
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "up": lambda x: torch.ones(3).to(x.device),
    "made": lambda x: torch.tensor([1, 2], device=x.device),
    "repeat": lambda x: x.repeat_interleave(x),
    "down": lambda x: torch.ones(4, dtype=torch.int64).copy_(x, non_blocking=True),
}


@pytest.mark.parametrize("name", WAITS)
def test_host_synchronizations_are_counted(name, there):
    x = torch.arange(4, device=there)
    with watching() as watch:
        WAITS[name](x)
    assert len(watch.waits) == 1
    assert "test_emulated_tensors.py" in watch.waits[0]
