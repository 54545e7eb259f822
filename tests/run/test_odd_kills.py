"""A run killed on a faulty machine ends with the same model.

The disk is full at random or becomes read-only, the clock jumps, and a second run of the directory
is tried. TGFLOW_KILLS=500 kills 500 times, over all kinds of runs; TGFLOW_SEED chooses when.
"""

import pytest

from helpers.campaign import (
    BATCH,
    KEPT,
    KILLS,
    LATE,
    SEED,
    SMALL,
    OddCampaign,
    compare,
    undisturbed,
    write_rows,
)

FEATURES = ["--features", "f*"]
KINDS = {
    "TGN": ["--model", "tgn"],
    "TGN with much replay": ["--model", "tgn", "--replay-ratio", "2"],
    "TGAT": ["--model", "tgat", *FEATURES],
    "TGAT, rows on disk behind a cache": [
        *("--model", "tgat", *FEATURES, "--edge-table", "disk", "--edge-cache", "4KiB")
    ],
    "TGN, rows on disk, 4 workers": [
        *("--model", "tgn", *FEATURES, "--edge-table", "disk", "--edge-cache", "4KiB"),
        *("--set", "learning.num_threads=4"),
    ],
}
EACH = max(1, KILLS // len(KINDS))


@pytest.mark.slow
@pytest.mark.timeout(900 + 60 * EACH)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_on_an_odd_machine(record_property, tmp_path, kind):
    stream = write_rows(tmp_path / "made.csv", BATCH * 16 * (EACH + 2))
    flags = ["-s", str(stream), *KINDS[kind], *LATE, *SMALL, *KEPT]
    reference = undisturbed(tmp_path, flags)
    campaign = OddCampaign(tmp_path / "killed", flags, SEED + [*KINDS].index(kind))
    while campaign.kills < EACH and campaign.disturb_once():
        pass
    campaign.finish()
    assert campaign.kills == EACH, campaign
    compare(reference, campaign)
    if "disk" in kind:
        name = "edge-x.rows"
        assert (campaign.out / name).read_bytes() == (reference.out / name).read_bytes()
    record_property("kills", campaign.kills)
    for what, count in campaign.met.items():
        record_property(what, count)
