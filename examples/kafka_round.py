"""The whole round on one machine: send to Kafka, learn, be killed, go on as if nothing happened.

    pip install '.[kafka]' confluent-kafka==2.16.1
    python examples/kafka_round.py [--events EVENTS] [--kafka HOST:PORT]

Shows: a broker of its own (librdkafka's mock cluster, in a child process), CollegeMsg sent to
a topic with 2 partitions, and `tgflow run` on it twice: undisturbed, and killed by SIGKILL once it
has a checkpoint, then resumed. Protocol: prequential; compared are digests of model, optimizer,
memory and events in the end. Expect: "equal to the last bit", in about half a minute on 2 cores.
With --kafka it takes your broker instead, which must make topics by itself. Other options are
those of `tgflow run`.
"""

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from kafka import KafkaProducer
from tgflow.testing.broker import MockBroker

DATA = Path(__file__).parent / "data" / "collegemsg.csv.gz"
TOPIC = "messages"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--kafka", metavar="HOST:PORT")
    args, others = parser.parse_known_args()
    with ExitStack() as stack:
        options: list[str] = []
        if args.kafka:
            url = f"kafka://{args.kafka}/{TOPIC}-{int(time.time())}"
        else:
            broker = stack.enter_context(MockBroker())
            broker.create(TOPIC, 2)
            url = broker.url(TOPIC)
            options = ["--kafka-option", "api_version=[2, 3]"]  # what the mock understands
            print(f"a broker runs at {broker.servers[0]}")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        send(url, args.events, (2, 3) if not args.kafka else None)

        run = [
            "run",
            "--stream",
            url,
            "--codec",
            "csv",
            "--time-unit",
            "s",
            "--until-end",
            *options,
        ]
        run += ["--checkpoint-batches", "5", "--threads", "1", *others]
        tgflow(*run, "--out", str(folder / "undisturbed"))
        whole = digest(folder / "undisturbed")

        out = folder / "killed"
        process = start(*run, "--out", str(out))
        wait_for_checkpoint(out, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        print(f"killed after {num_predicted(out)} micro-batches")
        tgflow(*run, "--out", str(out), "--resume")
        again = digest(out)

        print(f"undisturbed      {whole}")
        print(f"killed, resumed  {again}")
        if whole != again:
            sys.exit("DIFFERENT: please report this")
        print("equal to the last bit")


def send(url: str, count: int, api_version: tuple[int, int] | None) -> None:
    """Send the first lines of the file, by source, so that a node's events stay in order."""
    server, topic = url.removeprefix("kafka://").split("/")
    producer = KafkaProducer(bootstrap_servers=server, api_version=api_version)
    with gzip.open(DATA, "rb") as file:
        for line in islice(file, 1, count + 1):
            producer.send(topic, line.strip(), key=line.partition(b",")[0])
    producer.close()


def start(*args: str) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"NO_COLOR": "1"}
    return subprocess.Popen([sys.executable, "-m", "tgflow", *args], env=environment)


def tgflow(*args: str) -> None:
    print("$ tgflow", *args)
    if code := start(*args).wait():
        sys.exit(code)


def wait_for_checkpoint(out: Path, process: "subprocess.Popen[bytes]") -> None:
    """Return once there is a checkpoint."""
    while not list(out.glob("checkpoints/ckpt-*")):
        if process.poll() is not None:
            sys.exit("the run ended before its first checkpoint; take more --events")
        time.sleep(0.02)


def num_predicted(out: Path) -> int:
    return (out / "metrics.jsonl").read_text().count("\n")


def digest(out: Path) -> str:
    """Return the run's digest of model, optimizer, memory and events in the end."""
    metrics = json.loads((out / "metrics.json").read_text())
    return str(metrics["state_sha256"])[:16]


if __name__ == "__main__":
    main()
