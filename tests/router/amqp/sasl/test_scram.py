"""The messages of SCRAM, read here and by scramp alike."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramException, ScramMechanism

from amqpmesh.router.amqp.sasl.mechanisms import ScramKeys
from amqpmesh.router.amqp.sasl.scram import HASHES, ScramError, ScramServer

SALT, ITERATIONS = bytes(range(32)), 4096
SALTED = {name: hashlib.pbkdf2_hmac(hash_, b"lovelace", SALT, ITERATIONS) for name, hash_ in HASHES.items()}


def keys_of(mechanism: str, *, iterations: int = ITERATIONS) -> ScramKeys:
    name, salted = HASHES[mechanism], SALTED[mechanism]
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramKeys(SALT, iterations, stored, hmac.digest(salted, b"Server Key", name))


def final_message(mechanism: str, first: str, challenge: str, binding: str, *, is_right: bool = True) -> str:
    """Prove the password, or another one."""
    name, key = HASHES[mechanism], hmac.digest(SALTED[mechanism], b"Client Key", HASHES[mechanism])
    said = f"c={base64.b64encode(binding.encode()).decode()},{challenge.split(',')[0]}"
    bare = first.split(",", 2)[2]
    signature = hmac.digest(hashlib.new(name, key).digest(), f"{bare},{challenge},{said}".encode(), name)
    proof = bytes(a ^ b ^ (not is_right) for a, b in zip(key, signature, strict=True))
    return f"{said},p={base64.b64encode(proof).decode()}"


def told(server: ScramServer, first: str, final: str | None, mechanism: str, *, is_right: bool, binding: str) -> object:
    try:
        challenge = server.begin(first)
        said = final_message(mechanism, first, challenge, binding, is_right=is_right) if final is None else final
        return challenge, server.check(said), server.user
    except ScramError as error:
        return str(error)


def told_by_scramp(
    nonce: str, first: str, final: str | None, mechanism: str, *, is_right: bool, binding: str
) -> object:
    users = []

    def look_up(user: str) -> tuple[bytes, bytes, bytes, int]:
        users.append(user)
        keys = keys_of(mechanism)
        return keys.salt, keys.stored_key, keys.server_key, keys.iterations

    server = ScramMechanism(mechanism).make_server(look_up, s_nonce=nonce)
    try:
        server.set_client_first(first)
        challenge = server.get_server_first()
        server.set_client_final(
            final_message(mechanism, first, challenge, binding, is_right=is_right) if final is None else final
        )
        return challenge, server.get_server_final(), users[0]
    except ScramException as error:
        return str(error)


names = st.text(min_size=0, max_size=6) | st.text("ab =,2C3D~\x7f\t", max_size=6)
nonces = st.text("abc!~=,+ ", max_size=6) | st.text(max_size=4)
finals = st.none() | st.text(max_size=12) | st.text("c=biws,r=np=AA", max_size=20)


@settings(max_examples=300, deadline=None)
@given(
    mechanism=st.sampled_from(sorted(HASHES)),
    header=st.sampled_from(["n,,", "y,,", "p=tls-unique,,", "n,a=x,", ""]),
    name=names,
    nonce=nonces,
    more=st.sampled_from(["", ",x=1"]),
    final=finals,
    binding=st.sampled_from(["n,,", "y,,", "x"]),
    is_right=st.booleans(),
)
def test_a_client_hears_the_same_as_from_scramp_alone(
    mechanism: str, header: str, name: str, nonce: str, more: str, final: str | None, binding: str, is_right: bool
) -> None:
    first = f"{header}n={name},r={nonce}{more}"
    server = ScramServer(mechanism, lambda _user: keys_of(mechanism))
    ours = told(server, first, final, mechanism, is_right=is_right, binding=binding)
    assert ours == told_by_scramp(server._nonce, first, final, mechanism, is_right=is_right, binding=binding)


@pytest.mark.parametrize("mechanism", sorted(HASHES))
@pytest.mark.parametrize("binding", ["n,,", "y,,"])
def test_a_usual_login_that_succeeds_does_without_scramp(
    mechanism: str, binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scramp.ScramMechanism", None)
    server = ScramServer(mechanism, lambda _user: keys_of(mechanism))
    first = f"{binding}n=ada,r=abc"
    assert server.check(final_message(mechanism, first, server.begin(first), binding)).startswith("v=")
    assert server.user == "ada"


def test_keys_with_too_few_iterations_are_refused() -> None:
    server = ScramServer("SCRAM-SHA-256", lambda _user: keys_of("SCRAM-SHA-256", iterations=1))
    with pytest.raises(ScramError):
        server.begin("n,,n=ada,r=abc")
    assert server.user == "ada"


def test_the_error_of_a_look_up_is_passed_on() -> None:
    def look_up(_user: str) -> ScramKeys:
        raise LookupError("the users cannot be read")

    for first in ("n,,n=ada,r=abc", "n,,n=\N{ROMAN NUMERAL NINE},r=abc"):
        with pytest.raises(LookupError, match="the users cannot be read"):
            ScramServer("SCRAM-SHA-256", look_up).begin(first)
