"""`amqpmesh import`: configurations of Qpid Dispatch and Skupper Router."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli.dispatch.conf_syntax import sections
from amqpmesh.router.cli.dispatch.translation import translate
from amqpmesh.router.cli.main import main
from amqpmesh.router.config.policy_file import load_policy

KNOWN = {  # what the two routers' files can have, by their schemas of versions 1.0 to 1.19, and 2.0 to 3.5
    "router": "allowResumableLinkRoute allowUnsettledMulticast area dataConnectionCount debugDump debugDumpFile "
    "defaultDistribution dropTcpConnections helloIntervalSeconds helloMaxAgeSeconds id metadata mode name "
    "raIntervalFluxSeconds raIntervalSeconds remoteLsMaxAgeSeconds routerId saslConfigDir saslConfigName "
    "saslConfigPath timestampFormat timestampsInUTC unreachableHoldoffSeconds vanId workerThreads",
    "sslProfile": "caCertFile certDb certFile ciphers displayNameFile keyFile name oldestValidOrdinal ordinal password "
    "passwordFile privateKeyFile protocols uidFormat uidNameMappingFile",
    "listener": "addr authenticatePeer cost failoverUrls healthz host http httpRoot httpRootDir idleTimeoutSeconds "
    "initialHandshakeTimeoutSeconds linkCapacity maxFrameSize maxSessionFrames maxSessions messageLoggingComponents "
    "metrics multiTenant name openProperties policyVhost port protocolFamily requireEncryption requireSsl role "
    "saslMechanisms socketAddressFamily sslProfile stripAnnotations websockets",
    "connector": "addr allowRedirect cost host idleTimeoutSeconds linkCapacity maxFrameSize maxSessionFrames "
    "maxSessions messageLoggingComponents name openProperties policyVhost port protocolFamily proxyProfile role "
    "saslMechanisms saslPassword saslUsername socketAddressFamily sslProfile stripAnnotations verifyHostname",
    "log": "enable includeSource includeTimestamp module name output outputFile source timestamp",
    "address": "distribution egressPhase enableFallback fallback ingressPhase name prefix priority waypoint",
    "autoLink": "addr address connection containerId dir direction externalAddr externalAddress fallback name phase",
    "linkRoute": "addExternalPrefix connection containerId delExternalPrefix dir direction distribution name prefix",
    "policy": "defaultVhost enableVhostNamePatterns enableVhostPolicy maxConnections maxMessageSize policyDir",
    "vhost": "aliases allowUnknownUser groups hostname id maxConnections maxConnectionsPerHost maxConnectionsPerUser "
    "maxMessageSize name",
}
VALUES = {
    "role": "route-container",
    "direction": "in",
    "dir": "in",
    "connection": "it",
    "name": "it",
    "distribution": "multicast",
    "defaultDistribution": "multicast",
    "mode": "interior",
    "http": "no",
    "multiTenant": "no",
    "sslProfile": "it",
    "host": "127.0.0.1",
    "uidFormat": "n",
    "enable": "info+",
    "hostname": "$default",
    "enableVhostPolicy": "yes",
}
WAYPOINT = """
connector {
    name: broker
    role: route-container
    host: broker.example
}
autoLink {
    address: orders
    connection: broker
    direction: in
}
autoLink {
    address: orders
    connection: broker
    direction: out
}
autoLink {
    address: audit
    containerId: Broker
    externalAddress: queue/audit
    direction: out
}
"""
VHOSTS = """
policy {
    enableVhostPolicy: true
}
vhost {
    hostname: $default
    allowUnknownUser: yes
    maxConnectionsPerUser: 10
    groups: {
        staff: {
            users: alice, bob
            remoteHosts: 10.0.0.1-10.0.0.3, desk.example
            sources: *
            targets: orders, queue/*, inv*, ${user}/in, $management
            maxSenders: 3
            allowUserIdProxy: true
        },
        $default: {
            remoteHosts: *
            sourcePattern: news/#
            allowDynamicSource: yes
        }
    }
}
"""


class Imported:
    """The result of the command: its files, and its account."""

    def __init__(self, status: int, directory: Path, output: str) -> None:
        self.status = status
        self.directory = directory
        self.said = json.loads(output) if output else {}

    @property
    def config(self) -> dict[str, Any]:
        return tomllib.loads((self.directory / "amqpmesh.toml").read_text())

    @property
    def policy(self) -> dict[str, Any]:
        return tomllib.loads((self.directory / "policy.toml").read_text())

    def fate(self, key: str) -> str:
        return next(str(line["fate"]) for line in self.said["lines"] if line["key"] == key)


def imported(text: str, folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Imported:
    (folder / "qdrouterd.conf").write_text(text)
    status = main(["import", str(folder / "qdrouterd.conf"), "--directory", str(folder / "made"), "--json", *more])
    return Imported(status, folder / "made", capsys.readouterr().out)


def test_a_plain_file_becomes_a_configuration_that_check_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = imported(
        "# ours\nrouter {\n    id: A  # the first\n}\nlistener {\n    host: 127.0.0.1\n    port: amqp\n}\n"
        "address {\n    prefix: news\n    distribution: multicast\n}\n",
        tmp_path,
        capsys,
    )
    assert made.status == 0
    assert made.config == {
        "router": {"id": "A"},
        "listener": [{"url": "amqp://127.0.0.1:5672"}],
        "address": [
            {"pattern": "news/#", "distribution": "multicast"},
            {"pattern": "news.#", "distribution": "multicast"},
        ],
    }
    assert main(["check", str(made.directory / "amqpmesh.toml")]) == 0


def test_each_line_has_its_account(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = imported("router {\n    id: A\n\n    workerThreads: 4\n}\nexchange {\n    name: x\n}\n", tmp_path, capsys)
    assert [(line["file"], line["line"], line["key"], line["fate"]) for line in made.said["lines"]] == [
        ("qdrouterd.conf", 1, "router", "kept"),
        ("qdrouterd.conf", 2, "router.id", "kept"),
        ("qdrouterd.conf", 4, "router.workerThreads", "changed"),
        ("qdrouterd.conf", 6, "exchange", "missing"),
        ("qdrouterd.conf", 7, "exchange.name", "missing"),
    ]
    assert made.status == 5
    assert any("--workers 4" in line for line in made.said["advice"])


def test_the_account_of_people_has_the_same_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "skrouterd.conf").write_text("site {\n    location: here\n}\nfoo {\n    bar: 1\n}\n")
    assert main(["import", str(tmp_path / "skrouterd.conf"), "--directory", str(tmp_path)]) == 5
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "LINE KEY BECAME HERE",
        "skrouterd.conf:1 site not needed a label, without effect",
        "skrouterd.conf:2 site.location not needed a label, without effect",
        "skrouterd.conf:4 foo missing this section is not known here",
        "skrouterd.conf:5 foo.bar missing this section is not known here",
        "",
        "0 kept, 0 changed, 2 not needed, 2 missing",
    ]


@pytest.mark.parametrize("kind", KNOWN)
def test_each_attribute_of_the_two_routers_is_known(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = KNOWN[kind].split()
    written = "".join(f"    {name}: {VALUES.get(name, '7')}\n" for name in names)
    connector = "connector {\n    name: it\n    role: route-container\n}\n"
    profile = "sslProfile {\n    name: it\n}\n"
    made = imported(
        f"policy {{\n    enableVhostPolicy: yes\n}}\n{connector}{profile}{kind} {{\n{written}}}\n", tmp_path, capsys
    )
    unknown = {line["key"] for line in made.said["lines"] if "not known here" in line["words"]}
    assert unknown - {"vhost.groups"} == set()
    assert {f"{kind}.{name}" for name in names} <= {line["key"] for line in made.said["lines"]}


def test_json_is_read_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = imported(
        '[\n  ["router", {"id": "A", "mode": "interior"}],\n  ["connector",\n    {"role": "inter-router",\n'
        '     "host": "127.0.0.1", "port": "55671", "cost": 3}]\n]\n',
        tmp_path,
        capsys,
    )
    assert made.config["mesh"] == {"insecure": True}
    assert made.config["connector"] == [{"url": "amqp://127.0.0.1:55671", "role": "mesh", "cost": 3}]
    lines = {line["key"]: line["line"] for line in made.said["lines"]}
    assert lines["router.mode"] == 2
    assert lines["connector"] == 3
    assert lines["connector.cost"] == 5


def test_listeners_keep_what_they_demand_of_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = imported(
        "sslProfile {\n    name: tls\n    certFile: /etc/a.pem\n    privateKeyFile: /etc/a.key\n"
        "    caCertFile: /etc/ca\n    password: pass:hidden\n}\n"
        "listener {\n    host: 10.0.0.1\n    sslProfile: tls\n    requireSsl: yes\n    authenticatePeer: yes\n"
        "    saslMechanisms: EXTERNAL ANONYMOUS\n}\n"
        "listener {\n    host: 10.0.0.1\n    port: 5673\n    saslMechanisms: PLAIN GSSAPI\n}\n",
        tmp_path,
        capsys,
    )
    first, second = made.config["listener"]
    tls = first.pop("tls")
    assert first == {"url": "amqps://10.0.0.1:5672", "sasl": ["EXTERNAL"]}
    assert tls == {
        "certificate": "/etc/a.pem",
        "key": "/etc/a.key",
        "trust": "/etc/ca",
        "client": "required",
        "key_password": {"file": "tls.password"},
    }
    assert second == {
        "url": "amqp://10.0.0.1:5673",
        "sasl": ["PLAIN", "ANONYMOUS"],
        "users": "users.toml",
        "insecure": True,
    }
    assert made.fate("listener.host") == "kept"
    assert [line["fate"] for line in made.said["lines"] if line["key"] == "listener.host"] == ["kept", "changed"]


def test_a_password_is_in_a_file_of_its_own_and_nowhere_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "qdrouterd.conf").write_text(
        "connector {\n    name: broker\n    role: route-container\n    saslUsername: u\n"
        "    saslPassword: top:secret\n}\n"
    )
    assert main(["import", str(tmp_path / "qdrouterd.conf"), "--directory", str(tmp_path)]) == 5
    said = capsys.readouterr()
    assert "secret" not in said.out + said.err + (tmp_path / "amqpmesh.toml").read_text()
    assert (tmp_path / "broker.password").read_text() == "top:secret\n"
    assert stat.S_IMODE((tmp_path / "broker.password").stat().st_mode) == 0o600


def test_a_waypoint_becomes_a_redirect_and_a_single_link_stays_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = imported(WAYPOINT, tmp_path, capsys)
    place = {"network_host": "broker.example", "port": 5672, "scheme": "amqp", "follow": "router"}
    assert made.config["address"] == [{"pattern": "orders", "redirect": place}]
    assert made.config["link"] == [{"connector": "broker", "target": "queue/audit", "address": "audit"}]
    assert main(["check", str(made.directory / "amqpmesh.toml")]) == 0


def test_a_mesh_over_hosts_needs_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = imported(
        "router {\n    id: A\n    mode: interior\n    helloMaxAgeSeconds: 5\n}\n"
        "listener {\n    role: inter-router\n    host: 0.0.0.0\n    port: 55672\n}\n",
        tmp_path,
        capsys,
    )
    assert made.config["mesh"] == {"certificate": "A.pem", "key": "A.key", "trust": "mesh-ca.pem", "hold": 5.0}
    assert made.config["listener"] == [{"url": "amqps://0.0.0.0:55672", "role": "mesh"}]
    assert any("amqpmesh ca issue A" in line for line in made.said["advice"])


def test_a_virtual_host_becomes_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = imported(VHOSTS, tmp_path, capsys)
    assert made.policy == {
        "group": [
            {
                "name": "staff",
                "users": ["alice", "bob"],
                "networks": ["10.0.0.1/32", "10.0.0.2/31"],
                "send": ["orders", "queue/#", "${user}/in"],
                "receive": ["#"],
                "manage": ["write"],
                "user_id": "any",
                "limits": {"connections": 10, "senders": 30},
            },
            {
                "name": "everyone",
                "receive": ["news/#"],
                "may": ["dynamic"],
                "user_id": "match",
                "limits": {"connections": 10},
            },
        ]
    }
    assert made.fate("vhost.groups.staff.targets") == "missing"
    assert made.fate("vhost.groups.staff.remoteHosts") == "changed"
    assert load_policy(made.directory / "policy.toml").groups


def test_several_virtual_hosts_become_tenants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = imported(
        "policy {\n    enableVhostPolicy: true\n}\n"
        "vhost {\n    hostname: shop.example\n    aliases: s1, s2\n    maxConnections: 5\n}\n"
        "vhost {\n    hostname: $default\n}\n",
        tmp_path,
        capsys,
    )
    assert made.policy["tenant"] == [
        {
            "name": "shop-example",
            "match": [{"hostname": "shop.example"}, {"hostname": "s1"}, {"hostname": "s2"}],
            "limits": {"connections": 5},
        },
        {"name": "default", "default": True},
    ]


@pytest.mark.parametrize(
    "group",
    [
        "users: alice\n",  # without remoteHosts, no host is permitted
        "users: alice\nremoteHosts: desk.example\n",
        "remoteHosts: *\n",  # without users, nobody is in it
    ],
)
def test_a_group_that_admitted_nobody_admits_nobody(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = imported(
        f"policy {{\n    enableVhostPolicy: true\n}}\nvhost {{\n    hostname: a\n    groups: {{\n        g: {{\n{group}"
        "            sources: *\n        }\n        $default: {\n            remoteHosts: *\n            sources: *\n"
        "        }\n    }\n}\n",
        tmp_path,
        capsys,
    )
    assert "group" not in made.policy


def test_a_policy_that_was_not_in_force_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = imported("vhost {\n    hostname: a\n}\n", tmp_path, capsys)
    assert not (made.directory / "policy.toml").exists()
    assert made.fate("vhost.hostname") == "not needed"


def test_files_of_the_policy_folder_are_read_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shop.json").write_text(
        '[\n  ["vhost", {\n    "hostname": "shop",\n    "groups": {"g": {"users": "a",\n'
        '      "remoteHosts": "*", "targets": "x"}}\n  }]\n]\n'
    )
    made = imported(
        "policy {\n    enableVhostPolicy: true\n    policyDir: /etc\n}\n",
        tmp_path,
        capsys,
        "--vhosts",
        str(tmp_path / "shop.json"),
    )
    assert made.policy["group"] == [{"name": "g", "tenant": "shop", "users": ["a"], "send": ["x"], "user_id": "match"}]
    assert {
        (line["file"], line["line"]) for line in made.said["lines"] if line["key"] == "vhost.groups.g.remoteHosts"
    } == {("shop.json", 5)}


def test_what_is_not_valid_yet_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = imported("listener {\n    host: not a host\n}\n", tmp_path, capsys)
    assert any("not valid yet" in line for line in made.said["advice"])


def test_a_file_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/amqpmesh.toml").write_text("mine")
    assert imported("router {\n}\n", tmp_path, capsys).status == 2
    assert (tmp_path / "made/amqpmesh.toml").read_text() == "mine"
    assert imported("router {\n}\n", tmp_path, capsys, "--force").config == {"router": {}}


def test_a_trial_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imported("router {\n}\n", tmp_path, capsys, "--dry-run")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("listener {\n    host: x\n", "qdrouterd.conf:1: the brace is not closed"),
        ("listener\n", "qdrouterd.conf:1: expected the name of a section and a brace"),
        ("listener {\n    host\n}\n", "qdrouterd.conf:2: expected an attribute"),
        ("vhost {\n    groups: {nothing}\n}\n", "qdrouterd.conf:2: the value is not valid JSON"),
        ('[["router"]]', "qdrouterd.conf: each section"),
        ('[["router", }]]', "qdrouterd.conf:1: "),
        ("[" * 100_000, "qdrouterd.conf: lists and maps are nested too deep"),
        ("a {\n" + "b: {\n" * 100, "more than 16 maps within each other"),
    ],
)
def test_a_malformed_file_ends_with_2_and_its_line(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "qdrouterd.conf").write_text(text)
    assert main(["import", str(tmp_path / "qdrouterd.conf"), "--directory", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"\xff\xfe", b" " * (4 * 2**20 + 1)])
def test_a_file_that_is_no_text_or_too_large_ends_with_2(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "qdrouterd.conf").write_bytes(data)
    assert main(["import", str(tmp_path / "qdrouterd.conf"), "--directory", str(tmp_path)]) == 2


VALUE = st.text('abc*#.,-/:$@ 0123456789"{}[]\\', max_size=12)
SECTION = st.builds(
    lambda kind, attributes: f"{kind} {{\n" + "".join(f"    {name}: {value}\n" for name, value in attributes) + "}\n",
    st.sampled_from(sorted(KNOWN)),
    st.lists(st.tuples(st.sampled_from(sorted({each for names in KNOWN.values() for each in names.split()})), VALUE)),
)


@given(st.lists(SECTION, max_size=6).map("".join))
def test_any_file_is_translated_or_refused_with_its_line(text: str) -> None:
    try:
        read = sections(text, "f")
    except CommandError as error:
        refused = str(error)
        read = []
    else:
        refused = "f:"
    assert refused.startswith("f:")
    made = translate(read, "f")
    tomllib.loads(made.config)
    tomllib.loads(made.policy or "")
    assert all(0 < each.line.number <= text.count("\n") for each in made.fates)
