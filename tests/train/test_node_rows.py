"""Node features in checkpoints: a run whose table grows with the stream goes on to equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.effort import cases
from helpers.made_streams import made_events, pieces, small_tgn
from tgflow import checkpoint as ckpt
from tgflow.cache import CachedTable, cached
from tgflow.checkpoint import CheckpointError, RowsLost
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.tables import FeatureTable
from tgflow.tables.table import Table
from tgflow.train import feature_rows
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.state import graph_of

EVENTS = made_events(400)
NODE_X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
CUT = 160


def with_rows(events: Iterator[EventBatch], node_x: Table) -> Iterator[EventBatch]:
    """Append the rows of each batch's nodes before it comes."""
    for batch in events:
        node_x.append(
            NODE_X[len(node_x) : 1 + int(torch.maximum(batch.src.max(), batch.dst.max()))]
        )
        yield batch


def trainer_with(node_x: Table) -> ContinualTrainer:
    config = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=3)
    graph = TemporalGraph(edge_x_dim=2, node_x=node_x)
    return ContinualTrainer(small_tgn(node_x_dim=3), graph, config)


def saved(node_x: Table, path: Path) -> Path:
    """Save a trainer at `CUT`, with more events in its graph."""
    trainer = trainer_with(node_x)
    for record in trainer.steps(with_rows(pieces(EVENTS, 30), node_x)):
        if record.stop == CUT:
            break
    ckpt.save(path, trainer.checkpoint())
    return path


def go_on(path: Path, node_x: Table | None) -> list[Any]:
    model = small_tgn(seed=9, node_x_dim=3)
    trainer = ContinualTrainer.from_checkpoint(model, ckpt.load(path), node_x=node_x)
    assert trainer.graph.node_x is not None
    assert node_x is None or trainer.graph.node_x is node_x
    trainer.run(with_rows(pieces(EVENTS[CUT:], 50), trainer.graph.node_x))
    return parameters(trainer)


def parameters(trainer: ContinualTrainer) -> list[Any]:
    return [x.tolist() for x in trainer.model.state_dict().values()]


@pytest.fixture(scope="module")
def straight() -> list[Any]:
    trainer = trainer_with(node_x := FeatureTable(3))
    trainer.run(with_rows(pieces(EVENTS, 30), node_x))
    assert parameters(trainer) != parameters(trainer_with(node_x))
    return parameters(trainer)


@pytest.mark.parametrize("there", cases([None, "empty", "whole", "cached"], [None, "cached"]))
def test_rows_in_memory_are_held_by_the_checkpoint(
    there: str | None, tmp_path: Path, straight: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_rows, "PIECE_BYTES", 10 * 12)
    path = saved(cached(FeatureTable(3), rows=5), tmp_path / "c")
    assert {"node_x-10-000000", "node_x-10-000001"} <= ckpt.load(path).sealed.keys()
    given: dict[Any, Table] = {
        "empty": FeatureTable(3),
        "whole": FeatureTable.from_tensor(NODE_X),
        "cached": cached(FeatureTable(3), rows=5),
    }
    assert go_on(path, given.get(there)) == straight


def test_a_cache_holds_again_what_it_held(tmp_path: Path) -> None:
    before = cached(FeatureTable(3), rows=5)
    path = saved(before, tmp_path / "c")
    again = cached(FeatureTable(3), rows=5)
    graph_of(ckpt.load(path), node_x=again)
    assert torch.equal(again.contents(), ckpt.load(path).sections["cache_node_x"]["ids"])
    assert bool((again.contents() >= 0).all())


@pytest.mark.parametrize("there", ["same file", "other file", "memory"])
def test_rows_in_a_file_stay_there(there: str, tmp_path: Path, straight: list[Any]) -> None:
    def opened(name: str) -> CachedTable:
        return cached(FeatureTable(3, placement="disk", path=tmp_path / name), rows=5)

    path = saved(table_then := opened("x.rows"), tmp_path / "c")
    table_then.close()
    assert "node_x" not in ckpt.load(path).sections
    names = {"same file": "x.rows", "other file": "y.rows"}
    assert go_on(path, opened(names[there]) if there in names else None) == straight


def test_rows_that_are_not_the_checkpoints_are_refused(tmp_path: Path) -> None:
    file = FeatureTable(3, placement="disk", path=tmp_path / "x.rows")
    path = saved(file, tmp_path / "c")
    size = len(file)
    with pytest.raises(RowsLost, match=f"the table holds 2 rows, the checkpoint counts {size}"):
        graph_of(ckpt.load(path), node_x=FeatureTable.from_tensor(NODE_X[:2]))
    with pytest.raises(RowsLost, match="the last are others"):
        graph_of(ckpt.load(path), node_x=FeatureTable.from_tensor(NODE_X + 1))
    with pytest.raises(CheckpointError, match="width 3, the table's are torch"):
        graph_of(ckpt.load(path), node_x=FeatureTable(4))
    file.close()
    (tmp_path / "x.rows").unlink()
    with pytest.raises(RowsLost, match=r"x\.rows is gone"):
        graph_of(ckpt.load(path))


def test_a_graph_without_node_features_takes_none(tmp_path: Path) -> None:
    trainer = ContinualTrainer(small_tgn(), TemporalGraph(edge_x_dim=2))
    trainer.run(pieces(EVENTS[:40], 30))
    ckpt.save(tmp_path / "c", trainer.checkpoint())
    assert graph_of(ckpt.load(tmp_path / "c")).node_x is None
    with pytest.raises(CheckpointError, match="has no node features, and node_x was given"):
        graph_of(ckpt.load(tmp_path / "c"), node_x=FeatureTable(3))


def test_a_table_of_no_rows_comes_back(tmp_path: Path) -> None:
    trainer = ContinualTrainer(
        small_tgn(node_x_dim=3), TemporalGraph(edge_x_dim=2, node_x=FeatureTable(3))
    )
    trainer.run(pieces(EVENTS[:40], 30))
    ckpt.save(tmp_path / "c", trainer.checkpoint())
    again = graph_of(ckpt.load(tmp_path / "c")).node_x
    assert again is not None
    assert len(again) == 0


def test_nodes_that_came_without_rows_get_none_later(tmp_path: Path) -> None:
    trainer = trainer_with(FeatureTable.from_tensor(NODE_X[:20]))
    trainer.run(pieces(EVENTS[:40], 30))
    ckpt.save(tmp_path / "c", trainer.checkpoint())
    assert (
        graph_of(ckpt.load(tmp_path / "c"), node_x=FeatureTable.from_tensor(NODE_X[:20])).num_nodes
        > 20
    )
    with pytest.raises(CheckpointError, match="node_x has 32 rows, but had 20 when events"):
        graph_of(ckpt.load(tmp_path / "c"), node_x=FeatureTable.from_tensor(NODE_X))
