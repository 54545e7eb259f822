"""Rows on their way from a slow placement."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class RowRequest(Protocol):
    """Rows that are being written to where they were asked for."""

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""

    def wait(self) -> None:
        """Return once they are there; raises OSError if they cannot be read."""


class PendingGather:
    """A gather that continues while its caller does something else."""

    def __init__(self, out: Tensor, ids: Tensor, request: RowRequest | None) -> None:
        self._request = request  # goes first: it waits for the rows that are still written
        self._ids, self._out = ids, out

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._request is None or self._request.is_done

    def wait(self) -> Tensor:
        """Return the rows once they are there.

        Raises:
            OSError: If they cannot be read. `tgflow.tables.DamagedFile` is one, for rows that are
                not what was written.
        """
        if self._request is not None:
            self._request.wait()
        return self._out

    def __del__(self) -> None:
        self._request = None
