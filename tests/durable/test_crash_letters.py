"""Whatever a crash leaves of dead letters, those promised are there once they are cut."""

import json

from helpers.crash_states import Quick, RecordingFs, explore
from tgflow.streams.ingest.dead_letters import DeadLetterFiles
from tgflow.streams.rows.row_batch import BadRow, Origin


def letter(i):
    return BadRow(i, "nan", f"row {i}", Origin({"file": "a.csv", "byte": i}, b"x" * (i % 7)))


def check(state, directory):
    """Cut to the last length that was promised; the letters are those written by then."""
    if not state.notes:
        return
    promised = json.loads(state.notes[-1])
    letters = DeadLetterFiles(directory, fs=Quick())
    letters.rewind(promised["length"])
    files = sorted(directory.iterdir())
    found = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    assert [entry["message"] for entry in found] == [f"row {i}" for i in range(promised["count"])]
    letters.write("edges", [letter(promised["count"])])
    letters.close()


def write(fs, polls, segment_bytes):
    letters, count = DeadLetterFiles(fs.root, fs=fs, segment_bytes=segment_bytes), 0
    for size in polls:
        letters.write("edges", [letter(i) for i in range(count, count + size)])
        letters.sync()
        count += size
        fs.note(json.dumps({"length": letters.length, "count": count}))
    return letters


def test_every_crash_state_of_dead_letters_holds_those_promised(tmp_path):
    root = tmp_path / "letters"
    root.mkdir()
    fs = RecordingFs(root)
    write(fs, [2, 1, 0, 3, 2], segment_bytes=500).close()
    assert explore(fs, check, tmp_path / "copy") > 30
