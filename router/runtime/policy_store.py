"""The policy of a running router: its file, the policies that come by the mesh or by `$management`, and its offer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from amqpmesh.policies.policy_version import PolicyVersion
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.policy_trust import trusted_policy
from amqpmesh.router.io.threads import aside
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.noted_changes import note_change
from amqpmesh.router.statistics.configured import PolicyStatistics

if TYPE_CHECKING:
    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.config.policy_file import PolicyText
    from amqpmesh.router.runtime.driver import Driver

log = event_log.EventLog("amqpmesh.io")


Asker: TypeAlias = Mapping[str, object]
"""Fields of the audit log on the way by which a policy has come, and its sender."""

FILE: Final[Asker] = {"source": "file"}


def _versions(version: PolicyVersion, before: PolicyVersion | None = None) -> dict[str, object]:
    """Return the fields of the audit log on a policy. Args: before: of the one that it replaces."""
    fields: dict[str, object] = {"version": version.number, "digest": version.digest.hex()}
    return fields if before is None else {**fields, "from": before.number, "from_digest": before.digest.hex()}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A policy that the router has refused."""

    version: PolicyVersion
    reason: str


class PolicyStore:
    """The policy in force, the newest that the router can give, and the last one that it has refused."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self.in_force: PolicyText | None = None
        self._refused: Refusal | None = None
        self._driver: Driver | None = None
        #: Held while the policy changes: what was read before another change must not undo it.
        self.changing = trio.Lock()

    @property
    def takes_part(self) -> bool:
        """True if the router takes policies that are pushed."""
        return self._config.policy is not None and self._config.policy.push

    def begin(self, driver: Driver, start: Callable[[Callable[[], Awaitable[None]]], object], read: PolicyText) -> None:
        """Put the first policy in force, and take policies of neighbours from now on. Args: start: starts a task."""
        self._driver = driver
        if self.takes_part:
            context = driver.core.context
            context.on_policy = lambda neighbour, version, data: start(partial(self._fetched, neighbour, version, data))
        self.put_in_force(read)

    def follow(self, config: RouterConfig) -> None:
        """Follow a changed configuration: its policy may be in another file, or have to be signed."""
        self._config = config

    def put_in_force(self, read: PolicyText, by: Asker = FILE) -> None:
        """Put a policy in force that was read from the file or stored there. Args: by: for the audit log."""
        assert self._driver is not None
        before, self.in_force = self.in_force, read
        if before is None or before.version != read.version:
            versions = _versions(read.version, None if before is None else before.version)
            note_change(self._driver.core.context, "policy changed", **by, **versions)
        self._driver.core.set_policy(read.policy, trio.current_time())
        self._offer()

    def _offer(self, held: PolicyText | None = None) -> None:
        """Offer the policy in force to neighbours, or one that this router only passes on."""
        read = held or self.in_force
        if self._driver is not None and self.takes_part and read is not None:
            version = read.version if read.version.number else None
            mesh = self._driver.core.mesh
            if mesh is not None:
                mesh.give_policy(version, read.data, trio.current_time())
                self._driver.settle()

    async def _fetched(self, neighbour: str, version: PolicyVersion, data: bytes) -> None:
        """Judge a policy that a neighbour has given. Raises: nothing: an internal error ends nothing else."""
        try:
            reason = await self.take(data, {"source": "neighbour", "from_router": neighbour}, version)
        except Exception as error:
            log.error("internal error", exception=error, router=neighbour)
            self._refuse(version, "internal error", {"source": "neighbour", "from_router": neighbour})
            return
        if reason is None:
            log.info("policy changed", version=version.number, digest=version.short_digest, router=neighbour)

    async def take(self, data: bytes, by: Asker = FILE, offered: PolicyVersion | None = None) -> str | None:
        """Check a policy, store it, and put it in force.

        Args: by: for the audit log. offered: as a neighbour has offered it; None: it is pushed to this router.
        Returns: the reason why it is not in force; None: it is.
        """
        if self._driver is None or not self.takes_part:
            return "this router takes no policy: [policy] push = true permits it"
        async with self.changing:
            try:
                read = await aside(self._read, data)
            except ConfigError as error:
                return self._refuse(PolicyVersion.of(data, 0) if offered is None else offered, str(error), by)
            if self.in_force is not None and read.version == self.in_force.version:
                self._offer()
                return None
            reason = self._age_fault(read, offered)
            if reason is not None:
                return self._refuse(offered or read.version, reason, by)
            try:
                await aside(self._store, data)
            except OSError as error:
                assert self._config.policy is not None
                reason = f"cannot write {self._config.policy.file}: {error.strerror or error}"
                self._refuse(read.version, reason, by, fetched=False)
                self._offer(read)  # other routers may be able to take it
                return reason
            self._refused = None
            self.put_in_force(read, by)
            self._driver.settle()
            return None

    def _age_fault(self, read: PolicyText, offered: PolicyVersion | None) -> str | None:
        if offered is not None and read.version != offered:
            return f"it was offered as version {offered.number}, and is version {read.version.number}"
        if not read.version.number:
            return "it has no version: begin it with a line such as version = 1"
        current = self.in_force.version if self.in_force is not None else None
        if current is None or read.version.number > current.number:
            return None
        if read.version.number < current.number:
            return f"version {current.number} is in force, and this is version {read.version.number}"
        # Two were pushed at once, at two routers. All of them come to have the same one.
        if offered is not None and read.version > current:
            return None
        return f"another policy of version {current.number} is in force"

    def _refuse(self, version: PolicyVersion, reason: str, by: Asker, *, fetched: bool = True) -> str:
        assert self._driver is not None
        self._refused = Refusal(version, reason)
        log.warning("policy refused", version=version.number, digest=version.short_digest, reason=reason)
        audit = self._driver.core.context.audit
        if audit is not None:
            host, rule = str(by.get("peer") or ""), {**by, **_versions(version)}
            audit.of_host("policy refused", host, reason=reason, rule=rule)
        if fetched:
            mesh = self._driver.core.mesh
            if mesh is not None:
                mesh.refuse_policy(version, trio.current_time())
                self._driver.settle()
        return reason

    def _read(self, data: bytes) -> PolicyText:
        assert self._config.policy is not None
        return trusted_policy(data, self._config.policy, self._config.mesh)

    def _store(self, data: bytes) -> None:
        """Replace the file at once, and keep the one before beside it. Raises: OSError."""
        assert self._config.policy is not None
        target = Path(os.path.realpath(self._config.policy.file))  # a link stays a link
        if target.exists() and target.read_bytes() == data:
            return  # another worker of this router has stored it
        before = target.stat() if target.exists() else None
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
                if before is not None:
                    os.fchmod(stream.fileno(), before.st_mode & 0o7777)
            if before is not None:
                _keep(target, Path(f"{temporary}.previous"), data)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def statistics(self) -> tuple[PolicyStatistics, ...]:
        """Return the state of the policy; none: the router has none."""
        read, refused = self.in_force, self._refused
        if read is None or self._config.policy is None:
            return ()
        return (
            PolicyStatistics(
                file=str(self._config.policy.file),
                version=read.version.number,
                digest=read.version.digest.hex(),
                tenants=len(read.policy.tenants),
                groups=len(read.policy.groups),
                push=self.takes_part,
                refused_version=None if refused is None else refused.version.number,
                refused_digest=None if refused is None else refused.version.digest.hex(),
                refused_reason=None if refused is None else refused.reason,
            ),
        )


def _keep(target: Path, temporary: Path, data: bytes) -> None:
    """Keep a file beside it, as the one before. Args: data: of the new one, which another worker may have stored."""
    with suppress(OSError):
        os.link(target, temporary)
        if temporary.read_bytes() != data:
            os.replace(temporary, target.with_name(f"{target.name}.previous"))
    with suppress(OSError):  # of two names of one file, none replaces the other
        temporary.unlink(missing_ok=True)
