"""Keeps what `tgflow train` and `tgflow run` have reached among the results: nobody types it.

    tgflow train --data enron.csv.gz --model recency --threads 1 --out runs/enron-recency
    python -m benchmarks.accuracy runs/*-recency
    python -m benchmarks.report

It reads what runs left behind. A run takes the place of the row of the same stream, model and
settings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.results import FOLDER, commit, load, record
from tgflow.bench.row import Row
from tgflow.config import Config, load_config

COMMAND = "tgflow train --data STREAM (or run --stream STREAM) --model MODEL --threads 1 ..."
TARGETS = {
    ("collegemsg", "edgebank"): 0.756,
    ("wikipedia", "edgebank"): 0.896,
    ("collegemsg", "recency"): 0.963,
    ("enron", "recency"): 0.924,
    ("wikipedia", "recency"): 0.982,
    ("email_eu_core", "recency"): 0.98,
    ("icews14", "recency"): 0.949,
    ("eth_phishing", "recency"): 0.6,
    ("sx_mathoverflow", "recency"): 0.956,
    ("collegemsg", "counts"): 0.97,
    ("enron", "counts"): 0.929,
    ("wikipedia", "counts"): 0.985,
}
"""AP to reach by stream and model; EdgeBank's are what is published, less its deviation."""


def row_of_run(directory: Path) -> Row:
    """Return the AP that a run reached, with what else is to be typed for it."""
    found = json.loads((directory / "metrics.json").read_text(encoding="utf-8"))
    stream = Path(found["stream"]).name.split(".")[0]
    if "prequential.ap" in found:
        params = {
            "stream": stream,
            "model": found["model"],
            "events": found["num_events"],
            "settings": " ".join(_of_stream(load_config(directory / "config.toml"))),
        }
        return Row("prequential AP", found["prequential.ap"], "", params)
    params = {
        "stream": stream,
        "model": found["model"],
        "seeds": found["num_seeds"],
        "spread": round(found["test.ap_std"], 4) if "test.ap_std" in found else "",
        "settings": _settings(load_config(directory / "config.toml"), found["num_parameters"] > 0),
    }
    target = TARGETS.get((stream, found["model"]))
    return Row("test AP", found["test.ap"], "", params, target=target)


def _settings(config: Config, learns: bool) -> str:
    c = config.offline
    flags = _of_stream(config)
    flags += [f"--visibility {c.visibility}"] if c.visibility != "event" else []
    if learns:
        flags += [f"--learning-rate {c.learning_rate:g}", f"--epochs {c.epochs}"]
    flags += [
        f"--model-set {name}={json.dumps(value)}"
        for name, value in sorted(config.model.settings.items())
    ]
    return " ".join(flags)


def _of_stream(config: Config) -> list[str]:
    unit, direction = config.stream.time_unit, config.graph.direction
    flags = [f"--time-unit {unit}"] if unit != "s" else []
    return flags + ([f"--direction {direction}"] if direction != "undirected" else [])


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Return all rows; of those with the same stream, model and settings the last one."""
    rows = {(row.name, *(row.params.get(name) for name in _KEY)): row for row in [*old, *new]}
    return list(rows.values())


_KEY = ("stream", "model", "events", "settings")


def main(directories: Sequence[str]) -> None:
    """Put the runs in `directories` among the results."""
    held = load(FOLDER / "accuracy.json")
    old = [_of_commit(row, held.commit) for row in held.rows]
    new = [_of_commit(row_of_run(Path(each)), commit()) for each in directories]
    record("accuracy", COMMAND, merged(old, new))


def _of_commit(row: Row, name: str) -> Row:
    """Return a row that says of which commit it is, as the rows of a file are of several."""
    return replace(row, params={"commit": name, **row.params})


if __name__ == "__main__":
    main(sys.argv[1:])
