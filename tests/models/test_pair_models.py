"""Models that look at both nodes of a pair together: DyGFormer and TPNet."""

import dataclasses

import pytest
import torch

from helpers.made_models import batches_of, changed, made_events, made_model, plan_for, scores_of
from tgflow.batch import Batch
from tgflow.models import DyGFormerConfig, tpnet
from tgflow.models.dygformer import DyGFormer

PAIR_MODELS = ["dygformer", "tpnet"]
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


@pytest.mark.parametrize("name", PAIR_MODELS)
def test_every_parameter_has_a_finite_gradient(name):
    model = made_model(name, node_x_dim=3)
    batch = next(iter(batches_of(plan_for(made_model(name), EVENTS[:40], batch_size=40))))
    batch = with_node_x(batch, 3)
    scores = model(batch)
    (scores.positive.sum() + scores.negative.sum()).backward()
    for part, parameter in model.named_parameters():
        assert parameter.grad is not None, part
        assert bool(parameter.grad.isfinite().all()), part


def with_node_x(batch: Batch, dim: int) -> Batch:
    return dataclasses.replace(batch, node_x=torch.randn(len(batch.nodes), dim))


@pytest.mark.parametrize("name", PAIR_MODELS)
def test_pairs_in_parts_have_the_scores_of_the_whole(name, monkeypatch):
    model = made_model(name)
    whole = scores_of(model, batches_of(plan_for(model, EVENTS)))
    monkeypatch.setattr("tgflow.models.tpnet.MAX_PAIRS", 7)
    monkeypatch.setattr("tgflow.models.dygformer.MAX_TOKENS", 80)
    parts = scores_of(model, batches_of(plan_for(model, EVENTS)))
    for one, two in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


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


def test_patches_shorten_what_the_transformer_reads():
    model, lengths = made_model("dygformer", patch=3), []
    model.transformer[0].register_forward_hook(lambda *call: lengths.append(call[2].shape[1]))
    scores_of(model, batches_of(plan_for(model, EVENTS)))
    assert set(lengths) == {2 * 2}


def test_dygformer_without_features_has_two_channels():
    assert DyGFormer().transformer[0].merge.in_features == 100
    with_both = DyGFormer(DyGFormerConfig(edge_x_dim=3, node_x_dim=2))
    assert with_both.transformer[0].merge.in_features == 200


def test_dygformer_names_the_wrong_setting():
    with pytest.raises(ValueError, match="patch must divide length, got 5 and 32"):
        DyGFormerConfig(patch=5)
    with pytest.raises(ValueError, match="heads must divide dim, got 3 heads and dim 100"):
        DyGFormer(DyGFormerConfig(heads=3))


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
