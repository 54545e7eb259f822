"""Your own training loop, with features that a GPU reads in place: two lines change.

    python examples/zero_copy.py [--rows ROWS] [--steps STEPS]

Shows: `tg.tables.FeatureTable.from_tensor` instead of a tensor of features, in a plain PyTorch
loop that tgflow knows nothing of (after PyTorch-Direct, arXiv:2101.07956). With a GPU the rows stay
in pinned host memory, and a kernel reads those of a batch over the bus; without one the table
gathers them on the CPU. Protocol: the same batches of made rows in both loops. Expect: the same
losses to the last bit, and a third of the waiting for features or less, in about 5 seconds on 2
cores.
"""

import argparse
import time
from collections.abc import Callable

import tgflow as tg
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

DIM, CLASSES, BATCH = 172, 8, 10_000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(features: Callable[[Tensor], Tensor], y: Tensor, steps: int) -> tuple[list[float], float]:
    """Return the losses, and the seconds that went into features."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, CLASSES)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses, waited = [], 0.0
    for _ in range(steps):
        ids = torch.randint(len(y), (BATCH,))
        begun = time.perf_counter()
        x = features(ids)
        if DEVICE == "cuda":
            torch.cuda.synchronize()  # only to measure
        waited += time.perf_counter() - begun
        loss = cross_entropy(model(x), y[ids].to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, waited


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    x = torch.randn(args.rows, DIM, generator=torch.Generator().manual_seed(1))
    y = (x @ torch.randn(DIM, CLASSES, generator=torch.Generator().manual_seed(2))).argmax(1)

    before, slow = train(lambda ids: x[ids].to(DEVICE), y, args.steps)

    x = tg.tables.FeatureTable.from_tensor(
        x, placement="uva" if DEVICE == "cuda" else "host"
    )  # the first line
    after, fast = train(lambda ids: x[ids.to(DEVICE)], y, args.steps)  # and the second

    print(f"loss {before[0]:.3f} to {before[-1]:.3f}; with the table the same: {after == before}")
    print(f"waited for features: {slow:.2f} s, with the table {fast:.2f} s ({slow / fast:.1f}x)")


if __name__ == "__main__":
    main()
