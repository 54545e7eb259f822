import torch
from torch import nn

from tgflow.nn import Mixer


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
