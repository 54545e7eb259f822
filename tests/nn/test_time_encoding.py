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


def test_time_encoding_in_double_and_with_gradients_is_torchs():
    encoding, dt = TimeEncoding(4), torch.tensor([3.0, 700.0], requires_grad=True)
    found = encoding(dt)
    torch.testing.assert_close(found, encoding(dt.detach()))
    [grad] = torch.autograd.grad(found.sum(), dt)
    phase = dt.detach().unsqueeze(-1) * encoding.frequency
    torch.testing.assert_close(grad, -(phase.sin() * encoding.frequency).sum(-1))
    assert encoding.double()(dt.detach().double()).dtype == torch.float64
    assert encoding(dt.detach()).dtype == torch.float64, "of a model in double, times in single"


def test_time_encoding_of_zero_is_that_of_no_time():
    encoding = TimeEncoding(5)
    assert torch.equal(encoding.at_zero(), encoding(torch.zeros(1))[0])


def test_time_encoding_of_nothing():
    assert TimeEncoding(3)(torch.empty(0)).shape == (0, 3)


def test_time_encoding_is_not_trained():
    assert not list(TimeEncoding(3).parameters())


@pytest.mark.parametrize("encoding", [TimeEncoding, LogTimeEncoding])
def test_time_encoding_needs_a_width(encoding):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        encoding(0)


def test_log_time_encoding_by_hand():
    encoding = LogTimeEncoding(4)
    with torch.no_grad():
        encoding.phase[1] = 0.5
    out = encoding(torch.tensor([[0.0, math.e - 1]]))
    assert out.shape == (1, 2, 4)
    torch.testing.assert_close(out[0, :, 0], torch.tensor([1.0, math.cos(1)]))
    torch.testing.assert_close(out[0, :, 1], torch.tensor([math.cos(0.5), math.cos(0.501)]))


def test_log_time_encoding_can_be_trained():
    encoding = LogTimeEncoding(3).double()
    dt = torch.tensor([0.0, 1.0, 1e9], dtype=torch.float64)
    inputs = (encoding.frequency, encoding.phase)
    assert torch.autograd.gradcheck(lambda *_: encoding(dt), inputs)
    century = torch.tensor(100 * 365.25 * 86_400, dtype=torch.float64)
    with torch.no_grad():
        before = encoding(century)
        encoding.frequency += 1e-3
        assert (encoding(century) - before).abs().max() < 0.023
