"""Implementation of `tgflow compare`: presets, models, one pass or offline, and output."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from tgflow.cli import assemble
from tgflow.cli.continual import failing_run, interruptible, printer
from tgflow.cli.errors import CORRUPT, NO_INPUT, CliError, hint
from tgflow.compare.analysis import Analysis
from tgflow.compare.comparison import Comparison
from tgflow.compare.facts import event_facts
from tgflow.compare.lineup import LEARNING, Entrant
from tgflow.compare.offline import compare_offline
from tgflow.compare.outcome import SUMMARY, Outcome, OutcomeDamaged
from tgflow.compare.page import comparison_page
from tgflow.config import Config, ConfigError, replaced
from tgflow.config.model import WIDTHS, model_settings
from tgflow.events import concat
from tgflow.graph import TemporalGraph
from tgflow.models import MODELS
from tgflow.presets import MEASURED, Family, StreamFacts, measure, settings_of
from tgflow.report.formatting import compact, score
from tgflow.report.table_text import print_stream, print_summary
from tgflow.runtime.build import RunInputs, open_runner
from tgflow.runtime.directory import ResumeOptions, RunDirectory
from tgflow.runtime.features import check_tables, features_report
from tgflow.runtime.files import DamagedJson, RunFiles, read_figures, run_name, to_json
from tgflow.runtime.gpu import (
    describe_device,
    device_figures,
    execution_config,
    graph_gpu,
    use_device,
)
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import describe, peak_rss_bytes
from tgflow.runtime.model_maker import make_model, own_model
from tgflow.runtime.restore import current_build, open_saves
from tgflow.runtime.runner import RunResult
from tgflow.runtime.stream import FlowControl, StopSignals
from tgflow.streams import playback
from tgflow.train.config import TrainingConfig
from tgflow.units import seconds_per_tick


def stream_facts(config: Config) -> StreamFacts | None:
    """Return the statistics of the stream that a preset needs; None with --preset none."""
    if config.compare.preset == "none":
        return None
    source = assemble.open_source(config)
    events = concat(list(playback(source, limit=MEASURED)))
    return measure(events, seconds_per_tick(source.unit))


def family_of(config: Config, facts: StreamFacts | None) -> Family | None:
    """Return the kind of stream whose preset applies; None with --preset none."""
    if facts is None:
        return None
    wanted = config.compare.preset
    return facts.family if wanted == "auto" else wanted  # type: ignore[return-value]


def cuts_at_steps(config: Config, facts: StreamFacts | None) -> bool:
    """Return whether micro-batches end where the time changes."""
    own = config.compare.cut_at_steps
    return family_of(config, facts) == "discrete" if own is None else own


def compare_stream(config: Config, options: ResumeOptions, *, quick: bool, as_json: bool) -> None:
    """Compare models on the stream of `config` and leave a run directory.

    Args:
        config: The settings; of one that resumes, those it started with come first.
        options: Whether to resume.
        quick: Compare what is done in minutes.
        as_json: Print the figures as JSON, not as a table.
    """
    if quick:
        config = replace(config, compare=replace(config.compare, models="quick"))
    if is_offline(config):
        config, options = with_offline(config, options)
    directory = RunDirectory.find(config, _name(config), options)
    try:
        if is_offline(directory.config):
            compare_trained(directory, as_json=as_json)
            return
        flow = FlowControl()
        with StopSignals(flow.stop_for):
            _compare(directory, as_json, flow)
    finally:
        directory.release()


def _compare(directory: RunDirectory, as_json: bool, flow: FlowControl) -> None:
    source, direction, device, threads, nodes = assemble.open_live(directory)
    config = directory.config
    facts = stream_facts(config)
    choices = chosen(config, facts)
    x_dims = (source.x_dim, assemble.dim_of(nodes))
    lineup = list(entrants(config, choices, x_dims, device, freezing_point(config)))
    inputs = RunInputs(
        source,
        direction,
        lineup,
        threads,
        device,
        title=f"{len(choices)} models",
        cut_at_steps=cuts_at_steps(config, facts),
        nodes=nodes,
    )
    console = Console(stderr=True)
    with directory:
        run_log = RunLog(directory.path / "run.log", config.operate.log_format, printer(console))
        preset = preset_line(config, facts, choices)
        run_log.info("preset", preset)
        console.print(preset, markup=False, highlight=False, soft_wrap=True)
        with failing_run(directory.path, run_log, "compare"):
            runner = open_runner(directory, inputs, run_log, flow, console)
            result = runner.run()
            assert isinstance(runner.trainer, Comparison)
            outcome = _outcome(runner.trainer, result, config, preset, inputs)
            analysis = write_outcome(directory.files, outcome, config.continual.batch_size)
        run_log.info("end", "stopped" if result.stopped else "done", exit_code=0)
        run_log.close()
    if as_json:
        sys.stdout.write(to_json(outcome.summary, indent=2) + "\n")
    else:
        _summary(analysis, result, directory)


def _name(config: Config) -> str:
    """Return the default name of a comparison."""
    return run_name(config).removesuffix(config.model.name.removesuffix("+pairs")) + "compare"


def draw_again(path: Path) -> None:
    """Draw the page of a comparison that was made before.

    Raises:
        CliError: If there is none, or its files are damaged.
    """
    try:
        read_figures(path / SUMMARY)
        outcome = Outcome.read(path)
    except (DamagedJson, OutcomeDamaged) as error:
        text = f"what {path} has of a comparison cannot be used: {error}; bring its files back"
        raise CliError(
            f"{text} from a copy, or compare again with another --out", CORRUPT
        ) from None
    except FileNotFoundError:
        raise CliError(
            f"{path} has no comparison that came to an end; make one: tgflow compare --out {path}",
            NO_INPUT,
        ) from None
    analysis = Analysis(outcome, int(outcome.summary["batch_size"]))
    RunFiles(path, resumed=True).write_report(comparison_page(analysis))
    Console(soft_wrap=True, highlight=False).print(f"{path / 'report.html'} is drawn", markup=False)


def _outcome(
    trainer: Comparison,
    result: RunResult,
    config: Config,
    preset: str,
    inputs: RunInputs,
) -> Outcome:
    stop = trainer.position
    scores = {each.key: _padded(each.scores.rows.numpy(), stop) for each in trainer.participants}
    stream = result.reports["stream"]
    summary = {
        **common_figures(config, trainer.graph, preset, inputs.threads, inputs.device),
        **result.metrics,
        "cut_at_steps": inputs.cut_at_steps,
        "protocol_line": result.metrics["protocol_line"]
        + (", micro-batches end with their time" if inputs.cut_at_steps else ""),
        "batch_size": config.continual.batch_size,
        "interrupted": result.stopped,
        "state_sha256": result.state_sha256,
        "num_waiting": stream.get("num_waiting", 0),
        **({"features": said} if (said := result.reports["features"]) else {}),
        "tables": result.tables,
    }
    return Outcome(event_facts(trainer.graph, 0, stop), scores, summary)


def _padded(rows: Any, size: int) -> Any:
    """Return scores of all events: those that were not scored are NaN."""
    out = np.full((size, rows.shape[1]), np.nan, dtype=rows.dtype)
    out[: len(rows)] = rows
    return out


def _summary(analysis: Analysis, result: RunResult, directory: RunDirectory) -> None:
    print_leaders(analysis, directory.path)
    for line in result.reports["features"].values():
        hint(line)
    print_stream(result.reports["stream"], directory.path / "dead-letters")
    if result.stopped:
        console = Console(soft_wrap=True, highlight=False)
        console.print(f"stopped; resume with: tgflow compare --resume --out {directory.path}")


QUICK = ("edgebank-tw", "poptrack", "recency", "counts")
AUTO = (*QUICK, "jodie", "tgn", "tgn+pairs", "graphmixer", "tpnet")
LINEUPS = {"auto": AUTO, "quick": QUICK}
"""Line-ups by name, of the models that there are."""
PAIRS = "+pairs"
FROZEN = " frozen"
"""Behind the label of a copy that learns no more."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model as it is named on the command line, with all of its settings."""

    label: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Any] = field(default_factory=dict)
    """Those of its settings that the preset has set."""


