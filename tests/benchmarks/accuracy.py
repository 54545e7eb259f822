"""Records the accuracy of runs of `tgflow train` and `tgflow run` in the results.

    tgflow train --data enron.csv.gz --model recency --threads 1 --out runs/enron-recency
    python -m benchmarks.accuracy runs/*-recency
    python -m benchmarks.report

A run replaces the row of the same stream, model and settings. The best of all rows of a stream and
the target of the default of `tgflow run` follow from the rows.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TypeAlias

from benchmarks.results import FOLDER, Result, Row, commit, load, record
from tgflow.models import MODELS
from tgflow.run.config import Config, flag_of, load_config, model_settings, validate_model
from tgflow.run.config.schema import ModelConfig
from tgflow.train.config import ContinualConfig, OfflineConfig
from tgflow.train.protocols import protocol_settings

TrainerConfig: TypeAlias = ContinualConfig | OfflineConfig
COMMAND = "tgflow train --data STREAM (or run --stream STREAM) --model MODEL --threads 1 ..."
TEST, PREQUENTIAL = "test AP", "prequential AP"
HISTORICAL, INDUCTIVE = f"{TEST}, historical", f"{TEST}, inductive"
BEST = ", best of all"
RULES = frozenset({"edgebank", "edgebank-tw", "poptrack", "recency", "recurrency"})
"""Models without parameters."""
DEFAULT = "tgn+pairs"
"""The default model of `tgflow run`."""


def _targets(text: str) -> dict[str, dict[str, float]]:
    """Return targets by name and stream, from lines `name: stream=target ...`."""
    lines = (line.split(": ") for line in text.strip().replace("\n  ", " ").splitlines())
    pairs = ((name, (each.split("=") for each in rest.split())) for name, rest in lines)
    return {name: {stream: float(ap) for stream, ap in found} for name, found in pairs}


TARGETS = _targets("""
edgebank: collegemsg=0.756 wikipedia=0.896
recency: collegemsg=0.963 enron=0.924 wikipedia=0.982 email_eu_core=0.98 icews14=0.949
  eth_phishing=0.6 sx_mathoverflow=0.956
counts: collegemsg=0.97 enron=0.929 wikipedia=0.985 email_eu_core=0.982 icews14=0.955
  eth_phishing=0.65 sx_mathoverflow=0.96
tgn: collegemsg=0.92 enron=0.865
tgat: collegemsg=0.796 enron=0.711
tgn+pairs: collegemsg=0.965 enron=0.925 wikipedia=0.985
jodie: collegemsg=0.8943 enron=0.8477 wikipedia=0.95
graphmixer: collegemsg=0.9325 enron=0.8225 wikipedia=0.965
dygformer: collegemsg=0.9579 enron=0.9247 wikipedia=0.985
tpnet: collegemsg=0.9735 enron=0.929 wikipedia=0.989
""")
"""Target AP with random negatives; EdgeBank's are published values minus one deviation."""
BEST_TARGETS = _targets("""
test AP: collegemsg=0.9735 enron=0.932 wikipedia=0.989 email_eu_core=0.982 icews14=0.955
  eth_phishing=0.65 sx_mathoverflow=0.96
test AP, historical: collegemsg=0.9396 enron=0.887 wikipedia=0.916
test AP, inductive: collegemsg=0.847 enron=0.83 wikipedia=0.898
""")
"""Target AP of the best of all models, by kind of negatives."""
UNSAID = frozenset({"num_threads"})
"""Settings that do not affect metrics."""
OF_SEEDS = frozenset({"seed", "learning_rate", "epochs"})
"""Training settings with their own column, or always shown."""
OF_LEARNING = frozenset({"grad_clip", "loss", "patience", "select"})
"""Training settings without effect on models without parameters."""
LEEWAY, FLOORS = 0.003, {"collegemsg": 0.96}
"""Margin of the default below the better of TGN and the best heuristic; minimum AP by stream."""


def rows_of_run(directory: Path) -> list[Row]:
    """Return the AP that a run reached, a row for each kind of negatives, with its settings."""
    found = json.loads((directory / "metrics.json").read_text(encoding="utf-8"))
    config = load_config(directory / "config.toml")
    params = {"stream": Path(found["stream"]).name.split(".")[0], "model": found["model"]}
    if "prequential.ap" in found:
        flags = [*_of_stream(config), *_changed(config.continual, UNSAID)]
        settings = " ".join(flags + _of_model(config.model))
        params |= {"events": found["num_events"], "settings": settings}
        return [Row(PREQUENTIAL, found["prequential.ap"], "", params)]
    learns, c = found["num_parameters"] > 0, config.offline
    unsaid = UNSAID | OF_SEEDS | (frozenset() if learns else OF_LEARNING)
    flags = [*_of_stream(config), *_changed(c, unsaid)]
    if learns:
        flags += [f"--learning-rate {c.learning_rate}", f"--epochs {c.epochs}"]
    settings, rows = " ".join(flags + _of_model(config.model)), []
    for number, kind in enumerate(c.test_negatives):
        key = f"test.{kind}.ap" if number else "test.ap"
        name = TEST if kind == "random" else f"{TEST}, {kind}"
        spread = round(found[f"{key}_std"], 4) if f"{key}_std" in found else ""
        own = {"seeds": found["num_seeds"], "spread": spread, "settings": settings}
        rows.append(Row(name, found[key], "", params | own))
    return rows


