import itertools

import pytest

from helpers.kafka_io import ChaosProxy
from tgflow.testing.broker import FETCH, OFFSET_COMMIT, PRODUCE, MockBroker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_broker():
    """Return a broker that all tests share."""
    with MockBroker() as broker:
        yield broker


@pytest.fixture
def broker(shared_broker):
    """Return the shared broker, and restore it after the test."""
    yield shared_broker
    shared_broker("broker_set_up", -1)
    for request in (PRODUCE, FETCH, OFFSET_COMMIT):
        shared_broker("clear_request_errors", request)


@pytest.fixture
def proxy(broker):
    """Return a proxy to which the broker redirects all clients."""
    host, _, port = broker.servers[0].rpartition(":")
    proxy = ChaosProxy(broker.servers[0]).advertise(broker)
    yield proxy
    broker("broker_set_host_port", 1, host, int(port))
    proxy.close()


@pytest.fixture
def topic():
    """Return a unique topic name."""
    return f"edges-{next(_numbers)}"
