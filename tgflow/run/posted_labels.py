"""Labels that clients add over HTTP to a run that learns: `POST /labels`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from threading import Thread
from typing import Any

import numpy as np

from tgflow.base.secret import resolve
from tgflow.base.units import INT64_MIN
from tgflow.run.config import Config, ConfigError
from tgflow.serve.endpoint import check_token
from tgflow.serve.pipe import Pipe
from tgflow.serve.questions import Refused
from tgflow.streams.errors import RowFault
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.kafka.codecs import JsonCodec
from tgflow.streams.rows.row_batch import RowBatch
from tgflow.streams.rows.schema import Columns, Scale, listed
from tgflow.streams.rows.validate import LabelCoding, RowSchema, validate

_PARTITION = -1


def label_token(config: Config) -> str | None:
    """Return the token of clients that add labels; None if none can."""
    given = config.labels.token
    try:
        return None if given is None else check_token(str(resolve("token", given)), given)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--label-token: {error}") from None


class PostedLabels:
    """Adds labels from bodies of requests to a run, read as those of files.

    Args:
        config: Settings of the run.
        ingest: Its ingestion.
    """

    def __init__(self, config: Config, ingest: Ingest) -> None:
        c, by_id = config.stream, config.has_label_ids
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
        scale = Scale.between(c.unit, c.tick)
        if c.time_format is not None:
            scale = replace(scale, is_text=True, format=c.time_format)
        ids = "string" if by_id else c.id_kind or "int"
        self._schema = RowSchema(columns, ids, scale, (), config.checks, coding=LabelCoding(c))
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
        faults, records, has_time = dict[int, RowFault](), list[bytes](), list[bool]()
        for row, item in enumerate(items):
            if text := self._fault(item):
                faults[row] = RowFault(row, "schema", text)
                continue
            has_time.append(item.get("time") is not None)
            full = item if has_time[-1] else {**item, "time": self._any_time}
            records.append(json.dumps(full).encode())
        found = JsonCodec(self._schema).decode(records)
        numbers = np.delete(np.arange(len(items)), [*faults])
        faults |= {
            int(numbers[row]): RowFault(int(numbers[row]), *fault)
            for row, fault in found.faults.items()
        }
        num, index = len(items), np.delete(np.arange(len(items)), [*faults])
        if not found.batches:
            raise Refused(
                422, "; ".join(f"label {f.row}: {f.text}" for f in [*faults.values()][:3])
            )
        rows = validate(found.batches, self._schema, index=index, faults=[*faults.values()])
        is_timed = np.zeros(num, np.bool_)
        is_timed[numbers] = has_time
        times, own = rows.events.label_time, is_timed[index if rows.index is None else rows.index]
        assert times is not None
        events = replace(rows.events, label_time=np.where(own, times, INT64_MIN))
        return replace(rows, events=events, partition=_PARTITION)

    def _fault(self, item: Any) -> str | None:
        if not isinstance(item, Mapping):
            return "it is not an object"
        needed = {*self._named, "label"}
        if missing := sorted(needed - item.keys()):
            return f"{missing[0]} is missing; a label has {listed([*self._named, 'label'])}, time"
        if extra := sorted(item.keys() - needed - {"time"}):
            return f"{listed(extra)} is not a field of a label"
        return None
