"""The plans of offline training: of what is learned, of what chooses the epoch, and of the test."""

from __future__ import annotations

from pathlib import Path

from tgflow.choices import NegativeKind
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.keys import derive_key
from tgflow.model import TemporalModel
from tgflow.plan.counts import CountHistory
from tgflow.plan.negatives import FixedNegatives, NegativeSampler, NegativeSource, PooledNegatives
from tgflow.plan.plan import Plan
from tgflow.tables.row_view import RowView
from tgflow.train.config import OfflineConfig
from tgflow.train.observe import Stage
from tgflow.train.plans import make_plan
from tgflow.train.split import Split


class OfflinePlans:
    """Makes the plans of an offline training.

    Args:
        graph: All events.
        model: To be trained.
        config: Settings.
        split: Which events are for what.
        ids: Of the stream; None where negatives are not fixed.
    """

    def __init__(
        self,
        graph: TemporalGraph,
        model: TemporalModel,
        config: OfflineConfig,
        split: Split,
        ids: NodeIds | None,
    ) -> None:
        self._graph, self._model, self._config = graph, model, config
        self._split, self._ids = split, ids
        self.counts = CountHistory(graph, model.counts)
        """What the plans of the whole graph share."""

    def training(self) -> Plan:
        """Return the plan of the training events, on a graph of them alone."""
        training = _training_graph(self._graph, self._split)
        negatives = self._train_negatives()
        return make_plan(
            training, self._model, self._config, negatives,
            seed=self._config.seed, stop=training.num_events,
        )  # fmt: skip

    def of_new_nodes(self, stage: Stage, negatives: NegativeSource) -> Plan | None:
        """Return a plan of a part's events of new nodes alone, None if there are none.

        Args:
            stage: Validation or test.
            negatives: Of all events of the part; random ones are then destinations of these.
        """
        begin, end = self._span(stage)
        only = begin + self._split.touches_new[begin:end].nonzero().flatten()
        if not len(only):
            return None
        if isinstance(negatives, NegativeSampler) and negatives.kind == "random":
            pool = self._graph.log.gather(only).dst
            negatives = PooledNegatives(pool, negatives.num, collide=negatives.collide)
        seed = derive_key(self._config.data_seed, begin)
        return make_plan(
            self._graph, self._model, self._config, negatives,
            seed=seed, only=only, counts=self.counts, fanouts=self._config.eval_neighbors,
        )  # fmt: skip

    def _train_negatives(self) -> NegativeSource:
        c = self._config
        if c.destinations == "train":
            return NegativeSampler(cut=len(self._split.train), collide=c.collide)
        events = self._graph.log.read(0, self._graph.num_events)
        return PooledNegatives(events.dst, collide=c.collide)

    def evaluation(self, stage: Stage, kind: NegativeKind, num: int) -> Plan:
        """Return a plan of the whole graph's validation or test events.

        Random negatives come from all destinations of the data set, as is published; the other
        kinds from pairs seen before the batch.
        """
        c, split, end = self._config, self._split, self._graph.num_events
        start, stop = self._span(stage)
        if c.fixed_negatives is not None:
            fixed = self._fixed_negatives(stage, c.fixed_negatives)
            return self._plan(fixed, start, stop)
        part_before = split.val_start if stage == "val" else split.test_start
        sampler = NegativeSampler(
            kind,
            num,
            cut=end if kind == "random" else None,
            since=split.val_start if c.inductive_since == "train" else part_before,
            collide=c.collide and kind == "random",
            replace=c.replace or kind == "random",
        )
        return self._plan(sampler, start, stop)

    def _span(self, stage: Stage) -> tuple[int, int]:
        """Return the log positions of validation or of the test."""
        split = self._split
        if stage == "val":
            return split.val_start, split.test_start
        return split.test_start, self._graph.num_events

    def _fixed_negatives(self, stage: Stage, name: str) -> FixedNegatives:
        if self._ids is None:
            raise ValueError("fixed_negatives name nodes as the stream does: pass ids=stream.ids")
        start, stop = self._span(stage)
        path = Path(f"{name}.{stage}.negatives.safetensors")
        found = FixedNegatives.load(path, self._ids, start)
        if len(found) != stop - start:
            raise ValueError(
                f"{path} has negatives of {len(found)} events where this split has {stop - start}: "
                "train on the file that was written with it, whole and with val_ratio and "
                "test_ratio of 0.15"
            )
        return found

    def _plan(self, negatives: NegativeSource, start: int, stop: int) -> Plan:
        """Return a plan of events that are evaluated."""
        c = self._config
        return make_plan(
            self._graph, self._model, c, negatives,
            seed=c.data_seed, start=start, stop=stop, counts=self.counts, fanouts=c.eval_neighbors,
        )  # fmt: skip


def _training_graph(graph: TemporalGraph, split: Split) -> TemporalGraph:
    """Return a graph of the training events alone, which have other positions there.

    Their features are read where they are, so that a cache in front of them serves both graphs.
    """
    events = graph.log.gather(split.train)
    training = TemporalGraph.from_events(
        events,
        graph.direction,
        time_unit=graph.time_unit,
        node_x=graph.node_x,
        device=graph.device,
        device_budget=graph.device_budget,
    )
    if graph.edge_x is not None:
        training.edge_x = RowView(graph.edge_x, split.train)
    return training


def check_eval_neighbors(model: TemporalModel, config: OfflineConfig) -> None:
    """Raise ValueError if a model takes no such neighbors as it is to be evaluated with."""
    try:
        if config.eval_neighbors is not None:
            model.check_fanouts(config.eval_neighbors)
    except ValueError as error:
        raise ValueError(f"eval_neighbors: {error}") from None
