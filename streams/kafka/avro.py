"""Avro records: schemas of a file or of a registry, and the frames that name them."""

from __future__ import annotations

import io
import json
import math
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import HTTPErrorProcessor, HTTPSHandler, Request, build_opener

from tgflow.base.extras import install_command
from tgflow.base.secret import resolve
from tgflow.base.text import printable
from tgflow.streams.errors import MAX_MESSAGE, SourceRefused, shown
from tgflow.streams.kafka.config import KafkaConfig

FRAME_BYTES = 5
"""A zero byte and the id of a schema, before a value that a client of a registry has written."""
MAX_SCHEMAS = 1000
"""Maximum schemas kept; the least recently used is dropped."""
MAX_SCHEMA_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_REFERENCES = 64
"""Maximum schemas of a registry that one is made of."""
REQUEST_SECONDS = 10.0
UNKNOWN_SECONDS = 60.0
"""Time after which an unknown id is requested again, as it may be registered later."""

_Types = tuple[dict[str, Any], dict[str, int | None]]
"""Named types, parsed, and the fewest bytes of a value of each."""


class BadRecord(Exception):
    """Raised for a record that cannot be decoded."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.fault = code, text


class RegistryDown(OSError):
    """Raised when a registry does not answer; the records are decoded once it does."""


def frame_of(value: bytes) -> int | None:
    """Return the schema id of a value in the frame of a registry, None without a frame."""
    is_framed = len(value) > FRAME_BYTES and value[0] == 0
    return int.from_bytes(value[1:FRAME_BYTES], "big") if is_framed else None


def unframed(value: bytes) -> bytes:
    """Return a value without the frame of a registry, if it has one."""
    return value if frame_of(value) is None else value[FRAME_BYTES:]


class AvroReader:
    """Reads values by the schema that they were written with.

    With a registry that is the schema of a value's frame, resolved to the schema file if there is
    one; without, values have the schema of the file, framed or not.
    """

    def __init__(self, config: KafkaConfig) -> None:
        try:
            import fastavro
        except ImportError as error:
            text = f"--codec avro needs fastavro ({error}): {install_command('kafka')}"
            raise ModuleNotFoundError(text) from None
        self._read, path = fastavro.schemaless_reader, config.schema_file
        try:
            self._schema = None if path is None else parsed(Path(path).read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"schema_file={path!r}: {error}") from None
        self._registry = None
        if config.registry is not None:
            self._registry = Registry(config.registry, config.registry_options)

    def read(self, value: bytes) -> dict[str, Any]:
        """Return the fields of a value.

        Raises:
            BadRecord: If it cannot be decoded.
            RegistryDown: If its schema is not known, and the registry does not answer.
            SourceRefused: If the registry refuses the request.
        """
        number = frame_of(value)
        if self._registry is None:
            try:
                return self._decoded(value, self._schema, None)
            except BadRecord:
                if number is None:
                    raise
            return self._decoded(value[FRAME_BYTES:], self._schema, None)
        if number is None:
            text = "it has no frame of a registry; without --registry, --schema FILE reads it"
            raise BadRecord("syntax", text)
        return self._decoded(value[FRAME_BYTES:], self._registry.schema(number), self._schema)

    def _decoded(self, value: bytes, writer: Any, reader: Any) -> dict[str, Any]:
        stream = io.BytesIO(value)
        try:
            found = self._read(stream, writer, reader)
        except Exception as error:  # of any kind: bytes are not checked before they are read
            code = "encoding" if isinstance(error, UnicodeDecodeError) else "syntax"
            raise BadRecord(code, f"not a value of its Avro schema: {_words(error)}") from None
        if left := len(value) - stream.tell():
            text = f"{left} bytes follow the value; was it written with another Avro schema?"
            raise BadRecord("syntax", text)
        if not isinstance(found, dict):
            raise BadRecord("schema", f"its Avro schema is no record: {type(found).__name__}")
        return found


class Registry:
    """Schemas by id, from a registry with the HTTP interface of Confluent's.

    Args:
        url: Its address, http or https. Redirects are not followed.
        options: username and password, or token; cafile, of its certificate authority.
    """

    OPTIONS = ("username", "password", "token", "cafile")

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url, self._options = url.rstrip("/"), options
        if unknown := sorted(options.keys() - set(self.OPTIONS)):
            text = f"registry_options has {unknown[0]!r}; there are {', '.join(self.OPTIONS)}"
            raise ValueError(text)
        if (cafile := self._given().get("cafile")) is not None:
            Path(cafile).read_bytes()  # whose error names the file
        context = ssl.create_default_context(cafile=cafile)
        self._opener = build_opener(HTTPSHandler(context=context), _EachAnswer)
        self._kept: dict[int, tuple[float, Any]] = {}

    def schema(self, number: int) -> Any:
        """Return a schema; raise as `AvroReader.read`."""
        until, found = self._kept.pop(number, (0.0, None))
        if until < time.monotonic():
            name, until = f"the schema of id {number}", math.inf
            try:
                found = self._resolved(f"schemas/ids/{number}", name, ({}, {}), set())
            except BadRecord as error:
                found, until = error, time.monotonic() + UNKNOWN_SECONDS
        self._kept[number] = until, found  # at the end, as the last one used
        if len(self._kept) > MAX_SCHEMAS:
            del self._kept[next(iter(self._kept))]
        if isinstance(found, BadRecord):
            raise found
        return found

    def _given(self) -> dict[str, Any]:
        return {name: resolve(name, value) for name, value in self._options.items()}

    def _resolved(self, path: str, name: str, types: _Types, seen: set[str]) -> Any:
        """Return a schema, parsed after those it refers to, whose `types` are added."""
        seen.add(path)
        if len(seen) > MAX_REFERENCES:
            raise BadRecord("schema", f"more than {MAX_REFERENCES} references lead to {name}")
        status, body = self._get(f"{self._url}/{path}")
        if status in (408, 429) or status >= 500:
            raise RegistryDown(f"it answers {status}")
        try:
            found = json.loads(body)
            if status == 404 and found["error_code"] in (40401, 40402, 40403):
                raise BadRecord("schema", f"the registry lacks {name}")
            text, kind = found["schema"], found.get("schemaType", "AVRO")
            others = [(str(x["subject"]), int(x["version"])) for x in found.get("references") or ()]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._refused(f"answers {status}, and not as a registry does") from None
        if kind != "AVRO":
            raise BadRecord("schema", f"{name} is of {kind}, not Avro")
        for subject, version in others:
            path = f"subjects/{quote(subject, safe='')}/versions/{version}"
            if path not in seen:
                other = f"version {version} of the subject {shown(subject)}"
                self._resolved(path, other, types, seen)
        try:
            return parsed(text, types)
        except ValueError as error:
            raise BadRecord("schema", f"{name}: {error}") from None

    def _get(self, url: str) -> tuple[int, bytes]:
        request, given = Request(url), self._given()
        if "token" in given:
            request.add_header("Authorization", f"Bearer {given['token']}")
        elif "username" in given:
            login = f"{given['username']}:{given.get('password', '')}".encode()
            request.add_header("Authorization", f"Basic {b64encode(login).decode()}")
        deadline, body = time.monotonic() + REQUEST_SECONDS, b""
        try:
            with self._opener.open(request, timeout=REQUEST_SECONDS) as answer:
                while part := answer.read1(1 << 16):
                    body += part
                    if len(body) > MAX_SCHEMA_BYTES:
                        raise self._refused(f"answers with more than {MAX_SCHEMA_BYTES} bytes")
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"no whole answer within {REQUEST_SECONDS:g} s")
                return answer.status, body
        except (OSError, HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise self._refused(f"is not trusted: {cause}") from None
            raise RegistryDown(f"no answer: {cause}") from None

    def _refused(self, text: str) -> SourceRefused:
        way_out = "correct --registry, or username, password, token or cafile of --set "
        text = f"{text}; {way_out}kafka.registry_options=..."
        return SourceRefused(f"registry {self._url}", "refused", text)


class _EachAnswer(HTTPErrorProcessor):
    """Returns every answer; redirects, which may lead to another host, are not followed."""

    def http_response(self, request: Request, response: Any) -> Any:
        return response

    https_response = http_response


def _words(error: BaseException) -> str:
    return printable(f"{type(error).__name__}: {error}", MAX_MESSAGE)


def parsed(text: str, types: _Types | None = None) -> Any:
    """Return an Avro schema whose values can be read without harm, parsed.

    It may refer to the named `types`; its own are added.

    Raises:
        ValueError: If it is none, or recursive, or an array's items take no bytes: a few bytes
            would then stand for values of any depth or number.
    """
    import fastavro

    named, least = types or ({}, {})
    try:
        schema = fastavro.parse_schema(json.loads(text), named)
        if isinstance(schema, list):  # each carries the types that it refers to, as if parsed alone
            hints = {"__fastavro_parsed": True, "__named_schemas": named}
            known = {name: {**kind, **hints} for name, kind in named.items()}
            schema = [known.get(x, x) if isinstance(x, str) else x for x in schema]
    except Exception as error:  # of any kind: what is no schema fails anywhere
        raise ValueError(f"not an Avro schema: {_words(error)}") from None
    _least_bytes(schema, least)
    return schema


def _least_bytes(schema: Any, named: dict[str, int | None], depth: int = 0) -> int:
    """Return the fewest bytes that a value takes; `named` holds those of named types."""
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} types within each other")
    if isinstance(schema, list):
        return 1 + min((_least_bytes(each, named, depth + 1) for each in schema), default=0)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str):
        return _least_bytes(kind, named, depth + 1)
    if kind in named:
        if (found := named[kind]) is None:
            raise ValueError(f"the type {kind} contains itself, which is not read")
        return found
    if kind == "array" and not _least_bytes(schema["items"], named, depth + 1):
        raise ValueError("an array's items take no bytes, which is not read")
    if kind == "map":
        _least_bytes(schema["values"], named, depth + 1)
    if kind not in ("record", "error", "fixed", "enum"):
        return int(kind != "null")
    named[schema["name"]] = None
    fields = [_least_bytes(each["type"], named, depth + 1) for each in schema.get("fields", ())]
    least: int = {"enum": 1, "fixed": schema.get("size")}.get(kind, sum(fields))
    named[schema["name"]] = least
    return least
