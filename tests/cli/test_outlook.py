"""When resources of a run end, with limits that are made up."""

import itertools
import json
import shutil
from collections import namedtuple
from math import inf
from pathlib import Path

import pytest

from helpers.live_runs import SMALL, write_events
from tgflow.base.peers import Peers, Shard
from tgflow.ranks.control import RankControl, RankFigures
from tgflow.run import build, machine, outlook
from tgflow.run.outlook import DAY, EVERY, Outlook, levels_of


class Growing:
    """A run that learns 100 events a second, and a resource that takes bytes of each."""

    def __init__(self, free, per_event=1000.0, name="memory"):
        self.free, self.per_event, self.seconds, self.warnings = free, per_event, 0.0, []
        self.outlook = Outlook({name: self.level}, lambda: self.seconds)

    @property
    def position(self):
        return int(100 * self.seconds)

    def level(self):
        used = 5e8 + self.per_event * self.position
        return used, self.free - self.per_event * self.position

    def run(self, seconds, num_left=inf):
        for _ in range(int(seconds / EVERY)):
            self.seconds += EVERY
            self.warnings += self.outlook.look(self.position, num_left)
        return self.outlook.found


def test_warning_comes_once_and_a_day_before_the_end():
    made = Growing(1000.0 * 100 * 2 * DAY)
    found = made.run(DAY - 600)["memory"]
    assert made.warnings == []
    assert found["per_event"] == pytest.approx(1000)  # exact but for the last bits
    assert found["events_per_second"] == pytest.approx(100)
    assert found["seconds_left"] == pytest.approx(DAY + 600)
    made.run(1200)
    (text,) = made.warnings
    assert text.startswith("memory ends in about 23 h 59 min at the present growth: 8.64 GB free")
    assert "1 kB an event, 100 events/s; " in text
    assert "--memory-limit" in text


@pytest.mark.parametrize("name", ["disk", "maps", "memory of rank 1"])
def test_warning_names_the_setting(name):
    made = Growing(5e7, name=name)
    made.run(900)
    (text,) = made.warnings
    assert text.startswith(f"{name} ends in about ")
    ways = {"disk": "scores.keep_days=N", "maps": "sysctl vm.max_map_count="}
    assert ways.get(name, "--memory-limit") in text


def test_no_warning_without_growth_or_if_the_stream_ends_before():
    for made, num_left in ((Growing(1e6, 0.0), inf), (Growing(1e9), 1e5), (Growing(inf), inf)):
        assert "seconds_left" not in made.run(2 * 3600, num_left)["memory"]
        assert made.warnings == []


def test_least_free_memory_and_disk_count(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(outlook, "free_memory", lambda: 7e9)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage(9, 9 - len(path.name), len(path.name))
    )
    levels = levels_of([Path("abc"), Path("a")], machine.anonymous_bytes() + (1 << 30))
    assert 0 < levels["memory"]()[1] <= 1.1 * (1 << 30)
    assert levels_of([tmp_path], None)["memory"]()[1] == 7e9
    assert levels["disk"]() == (8, 1)
    used, free = levels["maps"]()
    assert 0 < used < used + free == int(Path("/proc/sys/vm/max_map_count").read_text())
    assert 0 < machine.free_memory() < inf
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)  # a container, whose files count as free
    for name, text in (("max", "9000"), ("current", "8000"), ("stat", "anon 7500\nfile 500")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert machine.free_memory() == 1500


def test_limits_of_control_groups_of_both_versions_count(tmp_path, monkeypatch):
    def write(folder, **files):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / f"memory.{name}").write_text(str(text))

    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")
    (tmp_path / "own").write_text("12:cpu:/a\n5:hugetlb,memory:/made/it\n0::/other\n")
    stat = "cache 900\ntotal_inactive_file 300\ntotal_active_file 200\n"
    own = tmp_path / "memory" / "made" / "it"
    write(own, limit_in_bytes=9_000, usage_in_bytes=8_000, stat=stat)
    assert machine.free_memory() == 1_500
    write(own, stat=f"{stat}hierarchical_memory_limit 8_700\n")
    assert machine.free_memory() == 1_200
    write(own, limit_in_bytes=2**63 - 4096, stat=stat)
    assert machine.free_memory() > 1 << 20
    write(tmp_path / "other", max=900, current=800, stat="file 1")
    assert machine.free_memory() == 101


def test_memory_of_other_ranks_counts_once_they_have_sent_it(tmp_path):
    control = RankControl(Peers(Shard(0, 3)), lambda: 0.0)
    levels = levels_of([tmp_path], None, control)
    assert [*levels] == ["memory", "memory of rank 1", "memory of rank 2", "disk", "maps"]
    with pytest.raises(OSError, match="rank 2 has not sent"):
        levels["memory of rank 2"]()
    own = RankFigures(memory_bytes=100, free_bytes=30)
    control.figures = [RankFigures.from_tensor(each.to_tensor()) for each in (own, own, own)]
    assert levels["memory of rank 2"]() == (100, 30)


def test_run_warns_and_shows_where_its_growth_leads(tgflow, tmp_path, monkeypatch):
    number, metrics = itertools.count(), []
    fake = {"memory": lambda: (1e6 * next(number), 1.0)}
    monkeypatch.setattr(build, "levels_of", lambda *options: fake)
    monkeypatch.setattr(outlook, "EVERY", 0.0)
    monkeypatch.setattr(outlook, "SETTLED", 0.1)
    make = build.RunMetrics

    def making(*args, **options):
        metrics.append(make(*args, **options))
        return metrics[0]

    monkeypatch.setattr(build, "RunMetrics", making)
    stream = write_events(tmp_path / "made.csv", 1200)
    header, *rest = stream.read_text().splitlines()
    past = [f"{100 + i},{120 + i},7" for i in range(20)]
    stream.write_text("\n".join([header, *past, *rest]))
    options = (*SMALL, "--batch-size", 20, "--horizon-events", 320)
    assert tgflow("run", "-s", stream, "-o", "out", *options).code == 0
    lines = map(json.loads, Path("out/run.log").read_text().splitlines())
    (line,) = [each for each in lines if each["event"] == "outlook"]
    assert line["level"] == "warning"
    values = metrics[0].metrics()
    assert 0 <= values["seconds_left"]["memory"] < 1
    assert (values["nodes.kept"], values["nodes.forgotten"]) == (20, 40)
    parts = {"neighbors", "counts", "events", "node memory", "features", "other"}
    assert values["memory"].keys() == parts
    said = tgflow("info", "out").out
    assert "memory ends" in said
    assert "20 kept, 40 forgotten" in said
    found = tgflow("info", "out", "--json").json
    assert {"checkpoints", "log"} <= found["disk"]["parts"].keys()
    assert found["health"]["memory"].keys() == parts
