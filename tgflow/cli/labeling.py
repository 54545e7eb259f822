"""What `tgflow train` does about labels before and after it trains."""

from __future__ import annotations

from tgflow.config import Config, replaced
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.runtime.files import RunFiles
from tgflow.tasks.injection import inject
from tgflow.tasks.labels import count_classes, freeze
from tgflow.tasks.node_labels import LabeledNodes, node_label_figures, read_node_labels
from tgflow.tasks.node_property import asked_at_times, node_property_figures
from tgflow.tasks.property_labels import PropertyLabels, read_property_labels
from tgflow.train.config import ExecutionConfig
from tgflow.train.observe import Callback
from tgflow.train.offline import OfflineTrainer
from tgflow.train.split import chronological_split
from tgflow.units import ticks_per_unit


def labeled(
    config: Config, graph: TemporalGraph, ids: NodeIds, rundir: RunFiles
) -> tuple[Config, TemporalGraph]:
    """Return settings and graph with what the task's labels add to them.

    That is how many classes there are; or made anomalies, whose positions are left in injected.csv.

    Raises:
        OSError: If a file of labels cannot be read.
        ValueError: If labels are missing or all the same, or there are too few events.
    """
    task, c = config.task, config.offline
    if task.has_decoder and task.classes is None:
        return replaced(config, {"task.classes": count_classes(graph)}), graph
    _read(config, graph, ids)  # so that what is wrong is said before training
    if task.inject is None:
        return config, graph
    split = chronological_split(
        graph.log.read(0, graph.num_events),
        val_ratio=c.val_ratio,
        test_ratio=c.test_ratio,
        new_node_ratio=c.new_node_ratio,
        seed=c.data_seed,
    )
    made, places = inject(
        graph, task.inject, task.inject_share, start=split.test_start, seed=c.data_seed
    )
    lines = ["position", *map(str, places.tolist())]
    (rundir.path / "injected.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config, made


def learn_links(trainer: OfflineTrainer, observer: Callback, execution: ExecutionConfig) -> None:
    """Let the model of a trainer that learns labels alone learn links before.

    Args:
        trainer: Of a frozen model, which is frozen again when this returns.
        observer: Hears of what is learned.
        execution: How a GPU is used.
    """
    trainer.model.requires_grad_(True)
    links = OfflineTrainer(
        trainer.model, trainer.graph, trainer.config, observer, execution=execution
    )
    links.fit(progress=False)
    freeze(trainer.model)


def node_figures(config: Config, trainer: OfflineTrainer, ids: NodeIds) -> dict[str, float]:
    """Return how well labels of nodes are predicted, by `test.node.*` or `test.property.*`.

    Nothing without a file. The model's state ends as it was.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it does not have what it should.
    """
    found = _read(config, trainer.graph, ids)
    c = trainer.config
    if isinstance(found, PropertyLabels):
        asked = asked_at_times(trainer.model, trainer.graph, c, trainer.split, found)
        figures = node_property_figures([*asked], found.num_items, seed=c.seed)
    elif found is not None:
        figures = node_label_figures(trainer.model, trainer.graph, found, c.data_seed)
        figures["node.num_unknown"] = found.num_unknown
    else:
        figures = {}
    return {f"test.{name}": value for name, value in figures.items()}


def _read(
    config: Config, graph: TemporalGraph, ids: NodeIds
) -> LabeledNodes | PropertyLabels | None:
    """Return the labels of nodes that the settings name; None if they name none."""
    path = config.task.node_labels
    if path is None:
        return None
    if config.task.kind == "node":
        return read_node_labels(path, ids)
    per_unit = ticks_per_unit(config.stream.unit, graph.time_unit)
    return read_property_labels(path, ids, per_unit.numerator)
