"""Labels that clients add over HTTP to a run that learns: `POST /labels`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any

import numpy as np

from tgflow.base.secret import resolve
from tgflow.base.units import INT64_MIN
from tgflow.run.config import ConfigError, StreamConfig
from tgflow.run.config.schema import LabelsConfig
from tgflow.serve.endpoint import check_token
from tgflow.serve.questions import Refused
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.kafka.codecs import JsonCodec
from tgflow.streams.rows.row_batch import Fault, RowBatch
from tgflow.streams.rows.schema import Checks, Columns, Scale, listed
from tgflow.streams.rows.validate import LabelCoding, RowSchema, validate

_PARTITION = -1


def label_token(labels: LabelsConfig) -> str | None:
    """Return the token of clients that add labels; None if none can."""
    given = labels.token
    try:
        return None if given is None else check_token(str(resolve("token", given)), given)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--label-token: {error}") from None


class Pipe:
    """Requests of a replica to the run that it answers for, one at a time; nothing is pickled."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, Lock()

    def ask(self, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        try:
            with self._lock:
                self._connection.send_bytes(body)
                status, _, answer = self._connection.recv_bytes().partition(b" ")
        except (EOFError, OSError):
            raise Refused(503, "the run has ended, and takes no labels") from None
        return int(status), answer

    def answer(self, make: Callable[[bytes], tuple[int, bytes]]) -> None:
        """Answer requests until the other end is closed."""
        with self._connection, suppress(EOFError, OSError):
            while True:
                status, body = make(self._connection.recv_bytes())
                self._connection.send_bytes(b"%d %s" % (status, body))


class PostedLabels:
    """Adds labels from bodies of requests to a run, read as those of files."""

    def __init__(
        self, token: str, c: StreamConfig, checks: Checks, ingest: Ingest, by_id: bool
    ) -> None:
        self.token = token
        self._ingest = ingest
        self._named = ("event_id",) if by_id else ("src", "dst", "t")
        columns = Columns(
            src="event_id" if by_id else "src",
            dst="event_id" if by_id else "dst",
            t="time" if by_id else "t",
            label="label",
            event_id="event_id" if by_id else None,
            label_time="time",
            texts=frozenset({"label"}),
        )
        scale = Scale.between(c.unit, c.tick, c.time_format)
        ids = "string" if by_id else c.id_kind or "int"
        self._schema = RowSchema(columns, ids, scale, (), checks, coding=LabelCoding(c))
        form = c.time_format
        self._any_time = 0 if form is None else datetime(2000, 1, 1).strftime(form)

    def serve(self, pipe: Pipe) -> None:
        """Answer a replica's requests in a thread, until it ends."""
        Thread(target=pipe.answer, args=(self.answer,), name="labels", daemon=True).start()

    def answer(self, body: bytes) -> tuple[int, bytes]:
        """Add the labels of a body; return the status and the body of the response."""
        try:
            done = self._ingest.add_labels(self._rows(body))
        except Refused as refused:
            return refused.status, refused.body
        except (RuntimeError, OSError) as error:
            return 503, Refused(503, str(error)).body
        return 200, json.dumps(done).encode()

    def _rows(self, body: bytes) -> RowBatch:
        try:
            value = json.loads(body, parse_float=str)
        except (ValueError, RecursionError) as error:
            raise Refused(422, f"the body is not JSON: {error}") from None
        items = value.get("labels") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(items, list) or not items:
            raise Refused(422, 'the body must be {"labels": [...]}; /docs shows what it may have')
        faults, records, timeless = dict[int, Fault](), dict[int, bytes](), list[int]()
        for row, item in enumerate(items):
            if text := self._fault(item):
                faults[row] = "schema", text
                continue
            if item.get("time") is None:
                timeless.append(row)
            full = {"time": self._any_time} if row in timeless[-1:] else {}
            records[row] = json.dumps({**item, **full}).encode()
        found, numbers = JsonCodec(self._schema).decode([*records.values()]), [*records]
        faults |= {numbers[i]: fault for i, fault in found.faults.items()}
        if not found.batches:
            first = [f"label {row}: {text}" for row, (_, text) in [*faults.items()][:3]]
            raise Refused(422, "; ".join(first))
        index = np.array([row for row in numbers if row not in faults])
        rows = validate(found.batches, self._schema, index=index, faults=faults)
        assert rows.index is not None
        assert rows.events.label_time is not None
        times = np.where(np.isin(rows.index, timeless), INT64_MIN, rows.events.label_time)
        return replace(rows, events=replace(rows.events, label_time=times), partition=_PARTITION)

    def _fault(self, item: Any) -> str | None:
        if not isinstance(item, Mapping):
            return "it is not an object"
        needed = {*self._named, "label"}
        if missing := sorted(needed - item.keys()):
            return f"{missing[0]} is missing; a label has {listed([*self._named, 'label'])}, time"
        if extra := sorted(item.keys() - needed - {"time"}):
            return f"{listed(extra)} is not a field of a label"
        return None
