"""The directory a run leaves behind: settings, records, figures, checkpoint, report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from tgflow.config import Config, to_toml


class RunDir:
    """A directory for one run; it never mixes with another one's files.

    Args:
        path: Where to; made if it is not there.

    Raises:
        FileExistsError: If there are files in it already.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise FileExistsError(f"{path} holds files already; choose another --out or remove it")
        self.path = path
        self._records: TextIO | None = None

    @classmethod
    def choose(cls, out: str | None, name: str) -> RunDir:
        """Return the directory `out`; without one the first free of runs/NAME, runs/NAME-2, ..."""
        if out is not None:
            return cls(Path(out))
        number = 1
        while True:
            path = Path("runs") / (name if number == 1 else f"{name}-{number}")
            if not path.exists() or not any(path.iterdir()):
                return cls(path)
            number += 1

    @property
    def checkpoint(self) -> Path:
        """Where the run's checkpoint goes."""
        return self.path / "checkpoint"

    def write_config(self, config: Config) -> None:
        """Write config.toml, which `--config` reads: all but where this run went."""
        elsewhere = config.run.model_copy(update={"out": None})
        self._write("config.toml", to_toml(config.model_copy(update={"run": elsewhere})))

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl, at once readable by others."""
        if self._records is None:
            self._records = (self.path / "metrics.jsonl").open("w", encoding="utf-8")
        self._records.write(to_json(record) + "\n")
        self._records.flush()

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write metrics.json, the run's figures."""
        self._write("metrics.json", to_json(metrics, indent=2) + "\n")

    def write_report(self, page: str) -> None:
        """Write report.html."""
        self._write("report.html", page)

    def close(self) -> None:
        """Close metrics.jsonl."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def _write(self, name: str, text: str) -> None:
        partial = self.path / f".{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.path / name)


def to_json(value: Mapping[str, Any], indent: int | None = None) -> str:
    """Return `value` as strict JSON: what is not finite becomes null."""
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a metrics.jsonl; a last line that was cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def finite(value: Any) -> Any:
    """Return `value` as strict JSON can hold it: numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
