"""The decoder of labels: what it reads, what it says before it has learned, and of whom."""

from types import SimpleNamespace

import torch

from tgflow.batch import Targets
from tgflow.nn.label_decoder import LabelDecoder

B, DIM, CLASSES, DEPTH = 5, 6, 4, 3


def batch_of(past=None, label=None, x=None):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(CLASSES, (B,), generator=generator) if label is None else label
    past = torch.full((B, 4, DEPTH), -1) if past is None else past
    targets = Targets(label, torch.ones(B, dtype=torch.bool), past, torch.zeros(B, 4))
    return SimpleNamespace(
        src_row=torch.arange(B), dst_row=torch.arange(B, 2 * B), x=x, targets=targets
    )


def decoder_of(**options):
    torch.manual_seed(0)
    decoder = LabelDecoder(DIM, CLASSES, depth=DEPTH, **options)
    torch.nn.init.normal_(decoder.out.weight)  # as if it had learned something
    return decoder


Z = torch.randn(2 * B, DIM, generator=torch.Generator().manual_seed(1))


def test_labels_are_never_read():
    decoder = decoder_of()
    other = batch_of(label=torch.zeros(B, dtype=torch.int64))
    assert torch.equal(decoder(Z, batch_of()), decoder(Z, other))


def test_before_it_has_learned_it_copies_what_was_and_says_nothing_else():
    decoder, past = LabelDecoder(DIM, CLASSES, depth=DEPTH), torch.full((B, 4, DEPTH), -1)
    assert torch.equal(decoder(Z, batch_of(past)), torch.zeros(B, CLASSES))
    past[:, 0, 0] = 2  # of the pair
    past[:, 2, 0] = 1  # of the source
    expected = torch.tensor([0.0, 1.0, 2.0, 0.0]).expand(B, -1)
    assert torch.allclose(decoder(Z, batch_of(past)), expected, atol=1e-5)
