"""Node features by the ids of a stream match a dictionary at any time."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tgflow as tg
from helpers.effort import tries
from helpers.made_streams import small_tgn
from tgflow import EventBatch, NodeFeatures
from tgflow.graph.events import NewNodes, concat
from tgflow.streams import StreamError
from tgflow.streams.files.formats import read_table

NAMES = ["c", "a", "b", "z"]
AGES = [30.0, 10.0, 20.0, 99.0]
TABLE = {"age": AGES, "id": NAMES}
STREAM = (["a", "b", "a"], ["b", "c", "c"], [1, 2, 3])
"""Nodes appear as a, b, c."""


def appended(nodes, stream, graph=None):
    """Return a graph with the events of a stream and their node features."""
    graph = tg.TemporalGraph(node_x=tg.tables.FeatureTable(nodes.dim)) if graph is None else graph
    for events in nodes.along(stream):
        graph.append(events)
    return graph


def rows_of(graph):
    return graph.node_x.read(0, len(graph.node_x)).tolist()


def as_csv(path):
    path.write_text("id,age\n" + "".join(f"{n},{x}\n" for n, x in zip(NAMES, AGES, strict=True)))
    return path


def as_parquet(path):
    path = path.with_suffix(".parquet")
    pq.write_table(pa.table(TABLE), path)
    return path


@pytest.mark.parametrize("made", [as_csv, as_parquet])
def test_rows_follow_the_order_in_which_nodes_appear(made, tmp_path):
    nodes = tg.NodeFeatures(made(tmp_path / "nodes.csv"))
    stream = tg.open_stream(STREAM)
    graph = appended(nodes, stream)
    assert (nodes.dim, len(nodes), nodes.columns) == (1, 4, ["age"])
    assert rows_of(graph) == [[10.0], [20.0], [30.0]]
    assert torch.equal(nodes.rows(stream.ids), graph.node_x.read(0, 3))
    assert nodes.line(stream.ids, 3) == (
        f"node features: 3 nodes have a row; rows of {nodes.name} whose nodes never appear: 1"
    )


@settings(max_examples=tries(60), deadline=None)
@given(st.data())
def test_node_features_match_a_dictionary_for_any_table_and_batches(data):
    """Integer or string ids, with or without sides, with nodes without a row."""
    is_text, bipartite = data.draw(st.booleans()), data.draw(st.booleans())
    name = (lambda i: f"n{i}") if is_text else (lambda i: i * 7 + 3)
    ends = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30)
    events = data.draw(ends)
    keys = data.draw(st.lists(st.tuples(st.integers(0, 12), st.booleans()), unique=True))
    if not bipartite:
        keys = list(dict.fromkeys((i, False) for i, _ in keys))
    if not keys:
        return
    x = torch.rand(len(keys), 2, generator=torch.Generator().manual_seed(len(keys)))
    table = {"id": [name(i) for i, _ in keys], "x": x.numpy()}
    if bipartite:
        table["side"] = ["dst" if is_dst else "src" for _, is_dst in keys]
    nodes = NodeFeatures(table, side="side" if bipartite else None, fill_missing=-1.0)
    columns = [[name(e[0]) for e in events], [name(e[1]) for e in events], range(len(events))]
    stream = tg.open_stream(tuple(map(list, columns)), bipartite=bipartite)
    graph = tg.TemporalGraph(
        "bipartite" if bipartite else "undirected", node_x=tg.tables.FeatureTable(2)
    )
    whole = concat(list(stream))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(events)), max_size=4)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    for part in nodes.along(parts, ids=stream.ids):
        graph.append(part)
    expected = dict(zip(keys, x.tolist(), strict=True))
    seen = dict.fromkeys((i, bipartite and end == 1) for e in events for end, i in enumerate(e))
    found = graph.node_x.read(0, len(graph.node_x)).tolist()
    assert found == [expected.get(key, [-1.0, -1.0]) for key in seen]
    assert torch.equal(nodes.rows(stream.ids), graph.node_x.read(0, len(seen)))


def test_nodes_without_a_row_are_named_or_filled():
    stream = tg.open_stream((list("abdefg"), list("bcabcd"), list(range(6))))
    nodes = tg.NodeFeatures(TABLE)
    message = r"table: there is no row for nodes 'd', 'e', 'f' and 1 more of the stream; .*=0"
    with pytest.raises(StreamError, match=message):
        appended(nodes, stream)
    filled = tg.NodeFeatures(TABLE, fill_missing=0.5)
    graph = appended(filled, stream)
    assert rows_of(graph) == [[10.0], [20.0], [30.0], [0.5], [0.5], [0.5], [0.5]]
    assert filled.line(stream.ids, 7).endswith("; nodes without a row: 4, which get 0.5")


def test_events_before_a_node_without_a_row_are_delivered_first():
    nodes = tg.NodeFeatures(TABLE)
    batches = [EventBatch(*torch.tensor([[0], [1], [t]])) for t in range(3)]
    batches.insert(2, EventBatch(*torch.tensor([[0], [2], [1]])))
    ids = tg.NodeIds()
    ids.encode(["a", "a"], ["b", "nobody"])
    stream = iter(nodes.along(batches, ids=ids))
    assert len(next(stream)) == 1
    assert len(next(stream)) == 1
    assert len(next(stream)) == 0
    with pytest.raises(StreamError, match="no row for node 'nobody' of the stream"):
        next(stream)
    found = iter(nodes.along([concat(batches)], ids=ids))
    first = next(found)
    assert (len(first), first.new_nodes.x.tolist()) == (2, [[10.0], [20.0]])
    with pytest.raises(StreamError, match="no row for node 'nobody'"):
        next(found)


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (TABLE, {"id": "name"}, "no column 'name'; the columns are age, id: choose with id="),
        (TABLE, {"side": "end"}, "no column 'end'; .*: choose with side="),
        (TABLE, {"columns": ["f*"]}, "there are no features; the columns are age: choose numbers"),
        (TABLE | {"who": NAMES}, {}, "column 'who' holds no numbers; .* numbers with columns="),
        (TABLE | {"id": ["a", "b", "a", "c"]}, {}, "id 'a' has two rows, 0 and 2; leave one"),
        (TABLE | {"id": ["a", None, "b", "c"]}, {}, "row 1: the id is missing"),
        (TABLE | {"id": AGES}, {}, "ids are numbers without decimals or texts, got double"),
        (TABLE | {"id": [0.0, None, 2.0, 3.0]}, {}, "row 1: the id is missing, which made floats"),
        (TABLE | {"age": [1.0, None, 2.0, 3.0]}, {}, "row of 'a': age is missing; .*_missing=0"),
        (TABLE | {"end": ["src", "to", "dst", "dst"]}, {"side": "end", "columns": ["age"]},
         'row 1: a side is "src" or "dst", got \'to\''),
    ],
)  # fmt: skip
def test_invalid_table_is_refused(table, options, message):
    with pytest.raises(StreamError, match=message):
        tg.NodeFeatures(table, **options)


def test_missing_values_are_filled_and_lists_become_columns():
    table = {"id": [5, 3], "a": [None, 2.0], "b": [True, False], "x": np.arange(4.0).reshape(2, 2)}
    nodes = tg.NodeFeatures(table, fill_missing=-1.0)
    graph = appended(nodes, tg.open_stream(([3], [5], [0])))
    assert rows_of(graph) == [[2.0, 0.0, 2.0, 3.0], [-1.0, 1.0, 0.0, 1.0]]


def test_ids_of_a_text_file_are_parsed_like_those_of_the_stream(tmp_path):
    (tmp_path / "n.csv").write_text("id,age\n007,1\n7,2\n8,3\n")
    nodes = tg.NodeFeatures(tmp_path / "n.csv")
    assert rows_of(appended(nodes, tg.open_stream((["7"], ["007"], [0])))) == [[2.0], [1.0]]
    with pytest.raises(
        StreamError, match="row 0: '007' is no id: those of the stream are integers"
    ):
        appended(nodes, tg.open_stream(([7], [8], [0])))
    (tmp_path / "m.csv").write_text("id,age\nbob,1\n")
    with pytest.raises(StreamError, match="row 0: 'bob' is no id"):
        appended(tg.NodeFeatures(tmp_path / "m.csv"), tg.open_stream(([7], [8], [0])))


def test_separate_source_and_destination_ids_require_a_side():
    stream = ([1, 2], [2, 1], [0, 1])
    table = {"id": [1, 2, 1, 2], "of": ["src", "src", "dst", "dst"], "x": [1.0, 2.0, 3.0, 4.0]}
    with pytest.raises(StreamError, match='name a column of "src" and "dst", side='):
        appended(
            tg.NodeFeatures({"id": [1, 2], "x": [1.0, 2.0]}), tg.open_stream(stream, bipartite=True)
        )
    with pytest.raises(StreamError, match="have one kind of ids: leave out side="):
        appended(tg.NodeFeatures(table, side="of"), tg.open_stream(stream))


def test_rows_of_a_tensor_are_indexed_by_integer_id():
    nodes = tg.NodeFeatures(torch.arange(5.0).unsqueeze(1))
    found = rows_of(appended(nodes, tg.open_stream(([4, 1], [2, 4], [0, 1]))))
    assert found == [[4.0], [2.0], [1.0]]
    with pytest.raises(StreamError, match="there is no row for node 5 of the stream"):
        appended(nodes, tg.open_stream(([4], [5], [0])))
    with pytest.raises(StreamError, match="ids are texts, and row i of an array is of"):
        appended(tg.NodeFeatures(np.zeros((5, 2)), fill_missing=0.0), tg.open_stream(STREAM))


def test_table_by_order_of_appearance_requires_numbered_nodes():
    table = tg.tables.FeatureTable.from_tensor(torch.rand(3, 1))
    trainer = tg.ContinualTrainer(
        small_tgn(edge_x_dim=0, node_x_dim=1), tg.TemporalGraph(node_x=table)
    )
    stream = tg.open_stream(STREAM)
    with pytest.raises(ValueError, match="has not numbered its nodes yet: row i is of the i-th"):
        trainer.run(stream)
    list(stream)  # now it has
    trainer.run(stream)
    with pytest.raises(ValueError, match=r"has 0 nodes and 3 rows .*, and the stream has 0 ids"):
        tg.NodeFeatures(TABLE).along(tg.open_stream(STREAM), tg.TemporalGraph(node_x=table))


def test_graph_accepts_only_consecutive_node_rows():
    def batch(src, dst, start, *x):
        rows = torch.tensor(x).unsqueeze(1)
        return EventBatch(*torch.tensor([[src], [dst], [0]]), new_nodes=NewNodes(start, rows))

    graph = tg.TemporalGraph(node_x=tg.tables.FeatureTable(1))
    graph.append(batch(0, 1, 0, 1.0, 2.0))
    graph.append(batch(0, 2, 1, 2.0, 3.0))  # node 1 is known
    with pytest.raises(ValueError, match="rows of nodes from 4 on come with the batch, and node_x"):
        graph.append(batch(0, 4, 4, 5.0))
    late = EventBatch(*torch.tensor([[0], [3], [-1]]), new_nodes=NewNodes(3, torch.ones(1, 1)))
    with pytest.raises(ValueError, match="the log is at t=0"):
        graph.append(late)
    assert rows_of(graph) == [[1.0], [2.0], [3.0]], "what was refused has brought nothing"
    with pytest.raises(ValueError, match="width 1, the batch has"):
        graph.append(
            EventBatch(
                *late.src.new_tensor([[0], [3], [0]]), new_nodes=NewNodes(3, torch.ones(1, 2))
            )
        )
    with pytest.raises(ValueError, match="brings features of nodes, and the graph has none"):
        tg.TemporalGraph().append(batch(0, 1, 0, 1.0, 2.0))
    graph.append(EventBatch(*torch.tensor([[0], [3], [0]])))
    with pytest.raises(ValueError, match="no node without one before"):
        graph.append(batch(0, 4, 3, 4.0, 5.0))


@pytest.mark.parametrize("sep", [",", "\t"])
def test_quotes_of_a_table_are_read_as_those_of_events(tmp_path, sep):
    path = tmp_path / ("nodes.csv" if sep == "," else "nodes.tsv")
    rows = ['"id"', "x"], ['"a\nb,2"', "1"], ['"c ""d"""', "2.5"], ['5"', "3"]
    text = "".join(sep.join(row) + "\n" for row in rows)
    path.write_text("\ufeff" + text.replace("3\n", "3\r\n"), newline="")
    name, table = read_table(path, ["id"])
    assert (name, table.to_pydict()) == (
        str(path),
        {"id": ["a\nb,2", 'c "d"', '5"'], "x": [1.0, 2.5, 3.0]},
    )
    for wrong, what in (
        ('"a"b', "an open quote, or text after a closing one"),
        ('"a', "an open quote"),
        ("a\rb", r"a \\r that ends no line"),
    ):
        path.write_text(text + f"{wrong}{sep}4\n", newline="")
        with pytest.raises(StreamError, match=f"it cannot be read: {what}"):
            read_table(path, ["id"])


def test_hexadecimal_numbers_of_a_table_are_texts_as_in_events(tmp_path):
    path = tmp_path / "nodes.csv"
    path.write_text("id,x,label\n1,2,0x1F\n2,3.5,7\n")
    assert read_table(path)[1].to_pydict() == {
        "id": [1, 2],
        "x": [2.0, 3.5],
        "label": ["0x1F", "7"],
    }
    with pytest.raises(StreamError, match="column 'label' holds no numbers"):
        NodeFeatures(path, columns=["label"])
