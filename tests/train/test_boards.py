"""Data sets of the boards, converted and trained under their protocols, and measured by hand."""

import pickle

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_schema, read_table

import tgflow as tg
from helpers.board_files import KINDS, SIZE, write_board, write_nodes
from helpers.made_streams import seeded, small_tgn
from tgflow.graph.events import concat, with_inverses
from tgflow.streams import StreamError
from tgflow.streams.tgb import convert_tgb, convert_tgbseq, read_about
from tgflow.train.node_property import PropertyLabels, asked_at_times
from tgflow.train.observe import Callback
from tgflow.train.protocols import protocol_settings
from tgflow.train.split import chronological_split


class CloseScores(tg.SmoothedCounts):
    """The count model with scores that differ in their last bits: near, but no ties."""

    def forward(self, batch):
        found = super().forward(batch)
        return tg.Scores(1 + found.positive / 2**17, 1 + found.negative / 2**17)


class Scores(Callback):
    """Keeps the scores of each test event."""

    def __init__(self):
        self.rows = []

    def on_test_scores(self, negatives, eid, positive, negative, classes):
        found = zip(eid.tolist(), positive.double(), negative.double(), strict=True)
        self.rows += [(i, p, n[n > -torch.inf]) for i, p, n in found]


def convert(folder, name):
    if name.startswith("ML"):
        return convert_tgbseq(folder / "raw", folder / "out")
    return convert_tgb(folder / "raw", folder / "out")


def trained(folder, name, done):
    """Train on a converted data set; return its results, the scores, and the events with ids."""
    path = folder / "out" / f"{name}.parquet"
    relation = "relation" if "relation" in read_schema(path).names else None
    stream = tg.open_stream(path, relation=relation, time_unit="s")
    events = concat(list(stream))
    settings = {"epochs": 1, "batch_size": 50, "learning_rate": 0.01}
    settings = protocol_settings(done.about["protocol"]) | settings
    if settings.get("inverse"):
        events = with_inverses(events)
    if done.num_negatives:
        settings["fixed_negatives"] = str(folder / "out" / name)
    else:
        settings |= {f"{part}_ratio": float(done.about["held"]) for part in ("val", "test")}
    graph, scores = tg.TemporalGraph.from_events(events), Scores()
    config = tg.OfflineConfig(**settings)
    trainer = tg.OfflineTrainer(seeded(CloseScores), graph, config, scores, ids=stream.ids)
    result = trainer.fit(progress=False)
    names = [torch.tensor(stream.ids.decode(each)) for each in (events.src, events.dst)]
    return result, scores.rows, torch.stack([*names, events.t], 1).tolist(), trainer, stream.ids


