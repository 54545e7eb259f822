"""Runs a test once per device: the CPU and the GPU path are twins."""

from __future__ import annotations

import pytest
import torch

_no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")

for_each_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, _no_cuda])]
)
