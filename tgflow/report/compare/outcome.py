"""Files of a comparison: scores of every event by every model, in Arrow."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tgflow.checkpoint.durable.fs import replacing
from tgflow.report.compare.attributes import Facts
from tgflow.report.compare.score_log import COLUMNS, LABEL

SCORES, EVENTS, SUMMARY = "scores.arrow", "events.arrow", "metrics.json"
_AT_ONCE = 1 << 16
_CRC32 = b"crc32"
"""Metadata key of the checksum of a file's columns."""


class OutcomeDamaged(RuntimeError):
    """Raised if a file is not one that a comparison has written."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Facts and scores of each event (NaN: not scored), and a summary of the comparison."""

    facts: Facts
    scores: Mapping[str, NDArray[Any]]
    summary: Mapping[str, Any]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scores' columns."""
        return (*COLUMNS, LABEL) if "class" in self.facts else COLUMNS

    def write(self, directory: Path) -> None:
        """Write scores.arrow, a row for each event and participant, and events.arrow."""
        table = pa.table(dict(self.facts))
        _write(directory / EVENTS, table.schema, self.facts, table.to_batches(_AT_ONCE))
        every = np.concatenate([np.empty((0, len(self.columns))), *self.scores.values()])
        batches = (
            self._batch(key, rows, slice(start, start + _AT_ONCE))
            for key, rows in self.scores.items()
            for start in range(0, len(rows), _AT_ONCE)
        )
        columns = dict(zip(self.columns, every.T, strict=True))
        _write(directory / SCORES, self._schema, columns, batches)

    @property
    def _schema(self) -> pa.Schema:
        known = [("eid", pa.int64()), ("model", pa.string()), ("seed", pa.int64())]
        return pa.schema([*known, *((name, pa.float64()) for name in self.columns)])

    def _batch(self, key: str, rows: NDArray[Any], part: slice) -> pa.RecordBatch:
        label, _, seed = key.rpartition("/")
        eid, rows = self.facts["eid"][part], rows[part]
        columns = [
            pa.array(eid),
            pa.array([label] * len(eid)),
            pa.array(np.full(len(eid), int(seed))),
            *(pa.array(column, type=pa.float64(), from_pandas=True) for column in rows.T),
        ]
        return pa.record_batch(columns, schema=self._schema)

    @classmethod
    def read(cls, directory: Path) -> Outcome:
        """Read the files of `write` and metrics.json; raises OutcomeDamaged, FileNotFoundError."""
        summary = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
        found = cls(_read(directory / EVENTS), {}, summary)
        columns = list(_read(directory / SCORES, found.columns).values())
        rows = np.stack(columns, axis=1).reshape(-1, len(found.facts["eid"]), len(columns))
        return replace(found, scores=dict(zip(summary["participants"], rows, strict=True)))


def _read(path: Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
            found = {name: table[name].to_numpy() for name in names or table.column_names}
    except FileNotFoundError:
        raise
    except (pa.ArrowException, KeyError, OSError, UnicodeDecodeError) as error:
        raise OutcomeDamaged(f"{path} is damaged: {error}") from None
    written = (table.schema.metadata or {}).get(_CRC32)
    if written is not None and written != _crc32_of(found):
        raise OutcomeDamaged(f"{path} is damaged: its checksum differs")
    return found


def _write(
    path: Path,
    schema: pa.Schema,
    columns: Mapping[str, NDArray[Any]],
    batches: Iterable[pa.RecordBatch],
) -> None:
    schema = schema.with_metadata({_CRC32: _crc32_of(columns)})
    with replacing(path) as partial, pa.ipc.new_file(partial, schema) as out:
        for batch in batches:
            out.write_batch(batch)


def _crc32_of(columns: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the checksum of columns, their names and types, as text; all NaNs are equal."""
    found = 0
    for name, column in columns.items():
        plain = np.where(np.isnan(column), np.nan, column) if column.dtype.kind == "f" else column
        found = zlib.crc32(f"{name} {column.dtype}".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(plain).data, found)
    return b"%d" % found
