"""What no retry heals ends a client at once, with the client's own words and the fix."""

import datetime
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress

import pytest

from helpers.kafka_io import edges, fill, open_source, publish, read
from helpers.live_runs import write_events
from tgflow.base.extras import install_command
from tgflow.cli import main
from tgflow.streams.errors import NoTopicError, SourceRefused, SourceUnavailable
from tgflow.streams.kafka import KafkaConfig, KafkaSource
from tgflow.streams.kafka.publish import NoBrokerError, PublishError, Topic
from tgflow.testing.broker import PRODUCE

pytestmark = pytest.mark.timeout(60)
API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
SASL = {
    "api_version": "[2, 3]",
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "0012",
    "sasl_plain_password": "env:PASSWORD",
}


class FakeBroker:
    """A listener that answers the first requests of a connection, and refuses any password."""

    api_version = None

    def __init__(self, mechanism=b"PLAIN", tls=None):
        self.passwords, self._mechanism, self._tls = [], mechanism, tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.servers = [f"127.0.0.1:{self._socket.getsockname()[1]}"]
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, topic):
        return f"kafka://{self.servers[0]}/{topic}"

    def close(self):
        self._socket.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except ssl.SSLError:
                continue
            except OSError:
                return

    def _serve(self, connection):
        with suppress(ConnectionError), connection, connection.makefile("rb") as stream:
            while size := stream.read(4):
                body = stream.read(int.from_bytes(size, "big"))
                key, version, number = struct.unpack(">hhi", body[:8])
                answer = self._answer(key, version, body)
                connection.sendall(struct.pack(">ii", 4 + len(answer), number) + answer)

    def _answer(self, key, version, body):
        if key == API_VERSIONS:
            keys = [(HANDSHAKE, 0, 1), (AUTHENTICATE, 0, 1), (API_VERSIONS, 0, 2)]
            listed = b"".join(struct.pack(">hhh", *each) for each in keys)
            return struct.pack(">hi", 0, len(keys)) + listed + bytes(4 if version else 0)
        if key == HANDSHAKE:
            code = 0 if self._mechanism in body else 33
            return struct.pack(">hih", code, 1, len(self._mechanism)) + self._mechanism
        if self._mechanism.startswith(
            b"SCRAM"
        ):  # refuses as RFC 5802 has it, without an error code
            nonce = body.partition(b"n=0012,r=")[2].rstrip(b"\0")
            said = b"r=" + nonce + b"1,s=c2FsdA==,i=4096" if nonce else b"e=unknown-user"
            return struct.pack(">hhi", 0, -1, len(said)) + said + bytes(8)
        self.passwords.append(body.rpartition(b"\0")[2])
        return struct.pack(">hh", 58, 12) + b"bad password" + bytes(12 if version else 4)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setenv("PASSWORD", "123456")
    made = []

    def make(**settings):
        made.append(FakeBroker(**settings))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


