"""Copies too large for memory: in a temporary file that is read as memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import torch
from torch import Tensor


def write_spill(pages: Iterable[Tensor], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return the pages below each other as one tensor on the CPU, which lies in a file.

    The system keeps of it in memory what there is room for. The file has no name: it goes with the
    tensor, however the process ends. Where temporary files are, `TMPDIR` says.

    Args:
        pages: Rows `[n, shape[1]]` on the CPU; each is written before the next is asked for.
        shape: Of all of them.
        dtype: Of all of them.

    Raises:
        OSError: If there is no room for the file.
    """
    numel = shape[0] * shape[1]
    if numel == 0:
        return torch.empty(shape, dtype=dtype)
    with tempfile.NamedTemporaryFile(prefix="tgflow-", suffix=".rows") as file:
        for page in pages:
            file.write(page.contiguous().view(torch.uint8).numpy().data)
        file.flush()
        return torch.from_file(file.name, shared=True, size=numel, dtype=dtype).view(shape)
