"""Models that look at both nodes of a pair together: DyGFormer and TPNet."""

import torch

from helpers.made_models import batches_of, changed, made_events, made_model, plan_for, scores_of

EVENTS = made_events(60)


def test_scores_depend_on_the_walks_that_batches_leave():
    model, batches = made_model("tpnet"), list(batches_of(plan_for(made_model("tpnet"), EVENTS)))
    with torch.no_grad():
        before = model(batches[2]).positive
        for batch in batches[:2]:
            model.commit(batch, model(batch))
        assert not torch.allclose(model(batches[2]).positive, before)


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
