"""What holds of the records of every codec."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.decoding import CODECS, arrow, decode, row
from helpers.kafka_io import edge
from tgflow.streams.errors import CODES


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_the_same_events(codec):
    rows = [(i, i % 7, 3 * i, (i / 2, -float(i))) for i in range(100)]
    reading = decode([row(codec, *r) for r in rows], codec)
    assert reading.rows[0] == [r[:3] for r in rows]
    assert reading.bad == []
    x = np.concatenate([arrivals.rows.events.x for arrivals in reading.arrivals])
    assert x.dtype == np.float32
    assert x.tolist() == [list(r[3]) for r in rows]
    assert reading.positions[0]["offset"] == 110


@pytest.mark.parametrize("codec", CODECS)
def test_labels_ids_and_event_ids(codec):
    settings = {"label": "kind", "event_id": "eid", "features": ()}
    if codec == "csv":
        values = [b"5,6,7,8,9"] * 2
    elif codec == "json":
        values = [b'{"src":5,"dst":6,"t":7,"kind":8,"eid":9}'] * 2
    else:
        values = [arrow([5], [6], [7], False, kind=pa.array([8]), eid=pa.array([9]))] * 2
    [arrivals] = decode(values, codec, **settings).arrivals
    assert arrivals.rows.events.label.tolist() == [8, 8]
    ids = arrivals.rows.event_ids
    assert ids.dtype == np.int64
    assert ids[0] == ids[1]
    other = decode(
        [value.replace(b"\x09", b"\x04").replace(b"9", b"4") for value in values], codec, **settings
    )
    assert codec == "arrow" or other.arrivals[0].rows.event_ids[0] != ids[0]


@pytest.mark.parametrize("codec", ["json", "csv", "arrow"])
def test_string_ids(codec):
    values = {
        "json": ['{"src":"ä","dst":"b,c","t":1}'.encode()],
        "csv": ['ä,"b,c",1'.encode()],
        "arrow": [arrow(["ä"], ["b,c"], [1], False)],
    }[codec]
    reading = decode(values, codec, id_kind="string", features=())
    assert reading.rows[0] == [("ä", "b,c", 1)]
    assert decode([edge("", "b")], "json", id_kind="string", features=()).codes == ["null"]


def test_origins_of_good_rows_name_their_record():
    values = [edge(0, x=[1, 2]), b"{", edge(2, x=[1, 2])]
    [arrivals] = decode(values, "json").arrivals
    assert arrivals.rows.index.tolist() == [0, 2]
    assert arrivals.rows.origin(1).raw == values[2]
    assert arrivals.rows.origin(1).place["offset"] == 12


@given(st.binary(max_size=200), st.sampled_from(CODECS))
def test_any_bytes_are_an_event_or_a_bad_row(value, codec):
    reading = decode([value, row(codec, 1, 2, 3)], codec)
    assert reading.rows[0][-1] == (1, 2, 3)
    assert set(reading.codes) <= CODES.keys()
