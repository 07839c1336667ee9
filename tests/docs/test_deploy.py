"""The files in `deploy`: a mesh for compose, and one for Kubernetes."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from amqpmesh.router.cli.registry import parser
from amqpmesh.router.config.file import RouterConfig, load, parse
from amqpmesh.router.runtime.ending import CLOSE_TIME
from tests.docs.pages import ROOT
from tests.docs.processes import environment

DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "mesh.yaml").read_text(encoding="utf-8")))
COMPOSE: Final = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
ROUTERS: Final = ("a", "b", "c")


def of_kind(kind: str) -> list[Any]:
    return [each for each in KUBERNETES if each["kind"] == kind]


def neighbours(config: RouterConfig) -> list[tuple[str, int]]:
    """Return the hosts and ports that a router connects to."""
    return [(place.host, place.port) for each in config.connectors for place in each.places]


def ports(config: RouterConfig) -> dict[str, int]:
    """Return the ports of its listeners by their roles; without those for the pod itself."""
    return {each.role: each.endpoint.port for each in config.listeners if not each.endpoint.loopback}


@pytest.mark.parametrize("entity", KUBERNETES, ids=lambda entity: f"{entity['kind']} {entity['metadata']['name']}")
def test_each_entity_is_valid_for_kubernetes(entity: dict[str, Any]) -> None:
    kubernetes_validate.validate(entity, "1.30", strict=True)


def test_the_pods_of_kubernetes_are_a_mesh() -> None:
    (stateful,), (map_of_files,) = of_kind("StatefulSet"), of_kind("ConfigMap")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    name, count = stateful["metadata"]["name"], stateful["spec"]["replicas"]
    pods = [f"{name}-{number}" for number in range(count)]
    assert sorted(map_of_files["data"]) == [f"{pod}.toml" for pod in pods]
    by_name = {each["metadata"]["name"]: each for each in of_kind("Service")}
    headless = by_name[stateful["spec"]["serviceName"]]
    opened = {each["name"]: each["containerPort"] for each in container["ports"]}
    secrets: set[str] = set()
    for number, pod in enumerate(pods):
        config = parse(tomllib.loads(map_of_files["data"][f"{pod}.toml"]), Path(f"/etc/amqpmesh/{pod}.toml"))
        assert (config.id, config.mesh is None) == (pod, False)
        assert ports(config) == {"mesh": opened["mesh"], "normal": opened["amqp"], "http": opened["http"]}
        service = headless["metadata"]["name"]
        assert neighbours(config) == [(f"{each}.{service}", opened["mesh"]) for each in pods[:number]]
        assert config.mesh is not None
        secrets |= {str(each) for each in (config.mesh.certificate, config.mesh.key, config.mesh.trust)}
        grace = stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        hook = container["lifecycle"]["preStop"]["exec"]["command"]
        given = parser().parse_args(hook[1:])
        assert config.drain + given.timeout + CLOSE_TIME < grace
        (own,) = [each for each in config.listeners if each.manage]
        assert given.url == own.url
        assert own.endpoint.loopback
    folder = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "certificates")
    assert secrets == {f"{folder}/mesh-ca.pem", *(f"{folder}/{pod}.{kind}" for pod in pods for kind in ("pem", "key"))}
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert all(each["spec"]["selector"].items() <= labels.items() for each in by_name.values())
    assert all(port["targetPort"] in opened for each in by_name.values() for port in each["spec"]["ports"])


def test_pods_and_containers_have_no_more_rights_than_they_need() -> None:
    (stateful,) = of_kind("StatefulSet")
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for router in ROUTERS:
        service = COMPOSE["services"][router]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_probes_ask_what_the_router_answers() -> None:
    (stateful,) = of_kind("StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    asked = {name: container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {name: each["path"] for name, each in asked.items()} == {
        "startupProbe": "/readyz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }
    assert {each["port"] for each in asked.values()} == {"http"}


def test_compose_makes_the_certificates_that_its_routers_read(tmp_path: Path) -> None:
    made = COMPOSE["services"]["certificates"]
    (script,) = made["command"]
    script = re.sub(r"chown .*", "", script.replace("$$", "$"))
    for _ in range(2):  # the second time it finds them
        done = subprocess.run(
            [*made["entrypoint"], script],
            cwd=tmp_path,
            env=environment(tmp_path / "bin"),
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == done.stderr == ""
    for router in ROUTERS:
        name = router.upper()
        assert COMPOSE["services"][router]["command"] == ["run", f"/etc/amqpmesh/{name}.toml"]
        text = (DEPLOY / "compose" / f"{name}.toml").read_text(encoding="utf-8")
        file = tmp_path / f"{name}.toml"
        file.write_text(text.replace("/certificates", str(tmp_path)))
        config = load(file)
        assert config.id == name
        assert set(neighbours(config)) <= {(each, ports(config)["mesh"]) for each in ROUTERS}
        http = next(each for each in config.listeners if each.role == "http")
        assert (http.hosts, http.endpoint.port) == ((router,), 8080)


def test_prometheus_reads_each_router() -> None:
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{router}:8080" for router in ROUTERS]}]


def test_the_files_that_compose_mounts_are_there() -> None:
    mounted = [each for service in COMPOSE["services"].values() for each in service.get("volumes", ())]
    files = [each.partition(":")[0] for each in mounted if each.startswith("./")]
    assert files
    assert [each for each in files if not (DEPLOY / "compose" / each).is_file()] == []


def test_the_image_has_all_that_the_build_needs() -> None:
    """Check that `.dockerignore` admits what a checkout needs to be installed."""
    admitted = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = {str(each.readlink()).removeprefix("../") for each in (ROOT / "amqpmesh").iterdir() if each.is_symlink()}
    assert admitted == {"amqpmesh", "LICENSE", "pyproject.toml", "setup.py", project["readme"], *packages}
