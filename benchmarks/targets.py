"""The targets of a load (routers, byte forwarders, or nothing), and the measurement of one run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import trustme

from amqpmesh.router.config.users import Users
from benchmarks.generator import generate
from benchmarks.meshes import Port, mesh
from benchmarks.processes import ROOT, Failed, Load, children, cpu_seconds, resident_bytes, server
from benchmarks.tables import KIB, MIB, Figures

PATIENCE = 30.0  # seconds without any octet, after which a generator gives up
QUIET = 2.0  # seconds after which nothing more is expected of a router that may drop what is pre-settled
SKIPPED = 0.1  # the part of all messages whose times do not count: the first ones find nothing warm

SHAPES: dict[str, tuple[str, ...]] = {
    "100 B": ("--size", "100"),
    "400 B": ("--size", "100", "--rich"),
    "1 KiB": ("--size", str(KIB)),
    "64 KiB": ("--size", str(64 * KIB)),
    "1 MiB": ("--size", str(MIB)),
    "mixed": ("--size", f"100x99,{64 * KIB}"),
}
"""Messages by the names that tables give them. 400 B: 100 of them are content, the rest properties and annotations."""

MODES: dict[str, tuple[str, ...]] = {"settled": ("--settled",), "unsettled": (), "second": ("--second",)}


class Certificate(NamedTuple):
    """Files in PEM."""

    certificate: str
    key: str


@dataclass(frozen=True)
class Traffic:
    """The traffic of a run: the shape and mode of messages, the connections, and the links of each connection."""

    shape: str = "100 B"
    mode: str = "unsettled"
    connections: int = 1
    links: int = 1
    rate: float = 0.0
    outstanding: int = 0

    @property
    def name(self) -> str:
        """The name in tables."""
        spread = "" if self.connections == self.links == 1 else f" {self.connections}x{self.links}"
        return f"{self.shape} {self.mode}{spread}"

    def options(self, count: int) -> list[str]:
        """Return the options that sender and receiver share."""
        spread = ["--connections", str(self.connections), "--links", str(self.links)]
        return [*SHAPES[self.shape], *MODES[self.mode], *spread, "--count", str(count)]


@dataclass(frozen=True)
class Target:
    """The processes between a sender and a receiver."""

    name: str
    send_url: str = ""
    receive_url: str = ""
    """Empty: the receiver listens."""
    pids: tuple[int, ...] = ()
    hops: int = 1
    port: int = 0
    """The port that a receiver listens on."""
    certificate: Certificate | None = None
    lossy: bool = False
    """True if it may drop pre-settled messages, as some routers do."""
    sasl: bool = False
    urls: tuple[str, ...] = ()
    """Those of all routers of a line."""
    lasting: tuple[str, ...] = ()
    """Options of clients that ask it to keep their links, should they be lost."""


@contextmanager
def pair(target: Target, traffic: Traffic, count: int, *more: str) -> Iterator[tuple[Load, Load]]:
    """Attach a receiver and a sender. The sender waits for a signal to start, and both wait before they close.

    Args: more: options of the receiver.
    """
    common = [*traffic.options(count), *target.lasting, "--wait", "--address", f"bench-{time.monotonic_ns()}-%"]
    sasl = ["--sasl"] if target.sasl else []
    lossy = ["--lossy", "--patience", str(QUIET)] if target.lossy and traffic.mode == "settled" else []
    receiving = [*common, "--skip", str(int(count * SKIPPED)), "--patience", str(PATIENCE), *lossy, *more]
    sending = [*common, *sasl, "--patience", str(PATIENCE)]
    sending += ["--rate", str(traffic.rate)] if traffic.rate else []
    sending += ["--outstanding", str(traffic.outstanding)] if traffic.outstanding else []
    with ExitStack() as stack:
        if target.receive_url:
            receiving += ["--url", target.receive_url, *sasl]
        else:
            receiving += ["--listen", "--port", str(target.port)]
            if target.certificate is not None:
                receiving += ["--certificate", target.certificate.certificate, "--key", target.certificate.key]
        receiver = stack.enter_context(generate("receive", *receiving))
        ready = receiver.line()
        sender = stack.enter_context(generate("send", *sending, "--url", target.send_url or ready["url"]))
        sender.line()
        yield receiver, sender


def run(target: Target, traffic: Traffic, count: int) -> Figures:
    """Send so many messages, and what that took.

    Raises: Failed: a message was lost, doubled, out of order or not what was sent, or not all outcomes are `accepted`.
    """
    with pair(target, traffic, count) as (receiver, sender):
        before = sum(map(cpu_seconds, target.pids))
        sender.go()
        sent, received = both(sender, receiver)
        busy = sum(map(cpu_seconds, target.pids)) - before
        memory = sum(map(resident_bytes, target.pids))
        leave(sender, receiver)
    if traffic.mode != "settled" and sent["outcomes"] != {"accepted": count}:
        raise Failed(f"{target.name}, {traffic.name}: not all accepted: {sent['outcomes']}")
    return figures(target, count, sent, received) | {"cpu_us": busy / count * 1e6, "resident_mib": memory / MIB}


def both(sender: Load, receiver: Load) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the next line of each. Raises: Failed: with the reasons of both, since one failure causes the other."""
    said, reasons = [], []
    for each in (sender, receiver):
        try:
            said.append(each.line())
        except Failed as error:
            reasons.append(str(error))
    if reasons:
        raise Failed("; ".join(reasons))
    return said[0], said[1]


