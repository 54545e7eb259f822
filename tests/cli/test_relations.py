"""`--relation`: streams whose events have types, continual and offline."""

import json

import pytest
import torch

import tgflow as tg
from helpers.live_runs import figures
from helpers.served import Held
from tgflow.cli import main
from tgflow.serve.answers import Answers
from tgflow.serve.questions import ExplainQuestion, Refused, ScoreQuestion, TopQuestion
from tgflow.train.config import TrainingConfig

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


def test_runs_learn_by_relations(tmp_path):
    stream = write(tmp_path / "a.csv")
    whole = run(tmp_path / "whole", stream, "--relation", "kind")
    plain = run(tmp_path / "plain", stream)
    losses = [sum(step["loss"] for step in figures(each)[2]) for each in (whole, plain)]
    assert losses[0] < losses[1], "the relation decides the destination"


def test_knowledge_graph_is_ranked_among_all_entities_in_both_directions(tmp_path, monkeypatch):
    stream, found = write(tmp_path / "a.csv"), []
    for pairs in (100_000, 10):
        monkeypatch.setattr(TrainingConfig, "max_pairs", pairs)
        out, flags = tmp_path / str(pairs), ("--protocol", "tkgl/1", "--epochs", 2, *COUNTS)
        data = ("--data", stream, "--time-unit", "s", "--relation", "kind")
        tgflow("train", *data, "-o", out, *flags)
        found.append(json.loads((out / "metrics.json").read_text()))
    whole, in_parts = found
    assert whole["protocol_line"].startswith("tkgl/1: events and inverses, 70/15/15")
    assert "destinations but other true ones of the time" in whole["protocol_line"]
    assert whole["test.num_events"] == 72, "36 events and their inverses"
    assert in_parts["test.mrr"] == whole["test.mrr"] > 0.3


KINDS = ("visit", "buy", "sell", "ask")
"""Relations in order of appearance: visit, buy; sell and ask never occur."""


def numbered(path):
    """Return the stream of `write` with the numbers of its relations."""
    lines = [line.rpartition(",") for line in write(path).read_text().splitlines()[1:]]
    rows = [f"{left},{7 * KINDS.index(kind)}" for left, _, kind in lines]
    path.write_text("\n".join(["src,dst,t,kind", *rows]) + "\n")
    return path


def test_questions_take_the_relations_of_the_stream(tmp_path, capsys):
    texts = run(tmp_path / "texts", write(tmp_path / "a.csv"), "--relation", "kind")
    numbers = run(tmp_path / "numbers", numbered(tmp_path / "b.csv"), "--relation", "kind")
    best = []
    for path, asked in ((texts, ("visit", "buy")), (numbers, (0, 7))):
        opened = tg.open_run(path)
        both = opened.score([3, 3], [10, 11], relation=[*asked])
        each = [opened.score([3], [10 + i], relation=asked[i]).logit for i in (0, 1)]
        assert both.logit.tolist() == pytest.approx(torch.cat(each).tolist(), abs=1e-5)
        for i, relation in enumerate(asked):
            capsys.readouterr()
            tgflow("predict", path, "--src", 3, "--relation", relation, "--json")
            found = json.loads(capsys.readouterr().out)
            assert found[0]["dst"] == 10 + i, "the relation decides the destination"
            ranked = opened.top_k(3, relation=relation)
            assert [row["dst"] for row in found] == ranked.dst
            best.append(ranked.logit.tolist())
            tgflow("explain", path, "--src", 3, "--dst", 10, "--relation", relation, "--json")
            why = json.loads(capsys.readouterr().out)
            expected = opened.score(3, 10, relation=relation).logit.item()
            assert why["logit"] == pytest.approx(expected, abs=1e-5)
        assert opened.top_k([3, 3], k=1, relation=[*asked]).dst == [10, 11]
    assert best[:2] == best[2:], "numbers and texts of relations are one model"


