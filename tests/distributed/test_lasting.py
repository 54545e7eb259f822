"""What ends an attempt for good is kept by torchrun's agents, and ends all later ones."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from helpers.sockets import free_port
from tgflow.cli.errors import exit_code, explain
from tgflow.distributed.lasting import EarlierFailure, LastingFailures, find_failures
from tgflow.distributed.launch import Launch


def launch(port, *, has_agent=True):
    return Launch(1, 2, 1, local_world=2, address=("127.0.0.1", port), has_agent=has_agent)


def test_the_first_failure_ends_later_attempts_with_its_sentence_and_code():
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    find_failures(launch(agent.port), 10).check()
    find_failures(launch(agent.port), 10).note(1, "7 of 9 rows are bad; see --max-bad-ratio", 65)
    find_failures(launch(agent.port), 10).note(0, "another", 70)
    with pytest.raises(EarlierFailure) as found:
        find_failures(launch(agent.port), 10).check()
    assert exit_code(found.value) == 65
    assert explain(found.value) == (
        "7 of 9 rows are bad; see --max-bad-ratio (rank 1, in an earlier attempt: no restart mends "
        "that)"
    )


@pytest.mark.parametrize("has_agent", [False, True])
def test_without_a_store_that_outlives_them_attempts_know_nothing(has_agent):
    found = find_failures(launch(free_port(), has_agent=has_agent), 0.2)
    found.note(0, "a fault", 70)
    found.check()


def test_a_fault_of_ours_is_called_one_once():
    store = dist.HashStore()
    LastingFailures(store).note(0, "KeyError: 3 (a fault in tgflow; --traceback shows where)", 70)
    with pytest.raises(EarlierFailure) as found:
        LastingFailures(store).check()
    assert explain(found.value).count("a fault in tgflow") == 1
