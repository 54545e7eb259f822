"""What a comparison leaves: scores of every event by every model, in files of Arrow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tgflow.compare.facts import Facts
from tgflow.compare.score_log import COLUMNS

SCORES, EVENTS, SUMMARY = "scores.arrow", "events.arrow", "metrics.json"
_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a comparison came to; all that is said of it is derived from this.

    Args:
        facts: What is known of each event.
        scores: By participant's key `[N, 3]`, see `COLUMNS`; NaN: not scored.
        summary: Figures of the comparison as a whole, with `participants` by key.
    """

    facts: Facts
    scores: Mapping[str, NDArray[Any]]
    summary: Mapping[str, Any]

    def write(self, directory: Path) -> None:
        """Write scores.arrow, a row for each event and participant, and events.arrow.

        Raises:
            OSError: If they cannot be written.
        """
        with _writing(directory / EVENTS) as path:
            table = pa.table(dict(self.facts))
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
                out.write_table(table, max_chunksize=_AT_ONCE)
        with (
            _writing(directory / SCORES) as path,
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_file(file, _SCHEMA) as out,
        ):
            for key, rows in self.scores.items():
                for start in range(0, len(rows), _AT_ONCE):
                    out.write_batch(self._batch(key, rows, slice(start, start + _AT_ONCE)))

    def _batch(self, key: str, rows: NDArray[Any], part: slice) -> pa.RecordBatch:
        label, _, seed = key.rpartition("/")
        eid, rows = self.facts["eid"][part], rows[part]
        columns = [
            pa.array(eid),
            pa.array([label] * len(eid)),
            pa.array(np.full(len(eid), int(seed))),
            *(pa.array(rows[:, i], type=pa.float64(), from_pandas=True) for i in range(3)),
        ]
        return pa.record_batch(columns, schema=_SCHEMA)

    @classmethod
    def read(cls, directory: Path) -> Outcome:
        """Return what `write` wrote, with the summary that is in metrics.json.

        Raises:
            FileNotFoundError: If a file is not there.
        """
        summary = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
        events = _table(directory / EVENTS)
        facts = {name: events[name].to_numpy() for name in events.column_names}
        table, size = _table(directory / SCORES), len(facts["eid"])
        columns = [table[name].to_numpy(zero_copy_only=False) for name in COLUMNS]
        rows = np.stack(columns, axis=1).reshape(-1, size, len(COLUMNS))
        keys = list(summary["participants"])
        return cls(facts, dict(zip(keys, rows, strict=True)), summary)


_SCHEMA = pa.schema(
    [
        ("eid", pa.int64()),
        ("model", pa.string()),
        ("seed", pa.int64()),
        *((name, pa.float64()) for name in COLUMNS),
    ]
)


def _table(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


class _writing:  # noqa: N801
    """A path to write to, that takes the place of another when all is written."""

    def __init__(self, path: Path) -> None:
        self._path, self._partial = path, path.with_name(f".{path.name}.partial")

    def __enter__(self) -> Path:
        return self._partial

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._partial.replace(self._path)
