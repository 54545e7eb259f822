"""Prequential evaluation in one call."""

from __future__ import annotations

from typing import Any

from tgflow.graph import FeatureScale, TemporalGraph
from tgflow.nn.model import TemporalModel, check_is_model
from tgflow.streams.source import as_source, is_table
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer


def evaluate(
    stream: Any,
    model: TemporalModel | type[TemporalModel],
    *,
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
        config: Settings of the training; None: the defaults. The column of labels of its `task` is
            that of what is opened; a stream must have been opened with it as `label`.
        progress: Whether to show a progress bar; None: on a terminal or in a notebook.
        **options: Arguments of `tgflow.open_stream`, such as `src` and `time_unit`.

    Returns:
        `ContinualTrainer.result()`: `prequential.ap`, `prequential.mrr`, ..., and with a task
        such as edge `prequential.edge.*`.

    Raises:
        TrainingDiverged: If a loss or score is not finite.
        StreamError, TypeError: As `tgflow.open_stream`, or if `model` is no model.
        ValueError: If model and stream do not fit.

    Example:
        >>> tg.evaluate([many], tg.EdgeBank())["num_events"]
        400
    """
    if options and not is_table(stream):
        raise TypeError(f"{', '.join(options)}: give these to tg.open_stream")
    if not (isinstance(model, type) and issubclass(model, TemporalModel)):
        check_is_model(model)
    config = ContinualConfig() if config is None else config
    target = config.task.target
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
    return ContinualTrainer(model, graph, config).run(source, progress=progress)
