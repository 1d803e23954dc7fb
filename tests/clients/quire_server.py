"""A `quire serve` that runs for some tests, and plain HTTP to it."""

import http.client
import json
import re
import socket
import subprocess
import threading

START_SECONDS = 60
STOP_SECONDS = 30


class QuireServer:
    """Runs until stop(), which checks that SIGTERM ends it in good order. It is there once it has said `until`.

    options: of subprocess.Popen.
    """

    def __init__(self, binary, *arguments, until="serving", command=("serve", "--access-log", "off"),
                 host=None, port=0, **options):
        command = [str(binary), *command, *map(str, arguments), "--port", str(port)]
        if host:
            command += ["--host", host]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
        self.stderr = ""
        self.host = host or "127.0.0.1"
        self.port = None
        self._terminated = False
        self._until = until
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        if not self._ready.wait(START_SECONDS) or self.port is None:
            self.process.kill()
            raise RuntimeError(f"{' '.join(command)} does not serve:\n{self.stderr}")

    def _read_stderr(self):
        for line in self.process.stderr:
            self.stderr += line
            if said := re.search(rf"{self._until} .*https?://\S+:(\d+)", line):
                self.port = int(said[1])
                self._ready.set()
        self._ready.set()

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def terminate(self):
        """SIGTERM, once: another one, later, would end the server at once."""
        if not self._terminated and self.process.poll() is None:
            self.process.terminate()
        self._terminated = True

    def stop(self, expected_code=0):
        self.terminate()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"SIGTERM did not end the server in {STOP_SECONDS} s:\n{self.stderr}")
        self._reader.join()
        assert code == expected_code, f"the server ended with {code}:\n{self.stderr}"

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Status, headers and body, without a client's interpretation."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def get(self, path, headers=None):
        status, _, body = self.request("GET", path, headers=headers)
        assert status == 200, body
        return json.loads(body)

    def post(self, path, expect=200, headers=None, **fields):
        """The answer to a JSON body of these fields."""
        headers = {"Content-Type": "application/json"} | (headers or {})
        status, _, body = self.request("POST", path, json.dumps(fields), headers)
        assert status == expect, body
        return json.loads(body)

    def events(self, path, **fields):
        """The chunks of a stream. Checks its framing to the byte."""
        headers = {"Content-Type": "application/json"}
        status, headers, body = self.request("POST", path, json.dumps(fields | {"stream": True}), headers)
        assert status == 200, body
        assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert headers["Cache-Control"] == "no-cache"
        return parse_events(body)

    def send(self, path, limit=None, receive_buffer=None, **fields):
        """A connection on which a request with these fields, or only so many bytes of it, was sent and nothing read."""
        body = json.dumps(fields)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection = socket.socket()
        connection.settimeout(60)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect((self.host, self.port))
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()[:limit])
        return connection

    def metrics_text(self):
        status, _, body = self.request("GET", "/metrics")
        assert status == 200, body
        return body.decode()

    def metrics(self):
        """Name -> sum over its labels, of every sample of /metrics."""
        return parse_metrics(self.metrics_text())

    def responses(self):
        """Class of status, such as 2xx -> number of answers."""
        counts = {}
        for status, count in re.findall(r'^http_requests_total\{.*status="(\w+)".*\} (\S+)', self.metrics_text(), re.M):
            counts[status] = counts.get(status, 0) + float(count)
        return counts


def parse_events(body):
    events = body.split(b"\n\n")
    assert events.pop() == b"", "a stream ends with two line feeds"
    assert events.pop() == b"data: [DONE]"
    assert all(event.startswith(b"data: {") and b"\n" not in event and b"\r" not in event for event in events)
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def parse_metrics(text):
    values = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, value = re.fullmatch(r"([\w:]+)(?:\{.*\})? (\S+)", line).groups()
        values[name] = values.get(name, 0.0) + float(value)
    return values