@pytest.mark.parametrize("name", KINDS)
def test_converted_board_is_ranked_as_by_its_evaluator(tmp_path, name):
    expected = write_board(tmp_path / "raw", name)
    done = convert(tmp_path, name)
    result, rows, events, trainer, ids = trained(tmp_path, name, done)
    assert result["val.num_events"] == len(expected["val"])
    assert [events[eid] for eid, _, _ in rows] == [[*row[:3]] for row in expected["test"]]
    ranks = []
    for (_, positive, negative), (*_, others) in zip(rows, expected["test"], strict=True):
        assert len(negative) == len(others)
        above, equal = (negative > positive).sum(), (negative == positive).sum()
        ranks.append(1 + float(above) + float(equal) / 2)  # as the boards' evaluators
    # 1e-6: the evaluators divide in float32
    assert result["test.mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), abs=1e-6)
    assert result["test.hits@10"] == pytest.approx(np.mean(np.array(ranks) <= 10), abs=1e-6)
    assert result["protocol"] == done.about["protocol"]
    fixed = trainer._evaluation_plan("test", "random", 1).draws.negatives
    if done.num_negatives:
        assert ids.decode(fixed.dst) == [each for row in expected["test"] for each in row[3]]
    about = read_about(done.files[0])
    assert about == done.about
    assert read_about("s3://bucket/x.parquet") == read_about(tmp_path / "raw") == {}
    assert f'"{name}' in about["sha256"]
    assert about["licence"] == ("CC BY 4.0" if name == "ML-made" else "not stated in its folder")


def test_tables_beside_the_events_have_the_same_numbers(tmp_path):
    for name in ("thgl-made", "tkgl-wikidata", "ML-made"):
        write_board(tmp_path / name / "raw", name)
        done = convert(tmp_path / name, name)
        table = read_table(done.files[1]).to_pydict()
        events = read_table(done.files[0]).to_pydict()
        if name == "thgl-made":
            kinds = dict(zip(table["id"], table["type"], strict=True))
            assert {kinds[node] for node in events["src"]} == {"0"}
            assert {kinds[node] for node in events["dst"]} == {"1"}
        elif name == "tkgl-wikidata":
            assert table["dst"] == [1 + max(events["src"] + events["dst"])] * 2, "of no event"
            assert table["relation"] == [3, events["relation"][0]]
        else:
            assert (table["id"], set(table)) == ([*range(30)], {"id", "f0", "f1"})
            assert len(events["f1"]) == SIZE


def test_conflicts_of_other_events_are_refused(tmp_path):
    write_board(tmp_path / "raw", "tkgl-made")
    path = tmp_path / "raw" / "tkgl-made_test_ns.pkl"
    known = pickle.loads(path.read_bytes())
    key = next(iter(known))
    known[key] = np.append(known[key], 20)
    path.write_bytes(pickle.dumps(known))
    with pytest.raises(StreamError, match=r"it excludes \[.*, 20\] for \(t, src, relation\) = "):
        convert(tmp_path, "tkgl-made")
    assert not (tmp_path / "out").exists()


def test_invalid_files_of_tgbseq_are_refused(tmp_path):
    write_board(tmp_path / "raw", "ML-made")
    path = tmp_path / "raw" / "ML-made.csv"
    header, *rows = path.read_text().splitlines()
    negatives = np.load(tmp_path / "raw" / "ML-made_test_ns.npy")
    for text, error in (
        ([header, *reversed(rows)], "times must not decrease; give --sort"),
        (["src,dst,time,kind", *rows], "there is no column split"),
        ([header, *rows[:-1], rows[-1][:-1] + "1"], "split must be 0, then 1, then 2"),
        ([header, *rows[:-1]], r"expected whole numbers \[39, k\], got int64 \[40, 6\]"),
    ):
        path.write_text("\n".join(text) + "\n")
        with pytest.raises(StreamError, match=error):
            convert(tmp_path, "ML-made")
    path.write_text("\n".join([header, *rows[::-1]]) + "\n")
    np.save(tmp_path / "raw" / "ML-made_test_ns.npy", negatives[::-1])
    done = convert_tgbseq(tmp_path / "raw", tmp_path / "out", sort=True)
    assert read_table(done.files[0])["t"].to_pylist() == sorted(int(x.split(",")[2]) for x in rows)
    np.save(tmp_path / "raw" / "ML-made_test_ns.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(StreamError, match="it is no array"):
        convert_tgbseq(tmp_path / "raw", tmp_path / "out", sort=True)


@pytest.mark.parametrize("name", ["tgbn-trade", "tgbn-genre"])
def test_converted_properties_are_asked_in_the_parts_of_the_board(tmp_path, name):
    rows = write_nodes(tmp_path / "raw", name)
    done = convert(tmp_path, name)
    stream = tg.open_stream(done.files[0], time_unit="s", features="f*")
    events = concat(list(stream))
    are_shared = bool(set(events.src.tolist()) & set(events.dst.tolist()))
    assert are_shared == (name == "tgbn-trade"), "users and genres of one name are two nodes"
    graph = tg.TemporalGraph.from_events(events)
    labels = PropertyLabels.of(read_table(done.files[1]), stream.ids, 1, "x")
    config = tg.OfflineConfig(**protocol_settings("tgbn/1"))
    split = chronological_split(events, new_node_ratio=0)
    asked = list(asked_at_times(small_tgn(edge_x_dim=1), graph, config, split, labels))
    ends = [int(events.t[: split.val_start].max()), int(events.t[: split.test_start].max())]
    last = int(events.t[-1])
    expected = {end: sum(end >= each for each in ends) for end, *_ in rows if end < last}
    parts = {each.of.t: ("train", "val", "test").index(each.part) for each in asked}
    assert parts == expected
    assert set(parts.values()) == {0, 1, 2}
    for each in asked:
        own = [row for row in rows if row[0] == each.of.t]
        assert len(each.of.nodes) == len({node for _, node, _, _ in own})
        y = each.of.dense(labels.num_items)
        assert sorted(y[y > 0].tolist()) == pytest.approx(sorted(row[3] for row in own))
