"""What curl and old or careful clients send, and browsers."""

import json
import re
import shutil
import socket
import subprocess

import pytest

JSON = "Content-Type: application/json"
CHAT = {"messages": [{"role": "user", "content": "What is Quire?"}], "temperature": 0, "max_tokens": 8}
GOOD = "https://good.example"


def curl(*arguments):
    command = ["curl", "--silent", "--show-error", "--max-time", "60", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def split(answer):
    """Status line and headers (lower case) of what curl -i prints last, and the body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    while re.match(rb"HTTP/1\.1 100", head):
        head, _, body = body.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def test_a_stream_comes_event_by_event(server):
    raw = curl("-N", f"{server.url}/v1/chat/completions", "-H", JSON, "-d", json.dumps(CHAT | {"stream": True}))
    assert re.fullmatch(rb"(data: \{[^\n]*\}\n\n)+data: \[DONE\]\n\n", raw)
    events = [json.loads(event[6:]) for event in raw.split(b"\n\n")[:-2]]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    whole = json.loads(curl(f"{server.url}/v1/chat/completions", "-H", JSON, "-d", json.dumps(CHAT)))
    assert text == whole["choices"][0]["message"]["content"]


def test_a_large_body_waits_for_continue(server, tmp_path):
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"prompt": [5] * 4000, "truncate_prompt_tokens": 8, "max_tokens": 1}) + " " * (2 << 20))
    answer = curl("-i", f"{server.url}/v1/completions", "-H", JSON, "-H", "Expect: 100-continue", "-d", f"@{body}")
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    status, _, body = split(answer)
    assert status == 200 and json.loads(body)["usage"]["prompt_tokens"] == 8


def test_a_body_may_come_in_chunks(server):
    answer = curl(
        "-i",
        f"{server.url}/v1/chat/completions",
        "-H",
        JSON,
        "-H",
        "Transfer-Encoding: chunked",
        "-d",
        json.dumps(CHAT),
    )
    assert split(answer)[0] == 200


def test_http_1_0_gets_plain_bytes_and_the_end(server):
    raw = curl(
        "-i", "-0", "-N", f"{server.url}/v1/chat/completions", "-H", JSON, "-d", json.dumps(CHAT | {"stream": True})
    )
    status, headers, body = split(raw)
    assert status == 200 and "transfer-encoding" not in headers and "content-length" not in headers
    assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")


def test_a_connection_serves_many_requests(server):
    urls = [f"{server.url}/health"] * 3
    connects = curl(*urls, "-w", "%{num_connects}\n", "-o", "/dev/null", "-o", "/dev/null", "-o", "/dev/null")
    assert connects.split() == [b"1", b"0", b"0"]


def test_head_has_no_body(server):
    status, headers, body = split(curl("-I", f"{server.url}/health"))
    assert status == 200 and int(headers["content-length"]) > 0 and body == b""


def test_health_and_version_and_metrics_say_what_they_are(server):
    assert json.loads(curl(f"{server.url}/health")) == {"status": "ok"}
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", json.loads(curl(f"{server.url}/version"))["version"])
    status, headers, body = split(curl("-i", f"{server.url}/metrics"))
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'vllm:num_requests_running{engine="0",model_name="toy"} 0' in body


def test_a_page_of_an_allowed_origin_may_ask(locked):
    asks = ["-H", f"Origin: {GOOD}", "-H", "Access-Control-Request-Method: POST"]
    asks += ["-H", "Access-Control-Request-Headers: authorization, content-type"]
    status, headers, body = split(curl("-i", "-X", "OPTIONS", f"{locked.url}/v1/chat/completions", *asks))
    assert status in (200, 204) and body == b""
    assert headers["access-control-allow-origin"] == GOOD
    assert "post" in headers["access-control-allow-methods"]
    assert headers["access-control-allow-headers"] == "authorization, content-type"
    assert "access-control-allow-credentials" not in headers
    assert "origin" in headers["vary"]


def test_a_page_of_another_origin_may_not(locked, server):
    for url, key in ((locked.url, "a-secret-key"), (server.url, "none")):
        asks = ["-H", JSON, "-H", f"Authorization: Bearer {key}", "-H", "Origin: https://evil.example"]
        status, headers, _ = split(curl("-i", f"{url}/v1/chat/completions", *asks, "-d", json.dumps(CHAT)))
        assert status == 403 and "access-control-allow-origin" not in headers
        preflight = split(curl("-i", "-X", "OPTIONS", f"{url}/v1/chat/completions", *asks))[1]
        assert "access-control-allow-origin" not in preflight


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_needs_no_more_than_a_certificate(start, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-out", certificate, "-keyout", key]
    subprocess.run(made, check=True, stderr=subprocess.DEVNULL)
    server = start("--ssl-certfile", certificate, "--ssl-keyfile", key)
    url = f"https://localhost:{server.port}"
    assert json.loads(curl("--cacert", certificate, f"{url}/health")) == {"status": "ok"}
    raw = curl("--cacert", certificate, f"{url}/v1/completions", "-H", JSON, "-d", '{"prompt":"a","stream":true}')
    assert raw.endswith(b"data: [DONE]\n\n")
    with pytest.raises(subprocess.CalledProcessError):
        curl(f"http://localhost:{server.port}/health")


@pytest.mark.parametrize(
    "raw, status",
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_http_is_told_so(server, raw, status):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(raw)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
