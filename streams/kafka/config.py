"""Kafka settings: address and schema of a topic, and options of kafka-python."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Ge, Gt, Le

from tgflow.base.extras import install_command
from tgflow.base.iso_time import check_format
from tgflow.base.secret import check_options, check_url, resolve
from tgflow.base.setting import EXPERT, Setting, check_ranges
from tgflow.streams.rows.schema import Checks, ColumnNames, Columns, IdKind, Scale

if TYPE_CHECKING:
    from tgflow.streams.rows.validate import RowSchema

CodecName = Literal["json", "csv", "arrow", "avro"]
CODECS: tuple[CodecName, ...] = get_args(CodecName)
_URL = re.compile(r"kafka://([^/]+)/([A-Za-z0-9._-]{1,249})/?")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):\d{1,5}")
_FEATURE = re.compile(r"(.*)\[(\d{1,7})\]")

FIXED_OPTIONS: Mapping[str, Any] = {
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "check_crcs": True,
    "isolation_level": "read_committed",
    "key_deserializer": None,
    "value_deserializer": None,
    "max_poll_records": 10_000,
}
"""Options required for exactly-once delivery; users cannot set them."""

FIRST_WITH_TRANSACTIONS = (0, 11)

_REASONS = {
    "bootstrap_servers": "the servers are part of the URL",
    "group_id": "pass group_id itself, which is only used to report the lag",
}
CLIENT_DEFAULTS: Mapping[str, Any] = {"client_id": "tgflow", "metrics_enabled": False}
"""Default options of kafka-python's consumers and producers."""
_CONSUMER_DEFAULTS: Mapping[str, Any] = {
    **CLIENT_DEFAULTS,
    "allow_auto_create_topics": False,
    "fetch_max_wait_ms": 100,  # requests for end offsets wait behind a fetch that waits for records
    "metadata_max_age_ms": 30_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaClientConfig:
    """Settings for connecting to the brokers of a topic and reading it."""

    options: Annotated[Mapping[str, Any], Setting(flags=("--kafka-option", "--options"))] = field(
        default_factory=dict
    )
    """Options of kafka-python's consumer, such as security_protocol=SSL; may be repeated. Values
    may be env:NAME, a variable of the environment, or file:PATH; secrets must be."""
    schema_file: Annotated[str | None, Setting(flags=("--schema",))] = None
    """File of an Avro schema (--codec avro): that of all records, or with --registry the one
    that they are resolved to."""
    registry: str | None = None
    """Schema registry for --codec avro, such as http://HOST:8081: each record begins with the id of
    the schema that it was written with."""
    registry_options: Annotated[Mapping[str, Any], EXPERT] = field(default_factory=dict)
    """Options of the registry: username and password, or token, and cafile.
    Values may be env:NAME or file:PATH; secrets must be."""
    on_expired: Annotated[Literal["fail", "skip"], EXPERT] = "fail"
    """When retention has deleted the next records: fail, or skip them and record a gap."""
    connect_timeout: Annotated[float, Gt(0), EXPERT] = 60.0
    """Seconds without a broker at the start before the run fails."""
    max_outage: Annotated[float, Gt(0), EXPERT] = 600.0
    """Seconds without a broker later before the run fails; a broker that returns no records
    although there are more counts as unreachable."""
    group_id: Annotated[str | None, EXPERT] = None
    """Consumer group to commit positions to, only for lag monitoring."""
    decoders: Annotated[int, Ge(1), Le(16), EXPERT] = 1
    """Processes that read and decode the topic, at most one per partition: partition p in process
    p mod N; 1: this process."""
    queue_records: ClassVar[int] = 100_000
    """Maximum records waiting to be decoded, over all partitions."""
    queue_bytes: ClassVar[int] = 64 << 20
    """Maximum bytes waiting to be decoded, over all partitions."""
    poll_timeout: ClassVar[float] = 0.5
    """Timeout of one poll of the broker in seconds."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_options(self.options)
        check_options(self.registry_options)
        check_url(self.registry or "")
        if self.registry is not None and not self.registry.startswith(("http://", "https://")):
            raise ValueError(f"registry must be an http:// or https:// URL, got {self.registry!r}")
        for key in self.options:
            if key in FIXED_OPTIONS:
                text = f"is always {FIXED_OPTIONS[key]!r}, so that no event is lost or read twice"
                raise ValueError(f"the Kafka option {key} {text}; remove it")
            if key in _REASONS:
                raise ValueError(f"the Kafka option {key} cannot be passed on: {_REASONS[key]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig(ColumnNames, KafkaClientConfig):
    """A topic, its schema and how it is read.

    Args:
        url: `kafka://HOST:PORT[,HOST:PORT...]/TOPIC`.
        codec: Content of a record: "json", one object; "csv", one line or more of src, dst, t,
            relation, label, weight, the features and the event id; "arrow", an Arrow IPC
            stream, the fastest; "avro", one record, by `schema_file`, `registry` or both.
        features: Names of the edge features; "x[172]" is a list of 172 numbers.
        event_id: Name of a field used to find repeated events, or None.
        label_time: Name of the field of a label's time, in a topic of labels; or None.
        until_end: Stop at the topic's end as of the start of the run, also after a crash and a
            resume; after a completed stop, a resume reads up to the end as of then. Otherwise the
            stream never ends.
    """

    url: str
    codec: CodecName = "json"
    features: Sequence[str] = ()
    event_id: str | None = None
    label_time: str | None = None
    id_kind: IdKind = "int"
    bipartite: bool = False
    time_unit: str = "s"
    tick_unit: str | None = None
    time_format: str | None = None
    checks: Checks = field(default_factory=Checks)
    until_end: bool = False

    def __post_init__(self) -> None:
        KafkaClientConfig.__post_init__(self)
        parse_url(self.url)
        _ = self.schema
        given = self.schema_file is not None or self.registry is not None
        if given != (self.codec == "avro"):
            text = "schema_file=... or registry=... are for codec='avro', which needs one of them"
            raise ValueError(f"{text}; codec is {self.codec!r}")

    @property
    def servers(self) -> list[str]:
        """The bootstrap servers."""
        return parse_url(self.url)[0]

    @property
    def topic(self) -> str:
        """The topic."""
        return parse_url(self.url)[1]

    @property
    def schema(self) -> RowSchema:
        """Schema of the rows."""
        from tgflow.streams.rows.validate import LabelCoding, RowSchema

        features = [feature_width(feature) for feature in self.features]
        widths = tuple(width for _, width in features)
        names = tuple(name for name, _ in features)
        own = {"event_id": self.event_id, "label_time": self.label_time}
        columns = Columns.of(self, features=names, **own)
        if self.time_format is not None:
            check_format(self.time_format)
        time = Scale.between(self.time_unit, self.tick_unit or self.time_unit, self.time_format)
        coding = LabelCoding(self) if self.has_coded_labels else None
        return RowSchema(columns, self.id_kind, time, widths, self.checks, coding=coding)

    def client_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `kafka.KafkaConsumer`, with secrets."""
        given = client_values(self.options, kafka_client().KafkaConsumer.DEFAULT_CONFIG)
        chosen = {**_CONSUMER_DEFAULTS, **given, **FIXED_OPTIONS}
        if chosen.get("api_version") and tuple(chosen["api_version"]) < FIRST_WITH_TRANSACTIONS:
            chosen["isolation_level"] = "read_uncommitted"  # every record, as all are committed
        return {"bootstrap_servers": self.servers, **chosen}


def parse_url(url: str) -> tuple[list[str], str]:
    """Return the servers and the topic of a `kafka://` URL."""
    check_url(url)
    match = _URL.fullmatch(url)
    servers = match.group(1).split(",") if match else []
    if match is None or not all(map(_SERVER.fullmatch, servers)):
        raise ValueError(f"{url!r} is not kafka://HOST:PORT[,HOST:PORT...]/TOPIC")
    return servers, match.group(2)


def feature_width(feature: str) -> tuple[str, int]:
    """Return the field of a feature and its width: "x[172]" is ("x", 172)."""
    if feature.endswith("*"):
        text = "a topic has no header to expand it; name each, or the width of a list as x[172]"
        raise ValueError(f"features has {feature!r}, but {text}")
    match = _FEATURE.fullmatch(feature)
    return (match.group(1), int(match.group(2))) if match else (feature, 1)


_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN = ("sasl_plain_username", "sasl_plain_password")
_NOT_TEXT = ("api_version", "receive_buffer_bytes", "send_buffer_bytes")
"""Options whose default is None and that are not texts."""


def client_values(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve references, and convert options to the types that the client has by default.

    Numbers become texts where the client expects text. Texts, as flags give them, are parsed as
    JSON elsewhere, and lists become tuples.
    """
    found: dict[str, Any] = {}
    for key, given in options.items():
        value, default = resolve(key, given), defaults.get(key, 0)
        is_text = isinstance(default, str | None) and key not in _NOT_TEXT
        if is_text and isinstance(value, int | float):
            value = str(value)
        elif not is_text and isinstance(value, str):
            with suppress(ValueError):  # the client accepts some words, such as acks=all
                value = json.loads(value)
        is_number = key in defaults and isinstance(default, int | float) and key != "acks"
        if is_number and not isinstance(value, int | float):
            expected = "true or false" if isinstance(default, bool) else "a number"
            raise ValueError(f"the option {key} must be {expected}, got {value!r}")
        if key == "security_protocol" and value not in _PROTOCOLS:
            raise ValueError(f"the option {key} must be in {', '.join(_PROTOCOLS)}, got {value!r}")
        if key == "api_version" and not isinstance(value, list | tuple):
            raise ValueError(f"the option {key} must be a list such as [2,3], got {value!r}")
        if key in ("proxy_url", "socks5_proxy") and "://" not in str(value):
            raise ValueError(f"the option {key} must be a URL")  # kafka-python would quote it
        found[key] = tuple(value) if isinstance(value, list) else value
    if str(found.get("security_protocol")).startswith("SASL"):
        mechanism = str(found.get("sasl_mechanism", ""))
        needed = {"sasl_mechanism", *_LOGIN[: 2 * mechanism.startswith(("PLAIN", "SCRAM"))]}
        if absent := sorted(needed - found.keys()):
            text = "which has none: give --kafka-option"
            raise ValueError(f"security_protocol=SASL needs {absent[0]}, {text} {absent[0]}=...")
    return found


def kafka_client() -> Any:
    """Import and return the module `kafka`."""
    try:
        import crc32c
        import kafka
    except ImportError as error:
        raise ModuleNotFoundError(
            f"Kafka streams need kafka-python and crc32c ({error}): {install_command('kafka')}"
        ) from None
    _ = crc32c
    if tuple(int(part) for part in kafka.__version__.split(".")[:2]) < (3, 0):
        text = f"Kafka streams need kafka-python 3 or newer, found {kafka.__version__}: "
        raise ModuleNotFoundError(f"{text}{install_command('kafka')}")
    return kafka
