"""Rows of trainings beside those of the boards."""

import pytest

from tgflow.report.board import board_card, board_row, published_rows

METRICS = {
    "model": "counts", "protocol": "tgbl/1", "num_events": 157_474, "num_parameters": 8000,
    "test.mrr": 0.8, "test.mrr_std": 0.0012, "val.mrr": 0.85, "val.mrr_std": 0.002,
    "wall_seconds": 90.0, "num_seeds": 5, "threads": 2,
    "machine": {"cores": 4, "system": "Linux x86_64"},
    "data_set": {
        "board": "tgbl-wiki-v2", "protocol": "tgbl/1", "num_events": "157474", "licence": "MIT",
    },
}  # fmt: skip


def test_row_has_mean_deviation_and_cost():
    metric, row = board_row(METRICS)
    assert metric == "MRR"
    assert str(row) == (
        "counts (tgflow), test 0.8000 ± 0.0012, validation 0.8500 ± 0.0020, 8,000 parameters, "
        "1.5 minutes a run, 5 runs, Linux x86_64, 2 of 4 cores"
    )
    one = {key: x for key, x in METRICS.items() if not key.endswith("_std")} | {"num_seeds": 1}
    assert "test 0.8000, validation 0.8500" in str(board_row(one)[1])
    assert "1 run of 5" in str(board_row(one)[1])


def test_page_shows_the_row_in_its_place():
    card = board_card(METRICS)
    assert card.title == "The board of tgbl-wiki-v2"
    assert [row[0] for row in card.rows[2:5]] == [
        "HyperEvent",
        "counts (tgflow), this training",
        "DyGFormer",
    ]
    assert "Licence of the data: MIT." in card.notes[0]
    nodes = METRICS | {
        "protocol": "tgbn/1", "test.property.ndcg": 0.9, "val.property.ndcg": 0.9,
        "data_set": METRICS["data_set"] | {"board": "tgbn-trade", "protocol": "tgbn/1"},
    }  # fmt: skip
    card = board_card(nodes)
    assert (card.head[1], card.rows[0][0]) == ("test NDCG@10", "counts (tgflow), this training")


@pytest.mark.parametrize(
    "changes", [{"protocol": "dyglib/1"}, {"num_events": 1000}, {"data_set": {}}]
)
def test_other_trainings_have_no_row(changes):
    assert board_row(METRICS | changes) is None
    assert board_card(METRICS | changes) is None


def test_published_rows_are_in_order():
    found = [float(row.test.partition("±")[0]) for row in published_rows("tkgl-icews")]
    assert found == sorted(found, reverse=True)
    assert len(found) == 7
    assert published_rows("tgbl-wiki") == []
