from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

from tgflow.streams import transports
from tgflow.streams.transports import Transport, find_transport, scheme_of


@pytest.mark.parametrize("path", ["a.csv", "/data/a.csv", "../a:b/c.csv", "C:/a.csv", ""])
def test_a_path_has_no_transport(path):
    assert scheme_of(path) is None
    assert find_transport(path) is None


def test_an_unknown_scheme_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"pulsar://a/b.*unknown scheme.*kafka://"):
        find_transport("pulsar://a/b")


@pytest.mark.slow
def test_kafka_is_found_without_its_client():
    script = (
        "import sys\nfrom tgflow.streams.transports import find_transport\n"
        "assert 'tgflow.streams.kafka' not in sys.modules\n"
        "assert find_transport('KAFKA://localhost:9092/edges').config.__name__ == 'KafkaConfig'\n"
        "assert 'kafka' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_transport_is_one_module(monkeypatch):
    @dataclass
    class Config:
        url: str

    module = ModuleType("own_transport")
    module.TRANSPORT = Transport(Config, lambda config: config.url, ends=True)
    monkeypatch.setitem(sys.modules, "own_transport", module)
    monkeypatch.setitem(transports.SCHEMES, "own", "own_transport")
    transport = find_transport("own://there")
    assert transport.open(transport.config("own://there")) == "own://there"
