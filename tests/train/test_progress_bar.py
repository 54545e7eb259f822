"""Bars of trainers: on a terminal and in a notebook, elsewhere only where they are asked for."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import tgflow as tg
from helpers.made_streams import made_events, pieces
from tgflow.train import progress_bar
from tgflow.train.progress_bar import ProgressBar

WIDTHS = {"memory_dim": 8, "time_dim": 8, "embedding_dim": 8, "neighbors": 3}


class Counted:
    """A stream that knows how many events it has."""

    num_events = 60

    def __iter__(self):
        return pieces(made_events(60), 30)


def new_trainer():
    graph = tg.TemporalGraph(edge_x_dim=2)
    config = tg.ContinualConfig(batch_size=20)
    return tg.ContinualTrainer(tg.TGN.for_graph(graph, **WIDTHS), graph, config)


def drawn(stream, *, terminal=True):
    """Return what a bar draws while a stream is learned from."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120)
    with ProgressBar(stream, console) as bar:
        new_trainer().run(stream, bar)
    return file.getvalue()


def test_a_bar_says_how_far_a_stream_is_learned():
    text = drawn(Counted())
    assert "60 events" in text
    assert "100%" in text
    assert "events/s" in text
    assert "ap 0." in text


def test_a_bar_says_how_far_each_pass_of_an_offline_training_is():
    graph = tg.TemporalGraph.from_events(made_events(120))
    config = tg.OfflineConfig(epochs=2, batch_size=20)
    file = io.StringIO()
    with ProgressBar(console=Console(file=file, force_terminal=True, width=120)) as bar:
        tg.OfflineTrainer(tg.TGN.for_graph(graph, **WIDTHS), graph, config, bar).fit()
    text = file.getvalue()
    for stage in ("epoch 1 train", "epoch 1 val", "epoch 2 train", "test"):
        assert stage in text
    assert "val AP 0." in text


def test_bars_are_shown_on_terminals_and_where_they_are_asked_for(capsys):
    new_trainer().run(Counted())
    assert capsys.readouterr().err == ""
    new_trainer().run(Counted(), progress=True)
    captured = capsys.readouterr()
    assert "60 events" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("console", "widgets", "shows"),
    [
        (Console(force_terminal=True, force_interactive=True), False, True),
        (Console(file=io.StringIO()), True, False),
        (Console(force_jupyter=True), True, True),
        (Console(force_jupyter=True), False, False),
    ],
)
def test_bars_are_for_terminals_and_notebooks(monkeypatch, console, widgets, shows):
    monkeypatch.setattr(progress_bar, "_console", lambda: console)
    monkeypatch.setattr(progress_bar, "find_spec", lambda name: widgets or None)
    assert isinstance(progress_bar.progress_bar(None), ProgressBar) is shows
    assert not isinstance(progress_bar.progress_bar(False), ProgressBar)
