#!/usr/bin/env python3
"""What serving costs beside the engine: time added to a request of one token and to each further token, and the
processor time of the server's threads at 256 streams.

Usage: serve_cost.py QUIRE [FLAGS...]    FLAGS: the model and how the engine runs, such as --shape qwen3-0.6b.
"""

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time

INPUT, OUTPUT = 128, 512
SERVER_THREADS = ("quire-http", "quire-output", "quire")  # the last: the workers


def run_json(command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def thread_seconds(pid):
    """Processor time by name of thread."""
    seconds = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm") as comm, open(f"/proc/{pid}/task/{task}/schedstat") as times:
            name = comm.read().strip()
            seconds[name] = seconds.get(name, 0) + int(times.read().split()[0]) / 1e9
    return seconds


def load(quire, url, prompts, streams):
    return run_json(
        [quire, "bench", "serve", "--url", url, "--num-prompts", str(prompts), "--max-concurrency", str(streams)]
        + ["--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT), "--ignore-eos"]
        + ["--temperature", "0", "--json"]
    )["runs"][0]


class Connection:
    """A client that costs as little as one can."""

    def __init__(self, url):
        self.socket = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request):
        """Milliseconds until the whole answer is there, and its body."""
        begin = time.perf_counter()
        self.socket.sendall(request)
        answer = b""
        while True:
            answer += self.socket.recv(1 << 16)
            head, end, body = answer.partition(b"\r\n\r\n")
            if end and len(body) == int(re.search(rb"Content-Length: (\d+)", head).group(1)):
                return (time.perf_counter() - begin) * 1e3, body


def measure_request(url):
    """Medians of what a request takes beyond the engine's part of it, and of one that has none."""
    connection = Connection(url)
    body = json.dumps({"prompt": list(range(300, 300 + INPUT)), "max_tokens": 1, "timings": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    added = []
    health = []
    for _ in range(300):
        taken, answer = connection.ask((head % len(body)).encode() + body)
        timings = json.loads(answer)["timings"]
        added.append(taken - timings["queue_ms"] - timings["prompt_ms"] - timings["predicted_ms"])
        health.append(connection.ask(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")[0])
    return statistics.median(added), statistics.median(health)


def main(quire, *flags):
    library = run_json(
        [quire, "bench", "latency", *flags, "--input-len", str(INPUT), "--output-len", str(OUTPUT), "--repeat", "32"]
        + ["--temperature", "0", "--json"]
    )
    command = [quire, "serve", *flags, "--port", "0", "--access-log", "off"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        url = None
        while url is None:
            line = server.stderr.readline()
            if not line:
                sys.exit("serve_cost.py: the server did not start")
            found = re.search(r"serving .* on (\S+)", line)
            url = found and found.group(1)
        load(quire, url, 2, 1)
        one = load(quire, url, 32, 1)
        added, health = measure_request(url)
        print(f"a request: {added:.3f} ms beside the engine's part; /health {health:.3f} ms")
        print(f"one stream: TTFT {library['ttft_ms']['p50']:.3f} ms in the library, {one['ttft_ms']['p50']:.3f} ms served")
        print(f"one stream: ITL {library['itl_ms']['p50']:.4f} ms in the library, {one['itl_ms']['p50']:.4f} ms served")
        before = thread_seconds(server.pid)
        many = load(quire, url, 1024, 256)
        after = thread_seconds(server.pid)
        tokens = many["output_tokens"]
        print(f"256 streams: {many['output_tokens_per_s']:.0f} tokens/s")
        total = 0
        for name in SERVER_THREADS:
            micros = (after[name] - before[name]) / tokens * 1e6
            total += micros
            print(f"  {name}: {micros:.2f} us of processor time a token")
        print(f"  together {total:.2f} us: {total / 100:.3f} cores at 10,000 tokens/s")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
