from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from tgflow.nn import LinkDecoder


def rows(num_events: int, num_negatives: int, num_rows: int) -> SimpleNamespace:
    torch.manual_seed(0)
    draw = lambda *shape: torch.randint(num_rows, shape)  # noqa: E731
    return SimpleNamespace(
        src_row=draw(num_events),
        dst_row=draw(num_events),
        negative_src_row=draw(num_events, num_negatives),
        negative_dst_row=draw(num_events, num_negatives),
    )


@pytest.mark.parametrize("num_rows", [9, 40])  # fewer and more than there are pairs
def test_decoder_matches_the_joined_map(num_rows):
    decoder, batch = LinkDecoder(6), rows(5, 3, num_rows)
    z = torch.randn(num_rows, 6)
    first = torch.cat([decoder.src_proj.weight, decoder.dst_proj.weight], dim=1)

    def plain(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([z[src], z[dst]], dim=-1)
        return decoder.out(F.relu(F.linear(joined, first, decoder.src_proj.bias))).squeeze(-1)

    scores = decoder(z, batch)
    torch.testing.assert_close(scores.positive, plain(batch.src_row, batch.dst_row))
    torch.testing.assert_close(
        scores.negative, plain(batch.negative_src_row, batch.negative_dst_row)
    )
