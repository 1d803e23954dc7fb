"""`quire batch IN.jsonl OUT.jsonl`: OpenAI's batch files, answered by an engine that is started for them."""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import IO, Any, Iterator, Optional, Union
from urllib.parse import urlsplit

from ._native import program
from ._progress import make_progress

_TOO_MANY = 429
_PR_SET_PDEATHSIG = 1


class BatchError(Exception):
    """The files, or the server, are not usable."""


class _Server:
    """`quire serve` on a free port of this machine, which ends with this process."""

    def __init__(self, flags: list[str]) -> None:
        for flag in flags:
            name = flag.partition("=")[0].replace("_", "-")
            if name in ("--api-key", "--ssl-certfile"):
                raise BatchError(f"{name} is not for a batch: its server has a key of its own, and no TLS")
        key = secrets.token_hex(32)
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        prctl = ctypes.CDLL(None).prctl
        self.process = subprocess.Popen(
            # Whatever a --config has: what stands here stays.
            [str(program()), "serve", "--host", "127.0.0.1", "--port", "0", "--ssl-certfile", "", *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env={**os.environ, "QUIRE_API_KEY": key},
            preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM))
        self.address = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"serving .* on http://(\S+)", line):
                self.address = found.group(1)
                break
            if "loading the model" not in line:
                sys.stderr.write(line)
        if not self.address:
            raise BatchError(f"the server has ended with code {self.process.wait()}")
        threading.Thread(target=self._show, args=(self.process.stderr,), daemon=True).start()

    @staticmethod
    def _show(lines: IO[str]) -> None:
        for line in lines:
            if not line.startswith("quire: stopping; "):  # as it was asked to
                sys.stderr.write(line)

    def stop(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGTERM):  # the second one waits for no request
            if self.process.poll() is None:
                self.process.send_signal(sign)
        self.process.wait()


class _Request:
    """A line of the input, or what is wrong with it."""

    def __init__(self, number: int, line: str) -> None:
        self.number = number
        self.custom_id: Optional[str] = None
        self.problem = ""
        self.url, self.body = "", b""
        try:
            self._read(json.loads(line))
        except ValueError as error:
            self.problem = f"line {number} is no JSON: {error}"

    def _read(self, given: Any) -> None:
        if not isinstance(given, dict) or not isinstance(given.get("custom_id"), str):
            self.problem = f"line {self.number} is no object with a custom_id"
            return
        self.custom_id, self.url = given["custom_id"], str(given.get("url"))
        body = given.get("body")
        if given.get("method", "POST") != "POST" or not re.fullmatch(r"/v1/[a-z/_]+", self.url):
            self.problem = "method must be POST, and url a path such as /v1/chat/completions"
        elif not isinstance(body, dict):
            self.problem = "body is no object"
        elif body.get("stream"):
            self.problem = "a batch has no streams; leave stream out"
        else:
            body.pop("model", None)  # there is one
            self.body = json.dumps(body).encode()

    @property
    def key(self) -> Union[str, int]:
        """What its line of the output is known by."""
        return self.number if self.custom_id is None else self.custom_id


def _result(request: _Request, response: Optional[dict[str, Any]], code: str = "",
            message: str = "") -> dict[str, Any]:
    error = None if response is not None else {"code": code, "message": message}
    result: dict[str, Any] = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": request.custom_id,
                              "response": response, "error": error}
    if request.custom_id is None:
        result["line"] = request.number
    return result


