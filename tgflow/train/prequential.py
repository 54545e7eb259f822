"""Prequential evaluation in one call."""

from __future__ import annotations

from typing import Any

from tgflow.graph import FeatureScale, TemporalGraph
from tgflow.nn.model import TemporalModel
from tgflow.streams.source import as_source, is_table
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.labels import LabelTask


def evaluate(
    stream: Any,
    model: TemporalModel | type[TemporalModel],
    *,
    target: str | None = None,
    delay: int | str | None = None,
    config: ContinualConfig | None = None,
    progress: bool | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Predict each event of a stream, then learn it, and return the metrics.

    The counterpart of river's `evaluate.progressive_val_score`, with micro-batches of
    `config.batch_size` events. Features are scaled by what was seen before, as
    `tgflow.graph.FeatureScale("auto")` does.

    Args:
        stream: Events in order, such as `tgflow.open_stream` returns, or an `EventBatch`; or what
            it opens, which is opened with `options`.
        model: A model that is trained in place, or a class that is built with its defaults for the
            features of the stream.
        target: Column of labels to learn and evaluate beside links; a stream must have been opened
            with it as `label`.
        delay: Time after its event at which a label becomes known, such as "1d"; needs `target`.
        config: Settings of the training; None: the defaults.
        progress: Whether to show a progress bar; None: on a terminal or in a notebook.
        **options: Arguments of `tgflow.open_stream`, such as `src` and `time_unit`.

    Returns:
        `ContinualTrainer.result()`: `prequential.ap`, `prequential.mrr`, ..., and with `target`
        `prequential.edge.*`.

    Raises:
        TrainingDiverged: If a loss or score is not finite.
        StreamError, TypeError: As `tgflow.open_stream`.
        ValueError: If `delay` is given without `target`, or model and stream do not fit.

    Example:
        >>> tg.evaluate([many], tg.EdgeBank())["num_events"]
        400
    """
    if delay is not None and target is None:
        raise ValueError(f"delay={delay!r} is for labels: give target, the column that has them")
    if options and not is_table(stream):
        raise TypeError(f"{', '.join(options)}: give these to tg.open_stream")
    source = as_source(stream, **(options if target is None else {"label": target, **options}))
    x_dim = source.x_dim
    if x_dim is None:  # batches without a source: as the model has it
        x_dim = 0 if isinstance(model, type) else model.edge_x_dim or 0
    bipartite = source.ids is not None and source.ids.bipartite
    graph = TemporalGraph(
        "bipartite" if bipartite else "undirected",
        edge_x_dim=x_dim,
        time_unit=source.unit or "s",
        feature_scale=FeatureScale() if x_dim else None,
    )
    if isinstance(model, type):
        model = model.for_graph(graph)
    task = None
    if target is not None:
        task = LabelTask(TaskConfig(kind="edge", target=target, label_delay=delay))
        if model.label_decoder is None:
            task.add_decoder(model, x_dim=x_dim)
    trainer = ContinualTrainer(model, graph, config, task=task)
    return trainer.run(source, progress=progress)
