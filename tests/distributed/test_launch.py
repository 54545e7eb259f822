"""Rank and world of a process from its environment variables."""

from __future__ import annotations

import sys

import pytest

from tgflow.distributed.launch import choose_interface, read_launch
from tgflow.distributed.supervise import supervise
from tgflow.peers import WorldError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "2",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "h1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"RANK": None}, "RANK must be a whole number, got None; start ranks with torchrun"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE must be a whole number, got 'many'"),
        ({"RANK": "8"}, "rank must be from 0 to 7, got 8"),
        ({"WORLD_SIZE": "65"}, "a world has 1 to 64 ranks, got 65"),
        ({"MASTER_ADDR": None}, "WORLD_SIZE is set but MASTER_ADDR is not"),
        ({"MASTER_PORT": ""}, "MASTER_PORT must be a whole number, got ''"),
    ],
)
def test_invalid_environment_variables_are_refused(changes, text):
    environ = {k: v for k, v in (TORCHRUN | changes).items() if v is not None}
    with pytest.raises(WorldError, match=text):
        read_launch(environ)


def test_unknown_interface_is_refused_and_available_ones_are_listed():
    with pytest.raises(WorldError, match=r"interface 'eth77' is none .*; there are .*127\.0\.0\.1"):
        choose_interface("eth77", one_host=True)


def test_multiple_hosts_require_a_named_interface():
    with pytest.raises(WorldError, match=r"on several hosts: name .* interface='eth1'; there are"):
        choose_interface(None, one_host=False)


def test_several_ranks_are_refused_without_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    refused = pytest.raises(WorldError, match=r"several ranks need Linux, .* without --nproc")
    with refused:
        read_launch(TORCHRUN)
    with refused:
        supervise(list, 2, environ={})
    assert read_launch(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}) is None
