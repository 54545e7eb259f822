"""Avro records written by fastavro, with a schema file and with a registry over HTTP."""

import datetime
import decimal
import io
import json
import sys
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import fastavro
import pytest

from helpers.kafka_io import config, decode, edge, open_source, publish, read
from helpers.live_runs import SMALL
from tgflow.base.extras import install_command
from tgflow.cli import main
from tgflow.streams.errors import SourceRefused, SourceUnavailable
from tgflow.streams.kafka import KafkaConfig, avro
from tgflow.streams.kafka.codecs import RecordDecoder

pytestmark = pytest.mark.timeout(60)
MOMENT = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
SECONDS = int(MOMENT.timestamp())


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def schema(src="long", dst="long", t="long", **others):
    kinds = {"src": src, "dst": dst, "t": t} | others
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    return {"type": "record", "name": "Edge", "fields": fields}


def encoded(row, written, number=None):
    """Return a value as fastavro writes it, in the frame of a registry if it has a number."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(written), row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + stream.getvalue()


def rows(count, first=0, **more):
    return [{"src": i, "dst": 1, "t": 10 * i, **more} for i in range(first, first + count)]


class Registry:
    """Schemas by id or "subject:version", and their references; `answer` replaces the answers."""

    def __init__(self):
        self.schemas, self.requests, self.answer = {1: schema()}, [], None
        self.references = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                registry.requests.append((self.path, self.headers.get("Authorization")))
                status, body, *headers = (registry.answer or registry.found)(self.path)
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, *words):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def found(self, path):
        _, kind, name, *_, version = path.split("/")
        key = int(version) if kind == "schemas" else f"{unquote(name)}:{version}"
        if key not in self.schemas:
            code = 40403 if kind == "schemas" else 40401
            return 404, {"error_code": code, "message": "not found"}
        names = ((x, *x.rpartition(":")) for x in self.references.get(key, ()))
        found = [{"name": x, "subject": s, "version": int(v)} for x, s, _, v in names]
        answer = {"schema": json.dumps(self.schemas[key])}
        return 200, answer | ({"references": found} if found else {})

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry():
    with closing(Registry()) as made:
        yield made


@pytest.fixture
def by_file(tmp_path):
    """Return a function that decodes values by a schema file, given its content."""

    def read_by(content, values, **settings):
        path = tmp_path / "edge.avsc"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        settings = {"features": (), "schema_file": str(path)} | settings
        return decode(values, "avro", **settings)

    return read_by


def texts(reading):
    return [text for each in reading.arrivals for _, text in each.faults.values()]


TIMES = [
    ("double", float(SECONDS)),
    (["null", logical("long", "timestamp-millis")], MOMENT),
    (logical("long", "timestamp-micros"), MOMENT),
    (logical("long", "local-timestamp-millis"), MOMENT.replace(tzinfo=None)),
    (logical("bytes", "decimal", precision=12, scale=2), decimal.Decimal(f"{SECONDS}.00")),
]


@pytest.mark.parametrize(("kind", "t"), TIMES)
def test_times_of_any_type_are_read_exactly(by_file, kind, t):
    written = schema(t=kind)
    reading = by_file(written, [encoded({"src": 1, "dst": 2, "t": t}, written)] * 2)
    assert (reading.rows[0], reading.codes) == ([(1, 2, SECONDS)] * 2, [])


def test_values_are_read_by_the_rules_of_arrow(by_file):
    more = {
        "x": {"type": "array", "items": "float"},
        "cents": logical("bytes", "decimal", precision=9, scale=2),
        "ok": ["null", "boolean"],
    }
    enum = {"type": "enum", "name": "Who", "symbols": ["ann", "bob"]}
    written = schema(enum, ["null", "string", "long", "bytes"], **more)
    good = {"src": "bob", "dst": "é", "t": 7, "x": [1, 2], "cents": decimal.Decimal("1.25")}
    others = [{}, {"dst": None}, {"dst": 5}, {"dst": b"a"}, {"x": [1]}, {"ok": None}, {}]
    values = [encoded(good | {"ok": True} | each, written) for each in others]
    settings = {"features": ("x[2]", "cents"), "label": "ok", "id_kind": "string"}
    reading = by_file(written, values, **settings)
    assert reading.rows[0] == [("bob", dst, 7) for dst in ("é", "5", "é")]
    assert reading.codes == ["null", "type", "width", "null"]
    [arrived] = reading.arrivals
    assert arrived.events.x.tolist() == [[1, 2, 1.25]] * 3
    assert arrived.events.label.tolist() == [1, 1, 1]


def test_damaged_values_are_bad_rows(by_file):
    good, framed = encoded(rows(1)[0], schema()), encoded(rows(1)[0], schema(), 7)
    bad = [b"", good[:-1], good + b"\0", b"\xff" * 40, b"{}"]
    reading = by_file(schema(), [good, *bad, framed, good])
    assert (reading.src(), reading.codes) == ([0, 0, 0], ["syntax"] * 5)
    [text] = texts(by_file(schema(), [good], label="kind"))
    assert "must be a field 'kind'; the fields are src, dst, t" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not an Avro schema"),
        ('{"type": "record"}', "not an Avro schema"),
        (schema("Edge"), "contains itself"),
        (schema({"type": "map", "values": ["null", "Edge"]}), "contains itself"),
        (schema({"type": "array", "items": "null"}), "an array's items take no bytes"),
        (schema({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "no bytes"),
    ],
)
def test_schema_that_cannot_be_read_safely_is_refused(by_file, content, words):
    with pytest.raises(ValueError, match=rf"schema_file=.*edge.avsc.*{words}"):
        by_file(content, [b"x"])


def from_registry(values, registry, **settings):
    return decode(values, "avro", registry=registry.url, **{"features": ()} | settings)


def test_each_value_is_read_by_the_schema_of_its_frame(registry, by_file):
    wide, old = schema("int", note="string"), schema("int")
    del old["fields"][1]
    registry.schemas |= {2: wide, 3: old}
    written = [(1, schema(), rows(2)), (2, wide, rows(2, 2, note="a")), (3, old, rows(1, 4))]
    values = [encoded(row, each, number) for number, each, many in written for row in many]
    reading = from_registry(values, registry)
    assert reading.src() == [0, 1, 2, 3]
    assert "must be a field 'dst'" in texts(reading)[0]
    own = schema()
    own["fields"][1]["default"] = 9  # absent from the schema of id 3
    reading = by_file(own, values, registry=registry.url)
    assert reading.rows[0] == [(i, 9 if i == 4 else 1, 10 * i) for i in range(5)]


def test_records_that_the_registry_does_not_explain_are_bad_rows(registry):
    registry.schemas |= {5: "long", 6: schema("Edge")}
    values = [encoded(rows(1)[0], schema(), number) for number in (1, 4, 5, 6)]
    reading = from_registry([*values, edge(1)], registry)
    assert reading.src() == [0]
    words = ["lacks the schema of id 4", "", "id 6: the type Edge contains", "it has no frame"]
    assert [w in text for w, text in zip(words, texts(reading), strict=True)] == [True] * 4
    registry.answer = lambda path: (200, {"schema": "{}", "schemaType": "PROTOBUF"})
    assert "of PROTOBUF, not Avro" in texts(from_registry(values[:1], registry))[0]


@pytest.mark.parametrize("is_union", [False, True])
def test_references_of_schemas_are_resolved(registry, is_union):
    """By Confluent's rule; a schema to which two refer is requested once."""
    when = {"type": "record", "name": "x.When", "fields": [{"name": "at", "type": "long"}]}
    who = {"type": "record", "name": "x.Who", "fields": [{"name": "id", "type": "long"}]}
    who["fields"].append({"name": "since", "type": ["null", "x.When"]})
    event = schema("x.Who", "long", "x.When", name="string") | {"name": "x.Event"}
    registry.schemas |= {2: ["x.When", "x.Event"] if is_union else event}
    registry.schemas |= {"when/1:3": when, "who:1": who, "event:7": event}
    registry.references = {"who:1": ["when/1:3"], "event:7": ["who:1", "when/1:3"]}
    registry.references[2] = ["event:7"] if is_union else registry.references["event:7"]
    types = {}
    for each in (when, who, event):
        fastavro.parse_schema(each, types)
    row = {"src": {"id": 5, "since": {"at": 1}}, "dst": 6, "t": {"at": 7}, "name": "a"}
    value = io.BytesIO()
    written = [types["x.When"], types["x.Event"]] if is_union else types["x.Event"]
    fastavro.schemaless_writer(value, fastavro.parse_schema(written, types), row)
    reader = avro.AvroReader(config("avro", registry=registry.url, features=()))
    for _ in range(2):
        assert reader.read(b"\0\0\0\0\2" + value.getvalue()) == row
    expected = ["who/versions/1", "when%2F1/versions/3"]
    expected = ["event/versions/7", *expected] if is_union else expected
    expected = [f"/subjects/{each}" for each in expected]
    assert [path for path, _ in registry.requests] == ["/schemas/ids/2", *expected]


