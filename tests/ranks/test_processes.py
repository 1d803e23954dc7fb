"""A model spread over processes says what it says in one."""

import json
import os
import pathlib
import signal
import struct

import pytest

from conftest import DEVICE, PROMPTS, ROOT, generate_arguments, json_lines


def read_ids(path, prefix):
    """The tensors prefix.0, prefix.1, … of a safetensors file, which hold int32."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    found = []
    while (name := f"{prefix}.{len(found)}") in header:
        assert header[name]["dtype"] == "I32"
        begin, end = (8 + length + offset for offset in header[name]["data_offsets"])
        found.append([id for (id,) in struct.iter_unpack("<i", data[begin:end])])
    return found


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_generate_says_what_one_process_says(start, texts, num_ranks):
    job = start(num_ranks, *generate_arguments(PROMPTS), "--tensor-parallel-size", num_ranks)
    assert job.wait() == 0, job.stderr
    outputs = json_lines(job.stdout)
    assert {PROMPTS[output["prompt"]]: output["text"] for output in outputs} == texts


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_greedy_tokens_are_those_of_the_reference(start, num_ranks):
    model = ROOT / "tests" / "golden" / "qwen3"
    prompts, expected = (read_ids(model / "expected.safetensors", name) for name in ("prompt", "greedy"))
    assert len(prompts) == len(expected) > 0
    for prompt, ids in zip(prompts, expected):
        job = start(
            num_ranks, "generate", model, *DEVICE, "--dtype", "float32", "--tensor-parallel-size", num_ranks,
            "--prompt-ids", ",".join(map(str, prompt)), "--temperature", 0, "--max-tokens", len(ids), "--ignore-eos",
            "--json", "--no-detokenize",
        )  # fmt: skip
        assert job.wait() == 0, job.stderr
        assert json_lines(job.stdout)[0]["token_ids"] == ids


def test_one_process_under_mpirun_is_as_without(start, texts):
    job = start(1, *generate_arguments(PROMPTS[:1]))
    assert job.wait() == 0, job.stderr
    assert json_lines(job.stdout)[0]["text"] == texts[PROMPTS[0]]


@pytest.mark.parametrize("num_ranks, stop", [(2, signal.SIGTERM), (4, signal.SIGINT)])
def test_a_server_answers_as_one_process_and_ends_with_its_rank_0(serve, texts, num_ranks, stop):
    job = serve(num_ranks, "--dtype", "float32")
    fields = {"temperature": 0, "max_tokens": 40}

    def text(answer):
        status, body = answer.end()
        assert status == 200, body
        return json.loads(body)["choices"][0]["text"]

    assert text(job.ask(prompt=PROMPTS[0], **fields)) == texts[PROMPTS[0]]
    together = {prompt: job.ask(prompt=prompt, **fields) for prompt in PROMPTS}
    assert {prompt: text(answer) for prompt, answer in together.items()} == texts
    assert job.get("/health")[0] == 200
    job.signal(0, stop)
    assert job.wait() == 0, job.stderr
    assert "lost" not in job.stderr and "error" not in job.stderr


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_every_rank_lets_requests_end(serve, stop):
    job = serve(2)
    stream = job.ask(prompt="Once", max_tokens=500, ignore_eos=True, temperature=0, stream=True)
    stream.wait_for_tokens()
    for rank in (1, 0):  # whoever comes first
        job.signal(rank, stop)
    events = stream.events()
    assert events[-1]["choices"][0]["finish_reason"] == "length", events[-1]
    assert job.wait() == 0, job.stderr
    assert "lost" not in job.stderr


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_mpirun_leaves_no_process(serve, stop):
    job = serve(2)
    job.process.send_signal(stop)
    job.wait()  # not with 0: it counts what it ends itself as failed


def listening(pid):
    """Addresses at which a process listens, as the kernel writes them."""
    sockets = {os.readlink(path) for path in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for table in ("tcp", "tcp6") for line in open(f"/proc/{pid}/net/{table}")]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]


def test_once_all_ranks_are_there_nothing_listens_but_the_api_on_loopback(serve):
    job = serve(2, mpirun=("--mca", "btl", "self,vader"))  # MPI's own TCP is not for ranks of one host
    port = int(job.url.rpartition(":")[2])
    assert {rank: listening(pid) for rank, pid in job.pids().items()} == {0: [f"0100007F:{port:04X}"], 1: []}
