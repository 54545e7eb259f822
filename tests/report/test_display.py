"""Terminal display during a run."""

import io

import pytest
from rich.console import Console

from tgflow.base.units import duration
from tgflow.report.display import Display
from tgflow.report.formatting import compact, num_bytes, score, stream_time
from tgflow.run.monitoring import waiting

RECORD = {
    "stop": 200, "running.ap": 0.91234, "running.mrr": 0.5, "running.loss": 0.4,
    "prequential.ap": 0.9, "prequential.mrr": 0.4, "events_per_second": 1234.0,
    "freshness_seconds": 0.05, "rss_bytes": 5e8, "progress": 0.5,
}  # fmt: skip


def show(terminal, records, total=400, note=str, **options):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=90, color_system=None)
    with Display(console, "a title", total, note=note, **options) as display:
        for record in records:
            display.update(record)
    return out.getvalue()


def test_without_a_terminal_plain_lines_are_printed():
    text = show(False, [RECORD])
    assert text.splitlines() == [
        "a title",
        " 50%  200 of 400 events  1,234 events/s  lag 50 ms  "
        "recent:  loss 0.4000  AP 0.9123  MRR 0.5000",
    ]


def test_lag_of_a_topic_stands_instead_of_a_share():
    topic = {key: value for key, value in RECORD.items() if key != "progress"}
    assert "lag 50 ms" in show(False, [RECORD | {"lag_events": 7, "lag_seconds": 5}], 400)
    [_, line] = show(False, [topic | {"lag_events": 1234, "lag_seconds": 75}], None).splitlines()
    assert line.startswith(
        "200 events  1,234 events/s  lag 1,234 events, 1 min 15 s  recent:  loss"
    )
    assert "lag 7 events ·" in show(True, [topic | {"lag_events": 7}], None)


@pytest.mark.parametrize("terminal", [True, False])
def test_partitions_that_events_wait_for_are_shown(terminal):
    silent = {"0": 0.5, "1": 12.0, "2": 3.0, "3": 71.2, "4": 9.0}
    text = show(terminal, [RECORD], note=lambda: waiting(lambda: silent))
    said = "waiting for partition 3 (silent for 1 min 11 s), 1 (silent for 12 s) and 2 more"
    assert said in text
    assert "waiting" not in show(terminal, [RECORD], note=lambda: waiting(lambda: {"0": 0.5}))


@pytest.mark.parametrize("total", [400, None])
def test_on_a_terminal_a_panel_is_shown(total):
    text = show(True, [RECORD, RECORD | {"stop": 400}], total)
    for part in ("a title", "0.9123", "0.9000 since start", "1,234 events/s", "500 MB", "400"):
        assert part in text
    assert "Loss" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_models_that_do_not_learn_have_no_loss(terminal):
    text = show(terminal, [RECORD], learns=False)
    assert "loss" not in text.lower()
    assert "0.9123" in text


def test_numbers_are_formatted_for_people():
    shown = [compact(x) for x in (0, 3, 99.5, 1234, 59835, 2.5e6, float("nan"))]
    assert shown == ["0", "3", "99.5", "1,234", "59.8k", "2.5M", "–"]
    spans = [duration(s) for s in (0.0123, 2, 59.94, 60, 71.2, 3600, 90061, float("nan"))]
    assert spans == ["12.3 ms", "2 s", "59.9 s", "1 min", "1 min 11 s", "1 h", "1 d 1 h", "–"]
    sizes = {7: "7 B", 2e3: "2 kB", 5.3e8: "530 MB", 1.2e10: "12 GB", 2.25e12: "2.25 TB"}
    assert {size: num_bytes(size) for size in sizes} == sizes
    assert score(0.5) == "0.5000"


def test_times_are_dates_if_they_are_unix_times():
    show_t, name, _ = stream_time(1_600_000_000, 1_700_000_000, "s")
    assert show_t(1_600_000_000) == "2020-09-13"
    assert name == "stream time (UTC)"
    show_t, *_ = stream_time(1_600_000_000_000, 1_600_000_900_000, "ms")
    assert show_t(1_600_000_000_000) == "12:26:40"
    show_t, *_ = stream_time(1_600_000_000_000, 1_600_000_900_000, "ms", dated=True)
    assert show_t(1_600_000_000_000) == "2020-09-13 12:26:40"
    assert stream_time(5, 100, "d")[0](8) == "3 d"
    assert stream_time(5, 100, "tick")[0](8) == "8"


@pytest.mark.parametrize(("first", "last"), [(1_600_000_000_000, 1_600_000_900_000), (0, 2**62)])
def test_other_times_are_shown_since_the_first_event(first, last):
    show_t, name, _ = stream_time(first, last, "s")  # such as milliseconds read as seconds
    assert name == "time since the stream's first event"
    assert show_t(first) == "0 ms"
    assert show_t(last)