@pytest.mark.parametrize(
    ("schemas", "references", "words"),
    [
        ({"a:1": schema()}, {2: ["a:9"]}, "the registry lacks version 9 of the subject 'a'"),
        ({"a:1": schema("x.Who")}, {2: ["a:1"], "a:1": ["a:1"]}, "subject 'a': not an Avro schema"),
        ({"a:1": schema("Edge")}, {2: ["a:1"]}, "the type Edge contains itself"),
        ({}, {2: [f"a:{i}" for i in range(80)]}, "more than 64 references lead to version 63"),
    ],
)
def test_references_that_cannot_be_resolved_make_bad_rows(registry, schemas, references, words):
    registry.schemas |= {
        2: schema(),
        **{f"a:{i}": "long" for i in range(70) if len(references[2]) > 9},
    }
    registry.schemas |= schemas
    registry.references = references
    reading = from_registry([encoded(rows(1)[0], schema(), 2)], registry)
    assert words in texts(reading)[0]


def test_schemas_are_kept_up_to_a_bound_and_unknown_ones_requested_again(registry, monkeypatch):
    monkeypatch.setattr(avro, "MAX_SCHEMAS", 2)
    found = avro.Registry(registry.url + "/", {})
    registry.schemas |= dict.fromkeys((2, 3), schema())
    for number in (1, 2, 1, 3, 1, 2):
        found.schema(number)
    assert [path for path, _ in registry.requests] == [f"/schemas/ids/{i}" for i in (1, 2, 3, 2)]
    for _ in range(2):
        with pytest.raises(avro.BadRecord):
            found.schema(9)
    assert len(registry.requests) == 5
    registry.schemas[9], later = schema(), time.monotonic() + avro.UNKNOWN_SECONDS
    monkeypatch.setattr(avro.time, "monotonic", lambda: later)
    assert found.schema(9)


