from __future__ import annotations

import itertools

import pytest

from tgflow.testing.broker import MockBroker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_broker():
    """Return a broker that tests share; whoever hurts one takes `broker`."""
    with MockBroker() as broker:
        yield broker


@pytest.fixture
def broker():
    """Return a broker of one's own."""
    with MockBroker() as broker:
        yield broker


@pytest.fixture
def topic():
    """Return a name that no other test has."""
    return f"edges-{next(_numbers)}"
