"""Model kernels on a GPU match the CPU and are deterministic."""

import pytest
import torch

from helpers.devices import needs_cuda
from helpers.kernels import WIDTHS, AttentionCase, check_close
from tgflow.nn import Dropout, DropoutKeys
from tgflow.nn._native import gather_rows
from tgflow.nn.attention import attend

pytestmark = needs_cuda
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize(
    ("size", "k", "shared"), [(600, 10, False), (4_400, 10, False), (77, 40, True)]
)
def test_gpu_attention_matches_the_cpu_and_is_deterministic(size, k, shared, widths):
    case = AttentionCase.made(size, k, widths, below=300, shared=shared)
    on_gpu = case.to(GPU)
    first = on_gpu.results(attend)
    check_close(first, case.results(attend))
    for _ in range(20):
        again = on_gpu.results(attend)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_gpu_dropout_and_gathered_rows_match_the_cpu():
    x, row = torch.randn(50, 12), torch.randint(50, (4_000,))
    results = []
    for device in (CPU, GPU):
        model, here = Dropout(0.3).to(device), x.to(device, copy=True).requires_grad_()
        with DropoutKeys(model).keyed(3):
            dropped = model(gather_rows(here, row.to(device)))
        results.append([dropped.detach().cpu(), torch.autograd.grad(dropped.sum(), here)[0].cpu()])
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[1][1], results[0][1], atol=1e-4, rtol=1e-5)
