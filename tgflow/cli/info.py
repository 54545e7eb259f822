"""`tgflow info`: describe a stream or a run directory."""

from __future__ import annotations

import json as jsonlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from tgflow.base.choices import METRIC_TITLES
from tgflow.base.text import printable
from tgflow.base.units import duration, seconds_per_tick
from tgflow.cli.errors import NO_INPUT, CliError
from tgflow.cli.options import STREAM_OF_FILES, Json, with_config
from tgflow.report.formatting import num_bytes, rank_line, stream_time
from tgflow.report.table_text import TITLES, describe_table, print_table, row_sums
from tgflow.run.config import Config, StreamConfig, load_config, plain, replaced
from tgflow.run.outlook import describe
from tgflow.run.records import (
    LEARNED_FILES,
    DamagedJson,
    lost_records,
    read_figures,
    read_health,
    read_records,
)
from tgflow.run.rejections import print_stream
from tgflow.streams.rows.schema import ID_KINDS

if TYPE_CHECKING:
    from torch import Tensor

    from tgflow.graph.events import EventBatch
    from tgflow.streams import EventSource

_T = TypeVar("_T")
SETTINGS = (*STREAM_OF_FILES, "graph")
_Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Column of labels to learn: which of them is class 1, or what to pass to choose it.",
        rich_help_panel="Task: labels to learn besides links",
    ),
]
HEADLINES = (
    "model", "stream", "num_events", "num_nodes", "num_parameters", "visibility", "seed", "seeds",
    "prequential.ap", "prequential.mrr", "val.ap", "test.ap", "test.auc", "test.mrr",
    "epoch_seconds", "events_per_second", "interrupted",
)  # fmt: skip
DAY = 86_400
QUANTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@with_config(SETTINGS, positional="stream.path")
def info(config: Config, *, target: _Target = None, json: Json = False) -> None:
    """Describe a stream (nodes, times, ties, repeats, degrees) or a run directory.

    [bold]Examples[/bold]

      tgflow info examples/data/collegemsg.csv.gz
      tgflow info events.parquet --src user --dst item --t at --json
      tgflow info payments.csv --target is_fraud
      tgflow info runs/collegemsg-tgn
    """
    from tgflow.run.config.rules import check_rules

    check_rules(config, "info")
    config = replaced(config, {} if target is None else {"stream.label": target})
    path = Path(config.stream.path)
    if (path / "config.toml").exists():
        found = _read_run(path)
    elif path.is_dir() and config.stream.path and not any(path.iterdir()):
        raise CliError(f"{path} is an empty folder: neither a stream nor a run", NO_INPUT)
    else:
        found = _read_stream(config, is_target=target is not None)
    if json:
        text = jsonlib.dumps(found, indent=2, ensure_ascii=False, default=str)
        sys.stdout.write(text + "\n")
    elif "checkpoints" in found:
        _print_run(path, found)
    else:
        print_table((config.stream.path, ""), _stream_rows(found))


def _print_run(path: Path, found: Mapping[str, Any]) -> None:
    print_table((printable(str(path)), ""), _rows(path, found))
    if found["checkpoints"]:
        print_table(
            ("checkpoint", "events", "age", "size", "state", "state digest"),
            [_checkpoint_row(entry) for entry in found["checkpoints"]],
        )
    if found["files"]:
        lines = _file_rows(found["files"], StreamConfig(**found["config"]["stream"]).tick)
        print_table(("file", "events", "from", "to", "learned", "sha256"), lines)
    if found["stream"]:
        print_stream(found["stream"], path / "dead-letters")
    if found["checkpoints"] and not (found["health"] or {}).get("alive"):
        console = Console(soft_wrap=True, highlight=False)
        trainer = found["checkpoints"][0]["trainer"]
        command = trainer if trainer in ("compare", "train") else "run"
        console.print(Text(f"resume with: tgflow {command} --resume --out {path}", "bold"))


