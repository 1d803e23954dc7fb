"""Holds many streams on the bundled model, with clients that leave, err and read slowly, beams, embeddings, prompts that
break the model's logits, preemption and swapping, and watches the server.

Exit code 1 and a list of what went wrong if anything did. It reads sockets in large, late pieces, since it shares the
cores with the server. The server records what it schedules; when it has ended, `quire replay` must make every plan
again. Where it does not, the recording is kept. Flags that are not the soak's are the server's (but for those it
gives itself), such as --deterministic, without which a GPU's answers are not bitwise the same.
"""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from quire_server import QuireServer, parse_metrics
from scripted_model import BUNDLED

SLOW_READERS = 1 / 16  # share of streams
LEAVE, ERR, BREAK, WHOLE = 0.05, 0.05, 0.01, 0.05  # shares of requests
LONG, LONG_OUTPUT = 0.02, 1500  # share of requests, tokens: they outgrow the room there was when they began
WARM_UP = 0.2  # share of the time
MAX_RSS_GROWTH = 0.01
CANARY_SECONDS = 10
DRAIN_SECONDS = 30
RECOVERY_SECONDS = 1
READ_DELAY = 0.1  # seconds between the reads of a stream
STREAM_END = b"\r\n0\r\n\r\n"  # of a chunked body
# The cache holds less than the streams want, so that some are preempted, and host memory has room for some of these.
CACHE_BYTES, SWAP_GIB = 1 << 16, 0.002 / 256  # a stream
FLAGS = ["--drain-timeout", DRAIN_SECONDS, "--tool-call-parser", "hermes", "--served-model-name", "soak"]
BROKEN_TOKEN = 187  # of byte 255, which no text has
NOT_FINITE = b"the model's logits are not finite numbers"

QUESTIONS = ["What is Quire?", "what is a kv cache?", "what is 7 plus 5?", "Tell me a story about a fox.", "Hello!"]
PROMPTS = ["Once there was", "The KV cache keeps keys and values. " * 20, "A", "Continuous batching is"]
TOOLS = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": {
        "type": "object", "properties": {"where": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["where", "days"], "additionalProperties": False,
    }}}
    for name in ("weather", "news")
]  # fmt: skip
# What outputs are held to: by which fields.
STRUCTURES = [
    {"response_format": {"type": "json_object"}},
    {
        "structured_outputs": {
            "json": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 30}, "tags": {"type": "array", "items": {}}},
                "required": ["name", "tags"],
            }
        }
    },
    {"structured_outputs": {"regex": "([a-z]+ ){3,40}[a-z]+[.!?]"}},
    {"guided_choice": ["north", "south", "by the sea"]},
    {"structured_outputs": {"grammar": 'root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"'}},
]
# What comes in one piece, the same every time.
WHOLE_REQUESTS = [
    ("/v1/completions", {"prompt": PROMPTS[0], "use_beam_search": True, "n": 3, "max_tokens": 24}),
    ("/v1/completions", {"prompt": PROMPTS[:2], "n": 2, "best_of": 4, "seed": 7, "max_tokens": 24}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTIONS[0]}], "n": 3, "seed": 5, "logprobs": True,
                              "presence_penalty": 1, "max_tokens": 32}),
    ("/v1/embeddings", {"input": [QUESTIONS[1], PROMPTS[1]]}),
]  # fmt: skip
CANARY_BODY = {"messages": [{"role": "user", "content": "What is Quire?"}], "temperature": 0, "max_tokens": 48}
CANARY = ("/v1/chat/completions", CANARY_BODY)


def http(path, body, method="POST", headers="Content-Type: application/json\r\n"):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


