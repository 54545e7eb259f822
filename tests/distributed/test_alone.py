"""The world of one process: the protocol, without anybody to send to."""

from __future__ import annotations

import pytest
import torch

from tgflow.peers import Alone, Peers, Shard, Traffic


def buffer(*values):
    return torch.tensor(values, dtype=torch.uint8)


def test_it_sends_to_itself_and_counts_nothing():
    peers: Peers = Alone()
    received = torch.zeros(3, dtype=torch.uint8)
    peers.exchange([buffer(1, 2, 3)], [received], kind="rows")
    assert received.tolist() == [1, 2, 3]
    chunk = torch.tensor([0.5, -0.0])
    gathered = peers.gather(chunk, [2], kind="gradient")
    assert torch.equal(gathered, chunk)
    assert gathered.data_ptr() != chunk.data_ptr()
    peers.broadcast(chunk, kind="feed", group="feed")
    peers.close()
    assert (peers.rank, peers.world, peers.shard, peers.failure) == (0, 1, Shard(), None)
    assert peers.traffic == Traffic()


@pytest.mark.parametrize(
    ("sends", "receives", "text"),
    [
        ([], [buffer()], "sends must have one buffer for each of 1 ranks, got 0"),
        ([buffer()], [buffer()] * 2, "receives must have one buffer for each of 1 ranks, got 2"),
        ([torch.zeros(2)], [buffer(1)], r"sends\[0\] must be a contiguous uint8 \[n\], got torch"),
        ([buffer(1, 2)], [buffer(1)], "rank 0 sends itself 2 bytes and receives 1"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(sends, receives, text):
    with pytest.raises(ValueError, match=text):
        Alone().exchange(sends, receives, kind="rows")
