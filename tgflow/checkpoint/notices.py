"""Words between ranks that are not in step, beside the training: JSON under keys that all see."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, Protocol

from tgflow.peers import PeerLost, Peers

_SHORTEST, _LONGEST = 0.002, 0.1
"""Seconds between two looks. A look is short, since it holds up whoever else uses the store."""


class KeyStore(Protocol):
    """Keys and values that all ranks see, from any thread, as `torch.distributed.Store` is one."""

    def set(self, key: str, value: str) -> None:
        """Let `key` have this value."""

    def get(self, key: str) -> bytes:
        """Return the value of a key that has one."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have values."""

    def delete_key(self, key: str) -> bool:
        """Let `key` have no value; return whether it had one."""


class Notices:
    """What one rank posts and the others find. Every method may be called from any thread.

    Args:
        store: Where; nobody else uses keys that start with `prefix`.
        peers: This rank among the others.
        prefix: What keys start with.

    Raises:
        PeerLost: By every method, if the store is gone, or another rank is.
    """

    def __init__(self, store: KeyStore, peers: Peers, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self.peers = peers

    def post(self, key: str, word: Any) -> None:
        """Let all ranks find `word`, which is fit for JSON."""
        try:
            self._store.set(self._prefix + key, json.dumps(word))
        except RuntimeError as error:
            raise self._lost(error) from error

    def find(self, *keys: str, by: int | None = None, until: float | None = None) -> Any:
        """Return the word under the first of `keys` that has one; waits for it.

        Args:
            keys: Where to look.
            by: The rank that posts it, which is lost if its process has ended before; None: rank 0,
                without which there is no store.
            until: By `time.monotonic()`; None waits as long as all ranks are there.

        Returns:
            The word; None if there is none by then.
        """
        pause = _SHORTEST
        while True:
            # asked before the look: what a process has posted is there once it has ended
            is_gone = by is not None and self.peers.is_gone(by)
            try:
                for key in keys:
                    if self._store.check([self._prefix + key]):
                        return json.loads(self._store.get(self._prefix + key))
            except RuntimeError as error:
                raise self._lost(error) from error
            if self.peers.failure is not None:
                raise PeerLost(str(self.peers.failure))
            if is_gone:
                raise PeerLost(f"rank {by} has ended, and has not said what it has written")
            if until is not None and time.monotonic() >= until:
                return None
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST)

    def remove(self, keys: Iterable[str]) -> None:
        """Take down what was posted under these keys, if anything was."""
        try:
            for key in keys:
                self._store.delete_key(self._prefix + key)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> PeerLost:
        first = str(error).partition("\n")[0]
        return PeerLost(f"rank {self.peers.rank} cannot reach the store of the ranks: {first}")
