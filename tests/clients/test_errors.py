import json
import signal
import socket
import subprocess
import threading
import time

import openai
import pytest

from conftest import KEY, MODEL, is_idle, make_client, wait_until
from quire_server import QuireServer

LONG = {"prompt": "Once", "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}

WRONG = [
    (TEXT, {}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": ""}, None),
    (TEXT, {"prompt": [4096]}, "prompt[0]"),
    (TEXT, {"prompt": [[1], [-1]]}, "prompt[1][0]"),
    (TEXT, {"prompt": ["a", 1]}, "prompt[1]"),
    (TEXT, {"prompt": ["a"] * 1025}, "prompt"),
    (TEXT, {"prompt": "a", "n": 0}, "n"),
    (TEXT, {"prompt": "a", "n": 129}, "n"),
    (TEXT, {"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
    (TEXT, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    (TEXT, {"prompt": "a", "temperature": -1}, "temperature"),
    (TEXT, {"prompt": "a", "temperature": "hot"}, "temperature"),
    (TEXT, {"prompt": "a", "top_p": 0}, "top_p"),
    (TEXT, {"prompt": "a", "logprobs": 21}, "logprobs"),
    (TEXT, {"prompt": "a", "stop": ["x"] * 17}, "stop"),
    (TEXT, {"prompt": "a", "stop": [""]}, "stop"),
    (TEXT, {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    (TEXT, {"prompt": "a", "logit_bias": {"4096": 1}}, "logit_bias"),
    (TEXT, {"prompt": "a", "seed": 0.5}, "seed"),
    (TEXT, {"prompt": "a", "seed": 1 << 63}, "seed"),
    (TEXT, {"prompt": "a", "suffix": "b"}, "suffix"),
    (TEXT, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    (TEXT, {"prompt": "a", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    (TEXT, {"prompt": "a", "response_format": {"type": "xml"}}, "response_format"),
    (TEXT, {"prompt": "a", "guided_json": {"type": "nothing"}}, "guided_json"),
    (TEXT, {"prompt": "a", "guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"content": "a"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": 7, "content": "a"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    (CHAT, HI | {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, HI | {"tool_choice": "sometimes"}, "tool_choice"),
    (CHAT, HI | {"tools": [{"type": "function"}]}, "tools[0].function"),
    (CHAT, HI | {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     "response_format.json_schema.schema"),
    (CHAT, HI | {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
]


@pytest.mark.parametrize("path, fields, param", WRONG)
def test_what_is_wrong_is_named(server, path, fields, param):
    error = server.post(path, 400, **fields)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "BadRequestError" and error["code"] == 400
    assert error["param"] == param
    assert "\n" not in error["message"] and len(error["message"]) < 300


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b"\xff", b'{"prompt":"a",}', b"[" * 100, b'{"a":1} x'])
def test_what_is_no_json_object_is_refused(server, body):
    status, _, answer = server.request("POST", TEXT, body, {"Content-Type": "application/json"})
    assert status == 400 and b'"error"' in answer


def test_the_client_raises_what_fits_the_status(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="a", temperature=-1)
    assert (caught.value.param, caught.value.code, caught.value.type) == ("temperature", "400", "BadRequestError")
    assert caught.value.request_id

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HI["messages"], max_tokens=5000)
    assert (caught.value.code, caught.value.param) == ("400", "max_tokens")
    assert "context_length_exceeded" in caught.value.message
    assert "maximum context length is 2048 tokens" in caught.value.message

    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4o", prompt="a")
    assert (caught.value.code, caught.value.param) == ("404", "model")
    assert "model_not_found" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a cat")


@pytest.mark.parametrize(
    "method, path, status, allow",
    [("GET", "/nowhere", 404, None), ("GET", TEXT, 405, "POST"), ("POST", "/v1/models", 405, "GET")],
)
def test_paths_and_methods_are_checked(server, method, path, status, allow):
    got, headers, body = server.request(method, path)
    assert got == status and headers["Allow"] == allow and b'"error"' in body


def test_only_json_is_taken(server):
    assert server.request("POST", TEXT, b"a=b", {"Content-Type": "text/plain"})[0] == 415
    assert (
        server.request("POST", TEXT, b'{"prompt":"a"}', {"Content-Type": "application/json; charset=utf-8"})[0] == 200
    )


def test_a_body_beyond_the_limit_is_refused(narrow):
    with make_client(narrow) as client, pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model=MODEL, prompt="a" * 300_000)
    assert caught.value.status_code == 413


ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/first"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/nowhere"),
]
ROUTES += [("POST", path) for path in (TEXT, CHAT, "/v1/embeddings", "/tokenize", "/detokenize")]
ROUTES += [("POST", path) for path in ("/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v2/rerank")]


@pytest.mark.parametrize("method, path", ROUTES)
def test_every_route_but_health_needs_the_key(locked, method, path):
    def status(*values):
        headers = {"Content-Type": "application/json"} | {"Authorization": value for value in values}
        return locked.request(method, path, b"{}" if method == "POST" else None, headers)

    wrong = ["", "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY]
    for refused in (status(), *map(status, wrong)):
        assert refused[0] == 401 and refused[1]["WWW-Authenticate"] == "Bearer"
        assert b"AuthenticationError" in refused[2] and KEY.encode() not in refused[2]
    for value in (f"Bearer {KEY}", f"bearer {KEY}"):
        assert status(value)[0] not in (401, 403)


def test_health_needs_no_key(locked):
    assert locked.request("GET", "/health")[0] == 200


def test_the_client_knows_a_wrong_key(locked):
    with make_client(locked, api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with make_client(locked, api_key=KEY) as client:
        assert client.chat.completions.create(model="first", messages=HI["messages"], max_tokens=2).choices


def test_without_a_key_any_is_accepted(server):
    for value in ("Bearer ", "Bearer anything", "nonsense"):
        assert server.request("GET", "/v1/models", headers={"Authorization": value})[0] == 200


def test_a_full_queue_is_told_and_the_client_comes_again(narrow):
    def rejections():
        return narrow.metrics().get("vllm:admission_rejections_total", 0)

    with make_client(narrow) as impatient, make_client(narrow, max_retries=8) as patient:
        running = impatient.completions.create(model=MODEL, stream=True, **LONG)
        next(iter(running))
        queued = threading.Thread(target=lambda: impatient.completions.create(model=MODEL, prompt="a", max_tokens=1))
        queued.start()
        wait_until(lambda: narrow.metrics()["vllm:num_requests_waiting"] == 1)

        begin = time.monotonic()
        with pytest.raises(openai.RateLimitError) as caught:
            impatient.completions.create(model=MODEL, prompt="b", max_tokens=1)
        assert time.monotonic() - begin < 1
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        assert caught.value.type == "RateLimitError"

        def leave_when_another_is_rejected(before=rejections()):
            wait_until(lambda: rejections() > before)
            running.close()

        leaver = threading.Thread(target=leave_when_another_is_rejected)
        leaver.start()
        answer = patient.completions.with_raw_response.create(model=MODEL, prompt="c", max_tokens=1)
        assert answer.retries_taken >= 1
        assert answer.parse().usage.completion_tokens == 1
        leaver.join()
        queued.join()
    wait_until(lambda: is_idle(narrow))


SLOW_TO_LOAD = ["--shape", "qwen3-0.6b", "--kv-cache-memory", "64MiB"]


def test_a_server_that_loads_is_waited_for(start):
    server = start(*SLOW_TO_LOAD, until="loading")
    status, headers, body = server.request("GET", "/health")
    assert status == 503 and int(headers["Retry-After"]) >= 1
    assert json.loads(body)["error"]["type"] == "unavailable_error"
    with make_client(server, max_retries=60) as client:
        models = client.models.with_raw_response.list()
    assert models.retries_taken >= 1 and len(models.parse().data) == 1
    server.stop()


def test_a_server_that_loads_can_be_ended(binary):
    server = QuireServer(binary, *SLOW_TO_LOAD, until="loading")
    server.stop(expected_code=128 + signal.SIGTERM)


def test_a_client_that_times_out_leaves_nothing_behind(server):
    with make_client(server, timeout=0.3) as client, pytest.raises(openai.APITimeoutError):
        client.completions.create(model=MODEL, **LONG)
    wait_until(lambda: is_idle(server))


@pytest.mark.parametrize("stage", ["queued", "computed", "streamed"])
def test_a_client_that_goes_leaves_nothing_behind(narrow, stage):
    def send(prompt, stream):
        return narrow.send(TEXT, prompt=prompt, max_tokens=2000, ignore_eos=True, stream=stream)

    first = send("Once", stage == "streamed")
    wait_until(lambda: narrow.metrics()["vllm:num_requests_running"] == 1)
    if stage == "queued":
        second = send("Twice", False)
        wait_until(lambda: narrow.metrics()["vllm:num_requests_waiting"] == 1)
        second.close()
        wait_until(lambda: narrow.metrics()["vllm:num_requests_waiting"] == 0)
        assert narrow.metrics()["vllm:num_requests_running"] == 1
    if stage == "streamed":
        assert first.recv(100).startswith(b"HTTP/1.1 200")
    first.close()
    wait_until(lambda: is_idle(narrow))


def test_a_request_that_takes_too_long_is_ended(start):
    server = start("--request-timeout", "0.3")
    with make_client(server) as client:
        choice = client.completions.create(model=MODEL, **LONG).choices[0]
        assert choice.finish_reason == "abort" and choice.text
    server.stop()


def test_sigterm_lets_requests_finish(start):
    server = start()
    with make_client(server) as client:
        fields = dict(prompt="Once", temperature=0, max_tokens=300, extra_body={"ignore_eos": True})
        whole = client.completions.create(model=MODEL, **fields).choices[0].text
        stream = client.completions.create(model=MODEL, stream=True, **fields)
        text = next(iter(stream)).choices[0].text
        server.terminate()
        for chunk in stream:
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason
        assert text == whole and reason == "length"
    server.stop()


@pytest.mark.parametrize("seconds_between, drains", [(0, True), (0.5, False)])
def test_signals_close_together_count_as_one(binary, seconds_between, drains):
    server = QuireServer(binary)
    body = b'{"prompt":"Once","max_tokens":1}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head % len(body))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        server.terminate()
        time.sleep(seconds_between)
        server.process.send_signal(signal.SIGTERM)
        if drains:
            connection.sendall(body)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
    server.stop(expected_code=0 if drains else 128 + signal.SIGTERM)


def test_a_half_closed_client_gets_its_answer(server):
    body = json.dumps({"prompt": "Once", "max_tokens": 300, "ignore_eos": True}).encode()
    for version in (b"1.0", b"1.1"):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(
            b"POST /v1/completions HTTP/%s\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (version, len(body))
            + body
        )
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, text = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert json.loads(text)["usage"]["completion_tokens"] == 300


def test_after_the_drain_timeout_streams_end_as_aborted(start):
    server = start("--drain-timeout", "0.2")
    with make_client(server) as client:
        chunks = iter(client.completions.create(model=MODEL, stream=True, **LONG))
        next(chunks)
        server.terminate()
        *_, last = chunks
        assert last.choices[0].finish_reason == "abort"
    server.stop()


def test_a_key_does_not_swallow_the_model(binary, tmp_path):
    command = [binary, "serve", "--port", "0", "--api-key", "one", "--api-key", "two", tmp_path / "no-model"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "no-model" in ended.stderr
