"""Implementation of `tgflow compare`: models and presets, one pass or offline, and output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from tgflow.base.choices import METRIC_TITLES
from tgflow.base.units import seconds_per_tick
from tgflow.cli import inputs as assemble
from tgflow.cli.errors import CORRUPT, NO_INPUT, CliError, hint
from tgflow.cuda.device import device_of
from tgflow.graph import TemporalGraph
from tgflow.graph.events import concat
from tgflow.models import MODELS
from tgflow.report.compare.analysis import Analysis
from tgflow.report.compare.attributes import event_facts
from tgflow.report.compare.comparison import Comparison
from tgflow.report.compare.lineup import LEARNING, Entrant
from tgflow.report.compare.offline import compare_offline
from tgflow.report.compare.outcome import SUMMARY, Outcome, OutcomeDamaged
from tgflow.report.compare.page import comparison_page
from tgflow.report.compare.presets import MEASURED, Family, StreamFacts, measure, settings_of
from tgflow.report.formatting import compact, score
from tgflow.report.table_text import print_summary, print_table
from tgflow.run.build import open_runner
from tgflow.run.config import Config, ConfigError, model_settings, replaced
from tgflow.run.config.load import WIDTHS
from tgflow.run.config.schema import CompareConfig, ModelConfig
from tgflow.run.directory import ResumeOptions, RunDirectory
from tgflow.run.features import features_report
from tgflow.run.gpu import execution_config
from tgflow.run.model_maker import make_model, model_class
from tgflow.run.records import DamagedJson, RunFiles, read_figures, run_name, to_json
from tgflow.run.rejections import print_stream
from tgflow.run.restore import current_build, open_results
from tgflow.run.stream import FlowControl, StopSignals
from tgflow.streams import EventSource, playback
from tgflow.streams.files.reader import is_pipe
from tgflow.train.config import TrainingConfig
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.labels import embeds, make_task

QUICK = ("edgebank-tw", "poptrack", "recency", "counts")
LINEUPS = {"quick": QUICK, "auto": (*QUICK, "jodie", "tgn", "tgn+pairs", "graphmixer", "tpnet")}
"""Named lists of models."""
PAIRS = "+pairs"
FROZEN = " frozen"
"""Suffix of the label of a frozen copy."""
FILES = {
    "report.html": "ranking and significance; open it in a browser",
    "metrics.json": "all figures",
    "scores.arrow": "scores of each model for each event",
    "config.toml": "these settings, for --config",
}


def compare_stream(config: Config, options: ResumeOptions, *, quick: bool, as_json: bool) -> None:
    if quick:
        config = replace(config, compare=replace(config.compare, models=("quick",)))
    path, compare = config.stream.path, config.compare
    if path and is_pipe(path) and (compare.preset != "none" or compare.frozen_at is not None):
        raise ConfigError("compare reads the stream twice: write the pipe to a file first")
    name = run_name(path, "compare")
    directory = RunDirectory.find(config, name, options, "compare")
    try:
        run = _compare_offline if directory.config.is_offline else _compare_continual
        analysis, stream = run(directory)
    finally:
        directory.release()
    summary = analysis.outcome.summary
    if as_json:
        sys.stdout.write(to_json(summary, indent=2) + "\n")
        return
    _print_leaders(analysis, directory.path)
    for line in summary.get("features", {}).values():
        hint(line)
    if stream is not None:
        print_stream(stream, directory.path / "dead-letters")
    if summary.get("interrupted"):
        console = Console(soft_wrap=True, highlight=False)
        console.print(f"stopped; resume with: tgflow compare --resume --out {directory.path}")


def _compare_continual(directory: RunDirectory) -> tuple[Analysis, Mapping[str, Any]]:
    """Compare models in one pass; return the analysis, and the report of the stream."""
    flow, console = FlowControl(), Console(stderr=True)
    with StopSignals(flow.stop_for):
        with flow.opening():
            run = assemble.open_live(directory)
        config, c = directory.config, directory.config.compare
        opened = partial(assemble.open_source, config.stream, config.graph, config.task)
        facts = None if c.preset == "none" else stream_facts(opened())
        choices, cut = chosen(config.model, config.task, c, facts), cuts_at_steps(c, facts)
        x_dims = (run.x_dim, run.node_x_dim)
        frozen_at = _freezing_point(c.frozen_at, config.stream.limit, opened)
        learning, task = config.continual, config.task
        run.model = [*_entrants(choices, c.seeds, learning, task, x_dims, run.device, frozen_at)]
        run.title, run.cut_at_steps = f"{len(choices)} models", cut
        run.flow, run.console = flow, console
        with assemble.logged(directory, "compare", console) as run.run_log:
            preset = preset_line(c, facts, choices)
            run.run_log.info("preset", preset)
            console.print(preset, markup=False, highlight=False, soft_wrap=True)
            result, trainer = open_runner(run).run(), run.trainer
            assert isinstance(trainer, Comparison)
            if not result.stopped:
                assemble.check_events(config.stream.path, trainer.position)
            protocol = result.metrics["protocol_line"]
            stream, said = result.reports["stream"], result.reports["features"]
            summary = {
                **_common_figures(config.stream.path, learning, trainer.graph, preset),
                **assemble.machine_figures(run.threads, run.device),
                **result.metrics,
                "cut_at_steps": cut,
                "protocol_line": protocol + ", micro-batches end with their time" * cut,
                "batch_size": learning.batch_size,
                "interrupted": result.stopped,
                "state_sha256": result.state_sha256,
                "num_waiting": stream.get("num_waiting", 0),
                **({"features": said} if said else {}),
                "tables": result.tables,
            }
            stop = trainer.position
            scores = {}
            for each in trainer.participants:  # events without a score are NaN
                rows = each.scores.rows.numpy()
                scores[each.key] = np.full((stop, rows.shape[1]), np.nan)
                scores[each.key][: len(rows)] = rows
            facts_of_events = event_facts(trainer.graph, 0, stop, trainer.labels)
            outcome = Outcome(facts_of_events, scores, summary)
            analysis = _write(directory.files, outcome)
            run.run_log.info("end", "stopped" if result.stopped else "done", exit_code=0)
    return analysis, stream


def _compare_offline(directory: RunDirectory) -> tuple[Analysis, None]:
    """Train models offline, compare them on the test split, and return the analysis."""
    directory.config = replaced(directory.config, {"compare.cut_at_steps": False})
    source, nodes, device, threads = assemble.open_offline(directory)
    types = assemble.open_node_types(directory)
    c = directory.config
    opened = partial(assemble.open_source, c.stream, c.graph, c.task)
    facts = None if c.compare.preset == "none" else stream_facts(opened())
    choices = chosen(c.model, c.task, c.compare, facts)
    gpu = device_of(device) if c.has_gpu_graph else None
    graph = assemble.read_graph(c.stream, c.graph, c.offline, source, gpu=gpu, nodes=nodes)
    classes = assemble.num_classes(c.task, graph)
    directory.config = config = replaced(c, {"task.classes": classes})
    if types is not None:
        graph.log.node_types = partial(types.of, source.ids)
    preset = preset_line(config.compare, facts, choices)
    console = Console(stderr=True)
    console.print(preset, markup=False, highlight=False, soft_wrap=True)
    num_seeds = config.compare.seeds
    x_dims = (source.x_dim, assemble.dim_of(nodes))

    def on_result(key: str, result: Mapping[str, Any]) -> None:
        name = config.offline.select_metric
        value = score(result.get(f"test.{name}", np.nan))
        console.print(f"{key}  test {METRIC_TITLES[name]} {value}", markup=False)

    with assemble.logged(directory, "compare", console) as run_log:
        build = current_build(threads, device)
        outcome = compare_offline(
            _entrants(choices, num_seeds, config.offline, config.task, x_dims, device, None),
            graph,
            config.offline,
            execution=execution_config(config.model.precision, capture=config.run.capture),
            ids=source.ids,
            results=open_results(directory, graph, "compare", build, run_log),
            task=make_task(config.task),
            on_result=on_result,
        )
        said = features_report(graph, nodes, source.ids)
        summary = {
            **_common_figures(config.stream.path, config.offline, graph, preset),
            **assemble.machine_figures(threads, device),
            **({"features": said} if said else {}),
            **outcome.summary,
            "batch_size": config.offline.batch_size,
        }
        analysis = _write(directory.files, replace(outcome, summary=summary))
        run_log.info("end", "done", exit_code=0)
    return analysis, None


def _common_figures(
    path: str, training: TrainingConfig, graph: TemporalGraph, preset: str
) -> dict[str, Any]:
    return {
        "command": "compare",
        "stream": path,
        "metrics": list(training.metric_names),
        "preset_line": preset,
        "seconds_per_tick": seconds_per_tick(graph.time_unit),
    }


def _write(files: RunFiles, outcome: Outcome) -> Analysis:
    files.write_json(SUMMARY, outcome.summary)
    outcome.write(files.path)
    analysis = Analysis(outcome, int(outcome.summary["batch_size"]))
    if analysis.num_events:
        files.write_report(comparison_page(analysis))
    return analysis


def draw_again(path: Path) -> None:
    """Redraw the page of a finished comparison."""
    try:
        read_figures(path / SUMMARY)
        outcome = Outcome.read(path)
    except (DamagedJson, OutcomeDamaged) as error:
        text = f"the comparison in {path} cannot be used: {error}; bring its files back"
        raise CliError(
            f"{text} from a copy, or compare again with another --out", CORRUPT
        ) from None
    except FileNotFoundError:
        raise CliError(
            f"{path} has no finished comparison; make one: tgflow compare --out {path}", NO_INPUT
        ) from None
    analysis = Analysis(outcome, int(outcome.summary["batch_size"]))
    RunFiles(path, resumed=True).write_report(comparison_page(analysis))
    Console(soft_wrap=True, highlight=False).print(f"{path / 'report.html'} is drawn", markup=False)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model named on the command line, with all of its settings."""

    label: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Any] = field(default_factory=dict)
    """Settings set by the preset."""


