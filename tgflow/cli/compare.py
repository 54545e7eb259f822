"""`tgflow compare`: several models in one pass over one stream."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tgflow.base.choices import METRIC_TITLES
from tgflow.base.units import seconds_per_tick
from tgflow.cli.errors import CORRUPT, NO_INPUT, CliError, hint
from tgflow.cli.options import MetricsJson, Overwrite, Resume, with_config
from tgflow.report.formatting import compact, score
from tgflow.report.table_text import print_summary, print_table
from tgflow.run.config import LEARNING_OF, Config, replaced
from tgflow.run.records import DamagedJson, RunFiles, read_figures, run_name, to_json
from tgflow.run.rejections import print_stream

if TYPE_CHECKING:
    from tgflow.graph import TemporalGraph
    from tgflow.report.compare.analysis import Analysis
    from tgflow.report.compare.outcome import Outcome
    from tgflow.run.directory import RunDirectory
    from tgflow.train.config import TrainingConfig

SETTINGS = (
    "stream", "compare", "task", "order", "checks", "graph", *LEARNING_OF["continual"],
    "learning.epochs", "learning.patience",
    "model.dim", "model.neighbors", "model.precision", "model.settings",
    "tables", "run", "checkpoint", "operate.metrics_port", "operate.metrics_host",
    "operate.log_format", "operate.memory_limit",
)  # fmt: skip
FILES = {
    "report.html": "ranking and significance; open it in a browser",
    "metrics.json": "all figures",
    "scores.arrow": "scores of each model for each event",
    "config.toml": "these settings, for --config",
}


@with_config(SETTINGS, is_long=True)
def compare(
    config: Config,
    stated: dict[str, Any],
    *,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Compare baselines only; same as --models quick.",
            rich_help_panel="Output",
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="Only redraw the report of a finished comparison.",
            rich_help_panel="Output",
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: MetricsJson = False,
) -> None:
    """Compare models on a stream: all predict and learn the same events in one pass.

    All models score the same events and negatives, and each gets the scores that `tgflow run` would
    give it. A model that diverges drops out; the others continue. Writes scores.arrow (each model's
    scores of each event), events.arrow (attributes of each event), metrics.json and report.html:
    the ranking and its significance, the cost of an event, and accuracy by slice and over time.

    With --task the models are compared by the figure of its labels first; those without embeddings
    predict links alone.

    Presets (--preset) choose some settings by the kind of stream, which is measured and printed;
    settings that are given explicitly take precedence.

    With a --protocol such as dyglib/1, tgbl/1 or tkgl/1 each model is trained offline, in epochs,
    and compared on the test split; --resume keeps finished models and continues from the latest
    saved epoch.

    [bold]Examples[/bold]

      tgflow compare events.csv -m jodie,tgn,tgn+pairs --seeds 3
      tgflow compare -s events.csv --models tgn,small=tgn --model-set small.memory_dim=32
      tgflow compare -s events.csv --models tgn,graphmixer --frozen-at 0.5
      tgflow compare pay.csv --task edge --target is_fraud -m tgn -m jodie
      tgflow compare -s events.csv --models tgn,jodie --protocol dyglib/1
      tgflow compare -s events.csv --out runs/compared --resume
      tgflow compare --report runs/compared
    """
    from tgflow.run.directory import ResumeOptions, RunDirectory

    if report is not None:
        _draw_again(report)
        return
    if quick:
        config = replace(config, compare=replace(config.compare, models=("quick",)))
    options = ResumeOptions(resume, stated=stated, overwrite=overwrite)
    name = run_name(config.stream.path, "compare")
    directory = RunDirectory.find(config, name, options, "compare")
    try:
        learn = _compare_offline if directory.config.is_offline else _compare_continual
        analysis, stream = learn(directory)
    finally:
        directory.release()
    if json:
        sys.stdout.write(to_json(analysis.outcome.summary, indent=2) + "\n")
    else:
        _print(analysis, stream, directory.path)


def _compare_continual(directory: RunDirectory) -> tuple[Analysis, Mapping[str, Any]]:
    import numpy as np

    from tgflow.cli import inputs
    from tgflow.cli.model_choices import choose, entrants, freezing_point
    from tgflow.report.compare.attributes import event_facts
    from tgflow.report.compare.comparison import Comparison
    from tgflow.report.compare.outcome import Outcome
    from tgflow.run.build import open_runner
    from tgflow.run.stream import FlowControl, StopSignals

    flow, console = FlowControl(), Console(stderr=True)
    with StopSignals(flow.stop_for):
        with flow.opening():
            run = inputs.open_live(directory)
        config, c = directory.config, directory.config.compare
        opened = partial(inputs.open_source, config.stream, config.graph, config.task)
        choices, cut, preset = choose(config.model, config.task, c, opened)
        x_dims = (run.x_dim, run.node_x_dim)
        frozen_at = freezing_point(c.frozen_at, config.stream.limit, opened)
        learning, task = config.continual, config.task
        run.model = [*entrants(choices, c.seeds, learning, task, x_dims, run.device, frozen_at)]
        run.title, run.cut_at_steps = f"{len(choices)} models", cut
        run.flow, run.console = flow, console
        with inputs.logged(directory, "compare", console) as run.run_log:
            run.run_log.info("preset", preset)
            console.print(preset, markup=False, highlight=False, soft_wrap=True)
            result, trainer = open_runner(run).run(), run.trainer
            assert isinstance(trainer, Comparison)
            if not result.stopped:
                inputs.check_events(config.stream.path, trainer.position)
            protocol = result.metrics["protocol_line"]
            stream, said = result.reports["stream"], result.reports["features"]
            summary = {
                **_common_figures(config.stream.path, learning, trainer.graph, preset),
                **config.label_facts,
                **inputs.machine_figures(run.threads, run.device),
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
            facts = event_facts(trainer.graph, 0, stop, trainer.labels)
            analysis = _write(directory.files, Outcome(facts, scores, summary))
            run.run_log.info("end", "stopped" if result.stopped else "done", exit_code=0)
    return analysis, stream


def _compare_offline(directory: RunDirectory) -> tuple[Analysis, None]:
    from tgflow.cli import inputs
    from tgflow.cli.model_choices import choose, entrants
    from tgflow.cuda.device import device_of
    from tgflow.report.compare.offline import compare_offline
    from tgflow.run.features import features_report
    from tgflow.run.gpu import execution_config
    from tgflow.run.restore import current_build, open_results

    directory.config = replaced(directory.config, {"compare.cut_at_steps": False})
    source, nodes, device, threads = inputs.open_offline(directory)
    types = inputs.open_node_types(directory)
    c = directory.config
    opened = partial(inputs.open_source, c.stream, c.graph, c.task)
    choices, _, preset = choose(c.model, c.task, c.compare, opened)
    gpu = device_of(device) if c.has_gpu_graph else None
    graph = inputs.read_graph(directory, source, nodes, types, gpu)
    config, console = directory.config, Console(stderr=True)
    console.print(preset, markup=False, highlight=False, soft_wrap=True)
    seeds, x_dims = config.compare.seeds, (source.x_dim, inputs.dim_of(nodes))

    def on_result(key: str, result: Mapping[str, Any]) -> None:
        name = config.offline.select_metric
        value = score(result.get(f"test.{name}", nan))
        console.print(f"{key}  test {METRIC_TITLES[name]} {value}", markup=False)

    with inputs.logged(directory, "compare", console) as run_log:
        build = current_build(threads, device)
        outcome = compare_offline(
            entrants(choices, seeds, config.offline, config.task, x_dims, device, None),
            graph,
            config.offline,
            execution=execution_config(config.model.precision, capture=config.run.capture),
            ids=source.ids,
            results=open_results(directory, graph, "compare", build, run_log),
            on_result=on_result,
        )
        said = features_report(graph, nodes, source.ids)
        summary = {
            **_common_figures(config.stream.path, config.offline, graph, preset),
            **config.label_facts,
            **inputs.machine_figures(threads, device),
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
    from tgflow.report.compare.analysis import Analysis
    from tgflow.report.compare.outcome import SUMMARY
    from tgflow.report.compare.page import comparison_page

    files.write_json(SUMMARY, outcome.summary)
    outcome.write(files.path)
    analysis = Analysis(outcome, int(outcome.summary["batch_size"]))
    if analysis.num_events:
        files.write("report.html", comparison_page(analysis))
    return analysis


def _print(analysis: Analysis, stream: Mapping[str, Any] | None, path: Path) -> None:
    summary = analysis.outcome.summary
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
        found = ((label, *analysis.of_mrr_parts(label)) for label in analysis.mrr.means)
        print_table(("MRR", *analysis.mrr_parts), [*found])
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
    for line in summary.get("features", {}).values():
        hint(line)
    if stream is not None:
        print_stream(stream, path / "dead-letters")
    if summary.get("interrupted"):
        console.print(f"stopped; resume with: tgflow compare --resume --out {path}")


def _draw_again(path: Path) -> None:
    from tgflow.report.compare.analysis import Analysis
    from tgflow.report.compare.outcome import SUMMARY, Outcome, OutcomeDamaged
    from tgflow.report.compare.page import comparison_page

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
    RunFiles(path, resumed=True).write("report.html", comparison_page(analysis))
    Console(soft_wrap=True, highlight=False).print(f"{path / 'report.html'} is drawn", markup=False)
