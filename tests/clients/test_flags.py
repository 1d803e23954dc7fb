"""Flags that vLLM's deployments pass, and its configuration file."""

import re
import subprocess
import urllib.request

import pytest

from conftest import make_client

CONFIG = """\
# as vLLM's documentation has it
served_model_name: [from-file, other]
max-model-len: 128
root-path: /prefix/
enable_force_include_usage: true
enable_auto_tool_choice: true
override-generation-config:
  temperature: 0
  max_new_tokens: 5
"""
FLAGS = """--enable-auto-tool-choice --tool-call-parser hermes --enable-prompt-tokens-details
--enable-request-id-headers --enable-chunked-prefill --enable-prefix-caching --disable-log-requests
--no-enable-log-requests --disable-log-stats --max-log-len 100 --api-server-count 1 --data-parallel-size 1
--pipeline-parallel-size 1 --trust-remote-code --disable-uvicorn-access-log --uvicorn-log-level warning
--generation-config vllm --seed 1 --max_num_seqs 4 --gpu_memory_utilization 0.9 --max_model_len=128
--enable-server-load-tracking --enable-tokenizer-info-endpoint --disable-fastapi-docs
--show-hidden-metrics-for-version=0.24 --enable-per-request-metrics --return-tokens-as-token-ids --chat-template-content-format string"""
HI = {"messages": [{"role": "user", "content": "Hi"}]}


def test_a_file_gives_flags_and_the_command_line_wins(start, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    server = start("--config", file, "--served-model-name", "from-line")
    assert [model["id"] for model in server.get("/prefix/v1/models")["data"]] == ["from-line"]
    assert server.get("/v1/models/from-line")["max_model_len"] == 128
    assert server.get("/openapi.json")["servers"] == [{"url": "/prefix/"}]
    answers = [server.post("/v1/chat/completions", **HI, ignore_eos=True) for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]  # at temperature 0
    assert answers[0]["usage"]["completion_tokens"] == 5
    with make_client(server) as client:
        client.base_url = f"{server.url}/prefix/v1"
        *_, last = client.chat.completions.create(model="from-line", stream=True, **HI)
    assert last.usage.prompt_tokens == answers[0]["usage"]["prompt_tokens"]
    server.stop()


def test_what_deployments_pass_is_taken(start):
    server = start(*FLAGS.split())
    assert "--trust-remote-code: nothing remote is ever run" in server.stderr
    answer = server.post("/v1/chat/completions", **HI, logprobs=True, max_tokens=2)
    assert answer["metrics"]["tokens_per_second"] > 0
    assert answer["choices"][0]["logprobs"]["content"][0]["token"].startswith("token_id:")
    assert "cached_tokens" in answer["usage"]["prompt_tokens_details"]
    server.stop()


@pytest.mark.parametrize(
    "flags, is_logged",
    [("--uvicorn-log-level info", True), ("--uvicorn-log-level warning", False), ("--disable-uvicorn-access-log", False)],
)
def test_requests_are_logged_unless_vllms_flags_say_otherwise(binary, tmp_path, flags, is_logged):
    with open(tmp_path / "log", "w+") as log:
        command = [binary, "serve", "--port", "0", *flags.split()]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.PIPE, text=True)
        port = next(said[1] for line in process.stderr if (said := re.search(r"serving .*:(\d+)", line)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
            assert answer.status == 200
        process.terminate()
        process.communicate(timeout=30)
        log.seek(0)
        assert ("/v1/models" in log.read()) == is_logged


def test_a_boolean_of_the_file_switches_a_flag_off_and_the_command_line_on(start, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("enable_prefix_caching: off\n")
    for more, is_cached in (((), False), (("--enable-prefix-caching",), True)):
        server = start("--config", file, *more)
        usage = [server.post("/v1/completions", prompt="a b " * 60, max_tokens=1)["usage"] for _ in range(2)]
        assert (usage[1]["prompt_tokens_details"]["cached_tokens"] > 0) == is_cached
        server.stop()
