"""Tests that need a real broker; `python tests/helpers/real_broker.py` runs them."""

import os
import threading
import time
from pathlib import Path

import pytest

from helpers.kafka_io import edges, open_source, publish, read, read_on
from helpers.real_broker import RealBroker

JARS = os.environ.get("TGFLOW_KAFKA_JARS", "")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not JARS, reason="no jars of Apache Kafka: run `make kafka`"),
]


@pytest.fixture
def broker(tmp_path):
    broker = RealBroker(Path(JARS), tmp_path)
    yield broker
    broker.close()


def test_real_broker_killed_while_reading(broker, request):
    broker.create("edges", 1)
    publish(broker, "edges", edges(5000), batch_size=4000)
    options = {"max_partition_fetch_bytes": 16_384, "request_timeout_ms": 5000}
    source = open_source(broker, "edges", options=options, queue_records=300)
    request.addfinalizer(source.close)  # its thread would keep pytest from ending
    reading = read(source, stop=lambda r: len(r.src()) >= 1000)
    broker.kill()
    seen = len(reading.src())

    def restart():
        time.sleep(4.0)  # until the session of the killed broker has expired
        broker.start()

    thread = threading.Thread(target=restart)
    thread.start()
    began = time.monotonic()
    read_on(source, reading, timeout=120)
    took = time.monotonic() - began
    thread.join()
    counters = source.counters()
    print(f"killed after {seen} of 5000 records, read on within {took:.1f} s, {counters}")
    assert seen < 5000
    assert reading.src() == list(range(5000))
    assert reading.counts == {}
    assert counters["outage_seconds"] > 1.0
