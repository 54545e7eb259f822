"""`tgflow explain`: tables, JSON and a page of why a pair has its score."""

from pathlib import Path

import pytest
from report.test_page import Page

import tgflow as tg
from helpers.live_runs import SMALL, write_events
from tgflow.cli import main

SRC, DST = "3", "4"
PAIR = ("--src", SRC, "--dst", DST)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a stream and runs over its first half and all of it."""
    folder = tmp_path_factory.mktemp("explained")
    stream = str(write_events(folder / "made.csv"))
    small = [str(word) for word in SMALL]
    for name, *flags in (
        ("tgn", *small),
        ("tgat", *small),
        ("edgebank", "--limit", "400"),
        ("edgebank-200", "--limit", "200"),
    ):
        model = name.split("-")[0]
        assert main(["run", "-s", stream, "--model", model, "-o", str(folder / name), *flags]) == 0
    return folder


@pytest.mark.parametrize("name", ["tgn", "tgat", "edgebank"])
def test_json_equals_the_explanation_of_the_opened_run(tgflow, made, name):
    ran = tgflow("explain", made / name, *PAIR, "--json")
    assert ran.code == 0, ran.err
    run = tg.open_run(made / name)
    expected = run.explain(3, 4)
    assert ran.json["logit"] == expected.logit == run.score(3, 4).logit.item()
    assert ran.json["probability"] == pytest.approx(run.score(3, 4).probability.item())
    events = [(event["src"], event["dst"], event["t"]) for event in ran.json["events"]]
    assert events == [(event.src, event.dst, event.t) for event in expected.events]
    lines = Path(made / "made.csv").read_text().splitlines()[1:]
    stream = [tuple(map(int, line.split(","))) for line in lines]
    assert all(stream[event.eid] == (event.src, event.dst, event.t) for event in expected.events)


def test_tables_show_contributions_and_events(tgflow, made):
    ran = tgflow("explain", made / "tgn", *PAIR)
    assert ran.code == 0, ran.err
    for text in (
        "baseline",
        "a pair without history",
        "neighborhood",
        "4 sampled events",
        "removing",
    ):
        assert text in ran.out
    assert "events with --json" not in ran.out
    assert "more events with --json or --out" in tgflow("explain", made / "tgat", *PAIR).out


def test_past_time_reads_no_later_event(tgflow, made):
    at = 1_600_000_000 + 60 * 100
    half, whole = (
        tgflow("explain", made / name, *PAIR, "--at", at, "--json").json
        for name in ("edgebank-200", "edgebank")
    )
    assert half == whole
    assert half["position"] == 200
    iso = tgflow("explain", made / "edgebank", *PAIR, "--at", "2020-09-13T14:06:40Z", "--json")
    assert iso.json == whole


def test_id_never_seen_is_explained(tgflow, made, tmp_path):
    ran = tgflow("explain", made / "tgn", "--src", 3, "--dst", 99, "--out", "x.html")
    assert ran.code == 0, ran.err
    assert "No learned event has 99: scored as at a first event." in ran.out
    assert "No learned event has 99" in Path("x.html").read_text()
    answer = tgflow("explain", made / "tgn", "--src", 99, "--dst", 98, "--json").json
    assert answer["logit"] == answer["baseline"]
    assert answer["new"] == "both"
    assert answer["events"] == []


def test_page_is_self_contained_and_draws_the_events(tgflow, made):
    ran = tgflow("explain", made / "tgat", *PAIR, "--out", "explain.html", "--json")
    assert ran.code == 0, ran.err
    assert "wrote explain.html" in ran.err
    text = Path("explain.html").read_text(encoding="utf-8")
    assert text.count('<span class="bar"') > text.count("<h2>")
    page = Page(text)
    assert "http" not in text
    assert "metrics.json" not in text
    drawn = [value for name, value in page.attributes if name == "class" and value == "picture"]
    assert len(drawn) == 1
    num_arcs = text.count("<circle") // 2
    assert num_arcs == min(len(ran.json["events"]), 60)
    for event in ran.json["events"]:
        assert str(event["t"]) in page.texts


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--src", "3"), "Missing option '--dst'"),
        ((*PAIR, "--out", "x.pdf"), "--out: x.pdf must end in .html"),
        ((*PAIR, "--at", "soon"), "--at: 'soon' is not a time"),
        (("--src", "ann", "--dst", "3"), "is no id: those of the stream are integers"),
    ],
)
def test_invalid_flags_exit_with_2(tgflow, made, flags, message):
    ran = tgflow("explain", made / "tgn", *flags)
    assert ran.code == 2
    assert message in ran.err
