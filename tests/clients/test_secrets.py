"""What is asked and who asks stays where it is: nothing is written, fetched or told of the inside."""

import http.client
import json
import random
import re
import socket
import statistics
import threading
import time

import pytest

from conftest import is_idle, wait_until

CANARY = "Xylophonquarz"  # no word of the model's
SECRET = "sk-Zwetschgendatschi"
CHAT = "/v1/chat/completions"


def tool(name):
    return {"type": "function", "function": {"name": name, "description": CANARY, "parameters": {"type": "object"}}}


# Texts that are the client's own, in each place that takes some.
WITH_TEXTS = [
    ("/v1/completions", {"prompt": CANARY, "max_tokens": 8, "user": CANARY, "stop": CANARY}),
    ("/v1/completions", {"prompt": CANARY, "max_tokens": CANARY}),
    ("/v1/completions", {"prompt": CANARY, "model": CANARY}),
    ("/v1/completions", {"prompt": CANARY, "max_tokens": 2000, "guided_regex": f"({CANARY} ){{400}}"}),
    ("/v1/completions", {"prompt": CANARY, "guided_regex": f"({CANARY}"}),
    (CHAT, {"messages": [{"role": "system", "content": CANARY}, {"role": "user", "content": CANARY, "name": CANARY}],
            "tools": [tool(CANARY)], "metadata": {CANARY: CANARY}, "max_tokens": 8, "stream": True}),
    (CHAT, {"messages": [{"role": CANARY, "content": 7}], CANARY: CANARY}),
    ("/v1/responses", {"input": CANARY, "instructions": CANARY, "metadata": {CANARY: CANARY}, "max_output_tokens": 8}),
    ("/v1/messages", {"messages": [{"role": "user", "content": CANARY}], "max_tokens": 8}),
    ("/v1/embeddings", {"input": CANARY}),
    ("/tokenize", {"prompt": CANARY}),
    ("/rerank", {"query": CANARY, "documents": [CANARY]}),
]


def test_texts_and_keys_are_written_nowhere(start, tmp_path):
    recording, log = tmp_path / "all.rec", tmp_path / "access.log"
    with log.open("w") as output:
        flags = ["--api-key", SECRET, "--window", "--record", recording, "--disable-jump-forward"]
        server = start(*flags, command=("-v", "serve"), stdout=output)
    key = {"Authorization": f"Bearer {SECRET}"}
    shown = b""

    def watch():
        nonlocal shown
        connection = socket.create_connection(("127.0.0.1", server.port))
        head = f"GET /window/state HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\n\r\n"
        connection.sendall(head.encode())
        while part := connection.recv(65536):
            shown += part

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    wait_until(lambda: b"\n" in shown)
    statuses = []
    for path, fields in WITH_TEXTS:
        headers = key | {"Content-Type": "application/json", "X-Title": CANARY, "Cookie": CANARY, "User-Agent": CANARY}
        statuses.append(server.request("POST", f"{path}?{CANARY}={CANARY}", json.dumps(fields), headers)[0])
    server.request("POST", CHAT, "{}", {"Authorization": f"Bearer {SECRET}-{CANARY}"})
    metrics = server.request("GET", "/metrics", headers=key)[2]
    assert set(statuses) == {200, 400, 404}
    server.stop()
    watcher.join()
    written = {"metrics": metrics, "window": shown, "recording": recording.read_bytes(), "log": log.read_bytes(),
               "stderr": server.stderr.encode()}
    for where, data in written.items():
        assert data and CANARY.encode() not in data and SECRET.encode() not in data, where