def stream_facts(source: EventSource) -> StreamFacts:
    """Return statistics of the stream for a preset."""
    events = concat(list(playback(source, limit=MEASURED)))
    return measure(events, seconds_per_tick(source.unit))


def family_of(wanted: str, facts: StreamFacts | None) -> Family | None:
    """Return the kind of stream whose preset applies; None with --preset none."""
    if facts is None:
        return None
    return facts.family if wanted == "auto" else wanted  # type: ignore[return-value]


def cuts_at_steps(c: CompareConfig, facts: StreamFacts | None) -> bool:
    """Return whether micro-batches end where the time changes."""
    own = c.cut_at_steps
    return family_of(c.preset, facts) == "discrete" if own is None else own


def chosen(
    common_model: ModelConfig, task: TaskConfig, c: CompareConfig, facts: StreamFacts | None
) -> list[ModelChoice]:
    """Return the models to compare, with their settings; `facts` of the stream choose a preset."""
    models: dict[str, str] = {}
    for text in _named_models(c, facts)[0]:
        label, equals, name = text.partition("=")
        name, label = name if equals else label, label.rpartition(":")[2]
        if ":" not in name and name not in MODELS:
            raise ConfigError(
                f"--models: there is no model {name!r}; there are {', '.join(MODELS)}, and your "
                "own as path/to/file.py:Class or package.module:Class"
            )
        if label in models:
            raise ConfigError(
                f"--models: {label} is repeated; give one a label of its own: other={label}"
            )
        models[label] = name
    if not models:
        raise ConfigError("--models requires names, such as --models recency,tgn,tgn+pairs")
    kinds = [model_class(name) for name in models.values()]
    if task.has_decoder and not any(map(embeds, kinds)):
        raise ConfigError(
            f"--task {task.kind}: none of the models makes embeddings of single nodes, "
            "which labels are predicted from; add one that does: tgn, tgat, jodie or graphmixer"
        )
    known = dict(zip(models, map(_settings_of_class, kinds), strict=True))
    own: dict[str, dict[str, Any]] = {label: {} for label in models}
    common: dict[str, Any] = {}
    for key, value in model_settings(common_model).items():  # of one, as tgn.memory_dim, or of all
        label, dot, name = key.rpartition(".")
        if dot and label not in models:
            raise ConfigError(
                f"--model-set: {label} does not take part; there are {', '.join(models)}"
            )
        if not dot and key not in set(WIDTHS).union(*known.values()):
            raise ConfigError(f"--model-set: none of the models has a setting {key!r}")
        (own[label] if dot else common)[name] = value
    family = family_of(c.preset, facts)
    presets = settings_of(family, facts) if family is not None and facts is not None else {}
    found = []
    for label, name in models.items():
        given = {k: v for k, v in common.items() if k in known[label] | LEARNING} | own[label]
        preset = presets.get(name.removesuffix(PAIRS), {})
        preset = {key: value for key, value in preset.items() if key not in given}
        found.append(ModelChoice(label, name, preset | given, preset))
    return found