def _read_run(path: Path) -> dict[str, Any]:
    """Return facts of a run; reads all files of its checkpoints, and changes nothing."""
    from tgflow.run.forget import DONE, FOLDER, erased
    from tgflow.run.learned_files import LearnedFiles

    def learned(path: Path) -> list[dict[str, Any]]:
        return [asdict(each) for each in LearnedFiles(path).entries]

    offline = path / "checkpoint"
    problems: dict[str, str] = {}
    if num_damaged := read_records(path / "metrics.jsonl", most=1).num_damaged:
        problems["metrics.jsonl"] = f"{num_damaged:,} lines are damaged, and ignored"
    checkpoints, log = _checkpoints(path / "checkpoints"), path / "log"
    num_records = max((each.pop("records", 0) for each in checkpoints), default=0)
    if lost := lost_records(path / "metrics.jsonl", num_records):
        problems.setdefault("metrics.jsonl", lost)
    segments = list(log.iterdir()) if log.exists() else []
    disk = _bytes_on_disk(path)
    elapsed = next((each["elapsed"] for each in checkpoints if each.get("elapsed")), None)
    config, metrics = load_config(path / "config.toml"), _figures(path / "metrics.json", problems)
    trained = config.offline if (metrics or {}).get("command") == "train" else config.continual
    return {
        "path": str(path),
        "config": plain(config),
        "health": read_health(path / "health.json"),
        "metrics": metrics,
        "own_metrics": [name for name in trained.metric_names if name not in METRIC_TITLES],
        "checkpoint": {"bytes": _size(offline)} if offline.exists() else None,
        "checkpoints": checkpoints,
        "disk": _growth(sum(disk.values()), elapsed) | {"parts": disk},
        "log": {"bytes": _size(log), "segments": len(segments)} if segments else None,
        "dead_letters": _growth(_size(path / "dead-letters"), elapsed),
        "scores": _scores(path, elapsed, problems),
        "stream": _figures(path / "stream.json", problems),
        "files": _or_none(path / LEARNED_FILES, problems, lambda: learned(path)) or [],
        "erased": _or_none(path / FOLDER / DONE, problems, lambda: erased(path)),
        "report": (path / "report.html").exists(),
        "problems": problems,
    }


def _checkpoints(directory: Path) -> list[dict[str, Any]]:
    """Return facts of each checkpoint of a run, newest first; reads and verifies all of them."""
    from tgflow.checkpoint import CheckpointError, list_checkpoints, load, read_manifest
    from tgflow.checkpoint.store import CORRUPT
    from tgflow.checkpoint.typed import read_as, read_natural

    found = []
    valid = [entry.path for entry in reversed(list_checkpoints(directory))]
    for path in (*valid, *sorted(directory.glob(f"{CORRUPT}*"), reverse=True)):
        entry: dict[str, Any] = {"name": path.name, "bytes": _size(path), "problem": None}
        entry["trainer"] = None
        try:
            manifest = read_manifest(path)
            entry["position"] = read_natural(manifest["meta"], "position")
            entry["trainer"] = read_as(str, manifest["meta"].get("trainer"), "trainer")
            entry["state_sha256"] = manifest["state_sha256"]
            run = read_as(dict[str, Any], manifest["meta"].get("run", {}), "run")
            records = read_as(dict[str, int], manifest["meta"].get("records", {}), "records")
            entry["records"] = records.get("lines", 0)
            entry["elapsed"] = read_as(float | None, run.get("elapsed"), "run.elapsed")
            entry["age_seconds"] = time.time() - (path / "manifest.json").stat().st_mtime
            load(path)
        except (CheckpointError, OSError, LookupError) as error:
            entry["problem"] = str(error)
        found.append(entry)
    return found


def _scores(path: Path, elapsed: float | None, problems: dict[str, str]) -> dict[str, Any] | None:
    """Return the location and growth of a run's file of scores; None without one."""
    from tgflow.run.scores import OWNER, ROWS, ROWS_OF_DAYS, score_files

    owned = _figures(path / OWNER, problems)
    files = [] if owned is None else [*score_files(owned["to"]).values(), path / ROWS]
    sizes = [file.stat().st_size for file in files if file.exists()]
    size = sum(sizes) + _size(path / ROWS_OF_DAYS)
    return {"to": owned["to"], **_growth(size, elapsed)} if owned and size else None


def _growth(size: int, elapsed: float | None) -> dict[str, Any]:
    return {"bytes": size, "bytes_per_day": size / elapsed * DAY if elapsed else None}


def _bytes_on_disk(path: Path) -> dict[str, int]:
    """Return the bytes of each file and folder of a run, largest first."""
    sizes: dict[str, dict[int, int]] = {}  # by inode: checkpoints share files
    for folder, _, names in os.walk(path):
        for name in names:
            part = Path(folder, name).relative_to(path).parts[0]
            with suppress(FileNotFoundError):  # an active run removes old files
                found = os.lstat(os.path.join(folder, name))
                sizes.setdefault(part, {})[found.st_ino] = found.st_size
    parts = {part: sum(files.values()) for part, files in sizes.items()}
    return dict(sorted(parts.items(), key=itemgetter(1), reverse=True))