INVALID = [
    (http("/v1/completions", b"{"), 400),
    (http("/v1/completions", b"[" * 1000), 400),
    (http("/v1/completions", {"prompt": []}), 400),
    (http("/v1/completions", {"prompt": [99999]}), 400),
    (http("/v1/completions", {"prompt": "a", "n": 0}), 400),
    (http("/v1/completions", {"prompt": "a", "max_tokens": 1 << 40}), 400),
    (http("/v1/completions", {"prompt": "a", "temperature": -1, "stream": True}), 400),
    (http("/v1/completions", {"prompt": "a " * 5000, "stream": True}), 400),
    (http("/v1/completions", {"prompt": "a", "guided_regex": "(a", "stream": True}), 400),
    (http("/v1/completions", {"prompt": "a", "structured_outputs": {}}), 400),
    (http("/v1/completions", {"prompt": "a", "model": "another"}), 404),
    (http("/v1/completions", {"prompt": "a"}, headers="Content-Type: text/plain\r\n"), 415),
    (http("/v1/completions", {"prompt": "a"}, headers="Content-Type: application/json\r\nOrigin: http://x.y\r\n"), 403),
    (http("/v1/chat/completions", {"messages": []}), 400),
    (http("/v1/chat/completions", {"messages": [{"role": "user", "content": 1}]}), 400),
    (http("/v1/chat/completions", {"messages": [{"role": 7, "content": "a"}]}), 400),
    (http("/v1/chat/completions", b"", "GET"), 405),
    (http("/nowhere", {}), 404),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n", 413),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40000 + b"\r\n\r\n", 431),
    (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
]


class Soak:
    def __init__(self, server, options):
        self.server = server
        self.seconds = options.seconds
        self.streams = options.streams
        self.random = random.Random(options.seed)
        self.begin = time.monotonic()
        self.counts = collections.Counter()
        self.errors = []
        self.samples = []  # (seconds since the beginning, bytes of RSS, of them those of structured outputs)
        self.expected = None
        self.expected_wholes = []

    def over(self):
        return time.monotonic() - self.begin > self.seconds

    def error(self, text):
        self.errors.append(f"{time.monotonic() - self.begin:.1f} s: {text}")

    async def connect(self):
        # A buffer of a byte: bytes that are not read yet stay with the kernel, and there with the server.
        return await asyncio.open_connection("127.0.0.1", self.server.port, limit=1)

    def stream_request(self):
        fields = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": LONG_OUTPUT if self.random.random() < LONG else self.random.randint(8, 160),
            "temperature": self.random.choice([0, 0.7, 1.5]),
            "seed": self.random.randrange(1 << 30),
            "ignore_eos": self.random.random() < 0.5,
        }
        if self.random.random() < 0.1:
            fields["stop"] = [" the", "."]
        if self.random.random() < 0.1:
            fields |= {"tools": TOOLS, "tool_choice": self.random.choice(["auto", "required"]), "ignore_eos": False}
            return http(
                "/v1/chat/completions",
                fields | {"messages": [{"role": "user", "content": self.random.choice(QUESTIONS)}]},
            )
        if self.random.random() < 0.25:
            fields |= self.random.choice(STRUCTURES)
        if self.random.random() < 0.5:
            return http("/v1/completions", fields | {"prompt": self.random.choice(PROMPTS)})
        return http(
            "/v1/chat/completions", fields | {"messages": [{"role": "user", "content": self.random.choice(QUESTIONS)}]}
        )

    async def read_stream(self, reader, delay, piece):
        """What a stream had, to its end."""
        data = b""
        while not data.endswith(STREAM_END):
            part = await asyncio.wait_for(reader.read(piece), 120)
            if not part:
                break
            data += part
            await asyncio.sleep(delay)
        return data

    def check_stream(self, data):
        """Whether it was as it is to be."""
        complete = data.startswith(b"HTTP/1.1 200 ") and data.endswith(b"data: [DONE]\n\n" + STREAM_END)
        usage = data.rfind(b'"completion_tokens":')
        if NOT_FINITE in data:  # it has drawn the broken token
            self.counts["drawn"] += 1
            return True
        if not complete or usage < 0 or b'"error"' in data:
            return self.error(f"a stream began {data[:300]!r} and ended {data[-200:]!r}")
        self.counts["tokens"] += int(data[usage + 20 : usage + 30].split(b",")[0].split(b"}")[0])
        self.counts["streams"] += 1
        return True

    async def err(self):
        request, status = self.random.choice(INVALID)
        reader, writer = await self.connect()
        writer.write(request)
        line = await asyncio.wait_for(reader.read(300), 60)
        if not line.startswith(b"HTTP/1.1 %d " % status):
            self.error(f"{request[:80]!r} got {line!r}, not {status}")
        writer.close()
        self.counts["invalid"] += 1

    async def exchange(self, path, body, method="POST"):
        """The head and the body of an answer."""
        reader, writer = await self.connect()
        writer.write(http(path, body, method, "Content-Type: application/json\r\nConnection: close\r\n"))
        answer = b""
        while part := await asyncio.wait_for(reader.read(1 << 16), 120):
            answer += part
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return head, body

    async def ask(self, path, body):
        """What an answer holds, or all of one that is an error."""
        head, body = await self.exchange(path, body)
        if not head.startswith(b"HTTP/1.1 200 "):
            return head + body
        answer = json.loads(body)
        return json.dumps(answer.get("choices") or answer["data"])

    async def ask_whole(self):
        which = self.random.randrange(len(WHOLE_REQUESTS))
        answer = await self.ask(*WHOLE_REQUESTS[which])
        self.counts["wholes"] += 1
        if answer != self.expected_wholes[which]:
            self.error(f"{WHOLE_REQUESTS[which]} got {answer!r}, not {self.expected_wholes[which]!r}")

    async def break_logits(self):
        prompt = [*range(40, 40 + self.random.randrange(40)), BROKEN_TOKEN]
        fields = {"prompt": prompt, "stream": self.random.random() < 0.5}
        head, body = await self.exchange("/v1/completions", fields)
        if not head.startswith(b"HTTP/1.1 500 ") or NOT_FINITE not in body:
            self.error(f"logits that are not finite were answered by {head + body!r}")
        self.counts["broken"] += 1

    async def leave(self):
        reader, writer = await self.connect()
        writer.write(self.stream_request())
        end = b""
        for _ in range(self.random.randrange(6)):
            end = (end + await reader.read(2000))[-len(STREAM_END) :]  # which two reads may share
            if end == STREAM_END:
                break
            await asyncio.sleep(self.random.random() * 0.2)
        if self.random.random() < 0.5:
            writer.transport.abort()
        writer.close()
        self.counts["disconnects"] += 1

    async def hold_streams(self, is_slow):
        """One stream after the other; who is not slow keeps the connection as long as it lasts."""
        connection = None
        while not self.over():
            dice = self.random.random()
            try:
                if dice < LEAVE:
                    await self.leave()
                elif dice < LEAVE + ERR:
                    await self.err()
                elif dice < LEAVE + ERR + BREAK:
                    await self.break_logits()
                elif dice < LEAVE + ERR + BREAK + WHOLE:
                    await self.ask_whole()
                else:
                    connection = connection or await self.connect()
                    connection[1].write(self.stream_request())
                    delay, piece = (READ_DELAY * 2, 700) if is_slow else (READ_DELAY, 1 << 16)
                    is_good = self.check_stream(await self.read_stream(connection[0], delay, piece))
                    if is_slow or not is_good:  # for the server a slow one is idle since the last byte was sent
                        connection = connection[1].close()
            except (OSError, asyncio.TimeoutError) as caught:
                self.error(f"a client failed: {caught!r}")
                connection = None
        if connection:
            connection[1].close()

    async def watch_canary(self):
        while not self.over():
            answer = await self.ask(*CANARY)
            self.counts["canaries"] += 1
            if answer != self.expected:
                self.error(f"the canary said {answer!r}, not {self.expected!r}")
            await asyncio.sleep(CANARY_SECONDS)

    async def watch_memory(self):
        while not self.over():
            _, metrics = await self.exchange("/metrics", b"", "GET")
            held = parse_metrics(metrics.decode())["quire:structured_outputs_bytes"]
            self.samples.append((time.monotonic() - self.begin, rss(self.server.pid), held))
            await asyncio.sleep(1)

    async def run(self):
        self.expected = await self.ask(*CANARY)
        self.expected_wholes = [await self.ask(*request) for request in WHOLE_REQUESTS]
        self.begin = time.monotonic()
        clients = [self.hold_streams(is_slow=i < SLOW_READERS * self.streams) for i in range(self.streams)]
        await asyncio.gather(self.watch_canary(), self.watch_memory(), *clients)

    async def stop_under_load(self):
        """SIGTERM while streams run: they end well. Returns when it was sent."""
        connections = [await self.connect() for _ in range(32)]
        for _, writer in connections:
            writer.write(self.stream_request())
        await asyncio.gather(*(reader.readexactly(12) for reader, _ in connections))
        begin = time.monotonic()
        self.server.terminate()
        for data in await asyncio.gather(*(self.read_stream(reader, 0, 1 << 16) for reader, _ in connections)):
            self.check_stream(b"HTTP/1.1 200" + data)
        for _, writer in connections:
            writer.close()
        return begin

    def memory(self):
        """MiB of RSS, and of structured outputs in it, in the first tenth of the time after warm-up and in the last."""
        for begin in (WARM_UP, 0.9):
            inside = [sizes for at, *sizes in self.samples if begin <= at / self.seconds <= begin + 0.1]
            yield [statistics.median(sizes) / 2**20 for sizes in zip(*inside)]