def _named_models(c: CompareConfig, facts: StreamFacts | None) -> tuple[list[str], list[str]]:
    """Return the models in --models, with lists expanded, and those that the preset leaves out."""
    taken: list[str] = []
    left_out: list[str] = []
    # Where pairs rarely recur, models that read pair history are left out of lists.
    is_sparse = family_of(c.preset, facts) == "sparse"
    for text in filter(None, map(str.strip, ",".join(c.models).split(","))):
        for name in LINEUPS.get(text, (text,)):
            is_left_out = is_sparse and text in LINEUPS and name.endswith(PAIRS)
            (left_out if is_left_out else taken).append(name)
    return taken, left_out


def _settings_of_class(kind: Any) -> set[str]:
    """Return the names of the settings of a class of models: the fields of its dataclass."""
    settings = getattr(kind, "config_type", None)
    return {each.name for each in fields(settings)} if is_dataclass(settings) else set()


def preset_line(c: CompareConfig, facts: StreamFacts | None, choices: list[ModelChoice]) -> str:
    """Return one line with the settings of the preset and the statistics that chose it."""
    wanted, family = c.preset, family_of(c.preset, facts)
    if family is None and wanted == "none":
        return "no preset"
    sets = [
        f"{choice.label}.{key}={float(f'{value:.4g}') if isinstance(value, float) else value}"
        for choice in choices
        for key, value in choice.preset.items()
    ]
    if c.cut_at_steps is None and cuts_at_steps(c, facts):
        sets.append("cut_at_steps=True")
    measured = "" if facts is None else f" (stream measured: {facts.line()})"
    without = "".join(f"; leaves out {name}" for name in _named_models(c, facts)[1])
    return f"preset {family or wanted}{measured} sets {', '.join(sets) or 'nothing'}{without}"


