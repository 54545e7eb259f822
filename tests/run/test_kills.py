"""A run killed repeatedly at any point ends with the same model.

TGFLOW_KILLS=50 kills fifty times; TGFLOW_SEED chooses when.
"""

import csv
import json
import shutil
import signal
import threading
import time
from itertools import pairwise

import pyarrow.parquet as pq
import pytest

from helpers.campaign import (
    BATCH,
    FROM_TOPIC,
    HORIZON,
    KEPT,
    KILLS,
    LATE,
    SEED,
    SMALL,
    Campaign,
    compare,
    labels_of,
    mock_broker,
    publish,
    publishing,
    rows,
    topic_of_rows,
    undisturbed,
    undisturbed_with_bad_rows,
    write_labels,
    write_rows,
)
from helpers.kafka_io import records_of
from helpers.live_runs import figures, same_run
from tgflow.checkpoint.durable.log import HEADER_BYTES, LogPosition, read_written
from tgflow.ranks.supervise import TOGETHER_SECONDS
from tgflow.run.micro_batch_ends import MicroBatchEnds
from tgflow.run.scores import score_files

START = LogPosition(0, HEADER_BYTES)
LABELED = ["--task", "edge", "--target", "f1", "--classes", "31"]
ON_DISK = ["--features", "f0", "--edge-table", "disk", "--edge-cache", "4KiB"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 30 * KILLS)]


def killed(record_property, tmp_path, kills, flags, more=()):
    """Kill a run `KILLS` times; compare it with an undisturbed one without `more` flags."""
    reference = undisturbed_with_bad_rows(tmp_path, flags)
    campaign = Campaign(tmp_path / "killed", [*flags, *more], SEED)
    while campaign.kills < kills and campaign.kill_once():
        pass
    campaign.finish()
    assert campaign.kills >= min(kills, 1), campaign
    record_property("kills", campaign.kills)
    compare(reference, campaign)


@pytest.mark.parametrize("horizon", [[], HORIZON], ids=["whole", "horizon"])
def test_killed_while_files_are_appended(record_property, tmp_path, horizon):
    """Each file ends within a micro-batch; kills fall before, within and after the first."""
    lines = write_rows(tmp_path / "all.csv", BATCH * 8 * KILLS).read_text().splitlines()
    words, size = [], len(lines) // 3 + 7
    for number, flag in enumerate(("-s", "--append", "--append")):
        part = tmp_path / f"day{number}.csv"
        part.write_text("\n".join([lines[0], *lines[1:][number * size :][:size]]) + "\n")
        words += [flag, str(part)]
    killed(record_property, tmp_path, KILLS, [*words, *LATE, *SMALL, *KEPT, *horizon])


LATER = ["--task", "edge", "--target", "is_odd", "--label-stream"]
KEEP_LOG = ["--set", "checkpoint.keep_log=true"]


def replayed(campaign, limit):
    """Return the run that repeats what the log of another has recorded, and that one's events."""
    replay = Campaign(campaign.out.with_name("replay"), [*campaign.flags, "--limit", str(limit)])
    replay.out.mkdir()
    for name in ("config.toml", "micro-batches.txt", "log"):  # neither checkpoints nor records
        if (campaign.out / name).exists():
            copy = shutil.copytree if name == "log" else shutil.copy
            copy(campaign.out / name, replay.out / name)
    replay.finish()
    return replay


@pytest.mark.parametrize("horizon", [[], HORIZON], ids=["whole", "horizon"])
def test_killed_with_labels_that_come_later(record_property, tmp_path, horizon):
    size, scores = BATCH * 8 * KILLS, tmp_path / "whole.csv"
    stream, labels = (tmp_path / name for name in ("made.csv", "labels.csv"))
    files = ["-s", str(write_rows(stream, size)), *LATER, str(write_labels(labels, size))]
    flags = [*files, *LATE, *SMALL, *KEPT, *KEEP_LOG, *horizon]
    more = ["--scores", str(tmp_path / "killed.csv")]
    killed(record_property, tmp_path, KILLS, [*flags, "--scores", str(scores)], more)
    assert read_rows(scores) == read_rows(tmp_path / "killed.csv")
    campaign = Campaign(tmp_path / "killed", [*flags, "--scores", str(tmp_path / "again.csv")])
    kinds = {footer["kind"] for _, footer, _ in read_written(campaign.out / "log", START)}
    assert kinds == {"rows", "labels"}
    said = json.loads((campaign.out / "stream.json").read_text())["labels"]
    assert min(said[name] for name in ("added", "corrected", "repeated", "refused", "waiting")) > 0
    limit = json.loads((campaign.out / "metrics.json").read_text())["num_events"]
    same_run(campaign.out, replayed(campaign, limit).out)