def chosen(config: Config, facts: StreamFacts | None) -> list[ModelChoice]:
    """Return the models to compare, with their settings.

    Args:
        config: The comparison's.
        facts: Of the stream, by which presets go; None for no preset.

    Raises:
        ConfigError: If a model or setting is unknown.
    """
    found = [_named(text) for text in _texts(config, facts)]
    labels = [choice.label for choice in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f"--models: {twice[0]} is there twice; give one a label of its own: other={twice[0]}"
        )
    own, common = _split(config, labels)
    known = set(WIDTHS).union(*(_known(choice.name) for choice in found))
    if unused := [key for key in common if key not in known]:
        raise ConfigError(f"--model-set: none of the models has a setting {unused[0]!r}")
    family = family_of(config, facts)
    preset = settings_of(family, facts) if family is not None and facts is not None else {}
    return [
        _with_settings(
            choice, preset.get(choice.name.removesuffix(PAIRS), {}), common, own[choice.label]
        )
        for choice in found
    ]


def left_out(config: Config, facts: StreamFacts | None) -> list[str]:
    """Return the models that the preset leaves out of a named line-up."""
    if family_of(config, facts) != "sparse":
        return []
    return [
        name
        for text in _stated(config)
        for name in LINEUPS.get(text, ())
        if name.endswith(PAIRS)  # where pairs hardly come again, their history says little
    ]


