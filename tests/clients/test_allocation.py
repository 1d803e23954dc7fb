"""One allocation after the other fails: a request ends with an error, and nothing else does.

All of a request, and a part of those of a start and a download, where QUIRE_EVERY_ALLOCATION is set, as the soak does;
otherwise none, for each takes a request.
"""

import http.client
import itertools
import json
import os
import random
import shutil
import subprocess
import time

import pytest

from conftest import is_idle, wait_until
from failing_allocation import EXCUSED, FailingAllocation
from quire_server import QuireServer
from test_hub import ID, environment, hub  # hub: a fixture of environment

pytestmark = pytest.mark.skipif("QUIRE_EVERY_ALLOCATION" not in os.environ, reason="the soak's")
CANARY = ("/v1/completions", {"prompt": "Tell me", "max_tokens": 6, "temperature": 0})
HELLO = [{"role": "user", "content": "Hi"}]
# "#" becomes a number, so that each time the source is compiled.
SCHEMA = {"type": "object", "properties": {"a#": {"type": "integer"}}, "required": ["a#"]}
REQUESTS = {
    "completion": CANARY,
    "stream": ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 6, "stream": True, "logprobs": True,
                                        "top_logprobs": 2, "stream_options": {"include_usage": True}}),
    "outputs": ("/v1/completions", {"prompt": ["One", "Two three"], "n": 2, "seed": 1, "max_tokens": 4, "stop": "zz"}),
    "best_of": ("/v1/completions", {"prompt": "One", "best_of": 3, "seed": 1, "max_tokens": 4}),
    "beams": ("/v1/completions", {"prompt": "Tell me", "max_tokens": 4, "use_beam_search": True, "n": 2}),
    "schema": ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 12, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
    "regex": ("/v1/completions", {"prompt": "x", "structured_outputs": {"regex": "[ab]{2,#}("}}),
    "embeddings": ("/v1/embeddings", {"input": ["a", "b c"]}),
    "responses": ("/v1/responses", {"input": "Hello", "max_output_tokens": 5, "text": {"format": {
        "type": "json_schema", "name": "x", "description": "a text of some length", "schema": SCHEMA}}}),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 5}),
    "refused": ("/v1/completions", {"prompt": "x", "max_tokens": "many"}),
}


class Tortured:
    """A server of which one allocation fails."""

    def __init__(self, binary, path):
        self.numbers = itertools.count(100)
        self.failing = FailingAllocation(binary, path)
        self.server = QuireServer(binary, "--cpu-threads", 1, "--max-num-seqs", 8, env=self.failing.environment)
        self.canary = self.ask(*CANARY)[1]

    def ask(self, path, body, number=0):
        """Status and text or error; None and why where the connection was lost, "no answer" where none came."""
        headers = {"Content-Type": "application/json"}
        try:
            text = json.dumps(body).replace("#", str(number))
            status, _, answer = self.server.request("POST", path, text, headers, timeout=20)
        except TimeoutError:
            return "no answer", ""
        except (ConnectionError, http.client.HTTPException) as lost:
            return None, repr(lost)
        if status == 200 and path == CANARY[0]:
            return status, [choice["text"] for choice in json.loads(answer)["choices"]]
        return status, answer.decode()

    def number_of_allocations(self, request):
        for _ in range(3):  # what is made once is there then
            expected, _ = self.ask(*request, next(self.numbers))
        before = self.failing.count()
        self.ask(*request, next(self.numbers))
        time.sleep(0.1)
        return expected, self.failing.count() - before


@pytest.fixture(scope="module")
def tortured(binary, tmp_path_factory):
    made = Tortured(binary, tmp_path_factory.mktemp("failing") / "control")
    yield made
    made.server.stop()


@pytest.mark.parametrize("name", REQUESTS)
def test_a_failed_allocation_ends_its_request_at_most(tortured, name):
    request, failing = REQUESTS[name], tortured.failing
    expected, number = tortured.number_of_allocations(request)
    assert number > 20
    for nth in range(1, number + 1):
        failing.arm(nth)
        status, answer = tortured.ask(*request, next(tortured.numbers))
        failing.arm(0)
        what = f"{nth}: {status} {answer}, {failing.callers()}"
        assert status in (None, expected, 500), what
        again = tortured.ask(*CANARY)
        assert again == (200, tortured.canary), f"{what}, then {again}"
    wait_until(lambda: is_idle(tortured.server))


def expect_lines(failing, generate, step, prepare=lambda: None):
    """With every so manyth allocation failing, from some first one on, it ends with a line, or as if none had."""
    command = [*generate, "--prompt", "Tell me", "--max-tokens", "4", "--cpu-threads", "1", "--device", "cpu"]

    def run(nth):
        failing.begin(nth)
        return subprocess.run(command, env=failing.environment, capture_output=True, text=True, timeout=60)

    whole = run(0)
    assert whole.returncode == 0, whole.stderr
    for nth in range(random.randint(1, step), failing.count() + 1, step):
        prepare()
        result = run(nth)
        if result.returncode < 0:
            assert failing.was_in(EXCUSED), f"{nth}: {result.stderr} {failing.callers()}"
        elif result.returncode == 0:
            assert result.stdout == whole.stdout, f"{nth}: {failing.callers()}"
        else:
            assert result.returncode in (1, 2) and "quire: " in result.stderr, f"{nth}: {result}"
            assert "bad_alloc" not in result.stderr, f"{nth}: {failing.callers()}"
            assert "internal error" not in result.stderr, f"{nth}: {result.stderr} {failing.callers()}"


def test_a_failed_allocation_ends_a_start_with_a_line(binary, tmp_path):
    expect_lines(FailingAllocation(binary, tmp_path / "control"), [binary, "generate"], 29)


def test_a_failed_allocation_ends_a_download_with_a_line(binary, environment, tmp_path):
    failing = FailingAllocation(binary, tmp_path / "control")
    home = tmp_path / "home"
    failing.environment = environment | failing.variables | {"HF_HOME": str(home)}
    expect_lines(failing, [binary, "generate", ID], 97, lambda: shutil.rmtree(home, ignore_errors=True))
