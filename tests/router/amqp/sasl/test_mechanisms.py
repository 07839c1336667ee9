"""SASL mechanisms as conversations: identities, refusals, and secrets that are never sent."""

import base64
import hashlib
import hmac
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramMechanism

from amqpmesh.router.amqp.sasl.mechanisms import (
    MAX_ITERATIONS,
    MECHANISMS,
    SALT_SIZE,
    ClientSide,
    MechanismError,
    ScramKeys,
    ServerSide,
    Success,
    Turn,
    Work,
)

SCRAM = ("SCRAM-SHA-1", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass
class Users:
    """An authenticator with passwords in clear."""

    passwords: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    iterations: tuple[int, ...] = (4096,)

    def verify_plain(self, user: str, password: str) -> bool:
        self.asked.append(user)
        return self.passwords.get(user) == password

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        self.asked.append(user)
        if user not in self.passwords:
            return None
        salt, stored_key, server_key, iterations = ScramMechanism(mechanism).make_auth_info(self.passwords[user])
        return ScramKeys(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key)


ADA = Users({"ada": "lovelace"})


T = TypeVar("T")
R = TypeVar("R")


def working(conversation: Generator[T | Work, bytes, R]) -> Generator[T, bytes, R]:
    """Run a conversation, and do its work at once."""
    try:
        said = next(conversation)
        while True:
            while isinstance(said, Work):
                said.do()
                said = conversation.send(b"")
            said = conversation.send((yield said))
    except StopIteration as end:
        result: R = end.value
        return result


def client_of(mechanism: str, side: ClientSide) -> Generator[Turn, bytes, None]:
    """Begin a client's conversation."""
    return working(MECHANISMS[mechanism].client(mechanism, side))


def server(mechanism: str, users: Users = ADA, external_user: str | None = None) -> Generator[bytes, bytes, Success]:
    """Begin a server's conversation, up to its first, empty challenge."""
    conversation = working(MECHANISMS[mechanism].server(mechanism, ServerSide(users, external_user)))
    assert next(conversation) == b""
    return conversation


def verdict(conversation: Generator[bytes, bytes, Success], response: bytes) -> Success:
    """Send the last response to a server. Returns: its success."""
    with pytest.raises(StopIteration) as end:
        conversation.send(response)
    success = end.value.value
    assert isinstance(success, Success)
    return success


def talk(mechanism: str, users: Users, side: ClientSide, external_user: str | None = None) -> Success:
    """Run a whole conversation of our client with our server; both must succeed."""
    conversation = server(mechanism, users, external_user)
    client = client_of(mechanism, side)
    turn = next(client)
    for _ in range(3):  # no mechanism here has more rounds
        try:
            challenge = conversation.send(turn.response)
        except StopIteration as end:
            success: Success = end.value
            break
        turn = client.send(challenge)
    if success.additional_data is not None:
        turn = client.send(success.additional_data)
    assert turn.satisfied
    return success


def test_anonymous_lets_in_nobody_in_particular_whatever_the_trace_says() -> None:
    for trace in (b"", b"anonymous", b"\0guest", b"\xff\xfe"):
        assert verdict(server("ANONYMOUS"), trace).user is None
    assert talk("ANONYMOUS", Users(), ClientSide()).user is None


def test_external_lets_in_a_peer_that_the_layer_below_has_authenticated() -> None:
    assert verdict(server("EXTERNAL", external_user="ada"), b"").user == "ada"
    assert verdict(server("EXTERNAL", external_user="ada"), b"ada").user == "ada"
    assert talk("EXTERNAL", Users(), ClientSide(external=True), external_user="ada").user == "ada"


@pytest.mark.parametrize(
    ("external_user", "response"), [(None, b""), (None, b"ada"), ("ada", b"bob"), ("ada", b"ada\0"), ("ada", b"\xff")]
)
def test_external_lets_in_nobody_else(external_user: str | None, response: bytes) -> None:
    with pytest.raises(MechanismError):
        server("EXTERNAL", external_user=external_user).send(response)


def test_an_external_client_answers_an_empty_challenge_with_nothing() -> None:
    client = client_of("EXTERNAL", ClientSide(external=True))
    assert next(client) == (b"", True)
    assert client.send(b"") == (b"", True)


@pytest.mark.parametrize("response", [b"\0ada\0lovelace", b"ada\0ada\0lovelace"])
def test_plain_lets_in_a_user_with_the_right_password(response: bytes) -> None:
    assert verdict(server("PLAIN"), response) == Success("ada")


@pytest.mark.parametrize(
    "response",
    [
        b"\0ada\0byron",
        b"\0bob\0lovelace",
        b"bob\0ada\0lovelace",  # acting for another user is not permitted
        b"\0ada\0",
        b"\0\0lovelace",
        b"\0\0",
        b"",
        b"ada",
        b"ada\0lovelace",
        b"\0ada\0lovelace\0",
        b"\0ada\0love\0lace",
        b"\0ada\0\xff",
        b"\0\xc3\0lovelace",
        b"\xff\0ada\0lovelace",
        b"\x01\0ada\0lovelace",
        b"\0ada\x07\0lovelace",  # SASLprep refuses control characters
        b"\0\xc2\xad\0lovelace",  # a soft hyphen is removed: the name is empty
    ],
)
def test_plain_refuses_everything_else(response: bytes) -> None:
    with pytest.raises(MechanismError):
        server("PLAIN").send(response)


def test_plain_prepares_names_so_that_one_name_has_one_spelling() -> None:
    users = Users({"IX": "fi"})
    assert (
        verdict(server("PLAIN", users), "\0\N{ROMAN NUMERAL NINE}\0\N{LATIN SMALL LIGATURE FI}".encode()).user == "IX"
    )


@pytest.mark.parametrize("text", ["", "a\0b", "\ud800"])
def test_a_plain_client_refuses_what_plain_cannot_carry(text: str) -> None:
    for side in (ClientSide(text, "lovelace"), ClientSide("ada", text)):
        with pytest.raises(MechanismError):
            next(client_of("PLAIN", side))


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_lets_in_a_user_with_the_right_password(mechanism: str) -> None:
    assert talk(mechanism, ADA, ClientSide("ada", "lovelace")).user == "ada"


# The examples of RFC 5802, 5 and RFC 7677, 3.
RFC_EXAMPLES = {
    "SCRAM-SHA-1": (
        "fyko+d2lbbFgONRv9qkxdawL",
        "3rfcNHYJY1ZVvWVs7j",
        "QSXCR+Q6sek8bf92",
        "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    "SCRAM-SHA-256": (
        "rOprNGfwEbeRWgbNEkqO",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "W22ZaJ0SNY7soEsUEjb6gQ==",
        "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256"])
def test_scram_says_what_the_rfc_says(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client_nonce, server_nonce, salt, client_first, server_first, client_final, server_final = RFC_EXAMPLES[mechanism]

    class Verifiers(Users):
        def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
            assert user == "user"
            salt_, stored_key, server_key, iterations = ScramMechanism(mechanism).make_auth_info(
                "pencil", 4096, base64.b64decode(salt)
            )
            return ScramKeys(salt=salt_, iterations=iterations, stored_key=stored_key, server_key=server_key)

    monkeypatch.setattr("amqpmesh.router.amqp.sasl.scram.token_hex", lambda: server_nonce)
    conversation = server(mechanism, Verifiers())
    assert conversation.send(client_first.encode()) == server_first.encode()
    assert verdict(conversation, client_final.encode()) == Success("user", server_final.encode())

    monkeypatch.setattr("scramp.core.token_hex", lambda: client_nonce)
    client = client_of(mechanism, ClientSide("user", "pencil"))
    assert next(client) == (client_first.encode(), False)
    assert client.send(server_first.encode()) == (client_final.encode(), False)
    assert client.send(server_final.encode()) == (b"", True)


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("side", [ClientSide("ada", "byron"), ClientSide("bob", "lovelace")])
def test_an_unknown_user_and_a_wrong_password_fail_at_the_same_point_in_the_same_words(
    mechanism: str, side: ClientSide
) -> None:
    client = client_of(mechanism, side)
    conversation = server(mechanism)
    challenge = conversation.send(next(client).response)
    assert [part[:2] for part in challenge.split(b",")] == [b"r=", b"s=", b"i="]
    assert len(base64.b64decode(challenge.split(b",")[1][2:])) == SALT_SIZE
    assert challenge.endswith(b",i=4096")
    with pytest.raises(MechanismError, match=r"^SCRAM: The client keys don't match\.: invalid-proof$"):
        conversation.send(client.send(challenge).response)


def salt_shown(mechanism: str, user: str) -> bytes:
    return server(mechanism).send(f"n,,n={user},r=abc".encode()).split(b",")[1]


@pytest.mark.parametrize("mechanism", SCRAM)
def test_an_unknown_user_is_shown_one_salt_of_its_own(mechanism: str) -> None:
    assert salt_shown(mechanism, "bob") == salt_shown(mechanism, "bob") != salt_shown(mechanism, "eve")


def test_an_unknown_user_is_shown_another_salt_for_another_mechanism() -> None:
    assert salt_shown("SCRAM-SHA-1", "bob") != salt_shown("SCRAM-SHA-256", "bob")


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=ada",
        b"n,,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=ada,r=",
        b"n,,n=ada,r=a\x7fb",
        b"n,,n=ada,r=abc,r=abc",
        b"n,,n=a=da,r=abc",
        b"n,,n=ada\x07,r=abc",
        b"n,,m=x,n=ada,r=abc",
        b"n,a=bob,n=ada,r=abc",
        b"p=tls-unique,,n=ada,r=abc",
        b"p=nonsense,,n=ada,r=abc",
        b"q,,n=ada,r=abc",
        b"n,,n=\xff,r=abc",
        b"\0ada\0lovelace",
    ],
)
def test_scram_refuses_a_malformed_first_message(mechanism: str, response: bytes) -> None:
    with pytest.raises(MechanismError):
        server(mechanism).send(response)


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"c=biws",
        b"c=biws,r={r}",
        b"c=biws,r={r},p=",
        b"c=biws,r={r},p=AAAA",
        b"c=biws,r={r},p=\xc3\xa9",
        b"c=biws,r=abc,p={p}",
        b"c=eSws,r={r},p={p}",  # another header than in the first message
        b"c=!,r={r},p={p}",
        b"e=other-error",
        b"\xff",
    ],
)
def test_scram_refuses_a_malformed_final_message(mechanism: str, response: bytes) -> None:
    conversation = server(mechanism)
    nonce = conversation.send(b"n,,n=ada,r=abc").split(b",")[0][2:]
    size = hashlib.new(
        {"SCRAM-SHA-1": "sha1", "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    ).digest_size
    with pytest.raises(MechanismError):
        conversation.send(response.replace(b"{r}", nonce).replace(b"{p}", base64.b64encode(bytes(size))))


attributes = st.lists(
    st.tuples(st.sampled_from("ancrpsivemx"), st.text(max_size=8)).map("=".join), min_size=1, max_size=4
).map(lambda parts: ",".join(parts).encode(errors="replace"))


@settings(max_examples=200)
@given(
    mechanism=st.sampled_from(SCRAM),
    first=st.binary() | attributes.map(lambda rest: b"n,," + rest) | st.just(b"n,,n=ada,r=abc"),
    final=st.binary() | attributes,
)
def test_whatever_a_client_says_a_conversation_ends_in_one_way(mechanism: str, first: bytes, final: bytes) -> None:
    conversation = server(mechanism)

    def converse() -> None:
        conversation.send(first)
        conversation.send(final)

    with pytest.raises(MechanismError):
        converse()


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_scram_client_lets_no_server_choose_how_long_it_calculates(mechanism: str) -> None:
    client = client_of(mechanism, ClientSide("ada", "lovelace"))
    nonce = next(client).response.decode().rpartition("r=")[2]
    with pytest.raises(MechanismError, match="iterations"):
        client.send(f"r={nonce}x,s=QSXCR+Q6sek8bf92,i={MAX_ITERATIONS + 1}".encode())


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=QSXCR+Q6sek8bf92,i=4096",
        b"r={r},s=QSXCR+Q6sek8bf92,i=4096",  # the server has added nothing to the nonce
        b"r={r}x,s=QSXCR+Q6sek8bf92,i=1",
        b"r={r}x,s=QSXCR+Q6sek8bf92,i=-4096",
        b"r={r}x,s=,i=4096",
        b"r={r}x,s=AAAA,i=4096",
        b"e=unknown-user",
        b"\xff",
    ],
)
def test_a_scram_client_refuses_a_malformed_challenge(mechanism: str, challenge: bytes) -> None:
    client = client_of(mechanism, ClientSide("ada", "lovelace"))
    nonce = next(client).response.rpartition(b"r=")[2]
    with pytest.raises(MechanismError):
        client.send(challenge.replace(b"{r}", nonce))


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("final", [b"", b"v=", b"v=AAAA", b"e=other-error", b"e=nonsense", b"v=!", b"\xff", b"x=y"])
def test_a_scram_client_believes_no_server_without_its_proof(mechanism: str, final: bytes) -> None:
    client = client_of(mechanism, ClientSide("ada", "lovelace"))
    client.send(server(mechanism).send(next(client).response))
    with pytest.raises(MechanismError):
        client.send(final)


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("side", [ClientSide("", "x"), ClientSide("ada", "\x07"), ClientSide("\ud800", "x")])
def test_a_scram_client_refuses_credentials_that_sasl_cannot_prepare(mechanism: str, side: ClientSide) -> None:
    with pytest.raises(MechanismError):
        next(client_of(mechanism, side))