def rss(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def handles(pid):
    """Open files, and threads but those that compile grammars, which are made when they are first wanted."""
    names = [path.read_text().strip() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/comm")]
    return len(os.listdir(f"/proc/{pid}/fd")), len(names) - names.count("quire-compile")


def write_breaking_model(folder):
    """The bundled model, with an embedding that is not finite. The head is the embedding as it was."""
    folder.mkdir()
    for path in BUNDLED.iterdir():
        shutil.copy(path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header, tensors = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    embedding = header["model.embed_tokens.weight"]
    begin, end = embedding["data_offsets"]
    header["lm_head.weight"] = embedding | {"data_offsets": [len(tensors), len(tensors) + end - begin]}
    tensors += tensors[begin:end]
    row = (end - begin) // embedding["shape"][0]
    tensors[begin + BROKEN_TOKEN * row : begin + (BROKEN_TOKEN + 1) * row] = b"\xc0\x7f" * (row // 2)  # NaN in bfloat16
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + tensors)
    return folder


def what_is_left(server, baseline):
    """Of requests, blocks and handles once every client has gone; None if nothing is."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    for _ in range(RECOVERY_SECONDS * 20):
        metrics = server.metrics()
        left = {name: metrics[f"vllm:{name}"] for name in names}
        if not any(left.values()) and handles(server.pid) == baseline:
            return None
        time.sleep(0.05)
    return f"{left}, (files, threads) {handles(server.pid)} where {baseline} were before"


def stop(soak):
    """SIGTERM under load. Returns the seconds it took."""
    begin = asyncio.run(soak.stop_under_load())
    soak.server.stop()
    seconds = time.monotonic() - begin
    if seconds > DRAIN_SECONDS:
        soak.error(f"the server took {seconds:.1f} s to stop")
    return seconds


def replay(soak, binary, recording):
    """Makes every plan of the recording again. Returns what was said of it."""
    done = subprocess.run([binary, "replay", recording, "--json"], capture_output=True, text=True)
    if done.returncode == 0 and (made := json.loads(done.stdout))["whole"] and made["differs_at"] is None:
        return f"{made['steps']} steps of {made['requests']} requests were planned again, all alike"
    kept = shutil.copy(recording, tempfile.mkdtemp(prefix="quire-soak-"))
    soak.error(f"replay of {kept}: code {done.returncode}, {(done.stdout or done.stderr).strip()}")
    return "the replay differs"


def report(soak, happened, stop_seconds, replayed):
    (first, first_held), (last, last_held) = soak.memory()
    growth = last / first - 1
    if growth >= MAX_RSS_GROWTH:
        soak.error(f"RSS grew by {growth:.2%}")
    if not all(happened.values()):
        soak.error(f"it is to have each of {happened}")
    counts = soak.counts
    requests = sum(counts[kind] for kind in ("streams", "drawn", "invalid", "disconnects", "broken", "wholes"))
    print(
        f"soak: {soak.seconds:.0f} s, {soak.streams} streams: {requests} requests, of which {counts['disconnects']} left, "
        f"{counts['invalid']} were invalid, {counts['broken']} broke the model's logits and {counts['wholes']} had beams, "
        f"outputs or embeddings as before; {counts['tokens']} tokens ({counts['tokens'] / soak.seconds:.0f}/s), "
        f"{', '.join(f'{number:.0f} {what}' for what, number in happened.items())}, {counts['canaries']} canaries, "
        f"{len(soak.errors)} errors; "
        f"RSS {first:.1f} to {last:.1f} MiB ({growth:+.2%}), of which structured outputs {first_held:.1f} to "
        f"{last_held:.1f} MiB; SIGTERM took {stop_seconds:.1f} s; "
        f"{replayed}"
    )
    for error in soak.errors[:20]:
        print(f"soak: {error}", file=sys.stderr)


def hold(options, flags, folder):
    recording = folder / "soak.rec"
    model = write_breaking_model(folder / "model")
    flags = FLAGS + ["--kv-cache-memory", options.streams * CACHE_BYTES, "--swap-space", options.streams * SWAP_GIB] + flags
    flags += ["--max-num-seqs", options.streams, "--record", recording]
    server = QuireServer(options.quire, *flags, command=("serve", model, "--access-log", "off"))
    for fields in [{}, *STRUCTURES]:  # threads for masks are made with the first of these
        server.post(CANARY[0], **CANARY_BODY, **fields)
    soak = Soak(server, options)
    baseline = handles(server.pid)
    asyncio.run(soak.run())
    if left := what_is_left(server, baseline):
        soak.error(f"left behind: {left}")
    if (failures := server.responses().get("5xx", 0)) != soak.counts["broken"]:
        soak.error(f"{failures} answers of a status of 5xx to {soak.counts['broken']} requests that break the logits")
    metrics = server.metrics()
    happened = {
        "aborts": float(re.search(r'^vllm:request_success_total\{.*"abort".*\} (\S+)', server.metrics_text(), re.M)[1]),
        "preemptions": metrics["vllm:num_preemptions_total"],
        "blocks saved": metrics["quire:saved_blocks_total"],
        "blocks restored": metrics["quire:restored_blocks_total"],
        "sequences of broken logits": metrics["vllm:corrupted_requests_total"],
    }
    stop_seconds = stop(soak)
    report(soak, happened, stop_seconds, replay(soak, options.quire, recording))
    return 1 if soak.errors else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("quire")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    options, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="quire-soak-") as folder:
        return hold(options, flags, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
