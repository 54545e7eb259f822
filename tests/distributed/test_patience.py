"""Nobody waits for another rank longer than was said, whatever holds the call."""

from __future__ import annotations

import threading

import pytest

from tgflow.distributed.patience import call_within
from tgflow.peers import PeerLost


def test_what_comes_in_time_is_returned():
    assert call_within(20.0, lambda: 3, "late") == 3


def test_what_takes_longer_is_a_lost_peer():
    held = threading.Event()
    with pytest.raises(PeerLost, match="rank 0 is late"):
        call_within(0.02, held.wait, "rank 0 is late")
    held.set()


@pytest.mark.parametrize("error", [ValueError("other settings"), TimeoutError("a socket's own")])
def test_what_is_raised_is_raised_here(error):
    def act():
        raise error

    with pytest.raises(type(error), match=str(error)):
        call_within(20.0, act, "late")
