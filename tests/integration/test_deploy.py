"""What stands in deploy/ and docker-compose.yml: it is well formed, fits together, and fits the code."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from fastapi_shop import workflows
from memable.cli.loading import load_app
from memable.keys import Keys
from memable.observability.metrics import METRICS, NAMES
from memable.settings import PREFIX, Settings
from tests.integration.test_acl import READER, USERS, commands
from tests.markdown import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = DEPLOY / "Dockerfile"
UNIT = DEPLOY / "systemd" / "memable-worker@.service"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
ENVIRONMENT = [DOCKERFILE, COMPOSE, UNIT, *KUBERNETES.glob("*.yaml"), ALERTS]
NO_SETTINGS = {"MEMABLE_APP"}
"""Of the systemd unit: what its command line is made of."""


def documents(file: Path) -> list[Any]:
    return list(yaml.safe_load_all(file.read_text("utf-8")))


def manifest(kind: str) -> Any:
    (found,) = [each for file in KUBERNETES.glob("*.yaml") for each in documents(file) if each["kind"] == kind]
    return found


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ── everywhere ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("file", ENVIRONMENT, ids=relative)
def test_every_setting_that_is_named_is_one(file: Path) -> None:
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]+[A-Z]\b", file.read_text("utf-8")))
    assert named <= {PREFIX + name.upper() for name in Settings.model_fields} | NO_SETTINGS


def test_whoever_stops_a_worker_waits_for_longer_than_its_grace() -> None:
    compose = documents(COMPOSE)[0]["services"]["worker"]
    config = manifest("ConfigMap")["data"]
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    unit = UNIT.read_text("utf-8")
    graces = [
        (compose["environment"]["MEMABLE_SHUTDOWN_GRACE"], compose["stop_grace_period"].removesuffix("s")),
        (config["MEMABLE_SHUTDOWN_GRACE"], pod["terminationGracePeriodSeconds"]),
        (
            *re.findall(r"MEMABLE_SHUTDOWN_GRACE=(\d+)", unit),
            *re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE),
        ),
    ]
    for grace, until_killed in graces:
        assert float(grace) == Settings.model_fields["shutdown_grace"].default
        # what was handed back must be told to Redis, too
        assert float(grace) + 10 <= float(until_killed)


# ── the image ────────────────────────────────────────────────────────────────────────────────────────────────────────


def instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def test_the_image_runs_its_command_as_nobody_in_particular_and_without_a_shell() -> None:
    last_stage = dict(instructions())
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last_stage["USER"])
    assert isinstance(json.loads(last_stage["CMD"]), list)
    assert isinstance(json.loads(last_stage["HEALTHCHECK"].partition("CMD ")[2]), list)
    # what is added to the path of modules is for the worker and for the web application
    assert json.loads(last_stage["CMD"])[-1] == "fastapi_shop.workflows:app"


def test_everything_that_is_copied_into_the_image_is_there_and_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            for source in sources:
                assert (ROOT / source).exists(), source
                assert source in allowed, source
    assert all((ROOT / each).exists() for each in allowed)


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-build.txt"])
def test_the_image_has_what_was_tested(name: str) -> None:
    """In the versions, and with the hashes, of constraints.txt."""

    def pins(file: Path) -> set[str]:
        text = re.sub(r"^ *#.*\n", "", file.read_text("utf-8"), flags=re.MULTILINE)
        return {re.sub(r"\s+", " ", each) for each in re.split(r"\n(?=\S)", text.strip())}

    assert pins(DEPLOY / name) <= pins(ROOT / "constraints.txt")


# ── docker compose ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_workers_can_be_scaled_and_only_the_web_application_can_be_reached() -> None:
    services = documents(COMPOSE)[0]["services"]
    assert not [name for name, each in services.items() if "container_name" in each]
    ports = {name: each["ports"] for name, each in services.items() if "ports" in each}
    assert ports.keys() == {"web"}
    assert all(port.startswith("127.0.0.1:") for port in ports["web"])


def test_every_file_that_is_mounted_is_there() -> None:
    for service in documents(COMPOSE)[0]["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), source


def test_the_commands_name_applications_that_there_are() -> None:
    (web,) = [word for word in documents(COMPOSE)[0]["services"]["web"]["command"] if ":app" in word]
    module, _, name = web.partition(":")
    assert hasattr(importlib.import_module(module), name)
    *_, worker = manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert load_app(worker) is workflows.app


def test_docker_compose_takes_the_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no docker compose")
    words = [docker, "compose", "--file", str(COMPOSE), "config", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ── Kubernetes ───────────────────────────────────────────────────────────────────────────────────────────────────────

OF_NO_CLUSTER = {"Kustomization", "ScaledObject", "TriggerAuthentication"}
"""Kinds whose schemas are not Kubernetes' own."""


