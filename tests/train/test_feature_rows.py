"""Features and caches in checkpoints: resume is exact for any row placement."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.effort import cases
from helpers.made_streams import made_events, pieces, small_tgn
from tgflow import ContinualConfig, ContinualTrainer, EventBatch, TemporalGraph
from tgflow import checkpoint as ckpt
from tgflow.checkpoint import CheckpointError, RowsLost
from tgflow.graph import EventLog
from tgflow.graph.cache import CachedTable, cached
from tgflow.graph.tables import FeatureTable
from tgflow.graph.tables.table import Table
from tgflow.train import trainer_state as state
from tgflow.train.trainer_state import graph_of

EVENTS = made_events(280)
CUT = 160
CONFIG = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=3)
NODE_X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))


def table_in(placement: Any, folder: Path) -> FeatureTable:
    folder.mkdir(exist_ok=True)
    options: dict[str, Any] = {"path": folder / "x.rows"} if placement == "disk" else {}
    return FeatureTable(2, placement=placement, **options)


def through(policy: Any, folder: Path, num_rows: int = 30) -> CachedTable:
    return cached(table_in("disk", folder), rows=num_rows, policy=policy)


def trainer_with(table: Table | None, **changes: Any) -> ContinualTrainer:
    graph = TemporalGraph(edge_x=table)
    return ContinualTrainer(small_tgn(), graph, replace(CONFIG, **changes))


def saved(table: Any, path: Path) -> Path:
    """Save a trainer at `CUT`, with more events in its graph, and close its table."""
    trainer = trainer_with(table)
    next(record for record in trainer.steps(pieces(EVENTS, 30)) if record.stop == CUT)
    assert len(table) > CUT
    ckpt.save(path, trainer.checkpoint())
    table.close()
    return path


def resumed(path: Path, table: Table | None) -> ContinualTrainer:
    return ContinualTrainer.from_checkpoint(small_tgn(seed=9), ckpt.load(path), edge_x=table)


def parameters(trainer: ContinualTrainer) -> list[Any]:
    return [x.tolist() for x in trainer.model.state_dict().values()]


@pytest.fixture(scope="module")
def straight() -> list[Any]:
    trainer = trainer_with(FeatureTable(2))
    trainer.run(pieces(EVENTS, 30))
    return parameters(trainer)


@pytest.mark.parametrize("there", cases(["host", "disk", "other disk", None], ["host", "disk"]))
@pytest.mark.parametrize("here", cases(["host", "disk"], ["disk"]))
def test_run_resumes_with_rows_in_any_placement(
    here: str, there: str | None, tmp_path: Path, straight: list[Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(EventLog, "piece", 64)
    path = saved(table_in(here, tmp_path / "a"), tmp_path / "c")
    table = None
    if there is not None:
        folder = tmp_path / ("a" if there == here == "disk" else "b")
        table = table_in(there.removeprefix("other "), folder)
    again = resumed(path, table)
    assert again.graph.edge_x is not None
    assert again.graph.edge_x.read(0, CUT).tolist() == EVENTS.x[:CUT].tolist()
    assert len(again.graph.edge_x) == CUT
    again.run(pieces(EVENTS[CUT:], 50))
    assert parameters(again) == straight


def _cut(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(4096 + 100 * 12)


def _write_other(file: Path, number: int) -> None:
    file.unlink()
    table = FeatureTable(2, placement="disk", path=file)
    table.append(torch.zeros(number, 2))
    table.close()


DAMAGE = {
    "is gone": lambda file: file.unlink(),
    "holds 100 rows, and": _cut,
    f"holds 100 rows, the checkpoint counts {CUT}": lambda file: _write_other(file, 100),
    f"holds 170 rows, but of the {CUT} that": lambda file: _write_other(file, 170),
}


@pytest.mark.parametrize("text", DAMAGE)
def test_changed_row_file_is_refused(text: str, tmp_path: Path) -> None:
    path = saved(table_in("disk", tmp_path), tmp_path / "c")
    assert "edge_x" not in ckpt.load(path).sections
    file = tmp_path / "x.rows"
    DAMAGE[text](file)
    before = file.read_bytes() if file.exists() else b""
    with pytest.raises(RowsLost, match=text) as caught:
        resumed(path, None)
    assert str(file) in str(caught.value)
    assert (file.read_bytes() if file.exists() else b"") == before


def test_rows_are_durable_before_a_checkpoint_counts_them(tmp_path: Path, monkeypatch: Any) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "the disk is gone")

    table = table_in("disk", tmp_path)
    monkeypatch.setattr(table, "sync", fail)
    trainer = trainer_with(table)
    trainer.run([EVENTS[:40]])
    with pytest.raises(ckpt.CheckpointNotCommitted):
        ckpt.save(tmp_path / "c", trainer.checkpoint())
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("policy", cases(["lru", "lfu", "fifo"], ["lru"]))
def test_cache_contents_are_restored(policy: str, tmp_path: Path, straight: list[Any]) -> None:
    cache = through(policy, tmp_path / "a")
    trainer = trainer_with(cache)
    trainer.run(pieces(EVENTS[:CUT], 30))
    held = cache.snapshot()
    assert cache.counters.hits > 0
    path = ckpt.save(tmp_path / "c", trainer.checkpoint())
    cache.close()
    for other_policy, num_rows in ((policy, 31), ("static", 30)):
        other = through(other_policy, tmp_path / "a", num_rows)
        resumed(path, other)
        assert (other.contents() == -1).all()
        other.close()
    again = through(policy, tmp_path / "a")
    last = resumed(path, again)
    assert torch.equal(again.snapshot().ids, held.ids)
    assert torch.equal(again.snapshot().keys, held.keys)
    last.run(pieces(EVENTS[CUT:], 50))
    assert parameters(last) == straight
    again.close()
    for ids in ([3] * 30, [-2] + [-1] * 29, [1] * 3):
        found = ckpt.load(path)
        found.sections["cache_edge_x"]["ids"] = torch.tensor(ids)
        with pytest.raises(CheckpointError, match="cache"):
            graph_of(found, edge_x=(table := through(policy, tmp_path / "a")))
        table.close()


@pytest.mark.parametrize("slices", [1, 4])
def test_state_sha256_depends_on_rows_and_not_on_placement(slices: int, tmp_path: Path) -> None:
    def digest(name: str, table: Table, events: EventBatch = EVENTS[:60]) -> object:
        trainer = trainer_with(table, slices=slices)
        trainer.run(pieces(events, 30))
        path = ckpt.save(tmp_path / name, trainer.checkpoint())
        return ckpt.read_manifest(path)["state_sha256"]

    expected = digest("host", FeatureTable(2))
    assert digest("disk", table_in("disk", tmp_path / "a")) == expected
    assert digest("lru", through("lru", tmp_path / "b")) == expected
    assert digest("other", FeatureTable(2), replace(EVENTS[:60], x=EVENTS.x[:60] + 1)) != expected


def with_rows(events: Iterator[EventBatch], node_x: Table) -> Iterator[EventBatch]:
    """Append the node rows of each batch before yielding it."""
    for batch in events:
        last = int(torch.maximum(batch.src.max(), batch.dst.max()))
        node_x.append(NODE_X[len(node_x) : 1 + last])
        yield batch


def saved_nodes(node_x: Table, path: Path, cut: int = CUT) -> tuple[ContinualTrainer, Path]:
    """Save a trainer of node features at `cut`, and return it at the stream's end."""
    graph = TemporalGraph(edge_x_dim=2, node_x=node_x)
    trainer = ContinualTrainer(small_tgn(node_x_dim=3), graph, CONFIG)
    for step in trainer.steps(with_rows(pieces(EVENTS, 30), node_x)):
        if step.stop == cut:
            ckpt.save(path, trainer.checkpoint())
    return trainer, path


