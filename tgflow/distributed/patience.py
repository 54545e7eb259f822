"""Waiting for another rank no longer than a time, whatever it waits by."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tgflow.peers import PeerLost

Found = TypeVar("Found")


def call_within(seconds: float, act: Callable[[], Found], lost: str) -> Found:
    """Return what `act` returns, which runs in a thread of its own.

    A store of torch waits without a bound for what it has asked, so a rank 0 that is stopped would
    hold whoever asks. The thread is then left behind, and ends with the process.

    Raises:
        PeerLost: With the text `lost`, if it takes longer. And whatever `act` raises.
    """
    found: Future[Found] = Future()

    def run() -> None:
        try:
            found.set_result(act())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="within", daemon=True).start()
    try:
        return found.result(seconds)
    except TimeoutError:
        if found.done():  # it is what `act` has raised
            raise
        raise PeerLost(lost) from None
