"""What is around a server fails: disks are full, the clock jumps, and the GPU's driver is old."""

import http.client
import json
import os
import re
import resource
import signal
import subprocess
import time

import pytest

from conftest import is_idle, wait_until
from preloaded import Preloaded
from scripted_model import BUNDLED

TEXT = "/v1/completions"
ASK = {"prompt": "Once there was", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
HOUR = 3600


def say(server, **fields):
    return server.post(TEXT, **ASK | fields)["choices"][0]["text"]


def limit_files():
    """Files take 64 KiB, and what is written then fails, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))


def test_a_full_disk_ends_recording_and_access_log_and_nothing_else(start, tmp_path):
    with open("/dev/full", "w") as full:
        server = start("--record", tmp_path / "full.rec", command=("serve",), stdout=full, preexec_fn=limit_files)
    said = say(server)

    def is_told():
        say(server, max_tokens=1000)
        return "the recording ends" in server.stderr

    wait_until(is_told, 120)
    for _ in range(3):
        assert say(server) == said
    assert server.stderr.count("the recording ends") == 1
    assert server.stderr.count("the access log: No space left on device; lines are lost") == 1
    server.stop()


class ShiftedClock(Preloaded):
    def __init__(self, folder):
        super().__init__(folder, "shifted_clock.cpp", "QUIRE_CLOCK_SHIFT", 8)

    def shift(self, seconds):
        self.memory[:] = seconds.to_bytes(8, "little", signed=True)


def test_a_clock_that_jumps_ends_nothing(start, tmp_path):
    clock = ShiftedClock(tmp_path)
    server = start("--request-timeout", HOUR // 6, env=os.environ | clock.variables)
    long = ASK | {"max_tokens": 800}
    said = say(server, **long)
    idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for seconds in (HOUR, 0, -HOUR, 0):
        idle.request("GET", "/health")
        assert idle.getresponse().read()
        kept = idle.sock
        stream = server.send(TEXT, stream=True, **long)
        events = stream.recv(1000)
        clock.shift(seconds)
        while not events.endswith(b"0\r\n\r\n"):
            events += stream.recv(65536)
        chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith(b"data: {")]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == said
        created = server.post(TEXT, **ASK)["created"]
        assert abs(created - time.time() - seconds) < 120
        idle.request("GET", "/health")
        assert idle.getresponse().read() and idle.sock is kept
    metrics = server.metrics()
    assert metrics["vllm:e2e_request_latency_seconds_sum"] < HOUR / 2
    assert metrics["http_request_duration_seconds_sum"] < HOUR / 2
    wait_until(lambda: is_idle(server))
    server.stop()


def test_an_old_driver_is_told_in_a_line_at_once(binary, tmp_path):
    driver = "int cuDriverGetVersion(int* version) { *version = 12040; return 0; }"
    compiler = ["cc", "-x", "c", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", "-"]
    subprocess.run(compiler, input=driver, text=True, check=True)
    libraries = ":".join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")])
    environment = os.environ | {"LD_LIBRARY_PATH": libraries}
    command = [binary, "generate", BUNDLED, "--prompt", "hello", "--device", "cuda"]
    began = time.monotonic()
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    if "built without CUDA" in run.stderr:
        pytest.skip("built without CUDA")
    assert run.returncode == 2 and not run.stdout
    [line] = run.stderr.splitlines()
    assert re.search(r"the NVIDIA driver is too old: it serves CUDA 12\.4, and \d+\.\d is needed", line)
    assert time.monotonic() - began < 2
