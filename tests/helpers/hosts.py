"""Hosts for ranks: network namespaces joined by a link that can be cut."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.processes import environment

ADDRESSES = ["10.213.7.1", "10.213.7.2"]
_BOOT = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"'


@dataclass(frozen=True)
class Host:
    """A network namespace with an interface of its own, whose processes see another boot."""

    namespace: str
    link: str
    address: str
    boot: Path

    def start(
        self, command: Sequence[object], said: Path, environ: Mapping[str, object] = {}
    ) -> subprocess.Popen[bytes]:
        """Start a command of this interpreter on the host; it appends its output to `said`."""
        words = ["unshare", "-m", "sh", "-c", _BOOT, "sh", str(self.boot), sys.executable]
        words += map(str, command)
        with said.open("a") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *words],
                stdout=file,
                stderr=file,
                env=environment()
                | {"OMP_NUM_THREADS": "1"}
                | {name: str(value) for name, value in environ.items()},
            )

    def set_link(self, state: str) -> None:
        """Cut the link ("down"), or connect it again ("up")."""
        ip("-n", self.namespace, "link", "set", self.link, state)

    def kill(self) -> None:
        """Kill all processes of the host at once, as a power failure does."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.namespace], check=True, capture_output=True, text=True
        )
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def open_hosts(folder: Path) -> Iterator[list[Host]]:
    """Make two hosts, with files in `folder`; skips the test if they cannot be made."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    mark = os.getpid() % 10**6
    hosts = [
        Host(f"tgflow-{mark}-{number}", f"tg{mark}v{number}", address, folder / f"boot-{number}")
        for number, address in enumerate(ADDRESSES)
    ]
    for host in hosts:
        host.boot.write_text(f"{host.namespace}\n")
    try:
        try:
            for host in hosts:
                ip("netns", "add", host.namespace)
                ip("-n", host.namespace, "link", "set", "lo", "up")
            ip("link", "add", hosts[0].link, "type", "veth", "peer", "name", hosts[1].link)
            for host in hosts:
                ip("link", "set", host.link, "netns", host.namespace)
                ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.link)
                ip("-n", host.namespace, "link", "set", host.link, "up")
        except OSError as error:
            pytest.skip(f"there are no such devices here: {error}")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"there are no network namespaces here: {error.stderr!r}")
        yield hosts
    finally:
        for host in hosts:
            with_namespace = ["ip", "netns", "del", host.namespace]
            subprocess.run(with_namespace, check=False, capture_output=True)