@pytest.mark.parametrize("file", sorted(KUBERNETES.glob("*.yaml")), ids=relative)
def test_a_manifest_is_as_kubernetes_wants_it(file: Path) -> None:
    for document in documents(file):
        if document["kind"] not in OF_NO_CLUSTER:
            kubernetes_validate.validate(document, "1.31", strict=True)


def test_kustomize_takes_all_files() -> None:
    (kustomization,) = documents(KUBERNETES / "kustomization.yaml")
    others = {file.name for file in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == others
    kubectl = shutil.which("kubectl")
    if kubectl is not None:
        done = subprocess.run([kubectl, "kustomize", KUBERNETES], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert len(list(yaml.safe_load_all(done.stdout))) == sum(len(documents(KUBERNETES / name)) for name in others)


def test_what_names_pods_names_those_of_the_deployment() -> None:
    spec = manifest("Deployment")["spec"]
    labels = spec["template"]["metadata"]["labels"].items()
    (container,) = spec["template"]["spec"]["containers"]
    selectors = [
        spec["selector"]["matchLabels"],
        manifest("Service")["spec"]["selector"],
        manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in spec["template"]["spec"]["topologySpreadConstraints"]),
    ]
    assert all(selector.items() <= labels for selector in selectors)
    assert manifest("ScaledObject")["spec"]["scaleTargetRef"]["name"] == manifest("Deployment")["metadata"]["name"]
    assert container["envFrom"][0]["configMapRef"]["name"] == manifest("ConfigMap")["metadata"]["name"]
    (port,) = container["ports"]
    assert str(port["containerPort"]) == manifest("ConfigMap")["data"]["MEMABLE_METRICS_PORT"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness", "startup")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "liveness": "/livez",
        "readiness": "/readyz",
        "startup": "/livez",
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}


def test_a_pod_has_no_more_rights_than_it_needs() -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    uid = dict(instructions())["USER"].partition(":")[0]
    assert (pod["securityContext"]["runAsNonRoot"], str(pod["securityContext"]["runAsUser"])) == (True, uid)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod["automountServiceAccountToken"]
    # a service called memable-metrics would set MEMABLE_METRICS_PORT
    assert not pod["enableServiceLinks"]


def test_keda_counts_the_streams_that_the_workers_read() -> None:
    spec = manifest("ScaledObject")["spec"]
    keys = Keys(Settings.model_fields["namespace"].default, partitions=1)
    streams = {partition.stream(workflow.name) for partition in keys.partitions for workflow in workflows.app}
    triggers = spec["triggers"]
    assert {each["metadata"]["stream"] for each in triggers} == streams
    # with a group KEDA would count what is pending
    assert not [each for each in triggers if "consumerGroup" in each["metadata"]]
    modifiers = spec["advanced"]["scalingModifiers"]
    assert sorted(modifiers["formula"].split(" + ")) == sorted(each["name"] for each in triggers)
    per_worker = {int(each["metadata"]["streamLength"]) for each in triggers} | {int(modifiers["target"])}
    assert per_worker == {60}
    assert int(manifest("ConfigMap")["data"]["MEMABLE_CONCURRENCY"]) > 60
    assert spec["minReplicaCount"] >= 1, "timers need a worker"
    authentication = manifest("TriggerAuthentication")["metadata"]["name"]
    assert {each["authenticationRef"]["name"] for each in triggers} == {authentication}
    assert {each["metadata"]["username"] for each in triggers} == {READER}
    assert "xlen" in commands(READER)


SCALED_OBJECT = {
    "scaleTargetRef", "pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "idleReplicaCount",
    "minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers",
}  # fmt: skip
ADVANCED = {"restoreToOriginalReplicaCount", "horizontalPodAutoscalerConfig", "scalingModifiers"}
TRIGGER = {"type", "name", "metadata", "authenticationRef", "useCachedMetrics", "metricType"}
REDIS_STREAMS = {
    "address", "host", "port", "username", "usernameFromEnv", "passwordFromEnv", "stream", "consumerGroup",
    "pendingEntriesCount", "streamLength", "lagCount", "activationLagCount", "databaseIndex", "enableTLS", "unsafeSsl",
}  # fmt: skip


def test_keda_knows_every_field_that_is_given() -> None:
    """By hand from its documentation, 2.12 and later: its schema is in no package."""
    spec = manifest("ScaledObject")["spec"]
    assert spec.keys() <= SCALED_OBJECT
    assert spec["advanced"].keys() <= {
        "restoreToOriginalReplicaCount",
        "horizontalPodAutoscalerConfig",
        "scalingModifiers",
    }
    assert spec["advanced"]["scalingModifiers"].keys() <= {"target", "activationTarget", "metricType", "formula"}
    for trigger in spec["triggers"]:
        assert trigger.keys() <= TRIGGER
        assert trigger["metadata"].keys() <= REDIS_STREAMS
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


# ── systemd ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    # no user and no program of that name is here
    text = re.sub(r"^(User|Group)=.*\n", "", UNIT.read_text("utf-8"), flags=re.MULTILINE)
    unit = tmp_path / "memable-worker@1.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_tells_the_worker_alone_to_stop() -> None:
    lines = UNIT.read_text("utf-8").splitlines()
    assert {"KillMode=mixed", "KillSignal=SIGTERM", "Restart=always", "Type=exec"} <= set(lines)
    (start,) = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    assert shlex.split(start)[1:] == ["worker", "${MEMABLE_APP}"]


# ── Prometheus and Grafana ───────────────────────────────────────────────────────────────────────────────────────────

WORDS = {"sum", "by", "rate", "increase", "absent", "count", "max", "histogram_quantile", "label_values", "le"}
LABELS = {name: {"instance", "job", *metric.labels} for metric in METRICS for name in [metric.name]}


def alerts() -> list[Any]:
    return [rule for group in documents(ALERTS)[0]["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    variables = [each["definition"] for each in dashboard["templating"]["list"] if "definition" in each]
    return [*panels, *variables, *(rule["expr"] for rule in alerts())]


def test_there_are_alerts_and_panels() -> None:
    assert len(alerts()) >= 8
    assert len(expressions()) - len(alerts()) >= 20


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_names_metrics_and_labels_that_workers_have(expression: str) -> None:
    bare = re.sub(r"\$\{?\w+\}?|\"[^\"]*\"", "", expression)
    assert bare.count("(") == bare.count(")")
    named = set(re.findall(r"\bmemable_\w+", bare))
    metrics = {name if name in NAMES else re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
    assert metrics
    assert metrics <= NAMES
    has = set[str].intersection(*(LABELS[name] for name in metrics))
    selected = [word for found in re.findall(r"\{(.*?)\}|by \((.*?)\)", bare) for word in found]
    assert set(re.findall(r"[a-z_]+", " ".join(selected))) <= has | {"le"}
    words = set(re.findall(r"\b[a-z_]+\b", bare)) - named - has
    assert words <= WORDS, words


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    for rule in alerts():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert {"summary", "description"} == rule["annotations"].keys()
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        kept = re.findall(r"sum by \((.*?)\)", rule["expr"])
        assert not shown or not kept or shown <= {*", ".join(kept).split(", ")}
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    assert (dashboard["uid"], dashboard["title"]) == ("memable", "memable")
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    used = {panel["datasource"]["uid"] for panel in dashboard["panels"] if "datasource" in panel}
    assert used == {"${datasource}"}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24


def test_prometheus_reads_the_alerts_and_scrapes_the_services_that_there_are() -> None:
    (prometheus,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    assert all((DEPLOY / "prometheus" / file).exists() for file in prometheus["rule_files"])
    jobs = {job["job_name"]: job for job in prometheus["scrape_configs"]}
    (discovery,) = jobs["memable"]["dns_sd_configs"]
    assert set(discovery["names"]) <= documents(COMPOSE)[0]["services"].keys()
    assert f"MEMABLE_METRICS_PORT={discovery['port']}" in DOCKERFILE.read_text("utf-8")
    service = manifest("Service")
    port = service["spec"]["ports"][0]["name"]
    assert jobs["memable-kubernetes"]["relabel_configs"][0]["regex"] == f"{service['metadata']['name']}/{port}"


def test_the_users_that_are_named_are_those_of_the_acl_file() -> None:
    for file in (KUBERNETES / "configmap.yaml", UNIT, KUBERNETES / "scaledobject.yaml"):
        named = set(re.findall(r"memable-(?:client|worker|reader)\b(?!@)", file.read_text("utf-8")))
        assert named <= set(USERS)