def _rows(path: Path, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    metrics, health = found["metrics"] or {}, found["health"] or {}
    rows = _health_rows(health) if health else []
    parts = ("prequential", "val", "test")
    keys = [*HEADLINES, *(f"{part}.{own}" for own in found["own_metrics"] for part in parts)]
    rows += [(key, _shown(metrics[key])) for key in keys if metrics.get(key) is not None]
    if found["checkpoint"]:
        rows.append(("checkpoint", num_bytes(found["checkpoint"]["bytes"])))
    if (kind := found["config"]["stream"]["id_kind"]) is not None:
        rows.append(("ids", ID_KINDS[kind]))
    if (positive := metrics.get("label_positive")) is not None:
        rows.append(("positive label", printable(f"{metrics['label_target']} = {positive}")))
    tables = metrics.get("tables") or health.get("tables") or {}
    rows += [(TITLES[name], printable(describe_table(figures))) for name, figures in tables.items()]
    ranks = health.get("ranks") or {}
    rows += [(f"rank {rank}", rank_line(figures)) for rank, figures in ranks.items()]
    if found["log"]:
        log = found["log"]
        rows.append(("log", f"{num_bytes(log['bytes'])} in {log['segments']} segments"))
    if found["stream"]:
        rows.append(("rows", row_sums(found["stream"])))
        rows.append(("dead letters", _growth_text(found["dead_letters"])))
    if erased := found["erased"]:
        age = duration(max(time.time() - erased["at"], 0))
        rows.append(("forgotten nodes", f"{erased['nodes']:,}, the last {age} ago"))
    if found["scores"]:
        text = f"{_growth_text(found['scores'])}, in {found['scores']['to']}"
        rows.append(("scores", printable(text)))
    rows.append(("disk", _with_parts(_growth_text(found["disk"]), found["disk"]["parts"])))
    if nodes := health.get("nodes"):
        rows.append(("nodes", f"{nodes['kept']:,} kept, {nodes['forgotten']:,} forgotten"))
    if memory := health.get("memory"):
        rows.append(("memory", _with_parts(num_bytes(sum(memory.values())), memory)))
    for name, each in (health.get("outlook") or {}).items():
        if "seconds_left" in each:
            rows.append((f"{name} ends", f"in {describe(name, each)}"))
    rows.append(("report", str(path / "report.html") if found["report"] else "none"))
    return [*rows, *found["problems"].items()]


def _with_parts(text: str, parts: Mapping[str, int]) -> str:
    largest = [f"{part} {num_bytes(size)}" for part, size in [*parts.items()][:5]]
    return printable(f"{text}: {', '.join(largest)}")


def _growth_text(found: Mapping[str, Any]) -> str:
    text, a_day = num_bytes(found["bytes"]), found["bytes_per_day"]
    return text if not a_day else f"{text}, {num_bytes(int(a_day))} a day so far"


def _health_rows(health: Mapping[str, Any]) -> list[tuple[str, str]]:
    state, age = str(health.get("state")), time.time() - health["updated"]
    if health["alive"]:
        text = f"{state}, process {health.get('pid')}"
    elif state in ("done", "stopped", "failed"):
        text = f"{state} {duration(max(age, 0))} ago"
    else:
        text = f"its process died {duration(max(age, 0))} ago while {state}"
    reason = health.get("reason")
    rows = [("state", printable(text)), ("position", f"{health.get('position', 0):,} events")]
    return [*rows, ("reason", printable(str(reason)))] if reason else rows


def _checkpoint_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    position, age = entry.get("position"), entry.get("age_seconds")
    return (
        printable(entry["name"]),
        "" if position is None else f"{position:,}",
        "" if age is None else duration(max(age, 0)),
        num_bytes(entry["bytes"]),
        "valid" if entry["problem"] is None else printable(entry["problem"]),
        str(entry.get("state_sha256") or "")[:12],
    )


def _file_rows(files: Sequence[Mapping[str, Any]], unit: str) -> list[tuple[str, ...]]:
    times = [t for entry in files for t in entry["times"]] or [0]
    show, *_ = stream_time(times[0], times[-1], unit, dated=True)
    return [
        (
            printable(entry["path"] or "in Python"),
            "" if entry["stop"] is None else f"{entry['stop'] - entry['start']:,}",
            *(map(show, entry["times"]) if entry["times"] else ("", "")),
            entry["ended"] or "not to its end",
            ", ".join(digest[:12] for digest in entry["digests"][:3]),
        )
        for entry in files
    ]


def _figures(path: Path, problems: dict[str, str]) -> dict[str, Any] | None:
    """Return the figures in a file; None if it is damaged, with the cause in `problems`."""
    return _or_none(path, problems, lambda: read_figures(path))


def _or_none(path: Path, problems: dict[str, str], read: Callable[[], _T]) -> _T | None:
    """Return what is read of a file; None if it is damaged, with the cause in `problems`."""
    from tgflow.checkpoint import CheckpointError
    from tgflow.checkpoint.durable.errors import LogCorrupt

    try:
        return read()
    except (DamagedJson, CheckpointError, LogCorrupt) as error:
        problems[path.name] = f"damaged, and ignored: {error}"
        return None


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else printable(str(value))


def _read_stream(config: Config, *, is_target: bool) -> dict[str, Any]:
    """Read a whole stream and return its facts, and with a target which label is class 1."""
    from tgflow.cli import inputs as assemble
    from tgflow.graph.events import concat
    from tgflow.report.compare.presets import measure
    from tgflow.streams import playback

    labels, graph, task = None, config.graph, config.task
    if is_target:
        labels, config = assemble.propose_labels(config)
    stream = config.stream
    source = assemble.open_source(stream, graph, task)
    events = concat(list(playback(source, limit=stream.limit)))
    nodes = assemble.open_node_features(graph, source, stream.fill_missing)
    num_nodes = 1 + int(max(events.src.max(), events.dst.max())) if len(events) else 0
    assemble.warn(events, source, is_scaled=graph.feature_scale != "none")
    return {
        "path": stream.path,
        "ids": _ids(source),
        "unit": source.unit,
        "bipartite": source.ids.bipartite,
        "x_dim": source.x_dim,
        **_facts(events),
        "node_features": None if nodes is None else nodes.line(source.ids, num_nodes),
        "classes": source.classes,
        "target": labels,
        "family": measure(events, seconds_per_tick(source.unit)).line() if len(events) else None,
    }


def _ids(source: EventSource) -> str:
    """Return the kind of ids, why, and how many of them have spaces around."""
    import torch

    names = source.ids.decode(torch.arange(len(source.ids) if source.id_kind == "string" else 0))
    num = sum(1 for name in names if str(name) != str(name).strip(" "))
    kind = source.id_note.removeprefix("ids are ").partition("; spaces")[0]
    return f"{kind}; {num:,} with spaces around, which are kept" if num else kind


def _facts(events: EventBatch) -> dict[str, Any]:
    """Return counts and spans of `events`; without events, the counts are 0 and the rest None."""
    import torch

    def num_distinct(values: Tensor) -> int:
        return len(torch.unique(values))

    size, ends = len(events), torch.cat([events.src, events.dst])
    degree = torch.bincount(ends) if size else ends
    degree = degree[degree > 0].sort().values
    num_pairs = num_distinct(events.src * (int(ends.max()) + 1) + events.dst) if size else 0
    num_times, last = num_distinct(events.t), len(degree) - 1
    return {
        "num_events": size,
        "num_nodes": len(degree),
        "num_sources": num_distinct(events.src),
        "num_destinations": num_distinct(events.dst),
        "num_pairs": num_pairs,
        "repeat_share": 1 - num_pairs / size if size else None,
        "self_loops": int((events.src == events.dst).sum()),
        "first_t": int(events.t[0]) if size else None,
        "last_t": int(events.t[-1]) if size else None,
        "num_times": num_times,
        "tie_share": 1 - num_times / size if size else None,
        "num_relations": None if events.relation is None else num_distinct(events.relation),
        "num_labels": None if events.label is None else num_distinct(events.label),
        "degree": {name: int(degree[round(q * last)]) for name, q in QUANTILES.items()}
        if size
        else None,
    }


def _stream_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    from tgflow.streams.rows.schema import listed

    sides = f"{found['num_sources']:,} sources, {found['num_destinations']:,} destinations"
    rows = [
        ("events", f"{found['num_events']:,}"),
        ("nodes", f"{found['num_nodes']:,}  ({sides})"),
        ("ids", found["ids"]),
        ("distinct pairs", f"{found['num_pairs']:,}"),
    ]
    if found["num_events"]:
        unit, first, last = found["unit"], found["first_t"], found["last_t"]
        show, *_ = stream_time(first, last, unit, dated=True)
        span = "" if unit == "tick" else f"  ({duration((last - first) * seconds_per_tick(unit))})"
        rows += [
            ("time", f"{show(first)} to {show(last)}{span}"),
            ("repeated pairs", f"{found['repeat_share']:.1%} of events"),
            ("tied times", f"{found['tie_share']:.1%} of events"),
            ("kind", found["family"]),
            ("degree", ", ".join(f"{name} {n:,}" for name, n in found["degree"].items())),
        ]
    rows.append(("self-loops", f"{found['self_loops']:,}"))
    rows.append(("edge features", str(found["x_dim"] or "none")))
    if found["node_features"] is not None:
        rows.append(("node features", found["node_features"].removeprefix("node features: ")))
    for role in ("relation", "label"):
        if role == "label" and found["target"] is not None:
            rows.append(("labels", found["target"]))
        elif (num := found[f"num_{role}s"]) is not None:
            names = [f"{name} = {i}" for i, name in enumerate(found["classes"].get(role, ()))]
            shown = f": {listed(names)}" if names else ""
            rows.append((f"{role}s", f"{num:,} distinct{shown}"))
    return rows
