"""What `tgflow compare` does by an offline protocol: models trained one by one, and one test."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from rich.console import Console

from tgflow.cli import assemble
from tgflow.cli.chosen_preset import stream_facts
from tgflow.cli.compared import common_figures, preset_line, print_leaders, write_outcome
from tgflow.cli.continual import failing_run, interruptible, printer
from tgflow.cli.hints import hint
from tgflow.cli.lineup import chosen, entrants
from tgflow.compare.offline import compare_offline
from tgflow.config import Config, ConfigError, replaced
from tgflow.report.formatting import score
from tgflow.runtime.directory import ResumeOptions, RunDirectory
from tgflow.runtime.features import check_tables, features_report
from tgflow.runtime.files import to_json
from tgflow.runtime.gpu import execution_config, graph_gpu, use_device
from tgflow.runtime.log import RunLog
from tgflow.runtime.open_saves import open_saves
from tgflow.runtime.restore import current_build
from tgflow.train.config import TrainingConfig


def is_offline(config: Config) -> bool:
    """Return whether a comparison trains its models offline, by its protocol."""
    return config.compare.protocol in ("dyglib/1", "tgb/1")


def with_offline(config: Config, options: ResumeOptions) -> tuple[Config, ResumeOptions]:
    """Return settings in which what is said of learning is said of offline training, too."""
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
