"""Ids that a kernel found to be wrong, reported to the host without making it wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tgflow.cuda.device import Device


class OutOfRangeFlag:
    """A word that kernels write and the host reads: the id of a row that is not there, or -1."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.flag = gpu.allocate_host(8).view(torch.int64)
        self.flag.fill_(-1)

    def check(self) -> None:
        """Raise IndexError if a gather that is done by now was asked for a row that is not there.

        The row it gave instead is zeros. Does not synchronize: what still runs is not waited for.
        """
        id = int(self.flag[0]) if len(self.flag) else -1
        if id < 0:
            return
        self.flag.fill_(-1)
        raise IndexError(
            f"an earlier gather on {self._gpu.device} was asked for id {id}, which was not in "
            "the table; it gave zeros"
        )
