"""Lists of the slots that read each row of a batch, by which a GPU sums gradients.

They depend on the batch alone: made with it, they are off the stream that trains.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from tgflow.graph.batch import Batch, Block
from tgflow.plan._native import padded_rows

_MOST_ROWS = 1 << 31


def with_slot_lists(batch: Batch) -> Batch:
    """Return a batch on a GPU with the lists of its rows; does not synchronize.

    If its rows are counted on the GPU (`num_used`), padding that will be cut is in no list.
    """
    if not len(batch.nodes):
        return batch
    from tgflow.cuda.row_lists import row_lists
    from tgflow.nn.pairs import Pairs

    sizes = [*map(_num_rows, batch.blocks), len(batch.nodes)]
    limits = None
    if batch.num_used is not None:
        table = _sizes(batch.num_used.device)
        limits = table[torch.searchsorted(table, batch.num_used)]
    blocks = []
    for i, (block, below) in enumerate(zip(batch.blocks, sizes[1:], strict=True)):
        remains = None
        if limits is not None:
            remains = torch.arange(len(block.target), device=block.target.device) < limits[i]
        target = row_lists(block.target, below, remains)
        neighbor = row_lists(block.neighbor, below, block.mask)
        blocks.append(replace(block, target_lists=target, neighbor_lists=neighbor))
    pairs = Pairs.of(batch)
    src, dst = (row_lists(row, sizes[0]) for row in (pairs.src_row, pairs.dst_row))
    return replace(batch, blocks=tuple(blocks), src_lists=src, dst_lists=dst)


def _num_rows(block: Block) -> int:
    """Return the number of rows of the frontier above a block."""
    return len(block.target) + (0 if block.reused is None else len(block.reused.slot))


@cache
def _sizes(device: torch.device) -> Tensor:
    """Return all sizes that numbers of rows are rounded to, ascending."""
    sizes = [0]
    while sizes[-1] < _MOST_ROWS:
        sizes.append(padded_rows(sizes[-1] + 1))
    return torch.tensor(sizes, device=device)
