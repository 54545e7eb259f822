"""Features and caches in checkpoints: wherever rows are, a run goes on to the same bits."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.effort import cases
from helpers.made_streams import made_events, pieces, small_tgn
from tgflow import _core
from tgflow import checkpoint as ckpt
from tgflow.cache import CachedTable, cached
from tgflow.checkpoint import CheckpointError, RowsLost
from tgflow.graph import TemporalGraph
from tgflow.tables import FeatureTable
from tgflow.tables.table import Table
from tgflow.train import feature_rows, graph_parts
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer

EVENTS = made_events(400)
CUT = 160


def table_in(placement: str, folder: Path) -> FeatureTable:
    folder.mkdir(exist_ok=True)
    options: dict[str, Any] = {"path": folder / "x.rows"} if placement == "disk" else {}
    return FeatureTable(2, placement=placement, **options)  # type: ignore[arg-type]


def trainer_with(table: Table | None) -> ContinualTrainer:
    config = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=3)
    return ContinualTrainer(small_tgn(), TemporalGraph(edge_x=table), config)


def saved(table: Table, path: Path) -> Path:
    """Save a trainer at `CUT`, with more events in its graph, and close its table."""
    trainer = trainer_with(table)
    for record in trainer.steps(pieces(EVENTS, 30)):
        if record.stop == CUT:
            break
    assert len(table) > CUT
    ckpt.save(path, trainer.checkpoint())
    if isinstance(table, CachedTable | FeatureTable):
        table.close()
    return path


def go_on(path: Path, table: Table | None) -> ContinualTrainer:
    return ContinualTrainer.from_checkpoint(small_tgn(seed=9), ckpt.load(path), edge_x=table)


def parameters(trainer: ContinualTrainer) -> list[Any]:
    return [x.tolist() for x in trainer.model.state_dict().values()]


@pytest.fixture(scope="module")
def straight() -> list[Any]:
    trainer = trainer_with(FeatureTable(2))
    trainer.run(pieces(EVENTS, 30))
    return parameters(trainer)


@pytest.fixture
def no_faults():
    yield
    for op in _core.FileOp.__members__.values():
        _core.inject_fault(op, 0, 0, 0)


@pytest.mark.parametrize("there", cases(["host", "disk", "other disk", None], ["host", "disk"]))
@pytest.mark.parametrize("here", cases(["host", "disk"], ["disk"]))
def test_a_run_goes_on_wherever_its_rows_were(
    here: str, there: str | None, tmp_path: Path, straight: list[Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(graph_parts, "PIECE", 64)
    path = saved(table_in(here, tmp_path / "a"), tmp_path / "c")
    table = None
    if there is not None:
        folder = tmp_path / ("a" if there == here == "disk" else "b")
        table = table_in(there.removeprefix("other "), folder)
    again = go_on(path, table)
    assert again.graph.edge_x is not None
    assert len(again.graph.edge_x) == CUT
    assert again.graph.edge_x.read(0, CUT).tolist() == EVENTS.x[:CUT].tolist()
    again.run(pieces(EVENTS[CUT:], 50))
    assert parameters(again) == straight


def test_a_checkpoint_refers_to_a_file_and_reads_but_its_last_rows(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(graph_parts, "PIECE", 64)
    monkeypatch.setattr(feature_rows, "DIGEST_ROWS", 8)
    table, asked = table_in("disk", tmp_path), []
    read = table.read
    monkeypatch.setattr(table, "read", lambda *span: (asked.append(span), read(*span))[1])
    path = saved(table, tmp_path / "c")
    assert asked == [(CUT - 8, CUT)]
    assert table.path is not None
    assert table.path.stat().st_size > 4096
    found = ckpt.load(path)
    assert found.sections["edge_x_mark"]["rows"].tolist() == [CUT]
    assert "edge_x" not in found.sections
    assert set(found.sealed) == {"events-64-000000", "events-64-000001"}


def test_a_checkpoint_finds_its_file_from_any_working_directory(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(FeatureTable(2, placement="disk", path="x.rows"), tmp_path / "c")
    monkeypatch.chdir("/")
    found = go_on(path, None).graph.edge_x
    assert found is not None
    assert torch.equal(found.read(0, CUT), EVENTS.x[:CUT])


def test_pieces_are_bounded_by_their_bytes(
    tmp_path: Path, straight: list[Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(feature_rows, "PIECE_BYTES", 64 * 8)
    path = saved(table_in("host", tmp_path), tmp_path / "c")
    found = ckpt.load(path)
    assert set(found.sealed) == {"edge_x-64-000000", "edge_x-64-000001"}
    monkeypatch.setattr(feature_rows, "PIECE_BYTES", 64 << 20)
    again = go_on(path, None)
    assert set(again.checkpoint().sealed) == set()  # of another size, under another name
    again.run(pieces(EVENTS[CUT:], 50))
    assert parameters(again) == straight


def test_rows_are_safe_before_a_checkpoint_says_so(
    tmp_path: Path, no_faults: None, monkeypatch: Any
) -> None:
    order: list[str] = []
    table = table_in("disk", tmp_path)
    monkeypatch.setattr(table, "sync", lambda: order.append("sync"))
    trainer = trainer_with(table)
    trainer.run([EVENTS[:40]])
    monkeypatch.setattr(
        ckpt.directory, "make_manifest", lambda *_, **__: order.append("manifest") or b""
    )
    ckpt.save(tmp_path / "c", trainer.checkpoint())
    assert order == ["sync", "manifest"]
    monkeypatch.undo()
    checkpoint = trainer.checkpoint()
    _core.inject_fault(_core.FileOp.sync, 0, 1, -errno.EIO)
    with pytest.raises(ckpt.CheckpointNotCommitted):
        ckpt.save(tmp_path / "d", checkpoint)
    assert not (tmp_path / "d").exists()


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
def test_a_file_that_has_not_what_it_had_is_refused(text: str, tmp_path: Path) -> None:
    path = saved(table_in("disk", tmp_path), tmp_path / "c")
    file = tmp_path / "x.rows"
    DAMAGE[text](file)
    before = file.read_bytes() if file.exists() else b""
    with pytest.raises(RowsLost, match=text) as caught:
        go_on(path, None)
    assert str(file) in str(caught.value)
    assert (file.read_bytes() if file.exists() else b"") == before


def test_a_table_with_other_rows_is_not_filled(tmp_path: Path) -> None:
    path = saved(table_in("host", tmp_path), tmp_path / "c")
    table = FeatureTable(2)
    table.append(torch.zeros(3, 2))
    with pytest.raises(CheckpointError, match="must be empty, it has 3 rows"):
        go_on(path, table)
    with pytest.raises(CheckpointError, match="of width 2, the table's"):
        go_on(path, FeatureTable(3))


def through(policy: Any, folder: Path, num_rows: int = 30) -> CachedTable:
    return cached(table_in("disk", folder), rows=num_rows, policy=policy)


@pytest.mark.parametrize("policy", cases(["lru", "lfu", "fifo"], ["lru"]))
def test_a_cache_holds_again_what_it_held(policy: str, tmp_path: Path, straight: list[Any]) -> None:
    cache = through(policy, tmp_path / "a")
    trainer = trainer_with(cache)
    trainer.run(pieces(EVENTS[:CUT], 30))
    held, counted = cache.snapshot(), cache.counters
    assert counted.hits > 0
    path = ckpt.save(tmp_path / "c", trainer.checkpoint())
    cache.close()
    again = through(policy, tmp_path / "a")
    resumed = go_on(path, again)
    assert torch.equal(again.snapshot().ids, held.ids)
    assert torch.equal(again.snapshot().keys, held.keys)
    again.close()
    for other_policy, num_rows in ((policy, 31), ("static", 30)):
        other = through(other_policy, tmp_path / "a", num_rows)
        go_on(path, other)
        assert (other.contents() == -1).all()
        other.close()
    last = through(policy, tmp_path / "a")
    resumed = go_on(path, last)
    resumed.run(pieces(EVENTS[CUT:], 50))
    assert parameters(resumed) == straight


def digest_of(trainer: ContinualTrainer, path: Path) -> str:
    return str(ckpt.read_manifest(ckpt.save(path, trainer.checkpoint()))["state_sha256"])


@pytest.mark.parametrize("slices", [1, 4])
def test_the_state_is_one_figure_wherever_rows_are(slices: int, tmp_path: Path) -> None:
    config = ContinualConfig(batch_size=20, slices=slices, mrr_negatives=3)
    digests = set()
    for name in ("host", "disk", "cached"):
        table: Table = table_in("host" if name == "host" else "disk", tmp_path / name)
        table = cached(table, rows=30, policy="lru") if name == "cached" else table
        trainer = ContinualTrainer(small_tgn(), TemporalGraph(edge_x=table), config)
        trainer.run(pieces(EVENTS[:60], 30))
        digests.add(digest_of(trainer, tmp_path / f"c-{name}"))
    assert len(digests) == 1


def test_other_features_are_another_state(tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        events = replace(EVENTS[:60], x=EVENTS.x[:60] + number)
        trainer = trainer_with(FeatureTable(2))
        trainer.run(pieces(events, 30))
        digests.add(digest_of(trainer, tmp_path / str(number)))
    assert len(digests) == 2


def test_what_a_cache_holds_is_no_part_of_the_state(tmp_path: Path) -> None:
    digests = set()
    for policy in ("lru", "fifo"):
        path = saved(through(policy, tmp_path / policy), tmp_path / f"c-{policy}")
        digests.add(ckpt.read_manifest(path)["state_sha256"])
    assert len(digests) == 1


@pytest.mark.parametrize("ids", [[3] * 30, [-2] + [-1] * 29, [1] * 3])
def test_contents_that_cannot_be_are_refused(ids: list[int], tmp_path: Path) -> None:
    path = saved(through("lru", tmp_path / "a"), tmp_path / "c")
    found = ckpt.load(path)
    found.sections["cache_edge_x"]["ids"] = torch.tensor(ids)
    with pytest.raises(CheckpointError, match="a cache"):
        ContinualTrainer.from_checkpoint(small_tgn(), found, edge_x=through("lru", tmp_path / "a"))