@pytest.mark.parametrize("has_labels", [True, False], ids=["labels", "order"])
def test_killed_over_topics_whose_order_is_forced_by_the_clock(
    record_property, tmp_path, has_labels
):
    """Also with labels in another topic, which begin to arrive after half of the kills."""
    set_to = ["--idle-timeout", "300ms", "--order-timeout", "100ms", "--max-wait", "20ms"]
    with mock_broker() as broker:
        broker.create("edges", 4)
        broker.create("labels", 2)
        later = [*LATER, broker.url("labels")] if has_labels else []
        flags = ["-s", broker.url("edges"), *later, *FROM_TOPIC, *SMALL, *KEPT, *KEEP_LOG, *set_to]
        campaign = Campaign(tmp_path / "killed", flags, SEED)
        events = rows(1000 + 200 * KILLS)
        sent = [{**row, "src": 4 * row["src"] + (i % 50 == 0)} for i, row in enumerate(events)]
        late = threading.Thread(target=publish, args=(broker, "labels", labels_of(sent), 2))
        with publishing(broker, "edges", events):
            while campaign.kills < KILLS:
                if has_labels and campaign.kills == KILLS // 2 and late.ident is None:
                    late.start()
                assert campaign.kill_once(2)
            last, goal = campaign.start(), campaign.batches() + 20
            while campaign.batches() < goal:
                assert last.poll() is None, last.communicate()[0]
                time.sleep(0.01)
            last.send_signal(signal.SIGTERM)
            last.communicate()
        if has_labels:
            late.join()
        record_property("kills", campaign.kills)
        limit = json.loads((campaign.out / "metrics.json").read_text())["num_events"]
        replay = replayed(campaign, limit)
    (digest, _, records), (other, _, other_records) = figures(campaign.out), figures(replay.out)
    assert (digest, records) == (other, other_records)
    found = [footer for _, footer, _ in read_written(campaign.out / "log", START)]
    kinds = {footer["kind"] for footer in found}
    if has_labels:
        said = json.loads((campaign.out / "stream.json").read_text())
        assert said["labels"]["added"] > 0
        assert kinds >= {"rows", "labels"}
        return
    assert kinds == {"rows", "forced"}
    assert any(state["is_idle"] for footer in found for state in footer["partitions"].values())


def test_killed_over_kafka(record_property, tmp_path):
    with topic_of_rows(BATCH * 6 * KILLS) as topic:
        killed(record_property, tmp_path, KILLS, [*topic, *SMALL, *KEPT])


def read_rows(path):
    """Return the rows of a score file, whose last line may be truncated by a kill."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return list(csv.DictReader(whole.splitlines()))


@pytest.mark.parametrize(("ending", "task"), [("parquet", ()), ("csv", [*LABELED, *ON_DISK])])
def test_scores_are_written_exactly_once(record_property, tmp_path, ending, task):
    kills = max(1, KILLS // 2)
    stream = write_rows(tmp_path / "made.csv", BATCH * 8 * kills, days=3)
    whole, other = (tmp_path / f"{name}.{ending}" for name in ("whole", "killed-{day}"))
    flags = ["-s", str(stream), *LATE, *SMALL, *KEPT, *task, "--scores", str(whole)]
    killed(record_property, tmp_path, kills, flags, ["--scores", str(other)])
    files = score_files(str(other))
    assert len(files) == 3
    rows = [row for file in files.values() for row in read_rows(file)]
    assert rows == read_rows(whole)
    assert ("predicted_label" in rows[0]) == bool(task)
    assert [int(row["position"]) for row in rows] == list(range(len(rows)))


def test_topic_has_the_scores_of_each_event_at_least_once(record_property, tmp_path):
    kills = max(1, KILLS // 4)
    stream = write_rows(tmp_path / "made.csv", BATCH * 8 * kills)
    with mock_broker() as broker:
        broker.create("scores", 1)
        version = f"api_version={json.dumps(list(broker.api_version))}"
        flags = ["-s", str(stream), *LATE, *SMALL, *KEPT, "--kafka-option", version]
        flags += ["--scores", str(tmp_path / "whole.csv")]
        killed(record_property, tmp_path, kills, flags, ["--scores", broker.url("scores")])
        records = records_of(broker, "scores")
    rows = read_rows(tmp_path / "whole.csv")
    last = {}
    for key, row in records:
        assert last.setdefault(int(key), row) == row, "sent again, it says the same"
    assert sorted(last) == list(range(len(rows)))
    assert [last[i]["logit"] for i in range(len(rows))] == [float(row["logit"]) for row in rows]


def test_batch_ends_set_by_the_clock_are_repeated_after_a_kill(record_property, tmp_path):
    stream = write_rows(tmp_path / "made.csv", BATCH * 20)
    scores = tmp_path / "scores.csv"
    flags = ["-s", str(stream), *LATE, *SMALL, *KEPT, "--speed", "1000", "--max-wait", "15ms"]
    campaign = Campaign(tmp_path / "killed", [*flags, "--scores", str(scores)], SEED)
    said = {}
    while campaign.kills < KILLS and campaign.kill_once():
        said |= {row["position"]: row for row in read_rows(scores)}
    campaign.finish()
    record_property("kills", campaign.kills)
    rows = {row["position"]: row for row in read_rows(scores)}
    assert said
    assert {position: rows[position] for position in said} == said
    ends = [*MicroBatchEnds(campaign.out / "micro-batches.txt", 0).to_repeat]
    assert ends == sorted(set(ends))
    assert all(stop - start <= BATCH for start, stop in pairwise([0, *ends]))


def test_second_signal_ends_the_run_immediately_without_loss(tmp_path):
    stream = write_rows(tmp_path / "made.csv", BATCH * 20)
    flags = ["-s", str(stream), *LATE, *SMALL, "--checkpoint-batches", "1000"]
    reference = undisturbed(tmp_path, flags)
    campaign = Campaign(tmp_path / "stopped", flags)
    campaign.faults = "checkpoint.before_rename:1:delay=20"  # the last checkpoint is slow
    child = campaign.start()
    while campaign.batches() < 3:
        assert child.poll() is None, child.communicate()[0]
        time.sleep(0.002)
    child.send_signal(signal.SIGTERM)
    while "stopping" not in (campaign.out / "health.json").read_text():
        time.sleep(0.01)
    time.sleep(TOGETHER_SECONDS + 0.1)  # those before count as one with the first
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=15)
    assert child.returncode == 143
    campaign.faults = ""
    campaign.finish()
    compare(reference, campaign)
