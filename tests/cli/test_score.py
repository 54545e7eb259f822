"""tgflow score: nodes, pairs and groups by the scores of their events."""

import csv
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

DAY = 86_400


@pytest.fixture
def rows(tgflow, tmp_path):
    """Return the rows of scores of the run in `r`."""
    lines = [f"a{i * 7 % 11},s{i * 5 % 6},{i * DAY // 20}" for i in range(300)]
    (tmp_path / "pay.csv").write_text("\n".join(["src,dst,t", *lines]) + "\n")
    flags = ["-s", "pay.csv", "-m", "recency", "--batch-size", 20, "--scores", "s.csv", "-o", "r"]
    assert tgflow("run", *flags, "--time-unit", "s").code == 0
    with (tmp_path / "s.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["anomaly"]]


def reference(rows, key, column="anomaly"):
    """Return number, mean, max and sum of the scores of each key."""
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(float(row[column]))
    return {k: (len(v), fmean(v), max(v), sum(v)) for k, v in found.items()}


def values(row):
    return row["events"], row["mean"], row["max"], row["sum"]


def test_nodes_have_the_statistics_of_their_events(rows, tgflow):
    for side in ("src", "dst"):
        ran = tgflow("score", "r", "--by", side, "--json")
        expected = reference(rows, lambda row, side=side: row[side])
        found = json.loads(ran.out)
        assert {row[side] for row in found} == set(expected)
        for row in found:
            assert values(row) == pytest.approx(expected[row[side]], rel=1e-12)
        assert [row["mean"] for row in found] == sorted((r["mean"] for r in found), reverse=True)


def test_pairs_within_a_window_are_ranked_by_a_statistic(rows, tgflow):
    end = max(int(row["t"]) for row in rows)
    late = [row for row in rows if int(row["t"]) > end - 7 * DAY]
    expected = reference(late, lambda row: (row["src"], row["dst"]), "logit")
    flags = ["--by", "src", "--by", "dst", "--of", "logit", "--last", "7d", "--rank-by", "sum"]
    ran = tgflow("score", "r", *flags, "--min-events", 2, "--top", 5, "--json")
    found = json.loads(ran.out)
    best = sorted((v[3] for v in expected.values() if v[0] >= 2), reverse=True)[:5]
    assert [row["sum"] for row in found] == pytest.approx(best, rel=1e-12)


def test_groups_of_a_file_are_ranked_in_a_table(rows, tgflow):
    Path("kinds.csv").write_text("shop,kind\ns0,food\ns1,food\ns2,fuel\n")
    ran = tgflow("score", "r", "--by", "dst", "--groups", "kinds.csv")
    [line] = [line.split() for line in ran.out.splitlines() if "food" in line]
    assert line[:2] == ["food", str(sum(row["dst"] in ("s0", "s1") for row in rows))]
    assert "s3" not in ran.out
    assert "anomaly of" in ran.out


def test_ids_with_leading_zeros_are_other_nodes_in_every_table(tgflow, tmp_path):
    rows = "".join(f"{('007', '7', '12')[i % 3]},{('0012', '12')[i % 2]},{i}\n" for i in range(90))
    Path("zeros.csv").write_text("src,dst,t\n" + rows)
    Path("kinds.csv").write_text("node,type\n007,a\n7,b\n12,c\n0012,d\n")
    Path("types.csv").write_text(Path("kinds.csv").read_text().replace("node", "id"))
    flags = ["-s", "zeros.csv", "-m", "recency", "--batch-size", 20, "--scores", "s.csv"]
    ran = tgflow("run", *flags, "-o", "r", "--time-unit", "s", "--node-types", "types.csv")
    assert (ran.code, "ids are text, as src of the first rows is '007'" in ran.err) == (0, True)
    assert json.loads(tgflow("info", "zeros.csv", "--json").out)["num_nodes"] == 4
    for shown in (tgflow("info", "r"), tgflow("info", "zeros.csv", "--time-unit", "s")):
        assert any("ids" in line and "text" in line for line in shown.out.splitlines())
    found = json.loads(tgflow("score", "r", "--groups", "kinds.csv", "--json").out)
    assert {row["group"] for row in found} == {"a", "b", "c"}
    Path("pairs.csv").write_text("src,dst\n007,0012\n7,12\n")
    pairs = json.loads(tgflow("predict", "r", "--pairs", "pairs.csv", "--json").out)
    assert [(row["src"], row["dst"]) for row in pairs] == [("007", "0012"), ("7", "12")]
    Path("plain.csv").write_text("src,dst,t\n" + "".join(f"7,12,{i}\n" for i in range(90)))
    ran = tgflow("run", "-s", "plain.csv", "-m", "recency", "-o", "q", "--time-unit", "s")
    assert (ran.code, "ids are integers" in ran.err) == (0, True)
    assert 'id_kind = "int"' in Path("q/config.toml").read_text()
    for words, code in (
        (["predict", "q", "--pairs", "pairs.csv"], 65),
        (["predict", "q", "--src", "007"], 2),
        (["run", *flags[2:], "-s", "plain.csv", "-o", "n", "--node-types", "types.csv"], 65),
    ):
        ran = tgflow(*words)
        assert (ran.code, "'007' is no id: those of the stream are" in ran.err) == (code, True)


REFUSED = [
    (["nowhere"], 66, "nowhere is not the directory of a run"),
    (["r", "--by", "node"], 2, "--by: node; choose event alone, or src, dst, or both"),
    (["r", "--rank-by", "median"], 2, "choose mean, max, sum"),
    (["r", "--of", "amount"], 2, "has no column 'amount' of numbers, but position"),
    (["r", "--last", "soon"], 2, "--last: a span of time"),
    (["r", "--groups", "none.csv"], 66, "--groups: "),
    (["r", "--groups", "pay.csv"], 2, "has 3 columns, not a node and its group"),
    (["r", "--by", "src", "--by", "dst", "--groups", "g.csv"], 2, "give one --by"),
    (["plain"], 66, "start it with --scores"),
]


def test_questions_without_an_answer_are_refused(rows, tgflow):
    flags = ["-s", "pay.csv", "-m", "recency", "--limit", 40, "-o", "plain", "--time-unit", "s"]
    assert tgflow("run", *flags).code == 0
    for words, code, text in REFUSED:
        ran = tgflow("score", *words)
        assert (ran.code, text in ran.err) == (code, True), ran.err
