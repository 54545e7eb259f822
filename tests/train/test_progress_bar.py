"""Progress bars: in terminals and notebooks, elsewhere only on request."""

import io

import pytest
from rich.console import Console

import tgflow as tg
from helpers.made_streams import made_events, pieces
from tgflow.train import progress_bar
from tgflow.train.progress_bar import ProgressBar

WIDTHS = {"memory_dim": 8, "time_dim": 8, "embedding_dim": 8, "neighbors": 3}


class Counted:
    """A stream of known length."""

    num_events = 60

    def __iter__(self):
        return pieces(made_events(60), 30)


def new_trainer():
    graph = tg.TemporalGraph(edge_x_dim=2)
    config = tg.ContinualConfig(batch_size=20)
    return tg.ContinualTrainer(tg.TGN.for_graph(graph, **WIDTHS), graph, config)


def drawn(train, stream=None):
    """Return the terminal output of a bar during `train(bar)`."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with ProgressBar(stream, console) as bar:
        train(bar)
    return console.file.getvalue()


def test_progress_bar_shows_the_position_in_a_stream():
    text = drawn(lambda bar: new_trainer().run(Counted(), bar), Counted())
    for shown in ("60 events", "100%", "events/s", "ap 0."):
        assert shown in text


def test_progress_bar_shows_each_pass_of_offline_training():
    graph = tg.TemporalGraph.from_events(made_events(120))
    config = tg.OfflineConfig(epochs=2, batch_size=20)
    model = tg.TGN.for_graph(graph, **WIDTHS)
    text = drawn(lambda bar: tg.OfflineTrainer(model, graph, config, bar).fit())
    for shown in ("epoch 1 train", "epoch 1 val", "epoch 2 train", "test", "val AP 0."):
        assert shown in text


def test_progress_bar_of_a_rule_shows_no_loss(capsys):
    for model in (tg.TGN(**WIDTHS), tg.Recency()):
        events = made_events(120, x_dim=0)
        tg.ContinualTrainer(model, tg.TemporalGraph()).run([events], progress=True)
        graph = tg.TemporalGraph.from_events(events)
        tg.OfflineTrainer(model, graph, tg.OfflineConfig(epochs=1)).fit(progress=True)
        text = capsys.readouterr().err
        assert "events/s" in text
        assert "val AP 0." in text
        assert ("loss" in text) == isinstance(model, tg.TGN)


def test_progress_bars_are_shown_on_terminals_or_on_request(capsys):
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
def test_progress_bars_are_shown_on_terminals_and_in_notebooks(
    monkeypatch, console, widgets, shows
):
    monkeypatch.setattr(progress_bar, "_console", lambda: console)
    monkeypatch.setattr(progress_bar, "find_spec", lambda name: widgets or None)
    assert isinstance(progress_bar.progress_bar(None), ProgressBar) is shows
    assert not isinstance(progress_bar.progress_bar(False), ProgressBar)