def test_login_is_resolved_and_goes_to_one_host_alone(registry, monkeypatch):
    monkeypatch.setenv("REGISTRY", "p-1")
    login, token = {"username": "me", "password": "env:REGISTRY"}, {"token": "env:REGISTRY"}
    for options in ({}, login, token):
        avro.Registry(registry.url, options).schema(1)
    assert [said for _, said in registry.requests] == [None, "Basic bWU6cC0x", "Bearer p-1"]
    with closing(Registry()) as other:
        registry.answer = lambda path: (302, b"", ("Location", other.url + path))
        with pytest.raises(SourceRefused, match="answers 302"):
            avro.Registry(registry.url, login).schema(1)
        assert other.requests == []


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ((401, {"error_code": 40101}), SourceRefused, "answers 401, .* kafka.registry_options"),
        ((404, b"<html>"), SourceRefused, "answers 404, and not as a registry does; .* --registry"),
        ((200, bytes(2 << 20)), SourceRefused, "more than 1048576 bytes"),
        ((503, b""), avro.RegistryDown, "answers 503"),
        (None, avro.RegistryDown, "timed out"),
    ],
)
def test_answer_without_a_schema_is_refused_or_an_outage(
    registry, monkeypatch, answer, error, words
):
    monkeypatch.setattr(avro, "REQUEST_SECONDS", 0.5)
    registry.answer = lambda path: answer or time.sleep(1) or (200, b"")
    with pytest.raises(error, match=words):
        avro.Registry(registry.url, {}).schema(1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"codec": "avro"}, "needs one of them; codec is 'avro'"),
        ({"registry": "http://host"}, "codec is 'json'"),
        ({"codec": "avro", "registry": "ftp://host"}, "must be an http"),
        ({"codec": "avro", "registry": "http://me:pw-1@host"}, "credentials"),
        ({"registry_options": {"password": "pw-1"}}, "password=env:NAME"),
    ],
)
def test_inconsistent_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words) as caught:
        KafkaConfig(url="kafka://h:1/edges", **settings)
    assert "pw-1" not in str(caught.value)


