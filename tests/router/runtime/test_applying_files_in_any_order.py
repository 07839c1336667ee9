"""The same law for what the files of a configuration say, and for recordings: only the last of them counts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh import LinkDetachedError, ListenerConfig, Router, SaslError, connect
from amqpmesh.router.amqp.errors import ConnectionClosedError
from amqpmesh.router.config.file import PolicyConfig, RouterConfig
from amqpmesh.router.config.observability import AuditConfig, TelemetryConfig
from amqpmesh.router.config.users import Users, verifier
from tests.support.peers.http_client import HttpClient

PASSWORDS: Final = ("secret", "other")
KEYS: Final = {each: {"SCRAM-SHA-256": verifier("SCRAM-SHA-256", each, 4096)} for each in PASSWORDS}
ADDRESSES: Final = ("p", "q")
HOST: Final = "router.example"


class User(NamedTuple):
    password: str
    disabled: bool
    groups: tuple[str, ...]


class Files(NamedTuple):
    """The content of the files, and whether and how the router records."""

    users: dict[str, User]
    sends: dict[str, tuple[str, ...]]
    """The addresses to which the users in a group may send."""
    links: int | None
    """The limit of the tenant."""
    recording: dict[str, Any] | None
    web: dict[str, Any] | None
    """The keys of a listener for HTTP."""
    policy: str
    """The name of the policy's file, and that of the audit log."""
    audit: str | None

    def write(self, folder: Path) -> RouterConfig:
        """Write the files, and return the configuration that names them."""
        disabled = frozenset(name for name, each in self.users.items() if each.disabled)
        groups = {name: each.groups for name, each in self.users.items()}
        Users({name: KEYS[each.password] for name, each in self.users.items()}, disabled, groups).save(folder / "users")
        limits = "" if self.links is None else f"limits = {{ links = {self.links} }}\n"
        (folder / self.policy).write_text(
            f'[[tenant]]\nname = "t"\ndefault = true\n{limits}'
            + "".join(
                f'[[group]]\ntenant = "t"\nname = "{name}"\ngroups = ["{name}"]\nsend = {list(sends)}\n'
                for name, sends in self.sends.items()
            )
        )
        record = None
        if self.recording is not None:
            keys = dict(self.recording)
            record = TelemetryConfig(directory=folder / keys.pop("folder"), **keys)
        door = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("SCRAM-SHA-256",), users=folder / "users", insecure=True)
        doors = [door]
        if self.web is not None:
            doors.append(ListenerConfig(url="http://127.0.0.1:0", role="http", name="web", **self.web))
        return RouterConfig(
            id="A",
            listeners=tuple(doors),
            policy=PolicyConfig(file=folder / self.policy),
            audit=None if self.audit is None else AuditConfig(file=folder / self.audit),
            telemetry=record,
            drain=0.0,
        )


GROUPS = ("g", "h")
USERS = st.builds(
    User, st.sampled_from(PASSWORDS), st.booleans(), st.lists(st.sampled_from(GROUPS), unique=True).map(tuple)
)
FILES = st.builds(
    Files,
    st.dictionaries(st.sampled_from(("ada", "bob")), USERS),
    st.dictionaries(st.sampled_from(GROUPS), st.lists(st.sampled_from(ADDRESSES), unique=True).map(tuple)),
    st.none() | st.integers(3, 5),
    st.none()
    | st.fixed_dictionaries(
        {"folder": st.sampled_from(("one", "other")), "sample": st.sampled_from((0.5, 1.0))},
        optional={"memory": st.just(2**20)},
    ),
    st.none() | st.fixed_dictionaries({}, optional={"hosts": st.just((HOST,)), "manage": st.just(True)}),
    st.sampled_from(("policy", "other policy")),
    st.none() | st.sampled_from(("audit", "other audit")),
)


async def state(router: Router) -> dict[str, Any]:
    """All that follows from the files."""
    observers = router._observers
    await trio.testing.wait_all_tasks_blocked()
    async with observers._following:  # a recording begins and ends in a task of its own
        recorded = None if observers.telemetry is None else observers.telemetry.config
    told = router.statistics()
    found: dict[str, Any] = {
        "recorded": recorded,
        "users": list(told.users),
        "policy": (told.policies[0].digest, told.policies[0].file),
        "audit": None if observers.audit is None else observers.audit.path,
        "tables": told.tables,
        "changed": told.router.changed,
    }
    if len(router.listeners) > 1:
        for host in ("localhost", HOST):
            client = HttpClient.of(router, 1, host=host)
            found[host] = [(await client.get(path)).status for path in ("/readyz", "/api/user")]
    for user in ("ada", "bob"):
        for password in PASSWORDS:
            found[f"{user} {password}"] = await seen_by(router, user, password)
    return found


async def seen_by(router: Router, user: str, password: str) -> object:
    """Return the addresses to which a user may send, and the limits; None: it may not log in."""
    sends = []
    try:
        async with connect(router.listeners[0].url, user=user, password=password) as client:
            for address in ADDRESSES:
                try:
                    async with client.sender(address):
                        sends.append(address)
                except LinkDetachedError:
                    continue
            limits = sorted((each.tenant, each.limit, each.allowed) for each in router.statistics().limits)
    except (SaslError, ConnectionClosedError):
        return None
    return sends, limits


@settings(max_examples=10)
@given(st.lists(FILES, min_size=2, max_size=4))
def test_a_router_is_as_if_it_had_been_started_with_the_last_files(given: list[Files]) -> None:
    async def run(folder: Path) -> None:
        first, *others = given
        async with Router(first.write(folder)) as router:
            for each in others:
                result = await router.apply(each.write(folder))
                assert not result.waiting
            assert not (await router.apply(given[-1].write(folder), dry_run=True)).users
            found = await state(router)
        async with Router(given[-1].write(folder)) as fresh:
            assert found == await state(fresh)
        for user, each in given[-1].users.items():
            other = next(password for password in PASSWORDS if password != each.password)
            assert found[f"{user} {other}"] is None
            if not each.disabled:
                may = {address for group in each.groups for address in given[-1].sends.get(group, ())}
                assert found[f"{user} {each.password}"][0] == sorted(may)

    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, Path(folder))
