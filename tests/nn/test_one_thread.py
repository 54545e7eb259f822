"""Small work on one thread: the threads come back, and the bits are those of any number."""

import pytest
import torch

from tgflow.nn.choice import one_thread


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_the_threads_come_back_however_it_ends():
    with one_thread():
        assert torch.get_num_threads() == 1
    with pytest.raises(ZeroDivisionError), one_thread():
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == 3
