"""A trainer saved from Python is a regular run directory."""

import pyarrow.csv as pacsv
import pytest
import torch

import tgflow as tg
from helpers.live_runs import write_events
from tgflow.cli import main
from tgflow.graph.tables import FeatureTable

CONFIG = tg.ContinualConfig(batch_size=50)


def tgflow(*words):
    return main([str(word) for word in words])


@pytest.fixture
def saved(tmp_path):
    """Return a trainer that has learned a file, and its save directory."""
    path = write_events(tmp_path / "events.csv", 230)
    trainer = tg.ContinualTrainer(tg.TGN(memory_dim=8), tg.TemporalGraph(time_unit="s"), CONFIG)
    trainer.run(tg.open_stream(path, id_kind="string", time_unit="s"))
    tg.save_run(trainer, tmp_path / "run")
    return trainer, tmp_path / "run"


def test_saved_trainer_matches_the_live_one(saved, capsys):
    trainer, path = saved
    live, opened = tg.open_run(trainer), tg.open_run(path)
    assert torch.equal(
        live.score(["1", "2"], ["2", "3"]).logit, opened.score(["1", "2"], ["2", "3"]).logit
    )
    assert tgflow("info", path) == 0
    assert "resume with: tgflow run" in capsys.readouterr().out


def test_resumed_run_matches_undisturbed_trainer(saved, tmp_path):
    trainer, path = saved
    more = write_events(tmp_path / "events.csv", 400)
    assert tgflow("run", "--resume", "-o", path) == 0
    straight = tg.ContinualTrainer.from_checkpoint(tg.TGN(memory_dim=8), trainer.checkpoint())
    [events] = list(tg.open_stream(more, id_kind="string", time_unit="s"))
    straight.run([events[230:]])
    resumed = tg.open_run(path)
    assert resumed.position == 400
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_save_does_not_overwrite_other_files_or_a_later_state(saved, tmp_path):
    trainer, path = saved
    tg.save_run(trainer, path)
    with pytest.raises(FileExistsError, match="holds files already"):
        tg.save_run(trainer, tmp_path)
    young = tg.ContinualTrainer(tg.TGN(memory_dim=8), tg.TemporalGraph())
    with pytest.raises(FileExistsError, match="holds a later state"):
        tg.save_run(young, path)


IN_MEMORY = (["ann", "bob", "ann", "cy"], ["bob", "cy", "dan", "ann"], [1, 2, 3, 4])


@pytest.mark.parametrize("bipartite", [False, True])
@pytest.mark.parametrize("with_features", [False, True])
def test_in_memory_streams_reopen_with_their_own_ids(tmp_path, bipartite, with_features):
    direction = "bipartite" if bipartite else "undirected"
    nodes = None
    graph = tg.TemporalGraph(direction)
    if with_features:
        table = {"id": ["ann", "bob", "cy", "dan"], "age": [1, 2, 3, 4]}
        if bipartite:
            table = {name: values * 2 for name, values in table.items()}
            table["side"] = ["src"] * 4 + ["dst"] * 4
        nodes = tg.NodeFeatures(table, side="side" if bipartite else None)
        graph = tg.TemporalGraph(direction, node_x=FeatureTable(nodes.dim))
    model = tg.TGN(memory_dim=8, node_x_dim=0 if nodes is None else nodes.dim)
    trainer = tg.ContinualTrainer(model, graph, CONFIG)
    stream = tg.open_stream(IN_MEMORY, bipartite=bipartite)
    trainer.run(stream if nodes is None else nodes.along(stream))
    tg.save_run(trainer, tmp_path / "run")
    live, opened = tg.open_run(trainer), tg.open_run(tmp_path / "run")
    assert torch.equal(live.score("ann", "dan").logit, opened.score("ann", "dan").logit)
    found = opened.top_k(asked := ["ann"] if with_features else ["ann", "who"], k=3)
    assert found.to_pylist() == live.top_k(asked, k=3).to_pylist()
    by = dict(zip(found.src, found.ranked_by, strict=True))
    assert [*by.values()] == ["model", "popularity"][: len(asked)]
    assert opened.ids.bipartite is bipartite
    assert torch.equal(opened.embed("cy"), live.embed("cy"))


