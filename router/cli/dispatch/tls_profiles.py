"""The `sslProfile` sections, as the TLS settings of the listeners and connectors that name them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from amqpmesh.router.cli.dispatch.fates import Fate, Reading

if TYPE_CHECKING:
    from amqpmesh.router.cli.dispatch.conf_syntax import Section
    from amqpmesh.router.cli.dispatch.fates import Account
    from amqpmesh.router.cli.dispatch.secrets_kept import Secrets
    from amqpmesh.router.cli.dispatch.toml_document import Value

_OLD_NAMES: Final = {"caCertFile": "certDb", "privateKeyFile": "keyFile"}
"""The names of attributes in Dispatch before 1.0."""


@dataclass(slots=True)
class TlsProfile:
    """A profile: its files, and the settings that listeners have beside them."""

    files: dict[str, Value] = field(default_factory=dict)
    """`certificate`, `key`, `trust`."""
    of_listener: dict[str, Value] = field(default_factory=dict)
    of_clients: dict[str, Value] = field(default_factory=dict)
    """Settings that are allowed only where clients are asked for a certificate."""
    has_password: bool = False

    def for_listener(self, client: str) -> dict[str, Value]:
        """Return the table `tls` of a listener. Args: client: `none`, `optional` or `required`."""
        files = {key: value for key, value in self.files.items() if key != "trust" or client != "none"}
        asked: dict[str, Value] = {} if client == "none" else {"client": client, **self.of_clients}
        return {**files, **asked, **self.of_listener}


def read_profiles(sections: list[Section], account: Account, secrets: Secrets) -> dict[str, TlsProfile]:
    """Return the profiles by their names."""
    found = {}
    for section in sections:
        reading = Reading(account, section.kind, dict(section.attributes))
        name = reading.text("name")
        account.of_section(section, Fate.KEPT, "the table tls of the listeners and connectors that name it")
        reading.kept("name", "the tables of its listeners and connectors have the files")
        found[name] = _profile(reading, name, secrets)
        reading.close()
    return found


def _profile(reading: Reading, name: str, secrets: Secrets) -> TlsProfile:
    profile = TlsProfile()
    for theirs, ours in (("certFile", "certificate"), ("privateKeyFile", "key"), ("caCertFile", "trust")):
        given = theirs if theirs in reading else _OLD_NAMES.get(theirs, theirs)
        if file := reading.text(given):
            profile.files[ours] = file
        for spelled in (theirs, _OLD_NAMES.get(theirs, theirs)):
            reading.kept(spelled, f"tls.{ours}")
    if ciphers := reading.text("ciphers"):
        profile.of_listener["ciphers"] = ciphers
        reading.changed("ciphers", "tls.ciphers of listeners, for TLS 1.2; connectors use those of Python")
    if protocols := reading.words("protocols"):
        if set(protocols) == {"TLSv1.3"}:
            profile.of_listener["minimum"] = "1.3"
            profile.of_listener.pop("ciphers", None)
            reading.kept("protocols", 'tls.minimum = "1.3" of listeners')
        else:
            reading.changed("protocols", "TLS 1.2 and 1.3, always; older versions are refused")
    _password(reading, name, profile, secrets)
    uid = reading.text("uidFormat")
    if uid == "n":
        profile.of_clients["user"] = "common-name"
        reading.kept("uidFormat", 'tls.user = "common-name"')
    elif uid:
        reading.missing("uidFormat", "the user is one name of a certificate: see tls.user of a listener")
    for given in ("uidNameMappingFile", "displayNameFile"):
        reading.missing(given, "users cannot be renamed; a group of a policy can name them as they are")
    for given in ("ordinal", "oldestValidOrdinal"):
        reading.needless(given, "new certificates are in force after SIGHUP, for new connections")
    return profile


def _password(reading: Reading, name: str, profile: TlsProfile, secrets: Secrets) -> None:
    for given in ("password", "passwordFile"):
        value = f"file:{reading.text(given)}" if given == "passwordFile" and given in reading else reading.text(given)
        if value:
            profile.has_password = True
            profile.of_listener["key_password"] = secrets.source(value, name or "key")
            reading.changed(given, f"tls.key_password of listeners; {secrets.WORDS}; connectors need a key without one")
