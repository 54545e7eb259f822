"""Run report page: self-contained, consistent with the records, escaped names."""

import html
import html.parser
import json
import re
import shutil
import subprocess

import pytest

from helpers.effort import cases
from tgflow.report.chart import MAX_POINTS, Chart, Line
from tgflow.report.formatting import stream_time
from tgflow.run.config import load_config, plain
from tgflow.run.page import continual_report

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(html.parser.HTMLParser):
    """Checks that tags nest, and collects the texts."""

    def __init__(self, page):
        super().__init__()
        self.open, self.texts, self.attributes = [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def records(size):
    return [
        {
            "index": i, "start": 200 * i, "stop": 200 * (i + 1), "t": 1_082_000_000 + 9000 * i,
            "loss": 1 / (i + 1), "metrics.ap": 0.5 + i / (4 * size), "metrics.mrr": 0.3,
            "prequential.ap": 0.6, "seconds": 0.1, "rss_bytes": 4e8,
        }
        for i in range(size)
    ]  # fmt: skip


METRICS = {
    "prequential.ap": 0.9123, "prequential.mrr": 0.5612, "num_events": 2000, "num_nodes": 30,
    "events_per_second": 812.0, "epoch_seconds": 71.2, "peak_rss_bytes": 5e8,
    "protocol": "prequential", "machine": {"cores": 2, "tgflow": "0.1.0"},
}  # fmt: skip


def report(made, metrics, name="events.csv", stream=None, **flags):
    c = load_config(flags={"stream.path": name, **flags})
    return continual_report(made, metrics, c.continual, plain(c), c.stream.tick, stream)


def test_page_is_self_contained():
    page = report(records(10), METRICS)
    Page(page)
    assert not re.search(r"(?i)(src|href)\s*=|@import|url\(|https?:|//[a-z]", page)


def test_page_shows_metrics_plots_protocol_and_settings():
    page = Page(report(records(10), METRICS))
    text = " ".join(page.texts)
    figures = ["0.9123", "0.5612"]
    plots = ["Average precision", "Mean reciprocal rank", "Loss", "Throughput", "Memory"]
    for part in (*figures, *plots, "every event strictly before", "batch_size", "cores 2"):
        assert part in text
    assert sum(name == "d" for name, _ in page.attributes) > 20


def test_units_are_small_and_defaults_are_folded():
    page = report(records(10), METRICS, **{"learning.batch_size": 77})
    assert "1 min 11 s" in re.sub(r"</?small>", " ", page).replace("  ", " ")
    assert "&lt;" not in page
    own, folded = page.partition("Settings</h2>")[2].split("<details>")
    assert "batch_size" in own
    assert "batch_size" not in folded
    assert "learning_rate" in folded


def test_figures_of_a_task_lead_the_page():
    shares = {"calibration": {"0": 0.02, "5": 0.4, "9": 0.97}}
    figures = {"ap": 0.7431, "ap_low": 0.70, "ap_high": 0.78, "auc": 0.9, **shares}
    metrics = {"command": "run", **METRICS, "prequential": {"edge": figures}}
    made = [{**each, "running.edge.ap": 0.7} for each in records(10)]
    text = " ".join(Page(report(made, metrics)).texts)
    charts = ("AP of labels", "Calibration of label 1", "Average precision of links")
    places = [text.rindex(part) for part in charts]
    assert text.index("0.7431") < text.index("0.9123")
    assert places == sorted(places)
    assert "95 %: 0.700 to 0.780" in text


@pytest.mark.parametrize("unit", cases(["s", "ns", "d", "tick"], ["ns"]))
@pytest.mark.parametrize("first", [-(2**63), -62_135_596_801, 0, 1_600_000_000])
@pytest.mark.parametrize("span", [0, 1, 253_402_300_800, 2**62])
def test_page_can_be_built_from_any_times(first, span, unit):
    made = [{**record, "t": first + i * span // 4} for i, record in enumerate(records(5))]
    Page(report(made, METRICS, **{"stream.time_unit": unit}))


@pytest.mark.parametrize("size", [0, 1, 2, 3 * MAX_POINTS])
def test_page_can_be_built_from_any_number_of_records(size):
    page = report(records(size), METRICS)
    Page(page)
    assert "nan" not in page
    assert len(page) < 800_000
    assert ("Nothing was measured." in page) == (size == 0)


def test_axes_have_round_numbers_and_shares_stay_within_0_and_1():
    line = Line("x", [1_700_119_400.0, 1_703_680_400.0], [1.0, 1.0])
    show, _, ticks = stream_time(1_700_119_400, 1_703_680_400, "s")
    made = Chart("x", "", [line], show, lambda y: f"{y:g}", "x", wide=True, ticks_x=ticks).figure()
    assert [text for _, text in made["x_labels"]][:2] == ["2023-11-20", "2023-11-27"]  # Mondays
    assert made["y_labels"][-1][1] == "1"
    counts = Chart("x", "", [Line("x", [200, 6000], [0.1, 0.2])], str, str, "events").figure()
    assert [text for _, text in counts["x_labels"]] == ["2000", "4000", "6000"]


def test_one_value_is_a_dot_and_an_empty_run_says_why():
    made = Chart("x", "", [Line("x", [1.0], [0.5])], str, str, "epoch").figure()
    assert made["paths"][-1] == ("line dot bold c1", "M500.0 150.0h0")
    parts = ("accepted", "late", "malformed", "duplicate", "buffered", "forced")
    stream = {"counts": {**dict.fromkeys(parts, 0), "read": 7, "partitions": {}}, "counters": {}}
    page = report([], METRICS, stream=stream)
    assert "No event was learned: 7 rows were read, and 0 accepted" in page


def test_names_are_escaped_on_the_page():
    evil = "<script>alert(1)</script>&'\"</style>.csv"
    page = report(records(3), METRICS, f"a/{evil}")
    Page(page)
    assert "<script>alert" not in page


def test_downsampled_line_keeps_means_and_ends_of_the_axis():
    size = 10 * MAX_POINTS
    line = Line("x", list(range(size)), [float(i % 2) for i in range(size)])
    chart = Chart("x", "", [line], str, lambda y: f"{y:g}", "x")
    points = chart.figure()["data"]["points"]
    assert len(points) == MAX_POINTS
    assert {point[2] for point in points} == {"0.5"}


def test_page_shows_each_rank_of_a_multi_rank_run():
    sent = {"gradient": 2_000, "rows": 1_000, "queries": 0, "other": 500}
    figures = {"compute_seconds": 2.5, "wait_seconds": 0.5, "memory_bytes": 3e8}
    ranks = {str(rank): {**figures, "sent_bytes": sent} for rank in range(2)}
    page = report(records(3), METRICS | {"ranks": ranks})
    line = "computes 2.5 s, waits 0.5 s, holds 300 MB; sent: gradient 2 kB, rows 1 kB"
    for rank in ranks:
        assert f"<th>rank {rank}</th><td>{line}" in page
    assert "rank 0" not in report(records(3), METRICS)


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WIDTH = 390
LABELS = {
    f"prequential.edge.{name}": 0.5 for name in ("ap", "ap_low", "ap_high", "accuracy", "auc")
}
# Prints the texts that stick out of the page, in which a browser as narrow as that is a frame.
MEASURE = """
<iframe id=page width=%d height=4000 style="border:0" srcdoc="%s"></iframe><pre id=found></pre>
<script>
page.onload = () => {
  const inside = page.contentDocument, found = [], range = inside.createRange();
  const texts = inside.createTreeWalker(inside.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (!text.parentElement.checkVisibility({visibilityProperty: true})) continue;
    range.selectNodeContents(text);
    const box = range.getBoundingClientRect();
    if (text.data.trim() && (box.left < 0 || box.right > %d)) found.push(text.data);
  }
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_no_text_of_a_page_sticks_out_on_a_phone(tmp_path):
    page = report(records(60), {**METRICS, **LABELS}, "a" * 30 + ".csv")
    path = tmp_path / "phone.html"
    path.write_text(MEASURE % (WIDTH, html.escape(page), WIDTH - 14))  # the page's own margin
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000")
    command = [BROWSER, *flags, f"--user-data-dir={tmp_path}", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    [found] = re.findall(r'<pre id="found">(.*?)</pre>', shown)
    assert json.loads(html.unescape(found)) == []
