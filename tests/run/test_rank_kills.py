"""Ranks killed at random, restarted by their launcher, and resumed with other world sizes.

TGFLOW_KILLS=50 kills a rank of three fifty times; TGFLOW_SEED chooses which and when.
"""

import pytest

from helpers.campaign import (
    BATCH,
    KEPT,
    KILLS,
    LATE,
    SEED,
    SMALL,
    RankCampaign,
    compare,
    undisturbed_with_bad_rows,
    write_rows,
)
from helpers.live_runs import SHARDED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200 + 60 * KILLS)]
OTHERS = (2, 1, 4)
"""Later world sizes, of which one rank is killed before all are; three at the end."""
EVENTS = BATCH * 9 * (KILLS + len(OTHERS))
SLICED = ["--slices", "4"]


def disturb(campaign, record_property):
    """Kill ranks in worlds of three and of other sizes, and finish with three."""
    for world, kills in ((3, KILLS), *((world, 1) for world in OTHERS)):
        campaign.world = world
        campaign.kill_ranks(kills)
    assert campaign.batches() < EVENTS // BATCH, "it had ended before"
    campaign.world = 3
    campaign.finish()
    assert campaign.kills >= KILLS, campaign
    record_property("kills of ranks", campaign.kills)


@pytest.mark.parametrize("sharded", [(), SHARDED])
def test_ranks_are_killed_over_a_file(record_property, tmp_path, sharded):
    stream = write_rows(tmp_path / "made.csv", EVENTS)
    flags = ["-s", str(stream), "--features", "f*", *LATE, *SMALL, *SLICED, *KEPT, *sharded]
    reference = undisturbed_with_bad_rows(tmp_path, flags)
    campaign = RankCampaign(tmp_path / "killed", flags, SEED)
    disturb(campaign, record_property)
    compare(reference, campaign)
