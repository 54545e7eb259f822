"""`--node-types`: negatives of the destination's type, continual and offline."""

import json

import pytest

from helpers.live_runs import figures, same_run
from tgflow.cli import main
from tgflow.graph.ids import NodeIds
from tgflow.run.node_features import NodeTypes
from tgflow.streams.errors import StreamError

MODEL = ("--model", "counts", "--batch-size", 10, "--time-unit", "s")


@pytest.fixture
def stream(tmp_path):
    """Return a stream to rare shops and frequent clubs, each visited in turn."""
    rows = [f"p{i % 5},{f's{i % 3}' if i % 4 else f'c{i % 9}'},{i}" for i in range(240)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["src,dst,t", *rows]) + "\n")
    return path


@pytest.fixture
def types(tmp_path):
    rows = [f"{kind[0]}{i},{kind}" for kind in ("shop", "club") for i in range(9)]
    path = tmp_path / "types.csv"
    path.write_text("\n".join(["id,type", *rows]) + "\n")
    return path


def tgflow(*words):
    return main([str(word) for word in words])


def run(out, stream, *flags):
    assert tgflow("run", "-s", stream, "-o", out, *MODEL, *flags) == 0
    return out


def test_runs_with_types_resume_exactly_and_refuse_other_types(tmp_path, stream, types, capsys):
    typed = ("--node-types", types)
    whole = run(tmp_path / "whole", stream, *typed)
    cut = run(tmp_path / "cut", stream, *typed, "--limit", 100)
    moved = tmp_path / "moved.csv"
    lines = types.read_text().splitlines()
    moved.write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    types.write_text(types.read_text() + "p1,person\n")
    words = ("run", "-s", stream, "-o", cut, *MODEL, "--limit", 240, "--resume")
    for flags in ((), typed):
        capsys.readouterr()
        assert tgflow(*words, *flags) == 2
        assert "has other types than the run was started with" in capsys.readouterr().err
    assert tgflow(*words, "--node-types", moved) == 0, "the order of rows has no effect"
    same_run(cut, whole)
    plain = run(tmp_path / "plain", stream)
    assert figures(plain)[2] != figures(whole)[2]
    assert tgflow("run", "-s", stream, "-o", plain, *MODEL, *typed, "--resume") == 2


def test_rankings_are_among_destinations_of_the_type(tmp_path, stream, types):
    found = {}
    for name, flags in (("plain", ()), ("typed", ("--node-types", types))):
        out = tmp_path / name
        words = ("--data", stream, "-o", out, "--time-unit", "s", "--model", "poptrack", *flags)
        assert tgflow("train", *words, "--mrr-negatives", "all", "--epochs", 1) == 0
        found[name] = json.loads((out / "metrics.json").read_text())
    assert found["typed"]["test.mrr"] > found["plain"]["test.mrr"]


@pytest.mark.slow
def test_comparison_takes_types_and_ranks_do_not(tmp_path, stream, types, capfd):
    typed = ("--node-types", types)
    words = ("compare", "-s", stream, "--time-unit", "s", "--models", "recency,poptrack")
    assert tgflow(*words, "-o", tmp_path / "compared", *typed) == 0
    capfd.readouterr()
    flags = ("-o", tmp_path / "ranks", *typed, "--slices", 2, "--nproc", 2)
    assert tgflow("run", "-s", stream, *MODEL, *flags) == 2
    assert "--node-types requires node names" in capfd.readouterr().err
    assert tgflow("run", "-s", stream, *MODEL, "--node-types", tmp_path / "none.csv") == 66


def test_rows_are_found_by_ids_of_either_kind():
    ids = NodeIds(bipartite=True)
    dst = ids.encode([7, 7], [7, 8])[1]
    types = NodeTypes({"id": ["8", "7"], "type": ["b", "a"]})
    assert types.of(ids, dst).tolist() == [2, 1]
    assert types.digest == NodeTypes({"id": [7, 8], "type": ["a", "b"]}).digest


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"id": [1], "kind": ["a"]}, "there is no column 'type'; the columns are id, kind"),
        ({"id": [1, 2], "type": ["a", None]}, "row 1: .*the type is missing"),
        ({"id": [1, 2], "type": ["a", ""]}, "row 1: .*the type is missing"),
        ({"id": [1, 1], "type": ["a", "b"]}, "id 1 has two rows"),
        ({"id": range(65_536), "type": range(65_536)}, "65,536 types; at most 65,535"),
    ],
)
def test_damaged_tables_are_refused(table, message):
    with pytest.raises(StreamError, match=message):
        NodeTypes({name: [*values] for name, values in table.items()})