def test_no_address_in_a_request_is_called(server):
    trap = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{trap.getsockname()[1]}/x"

    def ask(*parts, **fields):
        return CHAT, {"messages": [{"role": "user", "content": [*parts]}], "max_tokens": 2} | fields

    text = {"type": "text", "text": url}
    parameters = {"type": "object", "properties": {"a": {"$ref": url}}, "$schema": url, "$id": url}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": parameters}}
    requests = [
        ask(text, user=url, metadata={"url": url}),
        ask(text, model=url),
        ask({"type": "image_url", "image_url": {"url": url}}),
        ask({"type": "image_url", "image_url": url}),
        ask({"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}),
        ask({"type": "video_url", "video_url": {"url": url}}),
        ask({"type": "file", "file": {"file_id": url, "file_data": url}}),
        ask(text, response_format=schema),
        ask(text, tools=[{"type": "function", "function": {"name": "a", "parameters": parameters}}]),
        ask(text, tools=[{"type": "mcp", "server_label": "x", "server_url": url}]),
        ask(text, chat_template=f"{{% include '{url}' %}}"),
        ask(text, documents=[{"title": url, "text": url}], web_search_options={"user_location": url}),
        ("/v1/completions", {"prompt": url, "max_tokens": 2, "structured_outputs": {"json": {"$ref": url}}}),
        ("/v1/completions", {"prompt": url, "max_tokens": 2, "lora_request": url, "kv_transfer_params": {"host": url}}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": url}]}]}),
        ("/v1/responses", {"input": url, "previous_response_id": url, "max_output_tokens": 2}),
        ("/v1/responses", {"input": url, "tools": [{"type": "mcp", "server_label": "x", "server_url": url}]}),
        ("/v1/messages", {"max_tokens": 2, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": url}}]}]}),
        ("/v1/messages", {"max_tokens": 2, "mcp_servers": [{"type": "url", "url": url}], "messages": [
            {"role": "user", "content": url}]}),
        ("/v1/embeddings", {"input": url}),
        ("/rerank", {"query": url, "documents": [url]}),
    ]
    for path, fields in requests:
        headers = {"Content-Type": "application/json", "Referer": url, "X-Callback-Url": url}
        status, _, answer = server.request("POST", path, json.dumps(fields), headers)
        assert status in (200, 400, 404), answer
    wait_until(lambda: is_idle(server))
    trap.settimeout(0.2)
    with trap, pytest.raises(TimeoutError):
        trap.accept()


# Paths, addresses, names of C++ and of libraries.
INSIDE = re.compile(r"/(home|root|tmp|usr|opt|build|src|lib|share)/|\b0x[0-9a-f]{3}|::|nlohmann|json\.exception|boost|"
                    r"\.cpp|\.so\b|bad_alloc|basic_string|terminate")
BROKEN = [b"", b"{", b"\x00", b"\xff\xfe", b"nul", b'{"a":1,"a":2}', b'{"a":"\xed\xa0\x80"}', b"[" * 200]
VALUES = [None, True, -1, 1.5, 1 << 70, "x", [], {}, ["x", 1], [{"type": "x"}], {"type": "x"}, {"x": [None]}]
RIGHT = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a", "max_tokens": 1}


def properties(schema, schemas):
    if "$ref" in schema:
        return properties(schemas[schema["$ref"].split("/")[-1]], schemas)
    return set(schema.get("properties", ())).union(*(properties(part, schemas) for part in schema.get("allOf", ())))


def bodies(operation, schemas):
    """Wrong ones, most of them."""
    if not (content := operation.get("requestBody", {}).get("content")):
        return [None]
    names = sorted(properties(content["application/json"]["schema"], schemas)) + ["nothing"]
    return BROKEN + [json.dumps(RIGHT | {name: value}) for name in names for value in VALUES]


def test_errors_of_every_route_tell_nothing_of_the_inside(start):
    server = start("--max-model-len", 64)
    document = server.get("/openapi.json")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    num_errors = 0
    for path, operations in document["paths"].items():
        wrong_path = re.sub(r"\{\w+\}", "..%2f..%2fx", path)
        for method in {"put", *operations}:
            for body in bodies(operations.get(method, {}), document["components"]["schemas"]):
                connection.request(method.upper(), wrong_path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                said = f"{answer.headers}{answer.read().decode()}"
                assert answer.status != 500, (path, body, said)
                if answer.status >= 400:
                    num_errors += 1
                    assert not INSIDE.search(said), (path, body, said)
    assert num_errors > 1000
    server.stop()


def test_the_first_token_tells_no_key_what_another_asked(start):
    server = start("--api-key", "one", "--api-key", "two")
    dice = random.Random(1)
    times = {"unseen": [], "its own": [], "another's": []}
    for _ in range(9):
        prompt = [dice.randrange(10, 300) for _ in range(1500)]
        for what, key in (("unseen", "one"), ("its own", "one"), ("another's", "two")):
            body = json.dumps({"prompt": prompt, "max_tokens": 1})
            begin = time.monotonic()
            status, _, answer = server.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
            times[what].append(time.monotonic() - begin)
            assert status == 200, answer
    unseen, own, others = (statistics.median(of) for of in times.values())
    assert own < unseen / 2  # so that there is something to be told
    assert others > (unseen + own) / 2, times
    server.stop()
