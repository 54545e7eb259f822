"""`--relation`: streams whose events have types, continual and offline."""

from __future__ import annotations

import json

from helpers.live_runs import figures, same_run
from tgflow.cli import main

COUNTS = ("--model", "counts", "--model-set", 'groups=["recency", "relations"]')


def write(path, size=240):
    """A stream in which the relation of an event decides its destination."""
    rows = [
        (i % 7, 10 + i * i % 4, i // 2, ("visit", "buy", "sell", "ask")[i * i % 4])
        for i in range(size)
    ]
    path.write_text("src,dst,t,kind\n" + "".join(f"{','.join(map(str, x))}\n" for x in rows))
    return path


def tgflow(*words):
    assert main([str(word) for word in words]) == 0


def run(out, stream, *flags):
    tgflow("run", "-s", stream, "-o", out, "--time-unit", "s", *COUNTS, "--batch-size", 10, *flags)
    return out


def test_runs_with_relations_resume_exactly(tmp_path):
    stream = write(tmp_path / "a.csv")
    whole = run(tmp_path / "whole", stream, "--relation", "kind")
    cut = run(tmp_path / "cut", stream, "--relation", "kind", "--limit", 100)
    same_run(run(cut, stream, "--limit", 240, "--resume"), whole)
    plain = run(tmp_path / "plain", stream)
    losses = [sum(step["loss"] for step in figures(each)[2]) for each in (whole, plain)]
    assert losses[0] < losses[1], "the relation decides the destination"


def test_knowledge_graph_is_ranked_among_all_entities_in_both_directions(tmp_path):
    stream, found = write(tmp_path / "a.csv"), []
    for pairs in (100_000, 10):
        (tmp_path / "c.toml").write_text(f"[offline]\nmax_pairs = {pairs}\n")
        out, flags = tmp_path / str(pairs), ("--protocol", "tkg/1", "--epochs", 2, *COUNTS)
        data = ("--data", stream, "--time-unit", "s", "--relation", "kind")
        tgflow("train", *data, "-o", out, "--config", tmp_path / "c.toml", *flags)
        found.append(json.loads((out / "metrics.json").read_text()))
    whole, in_parts = found
    assert whole["protocol_line"].startswith("tkg/1: events and inverses, 80/10/10")
    assert "destinations but other true ones of the time" in whole["protocol_line"]
    assert whole["test.num_events"] == 48, "24 events and their inverses"
    assert in_parts["test.mrr"] == whole["test.mrr"] > 0.3
