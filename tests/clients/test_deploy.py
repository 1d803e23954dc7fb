"""The files in deploy/, as far as they can be checked without what runs them."""

import json
import re
import shutil
import signal
import socket
import subprocess

import pytest
import yaml

from quire_server import QuireServer
from scripted_model import ROOT

DEPLOY = ROOT / "deploy"
ABORT_SECONDS = 2  # of the server, after --drain-timeout
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@pytest.fixture(scope="module")
def known_flags(binary):
    help_text = subprocess.run([binary, "serve", "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return set(re.findall(r"--[a-z-]+", help_text))


@pytest.fixture(scope="module")
def kubernetes():
    objects = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {item["kind"]: item for item in objects}


def container(kubernetes):
    [container] = kubernetes["Deployment"]["spec"]["template"]["spec"]["containers"]
    return container


def ini(text):
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def dockerfile(instruction):
    """The last instruction of that name, with its lines joined."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)$", text, re.M)[-1]


def drain_timeout(text):
    return int(re.search(r"--drain-timeout[ =](\d+)", text)[1])


def test_every_flag_exists(known_flags, kubernetes):
    used = {
        "quire.service": ini((DEPLOY / "quire.service").read_text())["ExecStart"],
        "quire.env": ini((DEPLOY / "quire.env").read_text())["QUIRE_FLAGS"],
        "Dockerfile": dockerfile("ENTRYPOINT"),
        "kubernetes.yaml": " ".join(container(kubernetes)["args"]),
    }
    for name, text in used.items():
        flags = set(re.findall(r"--[a-z-]+", text))
        assert flags and flags <= known_flags, name


def test_nobody_kills_before_the_drain_is_over(kubernetes):
    unit = ini((DEPLOY / "quire.service").read_text())
    assert int(unit["TimeoutStopSec"]) > drain_timeout(unit["ExecStart"]) + ABORT_SECONDS
    pod = kubernetes["Deployment"]["spec"]["template"]["spec"]
    before_stop = int(container(kubernetes)["lifecycle"]["preStop"]["exec"]["command"][-1])
    drain = drain_timeout(" ".join(container(kubernetes)["args"]))
    assert pod["terminationGracePeriodSeconds"] > before_stop + drain + ABORT_SECONDS


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(binary, tmp_path):
    unit = tmp_path / "quire.service"
    unit.write_text((DEPLOY / "quire.service").read_text().replace("/opt/quire/bin/quire", str(binary)))
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    about_it = [line for line in verified.stderr.splitlines() if "quire" in line]
    assert verified.returncode == 0 and not about_it, verified.stderr


def test_the_containers_health_check_tells_health(server):
    command = json.loads(re.search(r"CMD (\[.*\])", dockerfile("HEALTHCHECK"))[1])

    def check(port):
        return subprocess.run(
            [part.replace("8000", str(port)) for part in command], stderr=subprocess.DEVNULL
        ).returncode

    assert check(server.port) == 0
    assert check(1) != 0  # nobody listens


def test_the_container_starts_the_server_itself():
    assert json.loads(dockerfile("ENTRYPOINT"))[:2] == ["/opt/quire/bin/quire", "serve"]
    assert dockerfile("EXPOSE") == "8000"
    assert dockerfile("USER").split(":")[0] not in ("0", "root")


def test_kubernetes_objects_fit_together(kubernetes, server):
    deployment, service = kubernetes["Deployment"]["spec"], kubernetes["Service"]["spec"]
    assert deployment["selector"]["matchLabels"] == service["selector"] == deployment["template"]["metadata"]["labels"]
    it = container(kubernetes)
    ports = {port["name"]: port["containerPort"] for port in it["ports"]}
    assert service["ports"][0]["targetPort"] in ports
    annotations = deployment["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) == ports["http"] == 8000
    assert server.request("GET", annotations["prometheus.io/path"])[0] == 200
    for probe in PROBES:
        assert it[probe]["httpGet"]["port"] in ports
        assert server.request("GET", it[probe]["httpGet"]["path"])[0] == 200
    volumes = {volume["name"] for volume in deployment["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in it["volumeMounts"]} <= volumes


def test_a_server_that_loads_is_live_and_not_ready(binary, kubernetes):
    server = QuireServer(binary, "--shape", "qwen3-0.6b", "--kv-cache-memory", "64MiB", until="loading")
    answers = {probe: server.request("GET", container(kubernetes)[probe]["httpGet"]["path"])[0] for probe in PROBES}
    assert server.request("GET", "/health")[0] == 503, "it has loaded too soon"
    server.stop(expected_code=128 + signal.SIGTERM)
    assert answers == {"startupProbe": 200, "readinessProbe": 503, "livenessProbe": 200}


def test_a_full_server_passes_its_probes(start, kubernetes):
    server = start("--max-connections", 2)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
    for connection in idle:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    assert server.request("GET", "/v1/models")[0] == 503
    for probe in PROBES:
        assert server.request("GET", container(kubernetes)[probe]["httpGet"]["path"])[0] == 200
    assert server.request("GET", "/metrics")[0] == 200
    for connection in idle + strangers:
        connection.close()


def test_the_key_comes_from_the_environment(start, kubernetes):
    [variable] = container(kubernetes)["env"]
    assert variable["name"] == "QUIRE_API_KEY" and "QUIRE_API_KEY" in ini((DEPLOY / "quire.env").read_text())
    server = start("--public-metrics", env={"QUIRE_API_KEY": "from-the-environment"})
    assert server.request("GET", "/v1/models")[0] == 401
    assert server.request("GET", "/v1/models", headers={"Authorization": "Bearer from-the-environment"})[0] == 200
    assert server.request("GET", "/metrics")[0] == 200
