"""Hosts for ranks."""

import pytest

from helpers.rank_runs import open_hosts


@pytest.fixture
def hosts(tmp_path):
    with open_hosts(tmp_path) as found:
        yield found