def self_signed(folder):
    """Return a TLS context with a certificate that no authority has signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    pem = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    kind, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "broker.pem"
    path.write_bytes(pem + key.private_bytes(serialization.Encoding.PEM, kind, none))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.mark.parametrize("decoders", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_refused_login_ends_reading_and_scoring_at_once(fake, tmp_path, capsys, decoders):
    broker = fake()
    url = broker.url("edges")
    options = [word for o in SASL.items() for word in ("--kafka-option", "=".join(o))]
    made = write_events(tmp_path / "made.csv", 30)
    common = ["-m", "recency", "--set", f"kafka.decoders={decoders}", "--max-time-jump", "none"]
    for number, flags in enumerate((["-s", url], ["-s", made, "--scores", url])):
        words = ["run", *flags, "-o", tmp_path / f"out-{number}", *common]
        began = time.monotonic()
        assert main([str(word) for word in [*words, *options]]) == 2
        assert time.monotonic() - began < 15  # of 60 s (connect_timeout); alone about 1 s
        err = capsys.readouterr().err
        assert (
            "SaslAuthenticationFailedError: bad password; correct --kafka-option sasl_plain" in err
        )
    assert set(broker.passwords) == {b"123456"}


TLS = {"api_version": (2, 3), "security_protocol": "SSL"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (SASL | {"sasl_mechanism": "SCRAM-SHA-512"}, "UnsupportedSaslMechanismError.* sasl_mech"),
        (SASL | {"sasl_mechanism": "SCRAM-SHA-256"}, "the broker refused the login; .* sasl_plain"),
        (SASL | {"sasl_mechanism": "GSSAPI"}, "GSSAPI lib not found.* correct --kafka-option"),
        (TLS, "CERTIFICATE_VERIFY_FAILED.* correct --kafka-option .*ssl_cafile"),
        (TLS | {"ssl_cafile": "away.pem"}, "No such file.* correct --kafka-option .*ssl_cafile"),
        ({"client_dns_lookup": "x"}, "client_dns_lookup must be one of .*; correct --kafka-option"),
        ({"api_version": (2, 3)}, "IncompatibleBrokerVersion.* correct --kafka-option api_version"),
    ],
)
def test_refused_client_is_not_retried(fake, tmp_path, options, words):
    is_tls = options.get("security_protocol") == "SSL"
    mechanism = options.get("sasl_mechanism", "PLAIN").replace("SCRAM-SHA-512", "PLAIN").encode()
    broker = fake(mechanism=mechanism, tls=self_signed(tmp_path) if is_tls else None)
    began = time.monotonic()
    source = open_source(broker, "edges", options=options)
    for start in (lambda: source.start({}), lambda: Topic(broker.url("edges"), options)):
        with pytest.raises(SourceRefused, match=words):
            start()
    source.close()
    assert time.monotonic() - began < 20  # of 120 s (connect_timeout)


@pytest.mark.parametrize("good", [0, 300])
def test_missing_library_of_a_compression_is_named_at_once(broker, topic, monkeypatch, good):
    broker.create(topic, 1)
    publish(broker, topic, edges(good))
    publish(broker, topic, edges(20, good), compression_type="lz4")
    monkeypatch.setattr("kafka.codec.has_lz4", lambda: False)
    source, began = open_source(broker, topic), time.monotonic()
    with pytest.raises(SourceRefused, match="Libraries for lz4 compression codec not found") as of:
        read(source)
    source.close()
    assert install_command("kafka") in str(of.value)
    assert time.monotonic() - began < 15  # of 600 s (max_outage)


def test_missing_permission_is_not_retried(broker, topic, monkeypatch):
    from kafka import KafkaConsumer, errors

    fill(broker, topic, 10)

    def denied(*args, **options):
        raise errors.TopicAuthorizationFailedError({topic})

    monkeypatch.setattr(KafkaConsumer, "poll", denied)
    source = open_source(broker, topic)
    with pytest.raises(SourceRefused, match=r"TopicAuthorizationFailedError.* permission"):
        read(source)
    source.close()


def test_unknown_topic_is_not_waited_for(broker, topic, monkeypatch):
    monkeypatch.setattr("tgflow.streams.kafka.publish.TOPIC_SECONDS", 0.5)
    options, began = {"api_version": broker.api_version}, time.monotonic()
    source = open_source(broker, topic)
    with pytest.raises(NoTopicError, match="there is no such topic"):
        source.start({})
    source.close()
    broker.create(topic)
    broker("topic_set_error", topic, 3)
    with pytest.raises(PublishError, match=r"there is no topic .* the broker does not create it"):
        Topic(broker.url(topic), options)
    broker("topic_set_error", topic, 29)
    with pytest.raises(SourceRefused, match=r"TopicAuthorizationFailedError.* permission"):
        Topic(broker.url(topic), options)
    assert time.monotonic() - began < 20  # of 120 s (connect_timeout)


def test_reason_of_a_missing_broker_is_named():
    closed = socket.create_server(("127.0.0.1", 0))
    server = f"127.0.0.1:{closed.getsockname()[1]}"
    closed.close()
    with pytest.raises(NoBrokerError, match=r"within 1 s \(.*ECONNREFUSED"):
        Topic(f"kafka://{server}/edges", {"api_version": (2, 3)}, connect_timeout=1.0)
    config = KafkaConfig(url=f"kafka://{server}/edges", connect_timeout=1.0)
    with pytest.raises(SourceUnavailable, match=r"within 1 s \(.*ECONNREFUSED"):
        KafkaSource(config).start({})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({name: None}, f"needs {name}, .* give --kafka-option {name}=") for name in [*SASL][2:]),
        ({"security_protocol": "SASL_TLS"}, "must be in PLAINTEXT, SSL, .*, got 'SASL_TLS'"),
        ({"request_timeout_ms": "1s"}, "must be a number, got '1s'"),
        ({"api_version": "2.3"}, r"must be a list such as \[2,3\], got 2.3"),
        ({"ssl_check_hostname": "no"}, "must be true or false, got 'no'"),
    ],
)
def test_wrong_option_is_named(fake, changes, words):
    options = {key: value for key, value in (SASL | changes).items() if value is not None}
    with pytest.raises(ValueError, match=words):
        KafkaConfig(url="kafka://127.0.0.1:9/edges", options=options).client_options()


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (3, PublishError, "UnknownTopicOrPartitionError"),  # such as one that was deleted
        (19, PublishError, "NotEnoughReplicasError"),
        (29, SourceRefused, "TopicAuthorizationFailedError.* permission"),
    ],
)
def test_reason_why_records_are_not_taken_is_named(broker, topic, monkeypatch, code, error, words):
    monkeypatch.setattr("tgflow.streams.kafka.publish.TOPIC_SECONDS", 1)
    broker.create(topic)
    options = {"api_version": broker.api_version, "retry_backoff_ms": 20}
    to = Topic(broker.url(topic), options, timeout=2.0 if code == 19 else 60.0)
    began = time.monotonic()
    broker.fail(PRODUCE, [code] * 1000)
    to.send(b"x", b"0")
    with pytest.raises(error, match=words):
        to.flush()
    assert time.monotonic() - began < 20  # of 60 s (FLUSH_SECONDS)
    broker("clear_request_errors", PRODUCE)
    to.close()
