"""What `tgflow info` says of a run directory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tgflow.cli.errors import DATA, CliError
from tgflow.cli.summary import print_table
from tgflow.config import load_config
from tgflow.run.figures import num_bytes

HEADLINES = (
    "model", "stream", "num_events", "num_nodes", "num_parameters", "visibility", "seed", "seeds",
    "prequential.ap", "prequential.mrr", "val.ap", "test.ap", "test.auc", "test.mrr",
    "epoch_seconds", "events_per_second", "interrupted",
)  # fmt: skip


def describe_run(path: Path, as_json: bool) -> None:
    """Print settings, figures and checkpoint of the run in `path`."""
    found = _read(path)
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        return
    metrics = found["metrics"] or {}
    rows = [(key, _shown(metrics[key])) for key in HEADLINES if metrics.get(key) is not None]
    size = found["checkpoint"]["bytes"] if found["checkpoint"] else None
    rows.append(("checkpoint", "none" if size is None else num_bytes(size)))
    rows.append(("report", str(path / "report.html") if found["report"] else "none"))
    print_table((str(path), ""), rows)


def _read(path: Path) -> dict[str, Any]:
    metrics = path / "metrics.json"
    try:
        figures = json.loads(metrics.read_text(encoding="utf-8")) if metrics.exists() else None
    except ValueError as error:
        raise CliError(f"{metrics} is not JSON: {error}; was the run cut off?", DATA) from None
    checkpoint = path / "checkpoint"
    files = [f for f in checkpoint.rglob("*") if f.is_file()] if checkpoint.exists() else []
    return {
        "path": str(path),
        "config": load_config(path / "config.toml").model_dump(),
        "metrics": figures,
        "checkpoint": {"bytes": sum(f.stat().st_size for f in files)} if files else None,
        "report": (path / "report.html").exists(),
    }


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
