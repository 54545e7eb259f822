"""A run killed at random moments of its uploads resumes on another machine with the same model."""

from __future__ import annotations

import json
import shutil

import pytest

from helpers.campaign import KEPT, KILLS, SEED, SMALL, Campaign, undisturbed, write_rows
from helpers.s3 import CREDENTIALS, s3_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 60 * KILLS)]


def digest(campaign):
    return json.loads((campaign.out / "metrics.json").read_text())["state_sha256"]


def killed_and_moved(tmp_path, url, kills, more=()):
    """Kill a run, and remove its directory after every other kill; compare the final states."""
    flags = ["-s", str(write_rows(tmp_path / "rows.csv", 3000)), *SMALL, *KEPT]
    flags += ["--late", "dead_letter", "--allowed-lateness", "30", "--max-time-jump", "100000"]
    reference = undisturbed(tmp_path, flags)
    stored = [*flags, "--store", url, "--set", "store.lease=1s", *more]
    campaign = Campaign(tmp_path / "moved", stored, seed=SEED)
    for number in range(kills):
        if not campaign.kill_once(most_batches=12):
            break
        if number % 2 == 0 and campaign.out.exists():
            shutil.rmtree(campaign.out)
    campaign.finish()
    assert digest(campaign) == digest(reference)
    assert campaign.letters() == reference.letters()
    assert campaign.rows() == reference.rows()
    shutil.rmtree(campaign.out)  # what is in the store is the whole run
    campaign.finish()
    assert digest(campaign) == digest(reference)


def test_killed_run_moves_between_machines_by_a_folder(tmp_path):
    killed_and_moved(tmp_path, f"file://{tmp_path}/store", KILLS)


def test_killed_run_moves_between_machines_by_s3_with_faults(tmp_path, monkeypatch):
    from helpers import campaign

    with s3_server(monkeypatch) as s3:
        monkeypatch.setattr(campaign, "ENVIRONMENT", campaign.ENVIRONMENT | CREDENTIALS)
        count = iter(range(10**9))
        s3.faults.lists_are_stale = True
        s3.faults.loses = lambda method, path: method != "HEAD" and next(count) % 97 == 96
        s3.faults.seconds = lambda method, path: 0.1 if next(count) % 11 == 0 else 0.0
        killed_and_moved(tmp_path, s3.url("runs/moved"), KILLS)