@pytest.mark.parametrize("there", cases([None, "empty", "whole", "cached"], [None, "cached"]))
def test_in_memory_node_rows_are_saved_in_the_checkpoint(
    there: str | None, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(state, "PIECE_BYTES", 10 * 12)
    trainer, path = saved_nodes(cached(FeatureTable(3), rows=5), tmp_path / "c")
    assert {"node_x-10-000000", "node_x-10-000001"} <= ckpt.load(path).sealed.keys()
    given: dict[Any, Table] = {
        "empty": FeatureTable(3),
        "whole": FeatureTable.from_tensor(NODE_X),
        "cached": cached(FeatureTable(3), rows=5),
    }
    model, node_x = small_tgn(seed=9, node_x_dim=3), given.get(there)
    again = ContinualTrainer.from_checkpoint(model, ckpt.load(path), node_x=node_x)
    assert again.graph.node_x is not None
    assert node_x is None or again.graph.node_x is node_x
    again.run(with_rows(pieces(EVENTS[CUT:], 50), again.graph.node_x))
    assert parameters(again) == parameters(trainer)


def test_rows_other_than_the_checkpoints_are_refused(tmp_path: Path) -> None:
    file = FeatureTable(3, placement="disk", path=tmp_path / "x.rows")
    found = ckpt.load(saved_nodes(file, tmp_path / "c")[1])
    with pytest.raises(RowsLost, match="table holds 2 rows, the checkpoint counts"):
        graph_of(found, node_x=FeatureTable.from_tensor(NODE_X[:2]))
    with pytest.raises(RowsLost, match="the last are others"):
        graph_of(found, node_x=FeatureTable.from_tensor(NODE_X + 1))
    with pytest.raises(CheckpointError, match="width 3, the table's are torch"):
        graph_of(found, node_x=FeatureTable(4))
    filled = FeatureTable.from_tensor(torch.zeros(3, 2))
    with pytest.raises(CheckpointError, match="must be empty, it has 3 rows"):
        graph_of(found, edge_x=filled, node_x=FeatureTable.from_tensor(NODE_X))
    file.close()
    (tmp_path / "x.rows").unlink()
    with pytest.raises(RowsLost, match=r"x\.rows is gone"):
        graph_of(found)


def test_nodes_appended_without_rows_get_none_later() -> None:
    graph = TemporalGraph(edge_x_dim=2, node_x=FeatureTable.from_tensor(NODE_X[:20]))
    trainer = ContinualTrainer(small_tgn(node_x_dim=3), graph, CONFIG)
    trainer.run(pieces(EVENTS[:40], 30))
    found = trainer.checkpoint()
    assert graph_of(found, node_x=FeatureTable.from_tensor(NODE_X[:20])).num_nodes > 20
    with pytest.raises(CheckpointError, match="node_x has 32 rows, but had 20 when events"):
        graph_of(found, node_x=FeatureTable.from_tensor(NODE_X))
