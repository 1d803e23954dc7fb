"""Many clients at once that go, stop reading, or never end a request: others notice nothing, and nothing is left.

100 rounds of 500 clients that go where QUIRE_WHOLE_STORM is set, as the soak does; otherwise a few.
"""

import concurrent.futures
import json
import os
import random
import resource
import socket
import struct
import time

import pytest

from conftest import is_idle, wait_until

IS_WHOLE = "QUIRE_WHOLE_STORM" in os.environ
ROUNDS, CLIENTS = (100, 500) if IS_WHOLE else (5, 100)
RECOVERY_SECONDS = 1 if IS_WHOLE else 20  # other machines may be busy with something else
WARM_UP_ROUNDS = ROUNDS // 5
MAX_GROWTH = 24 << 20  # of the rounds after these
STALLED = 8  # and as many others
TEXT = "/v1/completions"
CANARY = {"prompt": "Once there was", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
LONG = {"prompt": "Tell me", "max_tokens": 300, "ignore_eos": True}
ENDLESS = LONG | {"max_tokens": 2000, "n": 16}  # would hold the server up for minutes
LARGE = {"prompt": "Tell me", "max_tokens": 120, "ignore_eos": True, "n": 2, "logprobs": 20}  # 200 kB of answer
LAST_EVENT = b'"finish_reason":"length"'
# How far a client comes before it goes: what it sends, and what it has read by then.
STAGES = {
    "connected": (dict(limit=0), b""),
    "head": (dict(limit=40), b""),
    "body": (LONG | dict(limit=150), b""),
    "waiting": (ENDLESS, b""),
    "waiting for a stream": (ENDLESS | dict(stream=True), b""),
    "streaming": (LONG | dict(stream=True), b"data: "),
    "before the last token": (LONG | dict(stream=True, max_tokens=2), b"data: "),
    "at the last token": (LONG | dict(stream=True, max_tokens=2), LAST_EVENT),
    "while the answer is written": (LARGE, b"HTTP/1.1 200"),
}


def allow_files(number):
    """To this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(number, hard)), hard))


def say(server):
    return server.post(TEXT, **CANARY)["choices"][0]["text"]


def read_until(connection, mark):
    data = b""
    while mark not in data:
        part = connection.recv(4096)
        assert part, data
        data += part


def go(connection, is_reset):
    if is_reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def storm(server, dice):
    """Clients of all stages go when they are there; those that stream go all at once."""
    streaming, is_reset = [], lambda: dice.random() < 0.5
    stages = dice.choices([*STAGES], k=CLIENTS)
    clients = [(server.send(TEXT, receive_buffer=4096, **STAGES[stage][0]), stage) for stage in stages]
    for connection, stage in sorted(clients, key=lambda client: STAGES[client[1]][1] != b""):  # who waits goes first
        read_until(connection, STAGES[stage][1])
        if stage == "streaming":
            streaming.append(connection)
        else:
            go(connection, is_reset())
    for connection in streaming:
        go(connection, is_reset())


@pytest.fixture(scope="module")
def half_open(server):
    """1,000 connections whose head never ends, while other tests of this file run."""
    allow_files(2000)
    connections = [server.send(TEXT, limit=40) for _ in range(1000)]
    yield connections
    for connection in connections:
        connection.close()


def test_half_open_connections_keep_nobody_out(server, half_open):
    said = say(server)  # connections are accepted in order: the others are there
    for _ in range(20):
        assert say(server) == said


def test_storms_of_disconnects_leave_nothing_behind(start):
    server = start("--max-num-seqs", 64, "--kv-cache-memory", "32MiB")
    dice, said, sizes = random.Random(1), say(server), []
    files = server.metrics()["process_open_fds"]
    for round_ in range(ROUNDS):
        storm(server, dice)
        wait_until(lambda: is_idle(server) and server.metrics()["process_open_fds"] <= files, RECOVERY_SECONDS)
        assert say(server) == said, round_
        sizes.append(server.metrics()["process_resident_memory_bytes"])
    assert max(sizes) - max(sizes[:WARM_UP_ROUNDS]) < MAX_GROWTH, sizes
    server.stop()


def test_clients_that_stop_reading_are_cut_and_others_have_their_texts(start):
    server = start("--max-num-seqs", 64)
    others = LONG | dict(max_tokens=300, temperature=0)
    said = server.post(TEXT, **others)["choices"][0]["text"]
    endless = LONG | dict(max_tokens=2000, n=4, logprobs=20, stream=True)  # 7 MB of events
    stalled = [server.send(TEXT, receive_buffer=4096, **endless) for _ in range(STALLED)]
    with concurrent.futures.ThreadPoolExecutor(STALLED) as clients:
        streams = list(clients.map(lambda _: server.events(TEXT, **others), range(STALLED)))
    for events in streams:
        assert "".join(event["choices"][0]["text"] for event in events) == said
    aborted = f'finished_reason="abort",model_name="toy"}} {4 * STALLED}.0'
    wait_until(lambda: is_idle(server) and aborted in server.metrics_text(), 120)
    for connection in stalled:
        with pytest.raises(ConnectionResetError):
            read_until(connection, b"[DONE]")
    server.stop()


def test_half_open_connections_are_ended_in_time(half_open):
    for connection in half_open:
        read_until(connection, b"HTTP/1.1 408 ")


@pytest.mark.parametrize("files, warning", [(64, "1 connections at most"), (1024, "832 connections at most")])
def test_a_server_with_few_descriptors_takes_fewer_connections(start, files, warning):
    allow_files(2000)
    server = start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    said = say(server)

    def is_served():
        status, _, body = server.request("POST", TEXT, json.dumps(CANARY), {"Content-Type": "application/json"})
        return status == 200 and json.loads(body)["choices"][0]["text"] == said

    for _ in range(3):
        clients = [server.send(TEXT, limit=40) for _ in range(1100)]
        assert server.get("/health") == {"status": "ok"}
        for connection in clients:
            connection.close()
        wait_until(is_served)
    assert server.stderr.count("connections") == 1 and warning in server.stderr
    server.stop()


def test_a_server_whose_descriptors_run_out_says_so_once_and_goes_on(start):
    server = start()
    said = say(server)
    files = int(server.metrics()["process_open_fds"]) + 10
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (files, files))
    for _ in range(3):
        clients = [server.send(TEXT, limit=40) for _ in range(30)]
        for connection in clients:  # each time that one goes another is accepted, and the next is not
            connection.close()
            time.sleep(0.02)
        assert say(server) == said
    assert server.stderr.count("cannot accept connections: Too many open files") == 1
    server.stop()
