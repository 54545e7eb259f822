"""Ranks agree after each micro-batch, by the word of rank 0; and compare what they hold."""

from __future__ import annotations

import pytest
import torch

from helpers.worlds import in_world
from tgflow.distributed.control import Order
from tgflow.distributed.orders import CHECKED_EVERY, Orders
from tgflow.distributed.words import share_words
from tgflow.peers import RanksDisagree

WORDS = [Order.NONE, Order.CHECKPOINT, Order.CHECKPOINT | Order.STOP]


def test_one_rank_agrees_with_itself():
    orders = Orders()
    assert not orders.are_shared
    assert [orders.agree(word) for word in WORDS] == WORDS


def agree(peers):
    orders = Orders(peers)
    own = WORDS if peers.rank == 0 else [Order.STOP] * len(WORDS)
    assert [orders.agree(word) for word in own] == WORDS
    said = {"a": [1, None, "x"]}
    assert share_words(peers, said if peers.rank == 0 else None) == said


def test_all_do_what_rank_0_wants():
    in_world(3, agree)


def drift(peers):
    """A bit of one rank's parameters changes."""
    weight = torch.ones(3)
    orders = Orders(peers, lambda: {"weight": weight})
    for _ in range(CHECKED_EVERY):
        orders.agree(Order.NONE)
    if peers.rank == 1:
        weight.view(torch.int32)[2] ^= 1
    for _ in range(CHECKED_EVERY - 1):
        orders.agree(Order.NONE)
    with pytest.raises(RanksDisagree, match="the parameters of rank 1 are not those of rank 0"):
        orders.agree(Order.NONE)


def test_a_changed_bit_on_one_rank_ends_all():
    in_world(2, drift)


def skip(peers):
    orders = Orders(peers)
    if peers.rank:
        orders._step = 7
    if peers.rank == 0:
        orders.agree(Order.NONE)
        return
    with pytest.raises(RanksDisagree, match="rank 0 is at micro-batch 1 and this one at 8"):
        orders.agree(Order.NONE)


def test_ranks_at_different_micro_batches_disagree():
    in_world(2, skip)
