import math

import pytest
import torch

from tgflow.nn import LogTimeEncoding, TimeEncoding


def test_time_encoding_by_hand():
    encoding = TimeEncoding(4)
    torch.testing.assert_close(encoding.frequency, torch.tensor([1.0, 1e-3, 1e-6, 1e-9]))
    out = encoding(torch.tensor([[2.0]]))
    assert out.shape == (1, 1, 4)
    torch.testing.assert_close(out[0, 0, :2], torch.tensor([math.cos(2), math.cos(0.002)]))


@pytest.mark.parametrize("dt", [0.0, 1e-3, 1.0, 1e4, 2.6e6, 3e9])
def test_time_encoding_is_the_cosine_of_the_phase_that_float32_has(dt):
    encoding = TimeEncoding(100)
    dt = dt * torch.linspace(0.5, 1, 30)
    phase = (dt.unsqueeze(-1) * encoding.frequency).double()
    torch.testing.assert_close(encoding(dt), phase.cos().float(), rtol=0, atol=7e-7)
    shaped = encoding(dt.view(5, 6).t())
    assert torch.equal(shaped, encoding(dt).view(5, 6, 100).transpose(0, 1)), "any layout"


def test_log_time_encoding_by_hand():
    encoding = LogTimeEncoding(4)
    with torch.no_grad():
        encoding.phase[1] = 0.5
    out = encoding(torch.tensor([[0.0, math.e - 1]]))
    assert out.shape == (1, 2, 4)
    torch.testing.assert_close(out[0, :, 0], torch.tensor([1.0, math.cos(1)]))
    torch.testing.assert_close(out[0, :, 1], torch.tensor([math.cos(0.5), math.cos(0.501)]))