def iterations_shown(mechanism: str, user: str) -> bytes:
    authenticator = Users({}, iterations=(4096, 100_000))
    return server(mechanism, authenticator).send(f"n,,n={user},r=abc".encode()).split(b",")[2]


def test_unknown_users_are_shown_the_iterations_that_known_ones_have_each_the_same_each_time() -> None:
    users = [f"user{number}" for number in range(64)]
    shown = {user: iterations_shown("SCRAM-SHA-256", user) for user in users}
    assert set(shown.values()) == {b"i=4096", b"i=100000"}
    assert {user: iterations_shown("SCRAM-SHA-1", user) for user in users} == shown


class BrokenError(Exception):
    """A fault of an authenticator."""


class Broken(Users):
    def verify_plain(self, user: str, password: str) -> bool:
        raise BrokenError

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        raise BrokenError


@pytest.mark.parametrize(
    ("mechanism", "response"), [("PLAIN", b"\0ada\0lovelace"), *((name, b"n,,n=ada,r=abc") for name in SCRAM)]
)
def test_an_error_of_an_authenticator_is_not_taken_for_the_peers_fault(mechanism: str, response: bytes) -> None:
    with pytest.raises(BrokenError):
        server(mechanism, Broken()).send(response)


def prepared(text: str) -> str | None:
    """Prepare a text as a server does; None: SASLprep refuses it."""
    users = Users()
    try:
        server("SCRAM-SHA-1", users).send(b"n,,n=" + text.replace("=", "=3D").replace(",", "=2C").encode() + b",r=abc")
    except (MechanismError, UnicodeEncodeError):
        return None
    return users.asked[0]


