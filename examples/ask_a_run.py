"""Ask a run for embeddings and rankings while it goes on.

    python examples/ask_a_run.py [--limit EVENTS]

Shows: a TGN that learns from a stream in one thread, and an engine that answers in another, at the
present state of graph, memory and parameters. The run is not disturbed: it ends with the bits of
one that nobody asked. Protocol: prequential, as in quickstart.py. Expect: AP 0.91 over the default
of 10,000 events, in about 10 seconds on 2 cores, and an answer every half second meanwhile.
"""

import argparse
import threading
from pathlib import Path

import tgflow as tg
import torch

DATA = Path(__file__).parent / "data" / "collegemsg.csv.gz"


def ask(engine: tg.Inference, stream: tg.streams.Source, done: threading.Event) -> None:
    """Say now and then whom the latest sender is likely to write to next, and who is like them."""
    graph = engine.graph
    while graph.num_events == 0 and not done.wait(0.05):
        pass
    while graph.num_events:
        last = graph.log.read(graph.num_events - 1, graph.num_events)
        now = last.t + 1
        best = engine.rank(last.src, now, k=3)
        seen = torch.arange(graph.num_nodes)
        z = torch.nn.functional.normalize(engine.embed(seen, int(now)), dim=1)
        alike = (z @ z[last.src].T).squeeze(1)
        alike[last.src] = -2  # but for themselves
        sender, *names = stream.ids.decode(torch.cat([last.src, best.nodes[0]]))
        [other] = stream.ids.decode(alike.argmax().reshape(1))
        print(f"{graph.num_events:>6} events: {sender} may write to {names}, and is like {other}")
        if done.wait(0.5):
            return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=10_000)
    limit = parser.parse_args().limit

    torch.manual_seed(0)
    stream = tg.open_stream(DATA, time_unit="s")
    graph, model = tg.TemporalGraph(), tg.TGN()
    trainer = tg.ContinualTrainer(model, graph, tg.ContinualConfig(seed=0))

    engine = tg.Inference(model, graph)
    trainer.changing = engine.changing  # between steps, never within one
    done = threading.Event()
    asker = threading.Thread(target=ask, args=(engine, stream, done))
    asker.start()
    try:
        for step in trainer.steps(stream):
            if step.stop >= limit:
                break
    finally:
        done.set()
        asker.join()
    print(f"AP {trainer.result()['prequential.ap']:.4f}")


if __name__ == "__main__":
    main()
