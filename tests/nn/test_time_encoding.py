import math

import pytest
import torch

from tgflow.nn import TimeEncoding


def test_time_encoding_by_hand():
    encoding = TimeEncoding(4)
    torch.testing.assert_close(encoding.frequency, torch.tensor([1.0, 1e-3, 1e-6, 1e-9]))
    out = encoding(torch.tensor([[2.0]]))
    assert out.shape == (1, 1, 4)
    torch.testing.assert_close(out[0, 0, :2], torch.tensor([math.cos(2), math.cos(0.002)]))


def test_time_encoding_of_zero_is_that_of_no_time():
    encoding = TimeEncoding(5)
    assert torch.equal(encoding.at_zero(), encoding(torch.zeros(1))[0])


def test_time_encoding_of_nothing():
    assert TimeEncoding(3)(torch.empty(0)).shape == (0, 3)


def test_time_encoding_is_not_trained():
    assert not list(TimeEncoding(3).parameters())


def test_time_encoding_needs_a_width():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        TimeEncoding(0)
