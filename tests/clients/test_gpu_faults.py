"""What goes wrong in a GPU or its driver: no memory, a kernel with a fault, one that does not end, and a GPU of another kind."""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

from conftest import is_idle, wait_until
from quire_server import QuireServer
from scripted_model import BUNDLED

ASK = {"prompt": "Once there was", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
TEXT = "/v1/completions"

pytestmark = pytest.mark.skipif(
    not shutil.which("nvidia-smi") or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0,
    reason="needs an NVIDIA GPU",
)


class FailingDriver:
    """Of the programs that are started with this environment. See failing_driver.c."""

    def __init__(self, folder):
        library = folder / "failing_driver.so"
        source = pathlib.Path(__file__).with_name("failing_driver.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        self._fault = folder / "fault"
        self.environment = os.environ | {"LD_PRELOAD": str(library), "QUIRE_DRIVER_FAULT": str(self._fault)}

    def fails(self, fault):
        self._fault.write_text(fault)

    def works(self):
        self._fault.unlink()


@pytest.fixture
def driver(tmp_path):
    return FailingDriver(tmp_path)


def generate(binary, driver):
    command = [binary, "generate", BUNDLED, "--prompt", "hello", "--max-tokens", "8", "--device", "cuda"]
    return subprocess.run(command, env=driver.environment, capture_output=True, text=True, timeout=60)


def ask(server, fields):
    """Status and text of the answer."""
    status, _, body = server.request("POST", TEXT, json.dumps(fields), {"Content-Type": "application/json"})
    return status, body.decode()


def test_without_memory_a_start_ends_with_a_line(binary, driver):
    right = generate(binary, driver)
    assert right.returncode == 0, right.stderr
    failed = 0
    for number in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233):
        driver.fails(f"memory {number}")
        run = generate(binary, driver)
        if run.returncode == 0:
            assert run.stdout == right.stdout
            continue
        failed += 1
        assert run.returncode in (1, 2) and not run.stdout
        *_, line = run.stderr.splitlines()
        assert re.search("not enough (GPU|pinned host) memory|out of memory", line), run.stderr
    assert failed >= 5


def test_without_memory_requests_fail_at_most_and_the_next_are_as_ever(start, driver):
    server = start("--device", "cuda", "--max-num-seqs", 32, env=driver.environment)
    said = server.post(TEXT, **ASK)["choices"][0]["text"]
    asked = [ASK | {"prompt": f"A list {i}: ", "structured_outputs": {"regex": "[a-z]+"}} for i in range(4)]
    for i in range(12):
        asked.append(ASK | {"prompt": "word " * 40 * (1 + i), "n": 1 + i % 4, "temperature": 1, "logprobs": i % 3})
    driver.fails("memory")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda fields: ask(server, fields), asked))
    assert {status for status, _ in answers} <= {200, 500, 503}, answers
    driver.works()
    wait_until(lambda: is_idle(server))
    assert server.post(TEXT, **ASK)["choices"][0]["text"] == said


def end_by(fault, binary, driver, *options):
    """Seconds until the server ended with code 1, and what it said. Its request of that time was refused."""
    server = QuireServer(binary, "--device", "cuda", *options, env=driver.environment)
    server.post(TEXT, **ASK)
    driver.fails(fault)
    began = time.monotonic()
    status, body = ask(server, ASK)
    assert status == 500, body
    assert server.process.wait(20) == 1
    seconds = time.monotonic() - began
    server.stop(expected_code=1)
    return seconds, server.stderr


def test_after_a_fault_of_a_kernel_the_server_says_so_and_ends(binary, driver):
    seconds, said = end_by("trap", binary, driver)
    assert seconds < 5
    assert "every request will fail from now on" in said and "cudaError" in said


def test_a_kernel_that_does_not_end_is_noticed(binary, driver):
    seconds, said = end_by("spin", binary, driver, "--watchdog", 0.5)
    assert 5 < seconds < 20
    assert "stuck" in said


def test_a_gpu_without_kernels_is_told_in_a_line_at_once(binary, driver):
    driver.fails("other")
    began = time.monotonic()
    run = generate(binary, driver)
    assert time.monotonic() - began < 2
    assert run.returncode == 2 and not run.stdout
    [line] = run.stderr.splitlines()
    assert re.search(r"compute capability 11\.0, and this build has kernels for \d", line)
