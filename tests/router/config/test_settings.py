"""Configurations: files, defaults, and errors that name file and key."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.file import (
    AddressConfig,
    ConnectorConfig,
    ConnectorTlsConfig,
    Limits,
    LinkConfig,
    ListenerConfig,
    LogConfig,
    MeshConfig,
    Overflow,
    PasswordConfig,
    RouterConfig,
    TlsConfig,
    lines,
    load,
    parse,
)
from amqpmesh.router.config.tables import declared
from amqpmesh.router.config.users import add_user

FILE = Path("/etc/amqpmesh/a.toml")
TLS = "tls = { certificate = 'a.pem', key = 'a.key' }"
MESH = "[mesh]\ncertificate = 'a.pem'\nkey = 'a.key'\ntrust = 'ca.pem'\n"
INSECURE = "[mesh]\ninsecure = true\n"
BROKER = "[[connector]]\nurl = 'amqp://broker.example'\nname = 'broker'\nrole = 'container'\n"
LINK = "[[link]]\nconnector = 'broker'\nsource = 's'\n"
FEEDS = f"{LINK}address = 'a'\n"
MUTUAL = "tls = { certificate = 'a.pem', key = 'a.key', trust = 'ca.pem', client = 'required' }"


def parsed(text: str) -> RouterConfig:
    return parse(tomllib.loads(text), FILE)


def listener(text: str) -> ListenerConfig:
    return parsed(f"[[listener]]\n{text}").listeners[0]


def test_every_key_is_read() -> None:
    config = parsed(
        """
        [router]
        id = "A"
        drain = 2
        memory = 10_000_000
        channel_max = 7
        [log]
        level = "debug"
        format = "json"
        [[listener]]
        url = "amqps://0.0.0.0:5671"
        name = "outside"
        sasl = ["SCRAM-SHA-256", "EXTERNAL"]
        users = "users.toml"
        tls = { certificate = "a.pem", key = "/k/a.key", trust = "ca.pem", client = "required" }
        idle_time_out = 8
        max-frame-size = 4096
        max_message_size = 1_000_000
        handle_max = 3
        session_window = 9
        anonymous_window = 5
        connections = 20
        strict_annotations = true
        [[address]]
        pattern = "news/#"
        distribution = "multicast"
        window = 8
        max_credit = 10
        max_unsettled = 11
        drain_time = 0.5
        anonymous_wait = 3
        overflow = "drop"
        redeliver = true
        redeliver_max = 1000
        attempts = 5
        dead-letter = "dead"
        delivery-annotations = "drop"
        """
    )
    assert config == RouterConfig(
        id="A",
        drain=2.0,
        memory=10_000_000,
        channel_max=7,
        log=LogConfig(level="debug", format="json"),
        listeners=(
            ListenerConfig(
                url="amqps://0.0.0.0:5671",
                name="outside",
                sasl=("SCRAM-SHA-256", "EXTERNAL"),
                users=FILE.parent / "users.toml",
                tls=TlsConfig(
                    certificate=FILE.parent / "a.pem",
                    key=Path("/k/a.key"),
                    trust=FILE.parent / "ca.pem",
                    client="required",
                ),
                idle_time_out=8.0,
                max_frame_size=4096,
                max_message_size=1_000_000,
                channel_max=7,  # the router's, since the listener has none of its own
                handle_max=3,
                session_window=9,
                anonymous_window=5,
                connections=20,
                strict_annotations=True,
            ),
        ),
        addresses=(
            AddressConfig(
                pattern="news/#",
                distribution=Distribution.MULTICAST,
                window=8,
                max_credit=10,
                max_unsettled=11,
                drain_time=0.5,
                anonymous_wait=3.0,
                overflow=Overflow.DROP,
                redeliver=True,
                redeliver_max=1000,
                attempts=5,
                dead_letter="dead",
                delivery_annotations=DeliveryAnnotationsRule.DROP,
            ),
        ),
    )


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("[topology]", "topology", "unknown table"),
        ("id = 'A'", "id", "unknown table"),
        ("router = 1", "router", "must be a table"),
        ("[listener]\nurl = 'amqp://127.0.0.1'", "listener", "is a list of tables"),
        ("listener = [1]", "listener[0]", "must be a table"),
        ("[router]\nname = 'A'", "router.name", "unknown key"),
        ("[router]\nlisteners = []", "router.listeners", "unknown key"),
        ("[router]\nid = 1", "router.id", "must be a text"),
        ("[router]\nid = ''", "router.id", "must be printable"),
        ("[router]\nid = 'a b'", "router.id", "must be printable"),
        (f"[router]\nid = '{'a' * 256}'", "router.id", "must be at most 255 characters"),
        ("[router]\nid = 'a@b'", "router.id", "must be without @"),
        ("[router]\nid = 'a/#*'", "router.id", "must be without # * /"),
        ("[router]\ndrain = -1", "router.drain", "must be at least 0"),
        ("[router]\ndrain = nan", "router.drain", "must be a number"),
        ("[router]\ndrain = inf", "router.drain", "must be a number"),
        ("[router]\ndrain = '5'", "router.drain", "must be a number"),
        ("[router]\ndrain = true", "router.drain", "must be a number"),
        ("[router]\nmemory = 1.5", "router.memory", "must be a whole number"),
        ("[router]\nmemory = true", "router.memory", "must be a whole number"),
        ("[router]\nmemory = 1", "router.memory", "must be at least"),
        ("[router]\nchannel_max = 65536", "router.channel_max", "must be at most 65535"),
        ("[router]\nmax_frame_size = 511", "router.max_frame_size", "must be at least 512"),
        ("[router]\nidle-time-out = 1\nidle_time_out = 1", "router.idle_time_out", "given twice"),
        ("[log]\nlevel = 'loud'", "log.level", "must be one of debug, info, warning, error"),
        ("[log]\nformat = 3", "log.format", "must be one of text, json"),
        ("[[listener]]", "listener[0].url", "is missing"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\n[[listener]]\nurl = 'x'", "listener[1].url", "must begin with"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nport = 1", "listener[0].port", "unknown key"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nsasl = 'PLAIN'", "listener[0].sasl", "must be a list"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nsasl = [1]", "listener[0].sasl[0]", "must be a text"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nsasl = ['GSSAPI']", "listener[0].sasl", "unknown mechanism 'GSSAPI'"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nsasl = ['PLAIN', 'PLAIN']", "listener[0].sasl", "twice"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nusers = ''", "listener[0].users", "must be the path"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nusers = 'u'", "listener[0].users", "does nothing"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nsasl = ['SCRAM-SHA-1']", "listener[0].users", "is required"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nsasl = ['PLAIN']\nusers = 'u'", "listener[0].sasl", "under TLS only"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nsasl = ['EXTERNAL']", "listener[0].sasl", "client certificates"),
        (f"[[listener]]\nurl = 'amqps://127.0.0.1'\nsasl = ['EXTERNAL']\n{TLS}", "listener[0].sasl", "client cert"),
        ("[[listener]]\nurl = 'amqps://127.0.0.1'", "listener[0].tls", "is required for amqps"),
        ("[[listener]]\nurl = 'amqps://127.0.0.1'\ntls = {}", "listener[0].tls.certificate", "is missing"),
        ("[[listener]]\nurl = 'amqps://127.0.0.1'\ntls = 3", "listener[0].tls", "must be a table"),
        (
            f"[[listener]]\nurl = 'amqps://127.0.0.1'\n{TLS[:-2]}, client = 'required' }}",
            "listener[0].tls.trust",
            "required",
        ),
        (
            f"[[listener]]\nurl = 'amqps://127.0.0.1'\n{TLS[:-2]}, trust = 'x' }}",
            "listener[0].tls.trust",
            "does nothing",
        ),
        (f"[[listener]]\nurl = 'amqps://127.0.0.1'\n{TLS[:-2]}, client = 'yes' }}", "listener[0].tls.client", "one of"),
        (
            "[[listener]]\nurl = 'amqp://127.0.0.1'\nname = 'a'\n[[listener]]\nurl = 'amqp://127.0.0.1'\nname = 'a'",
            "listener",
            "two listeners are named 'a'",
        ),
        ("[[address]]", "address[0].pattern", "is missing"),
        (
            "[[listener]]\nurl = 'amqp://127.0.0.1:1'\n[[listener]]\nurl = 'amqp://127.0.0.1:1'",
            "listener",
            "two listeners are at amqp://127.0.0.1:1",
        ),
        ("[[address]]\npattern = ''", "address[0].pattern", "must not be empty"),
        ("[[address]]\npattern = '$x'", "address[0].pattern", "router's own"),
        ("[[address]]\npattern = 'a'\ndistribution = 'random'", "address[0].distribution", "closest, balanced"),
        ("[[address]]\npattern = 'a'\nattempts = 0", "address[0].attempts", "must be at least 1"),
        ("[[address]]\npattern = 'a'\noverflow = 'drop'", "address[0].overflow", "does nothing"),
        ("[[address]]\npattern = 'a'\ndead_letter = 'a'", "address[0].dead_letter", "own address"),
        (
            "[[address]]\npattern = 'a'\ndead_letter = 'd/a'\n[[address]]\npattern = 'd/#'\nabsolute_expiry = true",
            "address[0].dead_letter",
            "has absolute_expiry, by the pattern 'd/#'",
        ),
        ("[[address]]\npattern = 'a'\ndead_letter = ''", "address[0].dead_letter", "must not be empty"),
        ("[[address]]\npattern = 'a'\nforward = 'b'", "address[0].forward", "unknown key"),
        ("[[address]]\npattern = 'a/#'\n[[address]]\npattern = 'a/#'", "address", "'a/#' is given twice"),
    ],
)
def test_a_fault_is_named_by_file_key_and_reason(text: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(text)
    assert (refused.value.file, refused.value.key) == (str(FILE), key)
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("mesh = 1", "mesh", "must be a table"),
        ("[mesh]", "mesh.certificate", "is required"),
        ("[mesh]\ncertificate = 'a'", "mesh.key", "is required"),
        ("[mesh]\ncertificate = 'a'\nkey = 'b'", "mesh.trust", "is required"),
        (f"{MESH}insecure = true", "mesh.insecure", "excludes"),
        (f"{INSECURE}hold = 1", "mesh.hold", "must be more than hello"),
        (f"{INSECURE}hello = 0", "mesh.hello", "must be at least 0.01"),
        (f"{INSECURE}outposts = -1", "mesh.outposts", "must be at least 0"),
        (f"{INSECURE}link_rate = 0", "mesh.link_rate", "must be at least 0.1"),
        (f"{INSECURE}link_burst = 3", "mesh.link_burst", "must be at least 4"),
        (f"{INSECURE}address_rate = 1", "mesh.address_rate", "must be at least 4096"),
        (f"{INSECURE}address_burst = 1", "mesh.address_burst", "must be at least 65536"),
        (f"{INSECURE}max_origins = 0", "mesh.max_origins", "must be at least 1"),
        (f"{INSECURE}max_origin_octets = 1", "mesh.max_origin_octets", "must be at least 65536"),
        (f"{INSECURE}max_octets = 1", "mesh.max_octets", "must be at least 1048576"),
        (f"{INSECURE}max_waiting = 0", "mesh.max_waiting", "must be at least 1"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nrole = 'mesh'", "listener[0].role", "needs a table [mesh]"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nrole = 'edge'", "listener[0].role", "must be one of normal, mesh"),
        (f"{MESH}[[listener]]\nurl = 'amqp://127.0.0.1'\nrole = 'mesh'", "listener[0].url", "must begin with amqps"),
        (f"{MESH}[[listener]]\nurl = 'amqps://[::]'\nrole = 'mesh'\n{TLS}", "listener[0].tls", "does nothing"),
        (f"{MESH}[[listener]]\nurl = 'amqps://[::]'\nrole = 'mesh'\nusers = 'u'", "listener[0].users", "does nothing"),
        (f"{MESH}[[listener]]\nurl = 'amqps://[::]'\nrole = 'mesh'\nsasl = []", "listener[0].sasl", "does nothing"),
        (f"{MESH}[[listener]]\nurl = 'amqps://[::]'\nrole = 'mesh'\nmanage = true", "listener[0].manage", "nothing"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\ncost = 2", "listener[0].cost", "role"),
        (
            "[[listener]]\nurl = 'amqp://0.0.0.0'\ninsecure = true\nmanage = true",
            "listener[0].manage",
            "needs authentication",
        ),
        (
            f"{MESH}[[listener]]\nurl = 'amqps://[::]'\nrole = 'mesh'\ninsecure = true",
            "listener[0].insecure",
            "does nothing",
        ),
        (f"{INSECURE}[[listener]]\nurl = 'amqp://[::]'\nrole = 'mesh'", "listener[0].url", "for loopback only"),
        (f"{INSECURE}[[listener]]\nurl = 'amqps://[::1]'\nrole = 'mesh'", "listener[0].url", "must begin with amqp:"),
        ("[[connector]]", "connector[0].url", "is missing"),
        ("[[connector]]\nurl = 1", "connector[0].url", "must be a text"),
        ("[[connector]]\nurl = []", "connector[0].url", "must not be empty"),
        ("[[connector]]\nurl = [1]", "connector[0].url[0]", "must be a text"),
        ("[[connector]]\nurl = ['amqp://a', 'x']", "connector[0].url", "'x' must begin with amqp:// or amqps:// or"),
        ("[[connector]]\nurl = ['amqp://a', 'amqp://a']", "connector[0].url", "names amqp://a twice"),
        ("[[connector]]\nurl = 'amqp://a:0'", "connector[0].url", "needs a port"),
        ("[[connector]]\nurl = 'amqps+srv://a:1'", "connector[0].url", "DNS knows the ports"),
        ("[[connector]]\nurl = 'amqp://a'", "connector[0].role", "needs a table [mesh]"),
        (f"{MESH}[[connector]]\nurl = 'amqp://a'", "connector[0].url", "must begin with amqps"),
        (f"{INSECURE}[[connector]]\nurl = ['amqp://127.0.0.1', 'amqp://a']", "connector[0].url", "for loopback only"),
        (f"{INSECURE}[[connector]]\nurl = 'amqp+srv://localhost'", "connector[0].url", "for loopback only"),
        (f"{MESH}[[connector]]\nurl = 'amqps://a'\ncost = 0", "connector[0].cost", "must be at least 1"),
        (f"{MESH}[[connector]]\nurl = 'amqps://a'\nuser = 'u'", "connector[0].user", "does nothing"),
        (f"{MESH}[[connector]]\nurl = 'amqps://a'\ntls = {{ trust = 't' }}", "connector[0].tls", "does nothing"),
        (
            f"{MESH}[[connector]]\nurl = 'amqps://a'\npassword = {{ env = 'P' }}",
            "connector[0].password",
            "does nothing",
        ),
        (f"{BROKER}cost = 2", "connector[0].cost", "does nothing"),
        (f"{BROKER}tls = {{ trust = 't' }}", "connector[0].tls", "does nothing without amqps"),
        (f"{BROKER}tls = {{ key = 't' }}", "connector[0].tls.certificate", "is required"),
        (f"{BROKER}tls = {{ certificate = 't' }}", "connector[0].tls.key", "is required"),
        (f"{BROKER}user = 'u'", "connector[0].password", "is required"),
        (f"{BROKER}password = {{ env = 'P' }}", "connector[0].user", "is required"),
        (f"{BROKER}user = 'u'\npassword = 'secret'", "connector[0].password", "must be a table"),
        (f"{BROKER}user = 'u'\npassword = {{}}", "connector[0].password.file", "is required"),
        (
            f"{BROKER}user = 'u'\npassword = {{ file = 'f', env = 'E' }}",
            "connector[0].password.env",
            "give one of them",
        ),
        (f"{BROKER}redirects = 'b.example'", "connector[0].redirects", "must be a list"),
        (f"{BROKER}redirects = ['b.example', 'c:5672']", "connector[0].redirects", "'c:5672' is no host"),
        (f"{BROKER}redirects = ['*.*.example']", "connector[0].redirects", "is no host"),
        (f"{BROKER}connections = 3", "connector[0].connections", "unknown key"),
        (f"{BROKER}{BROKER}", "connector", "two connectors are named 'broker'"),
        (f"{BROKER}[[link]]", "link[0].connector", "is missing"),
        (f"{BROKER}[[link]]\nconnector = 'broker'\naddress = 'a'", "link[0].source", "is required, or target"),
        (
            f"{BROKER}[[link]]\nconnector = 'broker'\nsource = 's'\ntarget = 't'\naddress = 'a'",
            "link[0].target",
            "goes one way",
        ),
        (f"{BROKER}[[link]]\nconnector = 'broker'\nsource = 's'\naddress = '$a'", "link[0].address", "router's own"),
        (f"{BROKER}[[link]]\nconnector = 'broker'\nsource = 's'\naddress = 'a@b'", "link[0].address", "a container"),
        (f"{BROKER}{FEEDS}\n{FEEDS}", "link[1]", "does the same as 'a'"),
        (f"{BROKER}{FEEDS}\n{FEEDS.replace('source', 'target')}", "link[1]", "sends back the messages of 'a'"),
        (f"{BROKER}{FEEDS}\ncapabilities = ['a b']", "link[0].capabilities", "printable ASCII without spaces"),
        (f"{BROKER}{FEEDS}\ncapabilities = ['a', 'a']", "link[0].capabilities", "names one twice"),
        (f"{BROKER}{FEEDS}\ndurable = 'yes'", "link[0].durable", "must be one of none, configuration"),
        (f"{BROKER}{FEEDS}\nexpiry-policy = 'later'", "link[0].expiry-policy", "must be one of link-detach"),
        (
            f"{BROKER}[[link]]\nconnector = 'broker'\ntarget = 't'\naddress = 'a'\nselector = 'x = 1'",
            "link[0].selector",
            "is for a source",
        ),
        (
            f"{BROKER}[[link]]\nconnector = 'broker'\ntarget = 't'\naddress = 'a'\ndistribution_mode = 'copy'",
            "link[0].distribution_mode",
            "is for a source",
        ),
        ("[elsewhere]\ndomains = ['*.*']", "elsewhere.domains", "is no host"),
        ("[elsewhere]\ndomains = ['b', 'b']", "elsewhere.domains", "names one twice"),
        ("[elsewhere]\nredirects = ['http://b']", "elsewhere.redirects", "is no host"),
        ("[elsewhere]\nplaces = 0", "elsewhere.places", "must be at least 1"),
        ("[elsewhere]\nnodes = 30001", "elsewhere.nodes", "must be at most 30000"),
        ("[elsewhere]\nidle = -1.0", "elsewhere.idle", "must be at least 0"),
        (
            "[[address]]\npattern = 'a'\nredirect = { port = 5672, follow = 'router' }",
            "address[0].redirect.hostname",
            'with follow = "router": the place to connect to',
        ),
        (
            "[[address]]\npattern = 'a'\nredirect = { hostname = 'b', scheme = 'amqps' }",
            "address[0].redirect.scheme",
            "does nothing without follow",
        ),
        (
            "[[address]]\npattern = 'a'\nredirect = { hostname = 'b', follow = 'me' }",
            "address[0].redirect.follow",
            "must be one of client, router",
        ),
        *(
            (
                f"{BROKER}{LINK}address = 'a/b'\n[[address]]\npattern = 'a/#'\n{key}",
                "link[0].address",
                f"is {what}, by the pattern 'a/#'",
            )
            for key, what in (
                ("redirect = { hostname = 'c.example' }", "redirected"),
                ("distribution = 'unavailable'", "unavailable"),
            )
        ),
        (
            f"{BROKER}[[link]]\nconnector = 'borker'\nsource = 's'\naddress = 'a'",
            "link[0].connector",
            "there is no connector 'borker'; known are broker",
        ),
        (
            f"{MESH}[[connector]]\nurl = 'amqps://b'\n[[link]]\nconnector = 'b'\nsource = 's'\naddress = 'a'",
            "link[0].connector",
            "'b' does not have role",
        ),
        (
            BROKER + "[[link]]\nname = 'l'\nconnector = 'broker'\nsource = 's'\naddress = 'a'\n" * 2,
            "link",
            "two links are named 'l'",
        ),
    ],
)
def test_a_fault_of_the_mesh_and_its_connectors_is_named(text: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(text)
    assert (refused.value.file, refused.value.key) == (str(FILE), key)
    assert reason in refused.value.reason


def test_the_mesh_is_read_with_its_listeners_connectors_and_links() -> None:
    config = parsed(
        """
        [router]
        id = "A"
        channel_max = 7
        [mesh]
        certificate = "A.pem"
        key = "A.key"
        trust = "mesh-ca.pem"
        hello = 0.5
        hold = 2
        lane-idle = 30
        [[listener]]
        url = "amqps://0.0.0.0:5671"
        role = "mesh"
        [[connector]]
        url = ["amqps://b1.example:5671", "amqps+srv://b2.example"]
        cost = 3
        channel_max = 15
        [[connector]]
        name = "broker"
        url = "amqps://127.0.0.1:5699"
        role = "container"
        tls = { certificate = "c.pem", key = "c.key", trust = "broker-ca.pem" }
        user = "alice"
        password = { file = "alice.password" }
        hostname = "vhost:/"
        redirects = ["b.example", "*.c.example"]
        trace_frames = true
        [[link]]
        connector = "broker"
        source = "orders"
        address = "incoming/orders"
        [[link]]
        name = "bills"
        connector = "broker"
        target = "bills"
        address = "outgoing/bills"
        """
    )
    folder = FILE.parent
    assert config == RouterConfig(
        id="A",
        channel_max=7,
        mesh=MeshConfig(
            certificate=folder / "A.pem",
            key=folder / "A.key",
            trust=folder / "mesh-ca.pem",
            hello=0.5,
            hold=2.0,
            lane_idle=30.0,
        ),
        listeners=(ListenerConfig(url="amqps://0.0.0.0:5671", role="mesh", name="amqps", channel_max=7),),
        connectors=(
            ConnectorConfig(
                url=("amqps://b1.example:5671", "amqps+srv://b2.example"), name="b1.example", cost=3, channel_max=15
            ),
            ConnectorConfig(
                url="amqps://127.0.0.1:5699",
                name="broker",
                role="container",
                tls=ConnectorTlsConfig(
                    certificate=folder / "c.pem", key=folder / "c.key", trust=folder / "broker-ca.pem"
                ),
                user="alice",
                password=PasswordConfig(file=folder / "alice.password"),
                hostname="vhost:/",
                redirects=("b.example", "*.c.example"),
                trace_frames=True,
                channel_max=7,
            ),
        ),
        container_links=(
            LinkConfig(connector="broker", name="incoming/orders", source="orders", address="incoming/orders"),
            LinkConfig(connector="broker", name="bills", target="bills", address="outgoing/bills"),
        ),
    )


def test_neighbours_show_a_certificate_or_in_an_insecure_mesh_nothing() -> None:
    secure = parsed(f"{MESH}[[listener]]\nurl = 'amqps://0.0.0.0'\nrole = 'mesh'").listeners[0]
    assert secure.mechanisms(secured=True) == ("EXTERNAL",)
    assert secure.authenticates
    insecure = parsed(f"{INSECURE}[[listener]]\nurl = 'amqp://127.0.0.1'\nrole = 'mesh'").listeners[0]
    assert insecure.mechanisms(secured=False) == ("ANONYMOUS",)
    assert not insecure.authenticates


def test_a_program_may_give_a_list_of_urls() -> None:
    connector = ConnectorConfig(url=["amqp://a", "amqps://b"], role="container")  # type: ignore[arg-type]  # as one does
    assert [str(place) for place in connector.places] == ["amqp://a:5672", "amqps://b:5671"]
    assert hash(connector) == hash(ConnectorConfig(url=("amqp://a", "amqps://b"), role="container"))


@pytest.mark.parametrize("url", ["amqp://0.0.0.0", "amqp://[::]", "amqp://10.0.0.1", "amqp://router.example"])
@pytest.mark.parametrize("sasl", ["[]", "['ANONYMOUS']", "['SCRAM-SHA-1', 'ANONYMOUS']"])
def test_without_authentication_a_listener_beyond_loopback_must_say_insecure(url: str, sasl: str) -> None:
    text = f"url = '{url}'\nsasl = {sasl}\n" + ("users = 'u'" if "SCRAM" in sasl else "")
    with pytest.raises(ConfigError) as refused:
        listener(text)
    assert refused.value.key == "listener[0].sasl"
    assert "loopback only" in refused.value.reason
    assert listener(f"{text}\ninsecure = true").insecure


def test_a_demanded_client_certificate_is_authentication_where_tls_cannot_be_left_out() -> None:
    assert listener(f"url = 'amqps://0.0.0.0'\nsasl = []\n{MUTUAL}").authenticates
    with pytest.raises(ConfigError, match="loopback only"):
        listener(f"url = 'amqp://0.0.0.0'\nsasl = []\n{MUTUAL}")
    with pytest.raises(ConfigError, match="loopback only"):
        listener(f"url = 'amqps://0.0.0.0'\nsasl = []\n{MUTUAL.replace('required', 'optional')}")


def test_plain_is_offered_under_tls_only_unless_insecure() -> None:
    both = "sasl = ['PLAIN', 'SCRAM-SHA-256']\nusers = 'u'\n"
    upgrade = listener(f"url = 'amqp://127.0.0.1'\n{both}{TLS}")
    assert upgrade.mechanisms(secured=False) == ("SCRAM-SHA-256",)
    assert upgrade.mechanisms(secured=True) == ("PLAIN", "SCRAM-SHA-256")
    insecure = listener(f"url = 'amqp://127.0.0.1'\n{both}insecure = true")
    assert insecure.mechanisms(secured=False) == ("PLAIN", "SCRAM-SHA-256")


def test_external_is_offered_under_tls_only_even_if_insecure() -> None:
    config = listener(f"url = 'amqp://127.0.0.1'\nsasl = ['EXTERNAL', 'ANONYMOUS']\ninsecure = true\n{MUTUAL}")
    assert config.mechanisms(secured=False) == ("ANONYMOUS",)
    assert config.mechanisms(secured=True) == ("EXTERNAL", "ANONYMOUS")


@pytest.mark.parametrize(
    ("sasl", "demanded", "offered"),
    [
        ("['ANONYMOUS']", False, ("ANONYMOUS",)),
        ("[]", False, ("ANONYMOUS",)),
        ("['SCRAM-SHA-1']", True, ("SCRAM-SHA-1",)),
        ("['SCRAM-SHA-1', 'ANONYMOUS']", False, ("SCRAM-SHA-1", "ANONYMOUS")),
    ],
)
def test_the_sasl_layer_is_demanded_unless_anonymous_may_come_in(
    sasl: str, demanded: bool, offered: tuple[str, ...]
) -> None:
    config = listener(f"url = 'amqp://127.0.0.1'\nsasl = {sasl}\n" + ("users = 'u'" if "SCRAM" in sasl else ""))
    assert config.sasl_demanded is demanded
    assert config.mechanisms(secured=False) == offered


def test_listeners_without_a_name_are_named_after_their_scheme() -> None:
    config = parsed(
        f"""
        [[listener]]
        url = "amqp://127.0.0.1:0"
        [[listener]]
        url = "amqp://127.0.0.1:0"
        name = "amqp-2"
        [[listener]]
        url = "amqp://127.0.0.1:0"
        [[listener]]
        url = "amqps://127.0.0.1:0"
        {TLS}
        """
    )
    assert [listener.name for listener in config.listeners] == ["amqp", "amqp-2", "amqp-3", "amqps"]


def test_the_address_table_finds_the_most_specific_pattern() -> None:
    table = parsed("[[address]]\npattern = 'a/#'\nwindow = 1\n[[address]]\npattern = 'a/b'\nwindow = 2").address_table()
    found = table.lookup("a/b")
    assert found is not None
    assert found.window == 2
    assert table.lookup("other") is None


def test_added_listeners_have_the_limits_of_the_router() -> None:
    config = RouterConfig(id="A", max_frame_size=1024).with_listeners("amqp://127.0.0.1:0", "amqp://[::1]:0")
    assert [listener.max_frame_size for listener in config.listeners] == [1024, 1024]
    with pytest.raises(ConfigError, match="loopback only"):
        config.with_listeners("amqp://0.0.0.0:0")


def test_a_configuration_built_in_python_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="ListenerConfig: url: must begin with"):
        ListenerConfig(url="x")
    with pytest.raises(ConfigError, match="RouterConfig: max_frame_size: must be at least 512"):
        RouterConfig(max_frame_size=1)


def test_a_router_without_a_name_is_called_after_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "my host/@#*é")
    assert RouterConfig().id == "my-host-----"
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert RouterConfig().id == "router"


def write_tls(folder: Path) -> None:
    for name in ("a.pem", "a.key", "ca.pem"):
        (folder / name).write_text("a certificate, or not")


def test_a_file_is_read_with_the_files_it_names(tmp_path: Path) -> None:
    write_tls(tmp_path)
    add_user(tmp_path / "users.toml", "alice", "secret")
    file = tmp_path / "a.toml"
    file.write_text(
        f"[router]\nid = 'A'\n[[listener]]\nurl = 'amqps://0.0.0.0'\nsasl = ['PLAIN']\nusers = 'users.toml'\n{MUTUAL}"
    )
    assert load(file).listeners[0].users == tmp_path / "users.toml"


@pytest.mark.parametrize(
    ("missing", "key"),
    [
        ("a.pem", "listener[0].tls.certificate"),
        ("a.key", "listener[0].tls.key"),
        ("ca.pem", "listener[0].tls.trust"),
        ("users.toml", "listener[0].users"),
        ("mesh.pem", "mesh.certificate"),
        ("mesh.key", "mesh.key"),
        ("mesh-ca.pem", "mesh.trust"),
        ("broker-ca.pem", "connector[0].tls.trust"),
        ("password", "connector[0].password.file"),
        ("a.toml", "file"),
    ],
)
def test_a_missing_file_is_named_with_its_key(tmp_path: Path, missing: str, key: str) -> None:
    write_tls(tmp_path)
    for name in ("mesh.pem", "mesh.key", "mesh-ca.pem", "broker-ca.pem", "password"):
        (tmp_path / name).write_text("not looked into")
    add_user(tmp_path / "users.toml", "alice", "secret")
    file = tmp_path / "a.toml"
    file.write_text(
        f"""
        [mesh]
        certificate = "mesh.pem"
        key = "mesh.key"
        trust = "mesh-ca.pem"
        [[listener]]
        url = "amqps://0.0.0.0"
        sasl = ["PLAIN"]
        users = "users.toml"
        {MUTUAL}
        [[connector]]
        url = "amqps://broker.example"
        role = "container"
        user = "alice"
        password = {{ file = "password" }}
        tls = {{ trust = "broker-ca.pem" }}
        """
    )
    (tmp_path / missing).unlink()
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert (refused.value.file, refused.value.key) == (str(file), key)
    assert "No such file" in refused.value.reason


@pytest.mark.parametrize(
    "content", [b"[router", b"\xff\xfe", b"[router]\n[router]\n", b"a = 1\na = 2\n", b"a = " + b"[" * 3_000]
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert refused.value.file == str(file)


def test_a_bad_users_file_is_named_with_the_key_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text("alice = 'secret'")
    file = tmp_path / "a.toml"
    file.write_text("[[listener]]\nurl = 'amqp://127.0.0.1'\nsasl = ['SCRAM-SHA-256']\nusers = 'users.toml'")
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert refused.value.key == "listener[0].users"
    assert "alice" in refused.value.reason
    assert "secret" not in str(refused.value)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def limits(draw: st.DrawFn) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for item in declared(Limits):
        low, high = item.metadata["low"], item.metadata["high"] or 10**9
        number = st.floats(low, high) if item.type is float else st.integers(low, high)
        chosen[item.name] = draw(number)
    return chosen


@st.composite
def configs(draw: st.DrawFn) -> RouterConfig:
    patterns = draw(st.lists(TEXTS.filter(lambda text: not text.startswith("$")), unique=True, max_size=3))
    return RouterConfig(
        id=draw(st.from_regex(r"[a-zA-Z0-9._-]{1,255}", fullmatch=True)),
        drain=draw(st.floats(0, 3600)),
        log=LogConfig(level=draw(st.sampled_from(["debug", "info"])), format=draw(st.sampled_from(["text", "json"]))),
        listeners=tuple(
            ListenerConfig(
                url=f"amqps://127.0.0.1:{number}",
                tls=TlsConfig(certificate=FILE.parent / draw(TEXTS.filter(lambda text: "\0" not in text)), key=FILE),
                **limits(draw),
            )
            for number in draw(st.lists(st.integers(0, 65535), max_size=2, unique=True))
        ),
        addresses=tuple(
            AddressConfig(pattern=pattern, dead_letter=draw(st.none() | TEXTS.map(lambda text: text + "!dead")))
            for pattern in patterns
        ),
        **limits(draw),
    )


@st.composite
def meshes(draw: st.DrawFn) -> RouterConfig:
    paths = TEXTS.filter(lambda text: "\0" not in text).map(lambda text: FILE.parent / text)
    hello = draw(st.floats(0.01, 100))
    mesh = MeshConfig(
        certificate=draw(paths), key=draw(paths), trust=draw(paths), hello=hello, hold=hello + draw(st.floats(0.1, 100))
    )
    tls = st.builds(ConnectorTlsConfig, certificate=paths, key=paths, trust=st.none() | paths)
    passwords = st.builds(PasswordConfig, file=paths) | st.builds(PasswordConfig, env=TEXTS)
    urls = [f"amqps://h{number}" for number in range(draw(st.integers(1, 3)))]
    names = TEXTS.filter(lambda text: not text.startswith("$") and "@" not in text)
    broker = ConnectorConfig(
        url=draw(st.sampled_from(["amqps://broker", tuple(urls)])),
        name=draw(TEXTS),
        role="container",
        tls=draw(st.none() | tls),
        hostname=draw(st.none() | TEXTS),
        **limits(draw),
        **draw(st.just({}) | st.fixed_dictionaries({"user": TEXTS, "password": passwords})),
    )
    return RouterConfig(
        id="A",
        mesh=mesh,
        listeners=(ListenerConfig(url="amqps://0.0.0.0", role="mesh", connections=draw(st.integers(1, 10**9))),),
        connectors=(broker, ConnectorConfig(url="amqps+srv://mesh.example", cost=draw(st.integers(1, 65535)))),
        container_links=tuple(
            LinkConfig(
                connector=broker.name,
                address=address,
                **{draw(st.sampled_from(["source", "target"])): draw(TEXTS)},  # type: ignore[arg-type]  # a text
            )
            for address in draw(st.lists(names, max_size=3, unique=True))  # two links of one address may do the same
        ),
    )


@given(configs() | meshes())
def test_a_written_configuration_is_read_as_an_equal_one(config: RouterConfig) -> None:
    assert parsed("\n".join(lines(config))) == config


def test_a_program_may_write_the_words_of_a_file() -> None:
    address = AddressConfig(pattern="news", distribution="multicast", overflow="drop")  # type: ignore[arg-type]  # as one does
    assert (address.distribution, address.overflow) == (Distribution.MULTICAST, Overflow.DROP)
    tls = TlsConfig(certificate="a.pem", key=Path("a.key"))  # type: ignore[arg-type]  # as one does
    assert (tls.certificate, tls.key, tls.trust) == (Path("a.pem"), Path("a.key"), None)
    with pytest.raises(ConfigError, match="distribution: must be one of"):
        AddressConfig(pattern="news", distribution="everybody")  # type: ignore[arg-type]  # as one does
