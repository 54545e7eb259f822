"""The bytes of tensors, piece by piece: those on a GPU are copied beside what runs there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def pages(flat: Tensor, num_bytes: int) -> Iterator[memoryview]:
    """Yield a tensor's bytes in pieces of at most `num_bytes`, each good until the next.

    Of a tensor on a GPU the host never holds more than a piece. The copies have a stream of their
    own, behind what the thread's current stream had queued; only this thread waits for them.

    Args:
        flat: Of one dimension, contiguous.
        num_bytes: At least those of an element.
    """
    step = num_bytes // flat.element_size()
    pieces = (flat[i : i + step] for i in range(0, len(flat), step))
    if flat.is_cuda:
        yield from _copied(flat, pieces, min(step, len(flat)))
    else:
        yield from (_bytes(piece.cpu()) for piece in pieces)


def _copied(flat: Tensor, pieces: Iterator[Tensor], size: int) -> Iterator[memoryview]:
    stream = torch.cuda.Stream(flat.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(flat.device))
    pinned = torch.empty(size, dtype=flat.dtype, pin_memory=True)
    for piece in pieces:
        with torch.cuda.stream(stream):
            copied = pinned[: len(piece)].copy_(piece, non_blocking=True)
        stream.synchronize()
        yield _bytes(copied)


def _bytes(x: Tensor) -> memoryview:
    data: memoryview = x.view(torch.uint8).numpy().data
    return data