texts = st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text and prepared(text) is not None)


@settings(max_examples=40)
@given(mechanism=st.sampled_from([*SCRAM, "PLAIN"]), user=texts, password=texts, wrong=texts)
def test_only_a_peer_with_the_password_is_let_in(mechanism: str, user: str, password: str, wrong: str) -> None:
    name, secret = prepared(user), prepared(password)
    assert name is not None
    assert secret is not None
    users = Users({name: secret})
    assert talk(mechanism, users, ClientSide(user, password)).user == name
    if prepared(wrong) != secret:
        with pytest.raises(MechanismError):
            talk(mechanism, users, ClientSide(user, wrong))
    if prepared(wrong) != name:
        with pytest.raises(MechanismError):
            talk(mechanism, users, ClientSide(wrong, password))


def test_a_client_computed_by_hand_is_let_in() -> None:
    conversation = server("SCRAM-SHA-256")
    bare = "n=ada,r=abc"
    first = conversation.send(f"n,,{bare}".encode()).decode()
    nonce, salt, iterations = (part[2:] for part in first.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", b"lovelace", base64.b64decode(salt), int(iterations))
    key = hmac.digest(salted, b"Client Key", "sha256")
    message = f"{bare},{first},c=biws,r={nonce}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    server_signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
    assert verdict(conversation, f"c=biws,r={nonce},p={proof}".encode()) == Success(
        "ada", b"v=" + base64.b64encode(server_signature)
    )


def test_credentials_do_not_show() -> None:
    keys = ADA.scram_keys("ada", "SCRAM-SHA-256")
    assert keys is not None
    shown = repr(keys) + repr(ClientSide("ada", "lovelace")) + repr(Success("ada", b"v=secret"))
    for secret in (repr(keys.salt), repr(keys.stored_key), repr(keys.server_key), "lovelace", "v=secret"):
        assert secret not in shown
