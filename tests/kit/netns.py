"""Several hosts on one machine: network namespaces on one switch, and packets lost between them.

Made by root with `ip` and `iptables`. Delay, jitter and rates are the proxy's (`tests.kit.proxy`).
"""

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.kit.tools import needs

_PREFIX_BITS: Final = 24
_numbers = itertools.count()


def _can_make() -> bool:
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("iptables")):
        return False
    tried = subprocess.run(["unshare", "--net", "iptables", "-L", "-n"], capture_output=True)
    return tried.returncode == 0


needs_hosts: Final = needs(_can_make(), "ip and iptables, run as root", "iproute2 iptables")


@dataclass(frozen=True, slots=True)
class Host:
    """One machine. A command behind `prefix` runs on it."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.namespace)

    def drop_from(self, other: "Host") -> None:
        """What `other` sends is lost on its way here; nobody is told. One way only."""
        self._rule("-A", "INPUT", "-s", other.address)

    def part_from(self, other: "Host") -> None:
        """Nothing passes between the two any more."""
        self.drop_from(other)
        other.drop_from(self)

    def vanish(self) -> None:
        """Nothing passes to or from this host."""
        self._rule("-A", "INPUT", "-i", "eth0")
        self._rule("-A", "OUTPUT", "-o", "eth0")

    def heal(self) -> None:
        """All that reaches this host is let in again, and what it sends is let out."""
        _run(*self.prefix, "iptables", "-F")

    def _rule(self, *words: str) -> None:
        _run(*self.prefix, "iptables", *words, "-j", "DROP")


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[dict[str, Host]]:
    """A host for each name, which all reach each other and whom this process reaches, until the
    block ends. Names of interfaces and namespaces carry this process's id."""
    number = next(_numbers)
    tag = f"{os.getpid():x}{number}"
    subnet = f"10.{os.getpid() % 200 + 50}.{number % 250}"
    made = {name: Host(f"plait-{tag}-{name}", f"{subnet}.{at}") for at, name in enumerate(names, 2)}
    with contextlib.ExitStack() as stack:
        # Apart from this machine's own rules for what it forwards.
        switch = Host(f"plait-{tag}-switch", f"{subnet}.254")
        for host in (switch, *made.values()):
            _run("ip", "netns", "add", host.namespace)
            stack.callback(_run, "ip", "netns", "del", host.namespace)
        _run(*switch.prefix, "ip", "link", "add", "switch", "type", "bridge")
        _run(*switch.prefix, "ip", "link", "set", "switch", "up")
        for at, host in enumerate(made.values()):
            _plug_in(switch, f"port{at}", host)
        cable = f"plait{tag}"  # gone with the switch, at whose other end it hangs
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "uplink", *_inside(switch))
        _run("ip", "addr", "add", f"{subnet}.1/{_PREFIX_BITS}", "dev", cable)
        _run("ip", "link", "set", cable, "up")
        _run(*switch.prefix, "ip", "link", "set", "uplink", "master", "switch", "up")
        yield made


def _inside(host: Host) -> tuple[str, str]:
    return "netns", host.namespace


def _plug_in(switch: Host, port: str, host: Host) -> None:
    """A cable from the host's eth0 to a port of the switch."""
    pair = (port, *_inside(switch), "type", "veth", "peer", "name", "eth0", *_inside(host))
    _run("ip", "link", "add", *pair)
    _run(*switch.prefix, "ip", "link", "set", port, "master", "switch", "up")
    _run(*host.prefix, "ip", "addr", "add", f"{host.address}/{_PREFIX_BITS}", "dev", "eth0")
    _run(*host.prefix, "ip", "link", "set", "eth0", "up")
    _run(*host.prefix, "ip", "link", "set", "lo", "up")


def _run(*words: str) -> None:
    """Raises RuntimeError with what the command said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
