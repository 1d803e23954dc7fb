import os
import pathlib
import time

import openai
import pytest

from quire_server import QuireServer
from scripted_model import ROOT, write_scripted_model

MODEL = "toy"
KEY = "a-secret-key"

# What the scripted model says to a message that has the name in it.
SCRIPTS = {
    "weather": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}\n</tool_call>',
    "both": 'Let me see.\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź \\"old\\"", "units": ["C", 1.5]}}\n'
    "</tool_call>",
    "tool_result": "It is sunny in Zürich.",
    "ponder": "<think>\nTwo and two: 2 + 2 = 4.\n</think>\n\nThe answer is four.",
    "plan": "<think>I should ask.</think>\n<tool_call>\n"
    '{"name":"get_time","arguments":{"zone":"UTC"}}\n</tool_call>',
    "unicode": "日本語と🌞🧑‍🚀 – naïve ‘quotes’.",
    "count": "one, two, STOP here, three, four, five, six; ...",
}


@pytest.fixture(scope="session")
def binary():
    path = pathlib.Path(os.environ.get("QUIRE", ROOT / "build" / "release" / "bin" / "quire"))
    if not path.is_file():
        pytest.exit(f"{path} is missing; build it, or name another one in QUIRE", returncode=2)
    return path


@pytest.fixture(scope="session")
def start(binary):
    """Starts servers that the end of the session stops, with a check of how they end."""
    servers = []

    def start(*arguments, **keywords):
        servers.append(QuireServer(binary, *arguments, **keywords))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(start):
    """The bundled model."""
    return start()


@pytest.fixture(scope="session")
def scripted(start, tmp_path_factory):
    return start(write_scripted_model(tmp_path_factory.mktemp("models") / "scripted", SCRIPTS))


@pytest.fixture(scope="session")
def locked(start):
    """With a key, two names, and a web page that may use it."""
    return start(
        "--api-key", KEY, "--served-model-name", "first", "second", "--allowed-origins", "https://good.example"
    )


@pytest.fixture(scope="session")
def narrow(start):
    """One sequence at a time, one more may wait, and bodies are small."""
    return start("--max-num-seqs", 1, "--max-num-queued-reqs", 1, "--max-body-size", "256KiB")


def make_client(server, **options):
    options = {"api_key": "none", "max_retries": 0, "timeout": 120} | options
    return openai.OpenAI(base_url=f"{server.url}/v1", **options)


@pytest.fixture(scope="session")
def client(server):
    with make_client(server) as client:
        yield client


@pytest.fixture(scope="session")
def scripted_client(scripted):
    with make_client(scripted) as client:
        yield client


def wait_until(condition, seconds=20):
    """For what the server does by itself and tells in its metrics."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_idle(server):
    metrics = server.metrics()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return all(metrics[name] == 0 for name in names)
