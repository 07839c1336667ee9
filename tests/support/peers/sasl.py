"""A SASL server and its users, and the bodies of SASL frames."""

from __future__ import annotations

from dataclasses import dataclass, field

from scramp import ScramMechanism

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.sasl.exchange import (
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    SaslServer,
)
from amqpmesh.router.amqp.sasl.mechanisms import ScramKeys

ALL = ("EXTERNAL", "SCRAM-SHA-256", "SCRAM-SHA-1", "PLAIN", "ANONYMOUS")


@dataclass
class Users:
    """An authenticator that knows passwords."""

    passwords: dict[str, str] = field(default_factory=lambda: {"ada": "lovelace"})
    iterations: tuple[int, ...] = (4096,)

    def verify_plain(self, user: str, password: str) -> bool:
        return self.passwords.get(user) == password

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        if user not in self.passwords:
            return None
        salt, stored_key, server_key, iterations = ScramMechanism(mechanism).make_auth_info(self.passwords[user])
        return ScramKeys(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key)


def started(*mechanisms: str, external_user: str | None = None) -> SaslServer:
    """Return a server that has announced its mechanisms."""
    server = SaslServer(mechanisms or ALL, Users(), external_user=external_user)
    server.start()
    return server


def init(mechanism: str, response: bytes | None = None) -> bytes:
    return encode_composite(SaslInit(mechanism=Symbol(mechanism), initial_response=response))


def response(data: bytes) -> bytes:
    return encode_composite(SaslResponse(response=data))


def mechanisms(*names: str) -> bytes:
    return encode_composite(SaslMechanisms(sasl_server_mechanisms=tuple(map(Symbol, names))))


def challenge(data: bytes) -> bytes:
    return encode_composite(SaslChallenge(challenge=data))


def outcome(code: SaslCode, data: bytes | None = None) -> bytes:
    return encode_composite(SaslOutcome(code=code, additional_data=data))
