"""Who is lost, as far as it can be seen from here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tgflow.distributed.roster import Member, find_lost, is_lost

HERE = Member.here(1)
NOBODY = 2**22 + 1
"""Above all ids of processes."""


@pytest.mark.parametrize(
    ("member", "condition"),
    [
        (HERE, "alive"),
        (replace(HERE, pid=NOBODY), "gone"),
        (replace(HERE, pid=NOBODY, machine="another"), "out of sight"),
    ],
)
def test_what_a_process_does_is_seen_on_its_own_host(member, condition):
    assert member.condition() == condition
    assert is_lost(member) == (condition == "gone")


def test_those_that_are_gone_are_named():
    gone = [replace(HERE, rank=rank, host="h1", pid=NOBODY) for rank in (2, 3)]
    assert find_lost([HERE, *gone]) == " and ".join(
        f"rank {rank} (process {NOBODY} on h1) is gone" for rank in (2, 3)
    )


def test_where_nobody_is_seen_to_be_gone_there_is_a_way_out():
    assert find_lost([HERE], patience=0.0) == (
        "no rank that can be seen from here has ended; if one is only slow, wait longer: "
        "join(timeout=), --rank-timeout"
    )
