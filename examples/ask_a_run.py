"""Ask a run for embeddings and rankings while it goes on.

    python examples/ask_a_run.py [--limit EVENTS]

Shows: a TGN that learns from a stream, and an engine that answers between its micro-batches, at the
present state of graph, memory and parameters. The run is not disturbed: it ends with the bits of
one that nobody asked. Protocol: prequential, as in quickstart.py. Expect: AP 0.91 over the default
of 10,000 events, in about 10 seconds on 2 cores, and an answer every half second meanwhile.
"""

import argparse
import time
from pathlib import Path

import tgflow as tg
import torch

DATA = Path(__file__).parent / "data" / "collegemsg.csv.gz"


def ask(engine: tg.Inference, position: int, ids: tg.NodeIds) -> None:
    """Say whom the latest sender is likely to write to next, and who is like them."""
    graph = engine.graph
    last = graph.log.read(position - 1, position)
    now = last.t + 1
    best = engine.rank(last.src, now, k=3, as_of=position)
    seen = graph.log.read(0, position).src.unique()
    z = torch.nn.functional.normalize(engine.embed(seen, int(now), as_of=position), dim=1)
    own = (seen == last.src).nonzero().squeeze(1)
    alike = (z @ z[own].T).squeeze(1)
    alike[own] = -2  # but for themselves
    sender, *names = ids.decode(torch.cat([last.src, best.nodes[0]]))
    [other] = ids.decode(seen[alike.argmax()].reshape(1))
    print(f"{position:>6} events: {sender} may write to {names}, and is like {other}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=10_000)
    limit = parser.parse_args().limit

    torch.manual_seed(0)
    stream = tg.open_stream(DATA, time_unit="s")
    graph, model = tg.TemporalGraph(), tg.TGN()
    trainer = tg.ContinualTrainer(model, graph, tg.ContinualConfig(seed=0))
    engine, asked = tg.Inference(model, graph), 0.0
    for step in trainer.steps(stream):
        if time.monotonic() - asked > 0.5:
            ask(engine, step.stop, stream.ids)
            asked = time.monotonic()
        if step.stop >= limit:
            break
    print(f"AP {trainer.result()['prequential.ap']:.4f}")


if __name__ == "__main__":
    main()
