"""Launches the kernels of a step's loss and of its check (csrc/cuda/loss.cu)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from tgflow.cuda.arguments import Arguments
from tgflow.cuda.launch import Kernels
from tgflow.cuda.structs import words

_THREADS = 256
_MOST_BLOCKS = 1024
_MOST_VALUES = 4


class _LinkLogits(ctypes.Structure):
    """Logits and gradients (cuda/loss.cu)."""

    _fields_ = words("positive num_positive negative num_negative grad_positive grad_negative loss")


class _CheckedValues(ctypes.Structure):
    """Values to check (cuda/loss.cu)."""

    _fields_ = words("at0 at1 at2 at3 size0 size1 size2 size3 is_lost")


def link_bce(kernels: Kernels, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return half the mean of softplus(-positive) and softplus(negative) each, and its gradients.

    The loss is NaN without positives or negatives.
    """
    given = Arguments.beside("positive", positive)
    loss = positive.new_empty(())
    of_positive, of_negative = torch.empty_like(positive), torch.empty_like(negative)
    logits = _LinkLogits(
        given.address("positive", positive, torch.float32, "B"),
        positive.numel(),
        given.address("negative", negative, torch.float32, len(positive), "m"),
        negative.numel(),
        of_positive.data_ptr(),
        of_negative.data_ptr(),
        loss.data_ptr(),
    )
    kernels.launch("link_bce", 1, 1024, logits)
    return loss, of_positive, of_negative


def check_finite(kernels: Kernels, values: Sequence[Tensor], is_lost: Tensor) -> None:
    """Set `is_lost` if one of the values, of at most 4 tensors, is not finite."""
    given = Arguments.beside("is_lost", is_lost)
    flat = [x.view(-1) for x in values]
    addresses = [given.address("values", x, torch.float32, "N") for x in flat]
    sizes = [len(x) for x in flat]
    unused = [0] * (_MOST_VALUES - len(flat))
    flag = given.address("is_lost", is_lost, torch.bool)
    checked = _CheckedValues(*addresses, *unused, *sizes, *unused, flag)
    blocks = min(-(-max(sizes) // _THREADS), _MOST_BLOCKS)
    if blocks:
        kernels.launch("check_finite", blocks, _THREADS, checked)
