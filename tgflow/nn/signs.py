"""Random signs of nodes: a function of the node alone, the same on every device."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 64
_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def random_signs(nodes: Tensor, dim: int) -> Tensor:
    """Return rows of +-dim^-1/2, float32 `[N, dim]`: of unit length, orthogonal in expectation.

    Such projections keep inner products as normal ones do (Achlioptas 2003). Does not synchronize.

    Args:
        nodes: int64 `[N]`; equal nodes have equal rows, in every process.
        dim: Width, at least 1.
    """
    num_words = -(-dim // _WORD)
    number = torch.arange(num_words, device=nodes.device) + 1
    bits = mix64(mix64(nodes.unsqueeze(1)) + number * _signed(_STEP))  # [N, words]
    place = torch.arange(_WORD, device=nodes.device)
    ones = (bits.unsqueeze(-1) >> place) & 1
    signs = ones.view(len(nodes), num_words * _WORD)[:, :dim].to(torch.float32)
    return signs.mul_(2 * dim**-0.5).sub_(dim**-0.5)


def mix64(x: Tensor) -> Tensor:
    """Return int64 of which every bit depends on all of `x`'s: splitmix64's last step."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Return `x >> by` with zeros shifted in."""
    return (x >> by) & ((1 << (_WORD - by)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
