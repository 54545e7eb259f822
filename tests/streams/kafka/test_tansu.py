"""Tests that need the broker tansu; `make kafka` runs them."""

import io
import json
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import confluent_kafka
import fastavro
import pytest

from helpers.campaign import (
    BATCH,
    FROM_TOPIC,
    KEPT,
    KILLS,
    SEED,
    SMALL,
    Campaign,
    compare,
    rows,
    undisturbed_with_bad_rows,
)
from helpers.kafka_io import after, edges, open_source, publish, read, read_all
from helpers.tansu import Tansu

PROGRAM = os.environ.get("TGFLOW_TANSU", "")
CODECS = ["gzip", "snappy", "lz4", "zstd"]
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM, reason="there is no tansu: run `make kafka`"),
]


@pytest.fixture
def tansu():
    with closing(Tansu(PROGRAM)) as broker:
        yield broker


def publish_with_kcat(broker, topic, values, partition=0, compression_type="none"):
    if shutil.which("kcat") is None:
        pytest.skip("there is no kcat; on Debian: apt-get install kcat")
    # Debian 12's librdkafka 2.0.2 cannot parse tansu's ApiVersions response; this one can.
    (library,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*")
    to = ["-b", broker.servers[0], "-t", topic, "-p", str(partition), "-z", compression_type]
    environment = os.environ | {"LD_PRELOAD": str(library)}
    subprocess.run(["kcat", "-P", *to], input=b"\n".join(values), env=environment, check=True)


@pytest.mark.parametrize("send", [publish, publish_with_kcat])
@pytest.mark.parametrize("codec", CODECS)
def test_records_of_any_producer_and_codec_are_read(tansu, send, codec):
    tansu.create("edges")
    send(tansu, "edges", edges(500), compression_type=codec)
    send(tansu, "edges", edges(1, 500), compression_type=codec)
    assert read_all(tansu, "edges").src() == list(range(501))


def test_avro_in_frames_is_read(tansu, tmp_path):
    fields = [{"name": name, "type": "long"} for name in ("src", "dst", "t")]
    written = {"type": "record", "name": "Edge", "fields": fields}
    (tmp_path / "edge.avsc").write_text(json.dumps(written))
    tansu.create("edges")
    for i in range(20):
        value = io.BytesIO()
        value.write(b"\0\0\0\0\7")
        fastavro.schemaless_writer(
            value, fastavro.parse_schema(written), {"src": i, "dst": 1, "t": i}
        )
        publish(tansu, "edges", [value.getvalue()])
    settings = {"codec": "avro", "schema_file": str(tmp_path / "edge.avsc")}
    assert read_all(tansu, "edges", **settings).src() == list(range(20))


def test_until_end_reads_short_because_tansu_reports_the_start_of_the_last_batch(tansu):
    tansu.create("edges")
    publish(tansu, "edges", edges(20), linger_ms=500)  # one batch
    assert read_all(tansu, "edges").src() == [0]
    with closing(open_source(tansu, "edges", until_end=False)) as source:
        assert read(source, stop=after(20)).src() == list(range(20))


def test_killed_run_resumes_to_equal_bits(tansu, tmp_path):
    tansu.create("edges", 3)
    made = rows(BATCH * 6 * KILLS)
    for partition in range(3):
        values = [json.dumps(row).encode() for row in made if row["src"] % 3 == partition]
        for i, codec in enumerate(CODECS):
            share = values[i * len(values) // 4 : (i + 1) * len(values) // 4]
            publish(tansu, "edges", share[:-1], partition, compression_type=codec)
            publish(tansu, "edges", share[-1:], partition, compression_type=codec)
    flags = ["-s", f"kafka://{tansu.servers[0]}/edges", *FROM_TOPIC[:4], "--until-end"]
    flags += [*SMALL, *KEPT]
    reference = undisturbed_with_bad_rows(tmp_path, flags)
    campaign = Campaign(tmp_path / "killed", flags, SEED)
    while campaign.kills < KILLS and campaign.kill_once():
        pass
    campaign.finish()
    assert campaign.kills
    compare(reference, campaign)
