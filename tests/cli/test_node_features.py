"""`--node-features`: node features by the ids of the stream, also after a resume."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tgflow as tg
from helpers.effort import slow
from helpers.live_runs import SMALL, same_run

NODES = ("--node-features", "nodes.parquet", "--set", "graph.node_id=who")
COLUMNS = ("--node-columns", "balance", "--node-columns", "age")
TGAT = ("-m", "tgat", *SMALL)
NAMES = [f"acc_{i}" for i in range(24)]


def write_nodes(names, seed=1):
    """Write two features and a text per node, in any order."""
    names = random.Random(seed).sample(names, len(names))
    table = {
        "who": names,
        "balance": [random.Random(name).gauss(0, 50) for name in names],
        "age": [20 + len(name) for name in names],
        "city": ["here"] * len(names),
    }
    pq.write_table(pa.table(table), "nodes.parquet")


@pytest.fixture
def run(tgflow, tmp_path):
    """Run over payments among 24 accounts, half of which appear late."""
    rng, lines = random.Random(5), ["src,dst,t,amount"]
    for i in range(240):
        src, dst = rng.randrange(12 if i < 120 else 24), rng.randrange(12)
        lines.append(f"acc_{src},acc_{dst},{60 * i},{rng.random():.3f}")
    Path("pay.csv").write_text("\n".join(lines) + "\n")
    write_nodes([*NAMES, "nobody", "none"])
    data = {"info": ["pay.csv"]}
    return lambda command, *flags: tgflow(
        command, *data.get(command, ["-s", "pay.csv"]), *NODES, *COLUMNS, *flags
    )


@pytest.mark.parametrize("more", [("--features", "amount"), slow(("-m", "tgn"))])
def test_run_reads_features_of_nodes(run, tgflow, more):
    whole = run("run", *TGAT, *more, "-o", "whole")
    assert whole.code == 0, whole.err
    assert "24 nodes have a row; rows of nodes.parquet whose nodes never appear: 2" in whole.err
    assert "by the first 24 nodes" in whole.err
    without = tgflow("run", "-s", "pay.csv", *TGAT, "--json").json
    found = json.loads(Path("whole/metrics.json").read_text())
    assert without["num_parameters"] < found["num_parameters"]
    opened = tg.open_run("whole")
    assert opened.model.node_x_dim == opened.graph.node_x.dim == 2
    assert len(opened.top_k("acc_1", k=3).dst) == 3


def test_missing_node_features_end_a_run_that_resumes_once_they_exist(run, resume):
    write_nodes([name for name in NAMES if name not in ("acc_17", "acc_21")])
    ran = run("run", *TGAT, "-o", "out")
    assert ran.code == 65
    assert "nodes.parquet: there is no row for node" in ran.err
    assert "'acc_17'" in ran.err
    assert "name a number that replaces it: --fill-missing 0" in ran.err
    write_nodes(NAMES, seed=7)
    ran = resume()
    assert ran.code == 0, ran.err
    assert run("run", *TGAT, "-o", "whole").code == 0
    same_run(Path("out"), Path("whole"))


def test_train_reads_node_features_and_info_describes_them(run):
    flags = ("--epochs", 1, "--mrr-negatives", 3, *TGAT)
    ran = run("train", *flags, "--feature-scale", "log", "-o", "out")
    assert ran.code == 0, ran.err
    assert "rows of nodes.parquet whose nodes never appear: 2" in ran.err
    assert "node features: all to mean" not in ran.err
    assert "node features: 2 of 2 columns as signed logarithm" in ran.err
    assert tg.open_run("out").graph.node_x.dim == 2
    found = run("info", "--json").json
    assert found["node_features"].startswith("node features: 24 nodes have a row")


def test_run_does_not_resume_with_other_node_features(run, resume):
    flags = ("-m", "recency", "--batch-size", 50, "--threads", 1)
    assert run("run", *flags, "-o", "out", "--limit", 100).code == 0
    table = pq.read_table("nodes.parquet")
    changed = pa.array([x.as_py() + 1 for x in table["balance"]])
    pq.write_table(table.set_column(1, "balance", changed), "nodes.parquet")
    ran = resume("--limit", 200)
    assert ran.code == 66
    assert "has changed since that node appeared" in ran.err
    fewer = ("--node-columns", "balance", "--allow-config-change")
    assert resume("--limit", 200, *fewer).code == 2