def _stated(config: Config) -> list[str]:
    return [text.strip() for text in config.compare.models.split(",") if text.strip()]


def _texts(config: Config, facts: StreamFacts | None) -> Iterator[str]:
    """Yield the models of --models, with line-ups replaced by their models."""
    if not _stated(config):
        raise ConfigError("--models: which? name some, such as --models recency,tgn,tgn+pairs")
    without = left_out(config, facts)
    for text in _stated(config):
        if text not in LINEUPS:
            yield text
            continue
        yield from (name for name in LINEUPS[text] if name in MODELS and name not in without)


def _named(text: str) -> ModelChoice:
    label, equals, name = text.partition("=")
    name = name if equals else label
    if ":" not in name and name not in MODELS:
        raise ConfigError(
            f"--models: there is no model {name!r}; there are {', '.join(MODELS)}, and your own as "
            "module:Class"
        )
    return ModelChoice(label.rpartition(":")[2], name)


def _known(name: str) -> set[str]:
    """Return the names of a model's settings; for an own model, the fields of its dataclass."""
    kind = MODELS[name].config if name in MODELS else None
    if kind is None:
        kind = getattr(own_model(name), "config_type", None)
    return {each.name for each in fields(kind)} if is_dataclass(kind) else set()


def _split(config: Config, labels: list[str]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return settings of one model, such as tgn.memory_dim=32, and settings for all models."""
    own: dict[str, dict[str, Any]] = {label: {} for label in labels}
    common: dict[str, Any] = {}
    for key, value in model_settings(config.model).items():
        label, dot, name = key.rpartition(".")
        if not dot:
            common[key] = value
        elif label in own:
            own[label][name] = value
        else:
            raise ConfigError(
                f"--model-set: {label} does not take part; there are {', '.join(labels)}"
            )
    return own, common


def _with_settings(
    choice: ModelChoice,
    preset: Mapping[str, Any],
    common: Mapping[str, Any],
    own: Mapping[str, Any],
) -> ModelChoice:
    known = _known(choice.name) | set(LEARNING)
    stated = {k: v for k, v in common.items() if k in known} | dict(own)
    left = {key: value for key, value in preset.items() if key not in stated}
    return replace(choice, settings={**choice.settings, **left, **stated}, preset=left)


def freezing_point(config: Config) -> int | None:
    """Return the event from which on copies learn no more; of a share, the stream is counted."""
    at = config.compare.frozen_at
    if at is None or at >= 1:
        return None if at is None else int(at)
    source = assemble.open_source(config)
    return int(at * sum(len(batch) for batch in playback(source, limit=config.stream.limit)))


def entrants(
    config: Config,
    choices: list[ModelChoice],
    x_dims: tuple[int, int],
    device: torch.device,
    frozen_at: int | None,
) -> Iterator[Entrant]:
    """Yield the entrants of a comparison: each model with each seed, and frozen copies.

    A model without parameters has one seed, as others would make no difference.
    """
    for choice in choices:
        for seed in range(config.continual.seed, config.continual.seed + config.compare.seeds):
            entrant = _entrant(config, choice, seed, x_dims, device)
            yield entrant
            if not any(True for _ in entrant.model.parameters()):
                break
            if frozen_at is not None:
                copy = _entrant(config, choice, seed, x_dims, device)
                yield replace(
                    copy,
                    label=choice.label + FROZEN,
                    frozen_of=choice.label,
                    frozen_at=frozen_at,
                )


def _entrant(
    config: Config, choice: ModelChoice, seed: int, x_dims: tuple[int, int], device: torch.device
) -> Entrant:
    learning = {key: choice.settings[key] for key in choice.settings if key in LEARNING}
    training = replace(config.continual, seed=seed)
    model = make_choice(config, choice, training, x_dims, device)
    return Entrant(choice.label, seed, model, learning)


def make_choice(
    config: Config,
    choice: ModelChoice,
    training: TrainingConfig,
    x_dims: tuple[int, int],
    device: torch.device,
) -> Any:
    """Return a model, its first parameters drawn with the seed of `training`.

    Args:
        config: The settings of the comparison.
        choice: Which model.
        training: The settings of its trainer.
        x_dims: Widths of the features of edges and of nodes.
        device: Where it is to be.
    """
    settings = {key: value for key, value in choice.settings.items() if key not in LEARNING}
    model = type(config.model)(name=choice.name, settings=settings)
    edge_x_dim, node_x_dim = x_dims
    return make_model(
        replace(config, model=model), training, edge_x_dim, device, node_x_dim=node_x_dim
    )


FILES = {
    "report.html": "who is ahead, and is it chance; open it in a browser",
    "metrics.json": "all figures",
    "scores.arrow": "every event by every model",
    "config.toml": "these settings, for --config",
}


def preset_line(config: Config, facts: StreamFacts | None, choices: list[ModelChoice]) -> str:
    """Return one line with the settings of the preset and the statistics that chose it."""
    wanted, family = config.compare.preset, family_of(config, facts)
    if family is None and wanted == "none":
        return "no preset"
    sets = [
        f"{choice.label}.{key}={float(f'{value:.4g}') if isinstance(value, float) else value}"
        for choice in choices
        for key, value in choice.preset.items()
    ]
    if config.compare.cut_at_steps is None and cuts_at_steps(config, facts):
        sets.append("cut_at_steps=True")
    measured = "" if facts is None else f" (stream measured: {facts.line()})"
    without = "".join(f"; leaves out {name}" for name in left_out(config, facts))
    return f"preset {family or wanted}{measured} sets {', '.join(sets) or 'nothing'}{without}"


def common_figures(
    config: Config, graph: TemporalGraph, preset: str, threads: int, device: torch.device
) -> dict[str, Any]:
    """Return the metrics of stream and machine that every comparison has."""
    return {
        "command": "compare",
        "stream": config.stream.path,
        "metrics": list((config.offline if is_offline(config) else config.continual).metric_names),
        "preset_line": preset,
        "seconds_per_tick": seconds_per_tick(graph.time_unit),
        "threads": threads,
        "peak_rss_bytes": peak_rss_bytes(),
        **device_figures(device),
        "machine": describe() | describe_device(device),
    }


def write_outcome(files: RunFiles, outcome: Outcome, batch_size: int) -> Analysis:
    """Write the files of a comparison, and return its analysis.

    Raises:
        OSError: If it cannot be written.
    """
    files.write_json(SUMMARY, outcome.summary)
    outcome.write(files.path)
    analysis = Analysis(outcome, batch_size)
    if analysis.num_events:
        files.write_report(comparison_page(analysis))
    return analysis


def print_leaders(analysis: Analysis, path: Path) -> None:
    """Print the leaderboard, and the models that dropped out."""
    summary: Mapping[str, Any] = analysis.outcome.summary
    rows, own = [], analysis.own_metrics
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
        ("model", "MRR", "95 %", "p", "AP", *own, "µs an event"),
        rows,
        f"{analysis.num_events:,} events are compared, of {summary['num_events']:,} among "
        f"{summary['num_nodes']:,} nodes; p: no difference from the best, all pairs\n"
        f"{summary['protocol_line']}",
        path,
        FILES,
    )
    console = Console(soft_wrap=True, highlight=False)
    for key, failure in analysis.failures().items():
        console.print(f"{key} dropped out: {failure['reason']}", markup=False)


def is_offline(config: Config) -> bool:
    """Return whether a comparison trains its models offline, by its protocol."""
    return config.compare.protocol in ("dyglib/1", "tgb/1")


def with_offline(config: Config, options: ResumeOptions) -> tuple[Config, ResumeOptions]:
    """Return the settings with explicit `continual` ones copied to `offline`."""
    stated = options.stated or {}
    common = {
        f"continual.{field.name}": f"offline.{field.name}" for field in fields(TrainingConfig)
    }
    found = {common[key]: value for key, value in stated.items() if key in common}
    return replaced(config, found), replace(options, stated={**stated, **found})


def compare_trained(directory: RunDirectory, *, as_json: bool) -> None:
    """Train models offline on the stream of a run, and compare them on its last part.

    Args:
        directory: Of the run, which starts or resumes; taken once all events could be read.
        as_json: Print the figures as JSON, not as a table.

    Raises:
        ConfigError: If it is to freeze copies or to cut micro-batches, which only a stream can.
        SourceMismatch: If it resumes, and the events are others than they were.
    """
    config = replaced(directory.config, {"compare.cut_at_steps": False})
    for flag, is_set in (
        ("--frozen-at", config.compare.frozen_at is not None),
        ("--cut-at-steps", directory.config.compare.cut_at_steps),
    ):
        if is_set:
            raise ConfigError(
                f"{flag}: --protocol {config.compare.protocol} trains offline; leave one out"
            )
    device, threads = use_device(config), assemble.use_threads(config)
    source = assemble.open_source(config)
    directory.config = config = assemble.settle_units(config, source)
    check_tables(config, source.x_dim, live=False)
    nodes = assemble.open_node_features(config, source.ids)
    facts = stream_facts(config)
    choices = chosen(config, facts)
    graph = assemble.read_graph(config, source, gpu=graph_gpu(config, device), nodes=nodes)
    console = Console(stderr=True)
    preset = preset_line(config, facts, choices)
    console.print(preset, markup=False, highlight=False, soft_wrap=True)
    seeded = replace(config, continual=replace(config.continual, seed=config.offline.seed))

    def say(key: str, result: Mapping[str, Any]) -> None:
        console.print(f"{key}  test AP {score(result.get('test.ap', np.nan))}", markup=False)

    build = current_build(threads, device)
    with directory:
        run_log = RunLog(directory.path / "run.log", config.operate.log_format, printer(console))
        with (
            failing_run(directory.path, run_log, "compare"),
            interruptible(directory.path, console, "compare"),
        ):
            outcome = compare_offline(
                entrants(seeded, choices, (source.x_dim, assemble.dim_of(nodes)), device, None),
                graph,
                config.offline,
                execution=execution_config(config),
                ids=source.ids,
                saves=open_saves(directory, graph, "compare", build, run_log),
                on_result=say,
            )
            common = common_figures(config, graph, preset, threads, device)
            said = features_report(graph, nodes, source.ids)
            common |= {"features": said} if said else {}
            summary = {**common, **outcome.summary, "batch_size": config.offline.batch_size}
            outcome = replace(outcome, summary=summary)
            analysis = write_outcome(directory.files, outcome, config.offline.batch_size)
        run_log.info("end", "done", exit_code=0)
        run_log.close()
    if as_json:
        sys.stdout.write(to_json(outcome.summary, indent=2) + "\n")
    else:
        print_leaders(analysis, directory.path)
        for line in said.values():
            hint(line)
