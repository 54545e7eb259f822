"""A user-defined transport in one module, opened by the command line."""

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

import tgflow as tg
from helpers.ingestion import ListSource, Row
from tgflow.cli.inputs import open_partitioned
from tgflow.run.config import Config, StreamConfig
from tgflow.streams import transports
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.transports import Transport, find_transport, scheme_of


@dataclass(frozen=True, kw_only=True)
class MadeConfig:
    """Settings of `made://COUNT`, a stream of COUNT events; event i is (i % 7, i % 5, i)."""

    url: str
    bipartite: bool = False


def open_made(config):
    count = int(config.url.removeprefix("made://"))
    return ListSource({0: [Row(i % 7, i % 5, i) for i in range(count)]})


@pytest.fixture(autouse=True)
def made_transport(monkeypatch):
    module = ModuleType("made_transport")
    module.TRANSPORT = Transport(MadeConfig, open_made, ends=True)
    monkeypatch.setitem(sys.modules, "made_transport", module)
    monkeypatch.setitem(transports.SCHEMES, "made", "made_transport")


def test_command_line_reads_and_resumes_a_user_transport():
    config = Config(stream=StreamConfig(path="made://250"))
    ingest = Ingest(open_partitioned(config), OrderConfig())
    assert sum(map(len, ingest)) == 250
    source = open_partitioned(config)
    source.start({0: {"row": 249}})
    [polled] = source.poll({0}, 0.1)
    assert polled.events.t.tolist() == [249]


@pytest.mark.parametrize("path", ["a.csv", "/data/a.csv", "../a:b/c.csv", "C:/a.csv", ""])
def test_path_has_no_transport(path):
    assert scheme_of(path) is None
    assert find_transport(path) is None


def test_url_of_an_object_store_is_refused_with_the_way_out():
    for url in ("s3://bucket/x.csv", "https://host/x.csv"):
        with pytest.raises(ValueError, match=r"is not a path; mount an object store, or copy"):
            tg.open_stream(url)
    with pytest.raises(ValueError, match="a URL must not hold credentials"):
        tg.open_stream("s3://key:secret@bucket/x.csv")
