"""Ids that a kernel found to be wrong, reported to the host without making it wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tgflow.cuda.device import Device


_NONE = -(2**63)


class OutOfRangeFlag:
    """A word that kernels write and the host reads: the id of a row that is not there."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.flag = gpu.allocate_host(8).view(torch.int64)
        self.flag.fill_(_NONE)

    def check(self) -> None:
        """Raise IndexError if a call that is done by now was asked for a row that is not there.

        A gather has given zeros for it, a scatter has left it out. Does not synchronize: what still
        runs is not waited for.
        """
        id = int(self.flag[0])
        if id == _NONE:
            return
        self.flag.fill_(_NONE)
        raise IndexError(
            f"an earlier call on {self._gpu.device} was asked for id {id}, which was not in "
            "the table; it gave zeros, or wrote nothing"
        )
