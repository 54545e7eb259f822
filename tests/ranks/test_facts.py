"""Facts that ranks exchange, and disagreements that prevent a world."""

from dataclasses import replace

import pytest
import torch

from tgflow.ranks.launch import Launch
from tgflow.ranks.rank_info import MOST_BYTES, Facts, Member, have_own_devices


def facts_of(rank, **changes):
    launch = Launch(rank, 3, rank, local_world=3)
    facts = Facts.here(launch, {"batch_size": 200, "model": "tgn"}, torch.device("cpu"))
    return replace(facts, member=Member(rank, f"h{rank}", 100 + rank), **changes)


def test_nccl_requires_one_device_per_rank():
    devices = [["m a", "m b"], ["m a", "m a"], ["m a", None], [None, None]]
    assert [
        have_own_devices([facts_of(rank, device=name) for rank, name in enumerate(names)])
        for names in devices
    ] == [True, False, False, False]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b" " * (MOST_BYTES + 1), "1048577 bytes exceed the limit of 1048576"),
        (b"[]", "a rank sent invalid facts"),
        (b'{"member": {}}', "a rank sent invalid facts"),
        (b"\xff", "codec can't decode"),
    ],
)
def test_malformed_facts_are_refused(data, text):
    with pytest.raises(ValueError, match=text):
        Facts.from_bytes(data)
