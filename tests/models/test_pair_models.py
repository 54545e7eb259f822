"""Models that look at both nodes of a pair together: DyGFormer and TPNet."""

import pytest
import torch

from helpers.made_models import batches_of, changed, made_events, made_model, plan_for, scores_of
from tgflow.models import tpnet

EVENTS = made_events(60)


def swapped(events):
    return changed(events, src=events.dst, dst=events.src)


def test_scores_depend_on_the_walks_that_batches_leave():
    model, batches = made_model("tpnet"), list(batches_of(plan_for(made_model("tpnet"), EVENTS)))
    with torch.no_grad():
        before = model(batches[2]).positive
        for batch in batches[:2]:
            model.commit(batch, model(batch))
        assert not torch.allclose(model(batches[2]).positive, before)


def test_the_transformer_does_not_know_which_side_comes_first():
    model = made_model("dygformer").eval()
    seen = []
    model.out.register_forward_hook(lambda *call: seen.append(call[2]))
    for events in (EVENTS, swapped(EVENTS)):
        batch = list(batches_of(plan_for(model, events)))[2]
        with torch.no_grad():
            model(batch)
    ahead, back = (z[: len(EVENTS) // 3] for z in seen)
    torch.testing.assert_close(ahead, back.flip(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("field", ["walk_length", "walk_dim"])
def test_tpnet_names_the_wrong_setting(field):
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        tpnet.TPNetConfig(**{field: 0})


def test_tpnet_with_exact_walks_does_not_know_the_names_of_nodes():
    to = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    other = changed(EVENTS, src=to[EVENTS.src], dst=to[EVENTS.dst])
    found = []
    for events in (EVENTS, other):
        model = made_model("tpnet", walk_dim=12)
        object.__setattr__(model.walks, "base", lambda nodes: torch.eye(12)[nodes])
        found.append([s[:, 0] for s in scores_of(model, batches_of(plan_for(model, events)))])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