def _changed(config: TrainerConfig, unsaid: frozenset[str]) -> Iterator[str]:
    """Yield flags of settings that are not those of the protocol, or else the default ones."""
    protocol = config.protocol
    default = type(config)(**({} if protocol is None else protocol_settings(protocol)))
    if protocol is not None:
        yield f"--protocol {protocol}"
    for name in (field.name for field in fields(config) if field.name not in unsaid):
        value = getattr(config, name)
        if value != getattr(default, name):
            values = value if isinstance(value, tuple) else [value]
            yield from (f"{flag_of(f'learning.{name}')} {each}" for each in values)


def _of_model(model: ModelConfig) -> list[str]:
    """Return the flags of model settings that are not defaults.

    Values are normalized by its dataclass: 1e-7 is 0.0000001, and 8 is 8.0.
    """
    stated = model_settings(model)
    if model.name in MODELS:
        kind, fixed = MODELS[model.name].config, MODELS[model.name].settings
        own = asdict(kind(**fixed))
        found = asdict(validate_model(kind, model.name, {**fixed, **stated}, {}))
        stated = {name: value for name, value in found.items() if value != own[name]}
    settings = sorted(stated.items())
    return [f"--model-set {k}={json.dumps(v)}" for k, v in settings]


def _of_stream(config: Config) -> list[str]:
    unit, direction = config.stream.unit, config.graph.direction
    flags = [f"--time-unit {unit}"] if unit != "s" else []
    return flags + ([f"--direction {direction}"] if direction != "undirected" else [])


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Return all rows, the last one for each stream, model and settings."""
    rows = {(row.name, *(row.params.get(name) for name in _KEY)): row for row in [*old, *new]}
    return list(rows.values())


_KEY = ("stream", "model", "events", "settings")


def with_targets(rows: Sequence[Row]) -> list[Row]:
    """Return rows with targets, followed by the best of each stream."""
    own = [row for row in rows if not row.name.endswith(BEST)]
    return [*(replace(row, target=_target(row, own)) for row in own), *_best_of_all(own)]


def _target(row: Row, rows: Sequence[Row]) -> float | None:
    stream, model = str(row.params["stream"]), str(row.params["model"])
    if row.name == TEST:
        return TARGETS.get(model, {}).get(stream) if _is_plain(row) else None
    if row.name != PREQUENTIAL or model != DEFAULT:
        return None
    others = [
        other.value
        for other in rows
        if other.name == PREQUENTIAL
        and other.params["model"] in RULES | {"tgn"}
        and all(other.params[name] == row.params[name] for name in ("stream", "events"))
    ]
    return max([FLOORS.get(stream, 0.0), *(value - LEEWAY for value in others)]) or None


def _is_plain(row: Row) -> bool:
    """Return whether the negatives match the targets: random, without collisions."""
    return "--protocol" not in str(row.params["settings"])


def _best_of_all(rows: Sequence[Row]) -> Iterator[Row]:
    for name, targets in BEST_TARGETS.items():
        for stream, target in targets.items():
            if best := _best(rows, name, stream):
                yield replace(best, name=name + BEST, target=target)


def _best(
    rows: Sequence[Row], name: str, stream: str, models: frozenset[str] | None = None
) -> Row | None:
    """Return the best row of a stream whose neighborhoods are exact; None without any."""
    found = [
        row
        for row in rows
        if (row.name, row.params["stream"]) == (name, stream)
        and "--visibility batch" not in str(row.params["settings"])
        and (name != TEST or _is_plain(row))
        and (models is None or row.params["model"] in models)
    ]
    return max(found, key=lambda row: row.value, default=None)


STREAMS = ("collegemsg", "enron", "wikipedia")
HEADLINES: Sequence[tuple[str, str, frozenset[str] | None]] = (
    ("best of all models", TEST, None),
    ("best heuristic", TEST, RULES),
    ("historical negatives, best model", HISTORICAL, None),
    ("inductive negatives, best model", INDUCTIVE, None),
    ("`tgflow run` with default settings, prequential", PREQUENTIAL, frozenset({DEFAULT})),
    ("TGN, prequential", PREQUENTIAL, frozenset({"tgn"})),
    ("best heuristic, prequential", PREQUENTIAL, RULES),
)
"""Rows of the table of average precision: metric, rows, and models."""


def headline_table(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of the table of average precision; unmeasured ones are omitted."""
    yield f"| AP | {' | '.join(STREAMS)} |"
    yield f"| --- | {' | '.join('--:' for _ in STREAMS)} |"
    rows = results["accuracy"].rows
    for what, name, models in HEADLINES:
        found = [_best(rows, name, stream, models) for stream in STREAMS]
        if any(found):
            yield f"| {what} | {' | '.join(_cell(row) for row in found)} |"


def _cell(row: Row | None) -> str:
    return "" if row is None else f"{row.value:.3f} ({row.params['model']})"


def main(directories: Sequence[str]) -> None:
    """Add the runs in `directories` to the results."""
    held = load(FOLDER / "accuracy.json")
    found = [row for each in directories for row in rows_of_run(Path(each))]
    old, new = (
        [replace(row, params={"commit": name, **row.params}) for row in rows]
        for name, rows in ((held.commit, held.rows), (commit(), found))
    )
    record("accuracy", COMMAND, with_targets(merged(old, new)))


if __name__ == "__main__":
    main(sys.argv[1:])
