"""What `tgflow train` does about labels before and after it trains."""

from __future__ import annotations

from tgflow.config import Config, replaced
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.runtime.files import RunFiles
from tgflow.tasks.injection import inject
from tgflow.tasks.labels import count_classes
from tgflow.tasks.node_labels import node_label_figures, read_node_labels
from tgflow.train.offline import OfflineTrainer
from tgflow.train.split import chronological_split


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
    if task.node_labels is not None:
        read_node_labels(task.node_labels, ids)  # so that what is wrong is said before training
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
    rundir.make()
    lines = ["position", *map(str, places.tolist())]
    (rundir.path / "injected.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config, made


def node_figures(config: Config, trainer: OfflineTrainer, ids: NodeIds) -> dict[str, float]:
    """Return how well static labels of nodes are told, by `test.node.*`; nothing without a file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it does not have what it should.
    """
    path = config.task.node_labels
    if path is None:
        return {}
    nodes = read_node_labels(path, ids)
    found = node_label_figures(trainer.model, trainer.graph, nodes, config.offline.data_seed)
    return {f"test.{name}": value for name, value in found.items()} | {
        "test.node.num_unknown": nodes.num_unknown
    }