def test_pairs_in_a_file_have_relations_by_column(tmp_path, capsys):
    path = run(tmp_path / "run", write(tmp_path / "a.csv"), "--relation", "kind")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("src,dst,kind\n3,10,visit\n3,11,buy\n")
    capsys.readouterr()
    tgflow("predict", path, "--pairs", pairs, "--json")
    found = [row["logit"] for row in json.loads(capsys.readouterr().out)]
    expected = tg.open_run(path).score([3, 3], [10, 11], relation=["visit", "buy"]).logit
    assert found == expected.tolist()


def test_queued_questions_with_and_without_relations_are_answered_apart(tmp_path):
    opened = tg.open_run(run(tmp_path / "run", write(tmp_path / "a.csv"), "--relation", "kind"))
    state, pair = Held(opened), {"src": [3], "dst": [10]}
    answers = Answers(state, 100, lambda text: None)
    with state.holding():
        asked = [
            answers.ask(question)
            for question in (
                ScoreQuestion(**pair),
                ScoreQuestion(**pair, relation="visit"),
                ScoreQuestion(**pair, relation=["sell"]),
                ScoreQuestion(src=[3, 4], dst=[10, 10], relation=["buy", "visit"]),
                TopQuestion(src=[3], k=1, relation="buy"),
                ExplainQuestion(src=3, dst=10, relation="buy"),
            )
        ]
    answers.close()
    with pytest.raises(Refused, match="relation") as refused:
        asked[0].result()
    assert refused.value.status == 422
    one, never, more, top, why = (json.loads(asked[i].result()) for i in range(1, 6))
    assert never["scores"][0]["logit"] == opened.score(3, 10, relation="never").logit.item()
    found = [row["logit"] for answer in (one, more) for row in answer["scores"]]
    expected = opened.score([3, 3, 4], [10] * 3, relation=["visit", "buy", "visit"]).logit
    assert found == pytest.approx(expected.tolist(), abs=1e-5)
    assert top["scores"][0]["dst"] == 11
    assert why["logit"] == pytest.approx(found[1], abs=1e-5)


def test_wrong_and_missing_relations_are_refused(tmp_path):
    stream = write(tmp_path / "a.csv")
    opened = tg.open_run(run(tmp_path / "run", stream, "--relation", "kind"))
    with pytest.raises(TypeError, match=r"relations of .* are texts, got 1"):
        opened.score(3, 10, relation=1)
    with pytest.raises(ValueError, match="relation must be one for all, or one for each of 1"):
        opened.score(3, 10, relation=["buy", "buy"])
    for ask in (opened.top_k, lambda src: opened.score(src, 10), lambda s: opened.explain(s, 10)):
        with pytest.raises(ValueError, match="give the relation of each pair"):
            ask(3)
    plain = tg.open_run(run(tmp_path / "plain", stream))
    with pytest.raises(ValueError, match="have no relations; leave out the relation"):
        plain.score(3, 10, relation="buy")
    assert main(["predict", str(tmp_path / "run"), "--src", "3", "--relation", "sell"]) == 0


def test_embedded_relations_of_trained_and_of_knowledge_graph_runs(tmp_path):
    data = ("--data", write(tmp_path / "a.csv"), "--time-unit", "s", "--relation", "kind")
    model_set = ("memory_dim=8", "num_relations=4")
    tgn = ("--model", "tgn", "--epochs", 1, *(f"--model-set={each}" for each in model_set))
    for name, flags in (("tgn", tgn), ("tkg", ("--protocol", "tkgl/1", "--epochs", 2, *COUNTS))):
        tgflow("train", *data, "-o", tmp_path / name, *flags)
        opened = tg.open_run(tmp_path / name)
        visit, buy = (opened.score(3, 10, relation=each).logit for each in ("visit", "buy"))
        assert not torch.equal(visit, buy)
        with pytest.raises(ValueError, match="give the relation of each pair"):
            opened.score(3, 10)
    engine, src, dst = opened.engine, *opened.ids.encode([3], [10])
    number = torch.tensor([2])  # the second relation is followed by its inverse, 3
    t = opened.ticks(None, 1)
    assert torch.equal(buy, engine.score(src, dst, t, relation=number))
