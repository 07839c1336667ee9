import pytest

from amqpmesh.router.urls import Endpoint


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("amqp://127.0.0.1", Endpoint("amqp", "127.0.0.1", 5672)),
        ("amqps://broker.example/", Endpoint("amqps", "broker.example", 5671)),
        ("amqp://[::1]:1234", Endpoint("amqp", "::1", 1234)),
        ("amqp://[2001:db8::1]", Endpoint("amqp", "2001:db8::1", 5672)),
        ("amqp://localhost:0", Endpoint("amqp", "localhost", 0)),
        ("AMQP://HOST", Endpoint("amqp", "host", 5672)),
    ],
)
def test_a_url_says_scheme_host_and_port(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "must begin with amqp:// or amqps://"),
        ("127.0.0.1:5672", "must begin with"),
        ("", "must begin with"),
        ("amqp://", "names no host"),
        ("amqp://:5672", "names no host"),
        ("amqp://h:65536", "not a URL"),
        ("amqp://h:-1", "not a URL"),
        ("amqp://h:x", "not a URL"),
        ("amqp://[::1", "not a URL"),
        ("amqp://user@h", "takes no user"),
        ("amqp://user:secret@h", "takes no user"),
        ("amqp://h/queue", "nothing more"),
        ("amqp://h?x=1", "nothing more"),
        ("amqp://h#x", "nothing more"),
        ("amqp://h x", "spaces"),
        ("amqp://h\x00", "spaces or control"),
    ],
)
def test_a_url_that_is_no_endpoint_is_refused_with_a_reason(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        Endpoint.parse(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    assert Endpoint.parse(f"amqp://{host}").loopback is loopback


def test_amqps_is_secure_and_amqp_is_not() -> None:
    assert Endpoint.parse("amqps://h").secure
    assert not Endpoint.parse("amqp://h").secure
