"""What large requests have taken is given back."""

import concurrent.futures
import pathlib

from conftest import wait_until

BODY_BYTES = 15 << 20
NUM_BODIES = 24  # by 4 clients at once
MAX_GROWTH = 96 << 20  # without giving back, several hundred MiB stay


def resident(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def filled(head, piece, tail):
    return (head + ",".join([piece] * ((BODY_BYTES - len(head)) // (len(piece) + 1))) + tail).encode()


def test_memory_of_large_bodies_is_given_back(start):
    server = start()
    headers = {"Content-Type": "application/json"}
    bodies = [
        ("/v1/completions", filled('{"prompt":"a","max_tokens":1,"x":[', '"abcdefgh"', "]}"), 200),
        ("/v1/completions", filled('{"prompt":"a","max_tokens":1,"x":[', '{"role":"user"}', "]}"), 200),
        ("/v1/chat/completions", filled('{"messages":[', '{"role":"user","content":"hello there"}', "]}"), 400),
        ("/tokenize", b'{"prompt":"' + b"hello " * (BODY_BYTES // 6) + b'"}', 200),
    ]
    server.post("/tokenize", prompt="warm")
    before = resident(server.pid)

    def send(index):
        path, body, expected = bodies[index % len(bodies)]
        assert server.request("POST", path, body, headers)[0] == expected

    with concurrent.futures.ThreadPoolExecutor(4) as clients:
        list(clients.map(send, range(NUM_BODIES)))
    try:
        wait_until(lambda: resident(server.pid) - before < MAX_GROWTH)
    finally:
        print(f"RSS grew from {before >> 20} to {resident(server.pid) >> 20} MiB")