def _freezing_point(
    at: float | None, limit: int | None, opened: Callable[[], EventSource]
) -> int | None:
    """Return the event at which copies are frozen; for a share, the stream is counted."""
    if at is None or at >= 1:
        return None if at is None else int(at)
    return int(at * sum(len(batch) for batch in playback(opened(), limit=limit)))


def _entrants(
    choices: list[ModelChoice],
    num_seeds: int,
    common: TrainingConfig,
    task: TaskConfig,
    x_dims: tuple[int, int],
    device: torch.device,
    frozen_at: int | None,
) -> Iterator[Entrant]:
    """Yield the entrants of a comparison: each model with each seed, and frozen copies."""

    def make(choice: ModelChoice, seed: int) -> Entrant:
        settings = choice.settings
        learning = {key: settings[key] for key in settings if key in LEARNING}
        own = {key: value for key, value in settings.items() if key not in LEARNING}
        named = ModelConfig(name=choice.name, settings=own)
        training, (edge_x_dim, node_x_dim) = replace(common, seed=seed), x_dims
        model = make_model(
            named, task, training, edge_x_dim, device, node_x_dim=node_x_dim, must_embed=False
        )
        return Entrant(choice.label, seed, model, learning)

    for choice in choices:
        for seed in range(common.seed, common.seed + num_seeds):
            entrant = make(choice, seed)
            yield entrant
            if not any(True for _ in entrant.model.parameters()):
                break
            if frozen_at is not None:
                yield replace(
                    make(choice, seed),
                    label=choice.label + FROZEN,
                    frozen_of=choice.label,
                    frozen_at=frozen_at,
                )


def _print_leaders(analysis: Analysis, path: Path) -> None:
    """Print the leaderboard, and the models that dropped out."""
    summary: Mapping[str, Any] = analysis.outcome.summary
    rows, own = [], analysis.own_metrics
    if (table := analysis.label_table()) is not None:
        print_table(*table)
    if analysis.num_events:
        ap = analysis.ap.means
        rows = [
            (
                label,
                score(interval.mean),
                f"{interval.low:.4f} to {interval.high:.4f}",
                "best" if (p := analysis.mrr.p_of_best(label)) is None else f"{p:.4f}",
                score(ap[label].mean),
                *(score(analysis.own_metric(label, name)) for name in own),
                compact(analysis.cost(label)),
            )
            for label, interval in analysis.mrr.means.items()
        ]
    print_summary(
        ("model" if table is None else "links", "MRR", "95 %", "p", "AP", *own, "µs an event"),
        rows,
        f"{analysis.num_events:,} events compared, of {summary['num_events']:,} among "
        f"{summary['num_nodes']:,} nodes; p: no difference from the best, all pairs\n"
        f"{summary['protocol_line']}",
        path,
        FILES,
    )
    console = Console(soft_wrap=True, highlight=False)
    for key, failure in analysis.failures().items():
        console.print(f"{key} dropped out: {failure['reason']}", markup=False)