def _send(server: _Server, connection: Optional[http.client.HTTPConnection],
          request: _Request) -> tuple[http.client.HTTPConnection, dict[str, Any]]:
    """Asks until the server takes the request."""
    while True:
        if connection is None:
            connection = http.client.HTTPConnection(urlsplit("//" + server.address).netloc)
        connection.request("POST", request.url, request.body, server.headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != _TOO_MANY:
            break
        time.sleep(0.2)
    try:
        body = json.loads(text)
    except ValueError:
        body = {"error": {"message": text.decode("utf-8", "replace"), "code": answer.status}}
    found = {"status_code": answer.status, "request_id": answer.getheader("x-request-id") or "", "body": body}
    return connection, _result(request, found)


class _Workers:
    """Threads that each have one request at the server."""

    def __init__(self, server: _Server, count: int) -> None:
        self._server = server
        self._requests: queue.Queue[Optional[_Request]] = queue.Queue(count)
        self.results: queue.Queue[Union[dict[str, Any], Exception]] = queue.Queue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def put(self, request: _Request) -> bool:
        """False: they all have enough to do."""
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            return False
        return True

    def _work(self) -> None:
        connection: Optional[http.client.HTTPConnection] = None
        while True:
            request = self._requests.get()
            if request is None:
                return
            try:
                connection, result = _send(self._server, connection, request)
                self.results.put(result)
            except (OSError, http.client.HTTPException) as error:
                connection = None
                self.results.put(error)

    def stop(self) -> None:
        for _ in range(self._count):
            try:
                self._requests.put_nowait(None)
            except queue.Full:
                return  # they are daemons


class Counts:
    """What has become of a batch."""

    def __init__(self) -> None:
        self.answered = self.failed = self.before = 0

    def add(self, result: dict[str, Any]) -> None:
        response = result["response"]
        if response is not None and response["status_code"] < 400:
            self.answered += 1
        else:
            self.failed += 1


def read_done(path: Path) -> set[Union[str, int]]:
    """What an earlier run has answered; a line that it has not finished is cut off."""
    done: set[Union[str, int]] = set()
    if not path.exists():
        return done
    end = 0
    with path.open("rb+") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            try:
                result = json.loads(line)
                done.add(result["line"] if result["custom_id"] is None else result["custom_id"])
            except (ValueError, KeyError, TypeError):
                raise BatchError(f"{path}: this is no output of a batch: {line[:80]!r}") from None
        file.truncate(end)
    return done


def _read_requests(path: Path, done: set[Union[str, int]], counts: Counts) -> Iterator[_Request]:
    seen: set[Union[str, int]] = set()
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            request = _Request(number, line)
            if request.key in seen:
                request.problem = f"custom_id {request.custom_id!r} stands in an earlier line, too"
                request.custom_id = None  # so that this line has its own answer
            seen.add(request.key)
            if request.key in done:
                counts.before += 1
            else:
                yield request


def _next_result(workers: _Workers, server: _Server) -> dict[str, Any]:
    while True:
        try:
            result = workers.results.get(timeout=0.5)
        except queue.Empty:
            continue  # which lets a KeyboardInterrupt in
        if isinstance(result, Exception):
            time.sleep(0.2)
            code = server.process.poll()
            raise BatchError(f"the server does not answer: {result}" if code is None else
                             f"the server has ended with code {code}; the same command goes on where this one ended")
        return result


def run_batch(source: Path, target: Path, flags: list[str], concurrency: int, shows_progress: bool) -> Counts:
    """Answers what `target` has no answer to yet, and adds each answer as it comes, in any order."""
    counts = Counts()
    done = read_done(target)
    with source.open("rb") as file:
        total = sum(1 for line in file if line.strip())
    server = _Server(flags)
    workers = _Workers(server, concurrency)
    progress = make_progress(shows_progress, total, "Batch")
    progress.update(len(done))
    with target.open("a", encoding="utf-8") as out:

        def write(result: dict[str, Any]) -> None:
            out.write(json.dumps(result, ensure_ascii=False) + "\n")
            out.flush()
            counts.add(result)
            progress.update(1)

        try:
            waiting = 0
            for request in _read_requests(source, done, counts):
                if request.problem:
                    write(_result(request, None, "invalid_request", request.problem))
                    continue
                while not workers.put(request):
                    write(_next_result(workers, server))
                    waiting -= 1
                waiting += 1
            for _ in range(waiting):
                write(_next_result(workers, server))
        finally:
            progress.close()
            workers.stop()
            server.stop()
    return counts


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="quire batch", allow_abbrev=False,
        description="Answers a file of requests in OpenAI's batch format. What the output has already is not asked "
        "again. All other arguments are those of `quire serve`: MODEL, --max-model-len, ...")
    parser.add_argument("input", type=Path, metavar="IN.jsonl",
                        help='lines of {"custom_id", "method": "POST", "url": "/v1/...", "body"}')
    parser.add_argument("output", type=Path, metavar="OUT.jsonl", help="lines are added as answers come")
    parser.add_argument("--concurrency", type=int, default=256, help="requests at once (default: 256)")
    parser.add_argument("--no-progress", action="store_true", help="show no progress")
    given, flags = parser.parse_known_args(arguments)
    if not 1 <= given.concurrency <= 4096:
        parser.error("--concurrency must be from 1 to 4096")
    try:
        counts = run_batch(given.input, given.output, flags, given.concurrency, not given.no_progress)
    except (BatchError, OSError) as error:
        print(f"quire: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("quire: stopped; the same command goes on where this one ended", file=sys.stderr)
        return 130
    print(f"{counts.answered} answered, {counts.failed} with an error, {counts.before} from an earlier run",
          file=sys.stderr)
    return 1 if counts.failed else 0