def fill(broker, topic, count, partitions):
    broker.create(topic, partitions)
    for partition in range(partitions):
        publish(broker, topic, [encoded(row, schema(), 1) for row in rows(count)], partition)


@pytest.mark.slow
@pytest.mark.parametrize("decoders", [1, 2])
def test_topic_is_read_after_an_outage_of_the_registry(broker, topic, registry, decoders):
    fill(broker, topic, 300, 2)
    down = (503, b"")
    registry.answer = lambda path: registry.found(path) if len(registry.requests) > 6 else down
    settings = {"codec": "avro", "registry": registry.url, "decoders": decoders}
    with closing(open_source(broker, topic, **settings)) as source:
        reading = read(source)
        assert source.counters()["outage_seconds"] > 0.1
    assert reading.src(0) == reading.src(1) == list(range(300))
    registry.answer = lambda path: down
    with closing(open_source(broker, topic, **settings, max_outage=0.5)) as source:  # noqa: SIM117
        with pytest.raises(SourceUnavailable, match=f"{registry.url}: no answer for .* 503"):
            read(source)


def test_run_reads_avro_and_states_the_lag(broker, topic, registry, tmp_path, capsys):
    fill(broker, topic, 120, 1)
    version = f"api_version={json.dumps(list(broker.api_version))}"
    flags = ["--codec", "avro", "--registry", registry.url, "--kafka-option", version]
    flags += ["--max-time-jump", "none", "--until-end", *SMALL]
    run = ["run", "-s", broker.url(topic), *map(str, flags)]
    assert main([*run, "-o", str(tmp_path / "out")]) == 0
    records = [*map(json.loads, (tmp_path / "out/metrics.jsonl").read_text().splitlines())]
    assert [r["lag_events"] for r in records if "progress" not in r] == [70, 20, 0]
    assert json.loads((tmp_path / "out/health.json").read_text())["stream"]["lag_events"] == 0
    registry.answer = lambda path: (503, b"")
    assert main([*run, "-o", str(tmp_path / "other")]) == 75  # the kind of ids is not known
    assert "it answers 503; check that it runs; with --id-kind" in capsys.readouterr().err
    registry.answer = lambda path: (403, b"")
    assert main([*run, "-o", str(tmp_path / "other")]) == 2
    assert f"registry {registry.url}: answers 403" in capsys.readouterr().err


def test_json_in_the_frame_of_a_registry_is_read():
    frame = b"\0\0\0\0\7"
    values = [edge(1, x=[1, 2]), frame + edge(2, x=[1, 2]), frame + b"\x02\x04", frame + b"{"]
    reading = decode(values, "json")
    assert (reading.src(), len(texts(reading))) == ([1, 2], 2)
    first = RecordDecoder(KafkaConfig(url="kafka://h:1/edges", id_kind="string")).first_ids
    assert first([frame + edge("a")]) == [("src", "a"), ("dst", 1)]
    for text in texts(reading):
        assert text.startswith("no JSON object behind the frame of schema id 7: not JSON")
        assert text.endswith("Avro is read by --codec avro --registry URL")


@pytest.mark.parametrize("name", ["fastavro", "kafka"])
def test_missing_library_is_named_with_the_extra(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    run = ["run", "-s", "kafka://127.0.0.1:1/edges", "-o", str(tmp_path / "out"), "--codec", "avro"]
    assert main([*run, "--registry", "http://127.0.0.1:1", "--max-time-jump", "none"]) == 2
    said = capsys.readouterr().err
    assert f"import of {name} halted" in said
    assert install_command("kafka") in said
