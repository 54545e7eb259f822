"""`--append`: a run learns further files, each once, with its own settings."""

import json
from pathlib import Path

import pytest

from helpers.effort import slow
from helpers.live_runs import SMALL, Killed, same_run
from tgflow.run import runner
from tgflow.run.learned_files import LearnedFiles

HEAD = "payer,shop,at,amount,kind,country,fraud"
SIZE, BORDER, EVEN = 330, 140, 150
"""Events, those of the first day, and as many as fill its micro-batches of 50."""
OPTIONS = (
    *("--src", "payer", "--dst", "shop", "--t", "at", "--time-unit", "s", "--features", "amount"),
    *("--relation", "kind", "--categorical", "country", "--task", "edge", "--target", "fraud"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with payments in one file, and in two that end after `BORDER` or `EVEN`."""
    folder = tmp_path_factory.mktemp("made")
    kinds, countries, letter = ("card", "cash"), ("at", "be", "ch"), ("a", "")
    lines = [
        f"{letter[i >= EVEN]}{i * 7 % 9},{i * i % 7},{1000 + i // 3},{i % 5},{kinds[i // 200]},"
        f"{countries[min(i // 70, 2)]},{i % 11 == 0:d}"
        for i in range(SIZE)
    ]
    parts = {"all": lines, "early": lines[100:EVEN]}
    for name, end in (("", BORDER), ("even", EVEN)):
        parts |= {f"{name}1": lines[:end], f"{name}2": lines[end:]}
    for name, part in parts.items():
        (folder / f"{name}.csv").write_text("\n".join([HEAD, *part]) + "\n")
    return folder


@pytest.fixture
def begin(tgflow, made):
    return lambda name, out, *more: tgflow(
        "run", "-s", made / f"{name}.csv", "-o", out, *SMALL, *OPTIONS, *more
    )


@pytest.fixture
def append(tgflow, made):
    def run(*names, more=(), out="out"):
        files = [word for name in names for word in ("--append", made / f"{name}.csv")]
        return tgflow("run", "-o", out, "--resume", *files, *more)

    return run


def test_two_files_are_learned_as_one_and_each_once(begin, append, tgflow, made):
    assert begin("all", "whole").code == 0
    assert begin("even1", "out").code == 0
    ran = append("even1", "even2")
    assert (ran.code, ran.err.count("adds nothing")) == (0, 1), ran.err
    same_run(Path("whole"), Path("out"))
    before = Path("out/metrics.json").read_bytes()
    again = append("even2", more=["--json"])
    assert (again.code, again.err.count("\n"), again.json["num_events"]) == (0, 1, SIZE)
    assert "even2.csv adds nothing: out has learned that file, on 20" in again.err
    assert Path("out/metrics.json").read_bytes() == before
    one, two = tgflow("info", "out", "--json").json["files"]
    assert [one["stop"], two["start"], two["stop"]] == [EVEN, EVEN, SIZE]
    assert two["times"] == [1000 + EVEN // 3, 1000 + (SIZE - 1) // 3]
    shown = tgflow("info", "out").out
    assert two["digests"][0][:12] in shown
    assert tgflow("run", "--resume", "-o", "out", "-s", made / "even1.csv").code == 0


def test_new_files_of_a_folder_are_learned_in_order_and_others_once(begin, tgflow, made):
    """Names sort by their numbers; the run has begun with two files of the folder."""
    days = Path("days")
    days.mkdir()
    lines = (made / "all.csv").read_text().split()[1:]

    def write(day):
        part = lines[50 * (day - 1) : 50 * day if day < 5 else None]
        (days / f"day{day}.csv").write_text("\n".join([HEAD, *part]) + "\n")

    def append(*more):
        ran = tgflow("run", "--resume", "-o", "out", "--append", "days", *more)
        assert ran.code == 0, ran.err
        return ran.err

    assert begin("all", "whole").code == 0
    write(1), write(2)
    assert tgflow("run", "-s", "days", "-o", "out", *SMALL, *OPTIONS).code == 0
    assert "--append days adds nothing: out has learned all of its files" in append()
    for day in (10, 3, 4):
        write(min(day, 5))
    (days / "day5.csv").rename(days / "day10.csv")
    assert "--append days adds 3 of 5 files: out has learned the others of its files" in append()
    same_run(Path("whole"), Path("out"))
    paths = [each.path for each in LearnedFiles(Path("out")).entries]
    assert paths == ["days", *(f"days/day{day}.csv" for day in (3, 4, 10))]
    assert "adds nothing" in append()


@pytest.mark.slow
def test_ranks_learn_appended_files_as_one_process_does(append, tgflow, made):
    links, alone = OPTIONS[:-4], ("--set", "learning.slices=2")
    for out, flags in (("out", ("--nproc", 2)), ("alone", alone)):
        made_by = ("-s", made / "1.csv", *SMALL, *links)
        assert tgflow("run", *made_by, "-o", out, *flags).code == 0
        ran = append("1", "2", "2", out=out, more=flags[:2] if out == "out" else ())
        assert (ran.code, ran.err.count("adds nothing")) == (0, 2), ran.err
    same_run(Path("alone"), Path("out"))
    assert [each.stop for each in LearnedFiles(Path("out")).entries] == [BORDER, SIZE]
    ran = append("2", more=("--nproc", 2, "--json"))
    assert (ran.code, ran.json["num_events"]) == (0, SIZE), ran.err


def killed_at(monkeypatch, where) -> None:
    """Raise `Killed` once a run has learned so many events, or as it records the end of a file."""
    record, end = runner.Runner._record, LearnedFiles.end

    def recording(self, step):
        record(self, step)
        if step.stop == where:
            raise Killed

    def ending(self, files, log, stop):
        if where == ("end", stop):
            raise Killed
        end(self, files, log, stop)

    monkeypatch.setattr(runner.Runner, "_record", recording)
    monkeypatch.setattr(LearnedFiles, "end", ending)


PLACES = [100, ("end", BORDER), BORDER + 50, BORDER + 100, ("end", SIZE)]


@pytest.mark.parametrize(
    "more", [("--checkpoint-batches", 1), slow(("--set", "checkpoint.log=false"))]
)
def test_kills_at_any_place_change_no_bit(begin, append, monkeypatch, more):
    assert begin("1", "whole", *more).code == 0
    assert append("2", out="whole").code == 0
    for place in PLACES:
        with monkeypatch.context() as patched:
            killed_at(patched, place)
            with pytest.raises(Killed):
                begin("1", "out", *more) if place == PLACES[0] else append("2")
    assert append("2").code == 0
    same_run(Path("whole"), Path("out"))
    assert append("2").err.count("adds nothing") == 1


def test_events_before_the_last_one_follow_the_late_policy(begin, append):
    assert begin("even1", "out").code == 0
    ran = append("early")
    assert ran.code == 65
    assert "47 of the 50 rows of" in ran.err
    assert "--late dead_letter puts them aside, and --late drop leaves them out" in ran.err
    assert "--resume -o" not in ran.err
    ran = append("early", more=["--late", "drop", "--allow-config-change"])
    assert (ran.code, "47 rows of" in ran.err) == (0, True), ran.err
    assert append("even2").code == 0, "the file that was refused is not one of the run"
    assert json.loads(Path("out/metrics.json").read_text())["num_events"] == SIZE + 3


REFUSED = [
    (["-s", "{}/even2.csv", "--allow-config-change"], 2, "--resume --out out --append"),
    (["--append", "{}/nowhere.csv"], 66, "nowhere.csv"),
    (["-s", "{}/early.csv", "--append", "{}/even2.csv"], 2, "to learn that file after it"),
    (["--append", "kafka://localhost/t"], 2, "kafka://localhost/t: it takes files and folders"),
    (["--append", "{}/even2.csv", "--follow"], 2, "files that are not followed"),
]


def test_what_cannot_be_appended_is_refused(begin, tgflow, made):
    assert begin("even1", "out").code == 0
    before = Path("out/files.json").read_bytes()
    for words, code, said in REFUSED:
        ran = tgflow("run", "--resume", "--out", "out", *(word.format(made) for word in words))
        assert (ran.code, said in ran.err) == (code, True), ran.err
        assert Path("out/files.json").read_bytes() == before


def test_append_reads_whole_files_after_a_limit(begin, append):
    assert begin("1", "out", "--limit", 100).code == 0
    assert append("2").code == 0
    assert [each.stop for each in LearnedFiles(Path("out")).entries] == [BORDER, SIZE]