class Own(tg.TGAT):
    def __init__(self, **settings):
        super().__init__(embedding_dim=8, time_dim=4, neighbors=2)


class NeedsMore(tg.TGAT):
    def __init__(self, width):
        super().__init__(embedding_dim=width, time_dim=4, neighbors=2)


def test_user_model_class_reopens_or_is_refused_with_a_fix(tmp_path):
    def trainer_of(model, **given):
        trainer = tg.ContinualTrainer(model, tg.TemporalGraph(), CONFIG, **given)
        trainer.run(tg.open_stream(IN_MEMORY))
        return trainer

    class Local(tg.TGAT):
        pass

    for model in (Own(), Local(embedding_dim=8, time_dim=4, neighbors=2)):
        trainer, path, kind = trainer_of(model), tmp_path / type(model).__name__, type(model)
        tg.save_run(trainer, path)
        opened = tg.open_run(path, kind)
        expected = tg.open_run(trainer).score("ann", "cy").logit
        assert torch.equal(opened.score("ann", "cy").logit, expected)
        for wrong, text in ((None, r"tg\.open_run\(path, model=Class\)"), (NeedsMore, "got Needs")):
            with pytest.raises(ValueError, match=text):
                tg.open_run(path, wrong)
    with pytest.raises(ValueError, match=r"needs a model that can be built again.*tg\.save"):
        tg.save_run(trainer_of(NeedsMore(8)), tmp_path / "other")
    with pytest.raises(ValueError, match=r"cannot hold loss of this trainer.*tg\.save"):
        tg.save_run(trainer_of(tg.TGN(memory_dim=8), loss="bpr"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_saved_task_is_asked_resumed_and_learns_appended_files(tmp_path):
    """Two days in one trainer, and the second as a file after `save_run`, have the same bits."""
    head, kinds, lands = "account,shop,t,amount,kind,land,fraud", ("card", "cash"), ("at", "be")
    lines = [
        f"{'' if i >= 130 else 'a'}{i % 9},{i * i % 7},{i},{i % 5},{kinds[i % 2]},"
        f"{lands[i % 2]},{int(i % 4 == 0)}"
        for i in range(260)
    ]
    for name, part in (("one", lines[:130]), ("two", lines[130:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *part]) + "\n")
    frame = pacsv.read_csv(tmp_path / "one.csv").to_pydict()
    frame["shop"] = [*map(str, frame["shop"])]
    options = {"time_unit": "s", "features": ["amount"], "relation": "kind", "label": "fraud"}
    options |= {"categorical": ["land"], "max_categories": 3}
    task = tg.tasks.TaskConfig(kind="edge", target="fraud", label_delay="20s")
    config = tg.ContinualConfig(batch_size=50, task=task)

    def trained():
        torch.manual_seed(0)
        stream = tg.open_stream(frame, **options)
        graph = tg.TemporalGraph(edge_x_dim=stream.x_dim, time_unit="s")
        trainer = tg.ContinualTrainer(tg.TGN.for_graph(graph, memory_dim=8), graph, config)
        trainer.run(stream)
        return trainer

    first, straight = trained(), trained()
    tg.save_run(first, tmp_path / "run")
    opened, live = tg.open_run(tmp_path / "run"), tg.open_run(first)
    pairs = (["a1", "a2"], ["4", "1"], 130)
    x = {"amount": 3.0, "land": "at"}
    said = [run.score(*pairs, x=x, relation=["card", "cash"]) for run in (opened, live)]
    assert torch.equal(said[0].label_probability, said[1].label_probability)
    resumed = opened.trainer()
    assert resumed.config.task == task
    assert tgflow("run", "--resume", "-o", tmp_path / "run", "--append", tmp_path / "two.csv") == 0
    options |= {"id_kind": "string"}
    for trainer in (straight, resumed):
        day = tg.open_stream(tmp_path / "two.csv", ids=trainer.ids, **options)
        trainer.run(day)
    again = tg.open_run(tmp_path / "run")
    assert again.position == 260
    assert again.classes["land"] == ["at", "be"]
    for trainer in (resumed, again):
        for name, value in straight.model.state_dict().items():
            assert torch.equal(value, trainer.model.state_dict()[name]), name