def leave(*loads: Load) -> None:
    """Let all clients close their connections at the same time, and wait for their end."""
    for each in loads:
        each.leave()
    for each in loads:
        each.process.wait(PATIENCE)


def figures(target: Target, count: int, sent: dict[str, Any], received: dict[str, Any]) -> Figures:
    """Return the figures of a run, from the results of both generators."""
    came = max(1, received["count"])
    return {
        "messages_per_second": received["rate"],
        "megabytes_per_second": received["rate"] * received["octets"] / came / 1e6,
        "rate_reached": sent["rate"],
        "sender_cpu_us": sent["cpu"] / count * 1e6,
        "receiver_cpu_us": received["cpu"] / came * 1e6,
        "lost": received["lost"],
        **{f"{name}_us": value for name, value in received.get("latency_us", {}).items() if name != "count"},
    }


@contextmanager
def certificate() -> Iterator[Certificate]:
    """One that its authority alone believes."""
    with TemporaryDirectory(prefix="amqpmesh-") as folder:
        issued = trustme.CA().issue_cert("127.0.0.1", "localhost")
        files = Certificate(str(Path(folder, "certificate.pem")), str(Path(folder, "key.pem")))
        issued.cert_chain_pems[0].write_to_path(files.certificate)
        issued.private_key_pem.write_to_path(files.key)
        yield files


@contextmanager
def router(
    tls: Certificate | None = None,
    sample: float | None = None,
    users: Users | None = None,
    *,
    settings: str = "",
    policy: str = "",
    workers: int = 0,
    tree: Path = ROOT,
    **environment: str,
) -> Iterator[Target]:
    """`amqpmesh run` on loopback.

    Args: sample: the share of deliveries that it records; None: it records nothing. users: who may log in by PLAIN
        or SCRAM, beside those who show nothing. settings: further tables. policy: the text of its policy; empty: it
        has none. workers: processes; 0: one, and no supervisor. tree: of the program, another version.
        environment: variables of its process.
    """
    with TemporaryDirectory(prefix="amqpmesh-") as folder:
        config = Path(folder, "router.toml")
        lines = ["[[listener]]", f'url = "amqp{"" if tls is None else "s"}://127.0.0.1:0"']
        if tls is not None:
            lines.append(f'tls = {{ certificate = "{tls.certificate}", key = "{tls.key}" }}')
        if users is not None:
            users.save(Path(folder, "users.toml"))
            lines += ['sasl = ["ANONYMOUS", "PLAIN", "SCRAM-SHA-256"]', 'users = "users.toml"', "insecure = true"]
        if sample is not None:
            lines += ["[telemetry]", 'directory = "events"', f"sample = {sample}", f"retain_size = {256 * MIB}"]
        if policy:
            Path(folder, "policy.toml").write_text(policy)
            lines += ["[policy]", 'file = "policy.toml"']
        config.write_text("\n".join([*lines, settings]))
        several = ["--workers", str(workers)] if workers else []
        with server("amqpmesh", "run", str(config), *several, tree=tree, **environment) as (url, pid):
            yield Target("router", url, url, children(pid) if workers else (pid,), certificate=tls)


@contextmanager
def routers(hops: int, settings: str = "") -> Iterator[Target]:
    """So many routers in a line, which know each other. Args: settings: further tables of each."""
    ids = "ABCDEFGHIJ"[:hops]
    with mesh() as line:
        line.line(ids, settings)
        line.start()
        line.settled()
        pids = tuple(each.pid for each in line.routers.values())
        urls = tuple(each.url for each in line.routers.values())
        yield Target("router", urls[0], urls[-1], pids, hops, urls=urls)


@contextmanager
def forwarders(hops: int = 1, tls: Certificate | None = None) -> Iterator[Target]:
    """So many forwarders in a line, towards a port where nobody listens yet."""
    with ExitStack() as stack:
        port = Port()
        stack.callback(port.close)
        to, url, pids = f"127.0.0.1:{port.number}", "", []
        files = ["--certificate", tls.certificate, "--key", tls.key] if tls is not None else []
        for _ in range(hops):
            url, pid = stack.enter_context(server("benchmarks.forwarder", "--to", to, *files, stream="stdout"))
            to = url.partition("://")[2]
            pids.append(pid)
        yield Target("forwarder", url, "", tuple(pids), hops, port.number, tls)


def direct(tls: Certificate | None = None) -> Target:
    """Nothing: sender straight to receiver, which is what the load generator can do at most."""
    return Target("direct", certificate=tls, hops=0)


def under(target: Target, name: str) -> Target:
    """Return a target under another name."""
    return replace(target, name=name)
