"""The Dockerfile and the compose file, looked at without a container engine."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer.main

from midspan.cli import app
from midspan.service.metrics import Metrics
from midspan.service.routes import TABLE
from midspan.service.settings import GallerySettings, Limits, ServerSettings

ROOT = Path(__file__).parents[2]
yaml = importlib.import_module("yaml")  # comes with uvicorn's extras, without types
INSTRUCTIONS = {
    *("FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK"),
    "ENTRYPOINT",
}


NAMES = {one.name for kind in (GallerySettings, ServerSettings) for one in fields(kind)}


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def flags(verb: str) -> set[str]:
    command: Any = typer.main.get_command(app)
    return {flag for option in command.commands[verb].params for flag in option.opts}


def test_dockerfile_instructions_are_well_formed() -> None:
    steps = instructions()
    names = [name for name, _ in steps]
    assert names[0] == "FROM"
    assert set(names) <= INSTRUCTIONS
    assert not steps[0][1].endswith(":latest")
    assert ":" in steps[0][1]
    users = [value for name, value in steps if name == "USER"]
    assert users == ["midspan"], "it must not run as root"
    assert names.index("USER") < names.index("ENTRYPOINT")
    entry = json.loads(dict(steps)["ENTRYPOINT"])
    assert entry[:2] == ["midspan", "serve"]
    assert {part for part in entry if part.startswith("--")} <= flags("serve")
    check = dict(steps)["HEALTHCHECK"]
    assert json.loads(check[check.index("[") :])[0] == "python"


def test_dockerfile_copies_only_files_that_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for name, value in instructions():
        if name != "COPY":
            continue
        for source in value.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_dockerfile_extras_exist_in_pyproject() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    match = re.search(r'"\.\[([a-z,]+)\]"', (ROOT / "Dockerfile").read_text())
    assert match is not None
    assert set(match[1].split(",")) <= set(extras)


def test_compose_file_has_no_default_passwords_and_no_open_ports() -> None:
    document = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    assert set(document) == {"services", "configs", "volumes"}
    settings = tomllib.loads(document["configs"]["serve"]["content"])
    assert set(settings) <= NAMES
    services = document["services"]
    assert set(services) == {"midspan", "postgres", "milvus"}
    for name, service in services.items():
        assert ("image" in service) != ("build" in service), name
        assert not str(service.get("image", ":x")).endswith(":latest")
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source.startswith("./") or source in document["volumes"], volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "open to other machines by default"
    ours = services["midspan"]
    assert {part for part in ours["command"] if part.startswith("--")} <= flags("serve")
    for secret in ("MIDSPAN_READ_TOKEN", "MIDSPAN_ADMIN_TOKEN"):
        assert ours["environment"][secret].startswith(f"${{{secret}:?"), "no default secrets"
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith("${")
    assert set(ours["depends_on"]) <= set(services)


def manifests() -> list[dict[str, Any]]:
    text = (ROOT / "deploy" / "kubernetes" / "midspan.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


def test_kubernetes_pod_is_restricted_and_has_probes() -> None:
    documents = {document["kind"]: document for document in manifests()}
    assert set(documents) == {"PersistentVolumeClaim", "Deployment", "Service"}
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    [container] = pod["containers"]
    assert {part for part in container["args"] if part.startswith("--")} <= flags("serve")
    paths = {route.path for route in TABLE}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in paths
    for amounts in ("requests", "limits"):
        assert set(container["resources"][amounts]) == {"cpu", "memory"}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    for part in container["args"]:
        if part.startswith("/"):
            assert part.startswith(tuple(mounts.values())), part
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in documents["Service"]["spec"]["ports"]} <= ports
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert documents["Service"]["spec"]["selector"].items() <= labels.items()
    assert not str(container["image"]).endswith(":latest")


def test_kubernetes_claims_exist_and_secrets_are_files() -> None:
    documents = manifests()
    claims = {
        document["metadata"]["name"]
        for document in documents
        if document["kind"] == "PersistentVolumeClaim"
    }
    [deployment] = [one for one in documents if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    asked = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert asked == claims
    assert "env" not in pod["containers"][0], "the password of the database is in a file"
    [secret] = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert {one["path"] for one in secret["items"]} == {"tokens.toml", "serve.toml"}
    assert secret["defaultMode"] == 0o400
    head = (ROOT / "deploy" / "kubernetes" / "midspan.yaml").read_text(encoding="utf-8")
    shown = [line.removeprefix("#   ") for line in head.splitlines() if line.startswith("#   ")]
    assert set(tomllib.loads("\n".join(shown[1:]))) <= NAMES


def test_grafana_dashboard_uses_only_exported_metrics() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))
    asked = {
        name.removesuffix("_bucket")
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"midspan_\w+", target["expr"])
    }
    told = {family.name for family in Metrics().registry.collect()}
    assert {name.removesuffix("_total") for name in asked} <= told


def test_every_setting_and_route_is_documented() -> None:
    page = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    block = page.split("## Settings file")[1].split("```")[1].removeprefix("toml")
    shown = tomllib.loads(block)
    assert shown.pop("limits") == {f.name: f.default for f in fields(Limits)}
    flagged = {name.removeprefix("--").replace("-", "_") for name in flags("serve")}
    assert shown.pop("galleries")
    assert set(shown) | flagged >= NAMES - {"limits", "name"}
    assert set(shown) <= NAMES
    for route in TABLE:
        last = route.path.replace("{id:path}", "ID").replace("{name}", "…")
        assert last in page or f"`{last.rpartition('/')[2]}`" in page, route.path
