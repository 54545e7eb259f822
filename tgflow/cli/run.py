"""`tgflow run`: learn continually from a stream."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tgflow.base.choices import METRIC_TITLES
from tgflow.cli.errors import hint
from tgflow.cli.nproc import MaxRestarts, Nproc, is_started, run_ranks
from tgflow.cli.options import MetricsJson, Overwrite, Resume, with_config
from tgflow.ranks.launch import read_launch
from tgflow.report.formatting import compact, sample_note, score
from tgflow.report.label_figures import task_of
from tgflow.report.table_text import (
    RUN_FILES,
    print_feature_tables,
    print_labels,
    print_scores,
    print_summary,
)
from tgflow.run import page
from tgflow.run.config import LEARNING_OF, Config, StreamConfig
from tgflow.run.config.load import ConfigError, load_config, plain, replaced
from tgflow.run.records import read_figures, read_records, run_name, to_json
from tgflow.run.rejections import print_stream

if TYPE_CHECKING:
    from tgflow.base.peers import Peers
    from tgflow.run.directory import ResumeOptions, RunDirectory
    from tgflow.run.log import RunLog
    from tgflow.run.runner import RunResult
    from tgflow.run.stream import FlowControl

SETTINGS = (
    "stream", "order", "checks", "kafka", "graph", "model", "task.kind", "task.target",
    "task.node_labels", "task.classes", "task.label_delay", "task.label_replay",
    "task.label_memory", "task.links", "task.freeze", "labels",
    *LEARNING_OF["continual"], "tables", "run",
    "checkpoint", "start", "scores", "serve", "operate", "ranks",
)  # fmt: skip
MOST_RECORDS = 20_000
"""Maximum micro-batches plotted in the report, evenly spaced."""


@with_config(SETTINGS, is_long=True)
def run(
    config: Config,
    stated: dict[str, Any],
    *,
    context: typer.Context,
    nproc: Nproc = None,
    max_restarts: MaxRestarts = 10,
    resume: Resume = False,
    append: Annotated[
        list[str] | None,
        typer.Option(
            "--append",
            help="File or folder to learn after those that the run has learned, with its "
            "settings; a file that it has learned adds nothing; may be given several times.",
            rich_help_panel="Resuming",
        ),
    ] = None,
    overwrite: Overwrite = False,
    allow_config_change: Annotated[
        bool,
        typer.Option(
            "--allow-config-change",
            help="Allow changed settings on resume; without it, a table lists what they reset.",
            rich_help_panel="Resuming",
        ),
    ] = False,
    json: MetricsJson = False,
) -> None:
    """Learn continually from a stream: predict, learn and store each micro-batch.

    Writes a run directory with config.toml, metrics.jsonl, metrics.json, checkpoints/ and
    report.html. A run that was killed continues with --resume and ends with exactly the same model.
    Ctrl-C (or SIGTERM) stops it after the current micro-batch and saves all progress; a second one
    stops it immediately.

    The default model, tgn+pairs, is TGN with the exact history of each pair as an additional input;
    -m tgn selects the model of the paper.

    [bold]Examples[/bold]

      tgflow run examples/data/collegemsg.csv.gz
      tgflow run -s clicks.parquet --src user --dst page --t at --time-unit ms -m tgat
      tgflow run log.csv --no-header --columns src,dst,_,t --follow
      tgflow run -s events.csv --out runs/events --resume
      tgflow run --resume --out runs/events --append day2.csv
      tgflow run -s events.csv --nproc 2 --out runs/two
      tgflow run -s kafka://localhost:9092/clicks --codec json
      tgflow run -s events.csv --edge-table disk --edge-cache 256MiB
      tgflow run -s events.csv --scores scores.parquet
      tgflow run -s events.csv --log-to tensorboard
      tgflow run -s kafka://localhost:9092/clicks --serve 8080
      tgflow run -s new.csv --init-from runs/old-offline
      tgflow run -s pay.csv --task edge --target is_fraud --label-delay 1d --alert-budget 100
      tgflow run -s pay.csv --event-id id --task edge --target is_fraud --label-stream found.csv
      tgflow run -s events.csv --limit 5000 --json | jq '."prequential.ap"'
      tgflow run -s events.csv -m tgn --model-set aggregator=mean --model-set memory_dim=64
      tgflow run --config runs/collegemsg-tgn/config.toml --seed 1
    """
    if overwrite and (nproc is not None or read_launch(os.environ) is not None):
        raise ConfigError(
            "--overwrite is for a single process, as ranks that are started again would lose what "
            "they have learned: remove the directory, or choose another --out"
        )
    if append and read_launch(os.environ) is not None and not is_started():
        raise ConfigError("--append with several processes is for those of one host: --nproc 2")
    files = _files(config.run.out, config.stream, append, resume=resume) if append else iter([None])
    if nproc is not None and not is_started():
        out, path, model = config.run.out, config.stream.path, config.model.name
        code = None
        for file in files:
            words = _words(context.obj, file) if append else context.obj
            code = run_ranks(out, path, model, words, nproc, max_restarts, resume=resume)
            if code:
                break
        if code is not None:
            raise typer.Exit(code)
    from tgflow.cli.rank_setup import follow, join_ranks, slice_per_rank
    from tgflow.run.directory import ResumeOptions
    from tgflow.run.forget import carry_out
    from tgflow.run.saved import initial_settings
    from tgflow.run.stream import FlowControl, StopSignals

    done = None
    initial = initial_settings(config.start.init_from, stated, config.stream.path)
    config = replaced(config, initial | slice_per_rank(stated))
    if append and is_started():  # a rank learns one of them; a restarted one may have learned it
        leads = os.environ.get("RANK", "0") == "0"
        files = iter([next(files, None) if leads else None])
    for file in files:
        if append:
            stated = {"stream.limit": None, **stated}
        options = ResumeOptions(resume, allow_config_change, stated, overwrite, file)
        while True:
            flow = FlowControl()
            with StopSignals(flow.stop_for), join_ranks(config, options) as peers:
                if peers.rank > 0:
                    follow(peers, flow)
                    return
                metrics, result, directory = done = _learn(config, options, flow, peers)
                has_forgotten = carry_out(directory.path, hint)
            serves = directory.config.serve.at is not None and directory.config.serve.stay
            if flow.signal is not None or not (result.stopped or (has_forgotten and serves)):
                break
            # it was stopped to forget nodes, and goes on
            config = replaced(config, {"run.out": str(directory.path)})
            options = replace(options, resume=True, overwrite=False, append=None)
        if result.stopped or not directory.learned.has_ended:
            break
    if done is None:
        metrics = read_figures(Path(config.run.out or "") / "metrics.json") or {}
    if json:
        sys.stdout.write(to_json(metrics, indent=2) + "\n")
    elif done is not None:
        _print(metrics, result, directory)


def _words(words: Sequence[str], file: str | None) -> list[str]:
    """Return the words of a command with one file to append in place of all, or with none."""
    kept = [
        word
        for before, word in pairwise(["", *words])
        if "--append" not in (before, word.partition("=")[0])
    ]
    return kept if file is None else [*kept, "--append", file]


def _files(
    out: str | None, stream: StreamConfig, append: Sequence[str], *, resume: bool
) -> Iterator[str | None]:
    """Yield None if the stream of the run has not ended, then the files that it has not learned."""
    from tgflow.run.learned_files import LearnedFiles, digests_of
    from tgflow.streams.files.reader import is_pipe, paths_of
    from tgflow.streams.transports import find_transport

    if not resume or out is None:
        raise ConfigError("--append continues a run: --resume --out RUN --append FILE")
    streams = [stream]
    if (saved := Path(out) / "config.toml").exists():
        streams.append(load_config(saved, unknown=[]).stream)
    are_endless = [c.follow or find_transport(c.path) for c in streams]
    for given in append:
        if any(are_endless) or find_transport(given) or is_pipe(given):
            raise ConfigError(
                f"--append {given}: it takes files and folders, after files that are not followed "
                "(--follow)"
            )
    if not LearnedFiles(Path(out)).has_ended and any(c.path for c in streams):
        yield None
        if not LearnedFiles(Path(out)).has_ended:
            return
    for given in append:
        files = [str(each) for each in paths_of(given)]  # those of a folder, in order
        num_known, found = 0, None
        for file in files:
            learned = LearnedFiles(Path(out)).with_digest(digests_of(file)[0])
            num_known, found = num_known + (learned is not None), learned or found
            if learned is None:
                yield file
                if not LearnedFiles(Path(out)).has_ended:
                    return
        if found is not None:
            num_new, what = (
                len(files) - num_known,
                "the others" if num_known < len(files) else "all",
            )
            what = "that file" if files == [given] else f"{what} of its files"
            adds = f"{num_new:,} of {len(files):,} files" if num_new else "nothing"
            hint(f"--append {given} adds {adds}: {out} has learned {what}, on {found.ended}")


def _learn(
    config: Config, options: ResumeOptions, flow: FlowControl, peers: Peers
) -> tuple[dict[str, Any], RunResult, RunDirectory]:
    """Learn from the stream as the only process, or as rank 0; write metrics and report."""
    from tgflow.cli import inputs
    from tgflow.ranks.broadcast import Lead
    from tgflow.run import build
    from tgflow.run.directory import RunDirectory
    from tgflow.run.forget import carry_out, requested
    from tgflow.run.model_maker import make_model
    from tgflow.streams.files.reader import FileSource

    with Lead(peers) as lead, ExitStack() as opened:
        # open the stream
        if options.resume:
            carry_out(Path(config.run.out or ""), hint)
        name = run_name(config.stream.path, config.model.name)
        directory = RunDirectory.find(config, name, options, "run", peers.world)
        opened.callback(directory.release)
        with flow.opening():
            run = inputs.open_live(directory, peers)
        c = directory.config
        if not directory.resumed:
            stream = replace(c.stream, label=None) if c.labels.are_given else c.stream
            inputs.warn_of_first(stream, c.graph, c.task)
        # build the run
        run.lead, run.flow, run.console = lead, flow, Console(stderr=True)
        run.model = make_model(
            c.model, c.task, c.continual, run.x_dim, run.device, node_x_dim=run.node_x_dim
        )
        learned, files = directory.learned, directory.files
        with inputs.logged(directory, "run", run.console) as run.run_log, run.lasting:
            runner = build.open_runner(run)
            is_of_files = isinstance(run.source, FileSource)
            if is_of_files:
                start = directory.first or run.note.history
                learned.begin(files, directory.part, c.stream.path, start)
            # loop
            try:
                result = runner.run()
            except Exception as error:
                raise inputs.late_counted(error, run) from error.__cause__
            finally:
                if options.append is not None and not run.ingest.has_polled:
                    learned.withdraw(files)
            inputs.hint_late(run)
            if is_of_files and run.ingest.is_over:
                learned.end(files, run.trainer.graph.log, run.trainer.position)
            # report
            if not result.stopped:
                inputs.check_events(c.stream.path, result.metrics["num_events"])
            machine = inputs.machine_figures(run.threads, run.device)
            metrics = _metrics(result, c.stream.path, c.model.name) | c.label_facts | machine
            _write_report(directory, metrics, result, run.run_log)
            if c.serve.at is not None and c.serve.stay:
                run.run_log.info("serve", "the stream has ended; a signal ends serving")
                while flow.signal is None and not (peers.world == 1 and requested(run.path)):
                    time.sleep(0.1)
            run.run_log.info("end", "stopped" if result.stopped else "done", exit_code=0)
    return metrics, result, directory


_REPORTS = ("scores", "alerts", "features", "ranks", "serving")


def _metrics(result: RunResult, path: str, model: str) -> dict[str, Any]:
    stream, reports = result.reports["stream"], result.reports
    counts = stream["counts"]
    return {
        "command": "run",
        "stream": path,
        "model": model,
        **result.metrics,
        "interrupted": result.stopped,
        "state_sha256": result.state_sha256,
        "rows": {name: value for name, value in counts.items() if isinstance(value, int)},
        "refused": counts["refused"],
        "num_waiting": stream.get("num_waiting", 0),
        "tables": result.tables,
        **{name: reports[name] for name in _REPORTS if reports.get(name)},
    }


def _write_report(
    directory: RunDirectory, metrics: Mapping[str, Any], result: RunResult, run_log: RunLog
) -> None:
    files = directory.files
    files.write_json("metrics.json", metrics)
    records = read_records(files.records, MOST_RECORDS)
    if records.num_damaged:
        text = f"{records.num_damaged} lines of {files.records} are damaged and ignored"
        run_log.warning("records", text)
    stream, num_damaged = result.reports["stream"], records.num_damaged
    c, kept = directory.config, records.kept
    more = c.continual, plain(c), c.stream.tick, stream, num_damaged
    files.write("report.html", page.continual_report(kept, metrics, *more))


def _print(metrics: Mapping[str, Any], result: RunResult, directory: RunDirectory) -> None:
    from tgflow.nn.linear import product_rates

    path, config = directory.path, directory.config
    own_metrics = config.continual.metric_names
    rows = [
        (name, *(score(metrics.get(f"{part}.{key}", nan)) for part in ("prequential", "test")))
        for key, name in (METRIC_TITLES | {own: own for own in own_metrics}).items()
        if not key.startswith("mrr_") or f"prequential.{key}" in metrics
    ]
    print_labels(metrics)
    print_summary(
        ("links" if task_of(metrics) else "", "all events", "last 15 %"),
        rows,
        f"{metrics['model']}, {metrics['num_events']:,} events, {metrics['num_nodes']:,} nodes, "
        f"{compact(metrics['events_per_second'])} events/s, "
        f"visibility {metrics['visibility']}, seed {metrics['seed']}\n"
        + (f"MRR {note}\n" if (note := sample_note(metrics, "prequential")) else "")
        + f"{metrics['protocol_line']}",
        path,
        RUN_FILES,
    )
    is_plain = config.run.device == "cpu" and config.model.precision == "fp32"
    if is_plain and metrics["num_parameters"] and "bf16" in (rates := product_rates()):
        ratio = rates["bf16"] / rates["fp32"]
        hint(f"matrix products are {ratio:.1f} times as fast here with --precision bf16")
    for line in metrics.get("features", {}).values():
        hint(line)
    print_feature_tables(result.tables)
    print_stream(result.reports["stream"], path / "dead-letters")
    if "scores" in result.reports:
        print_scores(result.reports["scores"])
    if result.stopped:
        text = f"stopped; resume with: tgflow run --resume --out {path}"
        Console(soft_wrap=True, highlight=False).print(text, style="bold")
