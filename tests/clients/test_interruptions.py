"""A program is interrupted from outside: killed at a step, stopped for a while, or cut off from the network.

Where QUIRE_EVERY_STEP is set, as the soak does, it is killed at every step and stopped for a minute.
"""

import http.server
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import threading
import time
import uuid

import pytest

import network_namespaces
from conftest import is_idle, wait_until
from network_namespaces import ip
from preloaded import Preloaded
from quire_server import QuireServer
from test_hub import ID, Hub, environment, generate, hub  # hub: a fixture of environment

WHOLE = "QUIRE_EVERY_STEP" in os.environ
TEXT = "/v1/completions"
LONG = {"prompt": "Once there was", "temperature": 0, "max_tokens": 800, "ignore_eos": True}
OUTSIDE, INSIDE = "10.98.0.1", "10.98.0.2"


class KilledStep(Preloaded):
    def __init__(self, folder):
        super().__init__(folder, "killed_step.cpp", "QUIRE_KILLED_STEP", 16)

    def begin(self, nth):
        """Before its nth step a process that is about to start is killed; 0: before none."""
        self.memory[:] = struct.pack("<qq", 0, nth)

    def count(self):
        return struct.unpack_from("<q", self.memory)[0]


def test_whatever_step_a_start_is_killed_at_the_next_one_has_all(binary, environment, tmp_path):
    killed = KilledStep(tmp_path)
    home = tmp_path / "home"
    plain = environment | {"HF_HOME": str(home)}
    preloaded = plain | killed.variables
    killed.begin(0)
    whole = generate(binary, preloaded, ID)
    steps = killed.count()
    assert steps > 50
    for nth in range(1, steps + 1) if WHOLE else sorted(random.sample(range(1, steps + 1), 12)):
        shutil.rmtree(home)
        killed.begin(nth)
        command = [binary, "generate", ID, "-p", "hello", "--max-tokens", "1"]
        code = subprocess.run(command, env=preloaded, capture_output=True, timeout=60).returncode
        assert code == -signal.SIGKILL or killed.count() < nth, nth  # progress is written as time goes
        assert generate(binary, plain, ID) == whole, nth
        assert generate(binary, plain, ID, "--offline") == whole, nth
        assert not list(home.rglob("*.incomplete")), nth


def chunks_of(events):
    return [json.loads(line[6:]) for line in events.splitlines() if line.startswith(b"data: {")]


def rest_of(stream, events):
    while not events.endswith(b"0\r\n\r\n"):
        received = stream.recv(65536)
        assert received, events[-200:]
        events += received
    return "".join(chunk["choices"][0]["text"] for chunk in chunks_of(events))


def test_a_server_that_was_stopped_for_a_while_goes_on(start):
    server = start("--watchdog", 0.5)  # a step is stuck after twelve times that
    said = server.post(TEXT, **LONG)["choices"][0]["text"]
    stream = server.send(TEXT, stream=True, **LONG)
    events = stream.recv(1000)
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(60 if WHOLE else 7)
    os.kill(server.pid, signal.SIGCONT)
    assert rest_of(stream, events) == said
    assert server.request("GET", "/health")[0] == 200
    wait_until(lambda: is_idle(server))
    server.stop()


class Cable:
    """From this host to another one, which is a network namespace."""

    def __init__(self):
        mark = uuid.uuid4().hex[:6]
        self.host, self.end = f"quire-{mark}", f"quire{mark}"

    def start(self):
        ip("netns", "add", self.host)
        ip("link", "add", self.end, "type", "veth", "peer", "name", "cable", "netns", self.host)
        ip("address", "add", f"{OUTSIDE}/24", "dev", self.end)
        ip("address", "add", f"{INSIDE}/24", "dev", "cable", host=self.host)
        ip("link", "set", self.end, "up")
        for device in ("lo", "cable"):
            ip("link", "set", device, "up", host=self.host)

    def stop(self):
        subprocess.run(["ip", "netns", "delete", self.host], capture_output=True)

    def program(self, binary, folder):
        """A program that is this one, at the other end."""
        script = folder / "inside.sh"
        script.write_text(f'#!/bin/sh\nexec ip netns exec {self.host} {binary} "$@"\n')
        script.chmod(0o755)
        return script

    def cut(self, seconds):
        """Nothing passes for so long, and neither end is told."""
        ip("link", "set", "cable", "down", host=self.host)
        threading.Timer(seconds, ip, ("link", "set", "cable", "up"), {"host": self.host}).start()


@pytest.fixture
def cable():
    with network_namespaces.started(Cable()) as cable:
        yield cable


def test_a_stream_outlives_a_cut_of_the_network(binary, cable, tmp_path):
    server = QuireServer(cable.program(binary, tmp_path), host=INSIDE)
    said = server.post(TEXT, **LONG)["choices"][0]["text"]
    stream = server.send(TEXT, stream=True, **LONG)
    events = stream.recv(1000)
    began = time.monotonic()
    cable.cut(3)
    assert rest_of(stream, events) == said
    assert time.monotonic() - began > 3
    wait_until(lambda: is_idle(server))
    server.stop()


def test_a_download_outlives_a_cut_of_the_network(binary, cable, environment, tmp_path):
    cuts = []

    class CutHub(Hub):
        storage = OUTSIDE

        def send_content(self, content):
            if len(content) < 1_000_000:
                return super().send_content(content)
            half = len(content) // 2
            super().send_content(content[:half])
            cable.cut(3)
            cuts.append(half)
            super().send_content(content[half:])

    whole = generate(binary, environment)
    server = http.server.ThreadingHTTPServer((OUTSIDE, 0), CutHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cut_off = environment | {"HF_ENDPOINT": f"http://{OUTSIDE}:{server.server_address[1]}"}
    try:
        assert generate(cable.program(binary, tmp_path), cut_off, ID) == whole
    finally:
        server.shutdown()
    assert len(cuts) == 1
