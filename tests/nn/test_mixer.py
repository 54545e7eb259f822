import pytest
import torch
from torch import nn

from tgflow import _core
from tgflow.nn import Mixer
from tgflow.nn.dropout import DropoutKeys


def plain(mixer: Mixer, x: torch.Tensor) -> torch.Tensor:
    """One row, with no transposed views: the equation, token by token and channel by channel."""
    tokens, channels = mixer.token_map, mixer.channel_map

    def mapped(part: nn.Module, v: torch.Tensor) -> torch.Tensor:
        hidden = part.hidden.weight @ v + part.hidden.bias
        return part.out.weight @ nn.functional.gelu(hidden) + part.out.bias

    columns = [x[:, c] + mapped(tokens, mixer.token_norm(x[:, c])) for c in range(x.shape[1])]
    x = torch.stack(columns, dim=1)
    return torch.stack([row + mapped(channels, mixer.channel_norm(row)) for row in x])


def test_mixer_matches_the_equation():
    torch.manual_seed(0)
    mixer, x = Mixer(5, 4, 0.5).eval(), torch.randn(3, 5, 4)
    torch.testing.assert_close(mixer(x), torch.stack([plain(mixer, row) for row in x]))


def test_the_mean_of_mixed_tokens():
    torch.manual_seed(0)
    mixer, x = Mixer(5, 4, 0.5).eval(), torch.randn(3, 5, 4)
    torch.testing.assert_close(mixer.mean(x), mixer(x).mean(dim=1))


def test_mixer_has_the_published_widths():
    mixer = Mixer(5, 4, 0.0)
    assert mixer.token_map.hidden.out_features == 2
    assert mixer.channel_map.hidden.out_features == 16
    assert Mixer(1, 4, 0.0).token_map.hidden.out_features == 1


def test_mixer_keeps_rows_apart():
    torch.manual_seed(0)
    mixer, x = Mixer(5, 4, 0.0), torch.randn(3, 5, 4)
    other = torch.cat([x[:1], torch.randn(2, 5, 4)])
    torch.testing.assert_close(mixer(x)[0], mixer(other)[0])


@pytest.mark.parametrize("training", [False, True])
def test_mixer_drops_in_training_alone(training):
    torch.manual_seed(0)
    mixer, x = Mixer(5, 4, 0.5).train(training), torch.randn(3, 5, 4)
    assert torch.equal(mixer(x), mixer(x)) is not training


def test_mixer_of_no_rows():
    assert Mixer(5, 4, 0.1)(torch.zeros(0, 5, 4)).shape == (0, 5, 4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(0, 5, 4), (1, 1, 1), (3, 20, 9), (37, 4, 16)])
def test_one_pass_has_the_values_and_gradients_of_several(shape, training, monkeypatch):
    torch.manual_seed(0)
    mixer = Mixer(shape[1], shape[2], 0.4).train(training)
    for part in (mixer.token_norm, mixer.channel_norm):  # else they are ones and zeros
        nn.init.normal_(part.weight)
        nn.init.normal_(part.bias)
    start, grad, found = torch.randn(shape), torch.randn(shape), []
    for is_fused in (True, False):
        monkeypatch.setattr("tgflow.nn.mixer.is_fused", lambda x, fused=is_fused: fused)
        x = start.clone().requires_grad_()
        mixer.zero_grad()
        with DropoutKeys(mixer).keyed(5):
            out = mixer(x)
        out.backward(grad)
        grads = [parameter.grad for parameter in mixer.parameters()]
        found.append([out.detach(), x.grad, *grads])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=2e-5, rtol=2e-5)


def test_gradients_have_the_same_bits_at_any_number_of_threads():
    torch.manual_seed(0)
    mixer, x, found, before = Mixer(5, 4, 0.0), torch.randn(100, 5, 4), [], _core.num_threads()
    for threads in (1, 3):
        _core.set_num_threads(threads)
        mixer.zero_grad()
        mixer(x).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in mixer.token_map.parameters()])
    _core.set_num_threads(before)
    assert all(torch.equal(*each) for each in zip(*found, strict=True))
