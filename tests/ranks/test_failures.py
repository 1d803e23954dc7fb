"""One process dies or stands still: clients hear of it, and all processes end."""

import json
import signal
import time

import pytest

from conftest import DEVICE, PROMPTS
from mpi_job import LOST, START_SECONDS, wait_until

# From what happens to what a client sees, and what a loaded machine adds.
NOTICE_SECONDS = 5
SLACK_SECONDS = 3

LONG = {"prompt": PROMPTS[0], "max_tokens": 90_000, "ignore_eos": True, "temperature": 0}


def start_requests(job):
    """A stream that runs, and a request that waits for its end."""
    stream = job.ask(**LONG, stream=True)
    stream.wait_for_tokens()
    waiting = job.ask(**LONG)
    wait_until(job.num_waiting, START_SECONDS, "a request that waits")
    return stream, waiting


def check_that_clients_hear(job, stream, waiting, rank, seconds):
    """Of the loss of a rank that has just happened."""
    begin = time.monotonic()
    lost = LOST.format(rank, job.num_ranks) + " in step "
    last = stream.events()[-1]
    assert time.monotonic() - begin < seconds
    assert last["error"]["message"].startswith(lost) and last["error"]["code"] == 500
    status, body = waiting.end()
    assert status == 500 and json.loads(body)["error"]["message"].startswith(lost), body
    assert job.get("/health")[0] in (0, 503)
    job.wait_for_end_of(0, seconds)
    job.wait_until_it_says(lost)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_killed_rank_ends_requests_and_server(serve, long_model, num_ranks):
    job = serve(num_ranks, long_model, "--max-num-seqs", 1)
    requests = start_requests(job)
    job.signal(num_ranks - 1, signal.SIGKILL)
    check_that_clients_hear(job, *requests, num_ranks - 1, NOTICE_SECONDS)
    assert job.wait() != 0
    assert "its process has ended" in job.stderr


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_rank_that_stands_still_is_lost_after_the_watchdogs_time(serve, long_model, num_ranks):
    job = serve(num_ranks, long_model, "--max-num-seqs", 1, "--watchdog", 1)
    requests = start_requests(job)
    job.signal(1, signal.SIGSTOP)
    check_that_clients_hear(job, *requests, 1, 1 + SLACK_SECONDS)
    assert job.wait() != 0
    assert "it has not been heard of for 1 s" in job.stderr


def test_a_rank_that_is_killed_while_idle_ends_the_server(serve):
    job = serve(2)
    assert job.get("/health")[0] == 200
    job.signal(1, signal.SIGKILL)
    job.wait_for_end_of(0, NOTICE_SECONDS)
    assert job.wait() != 0
    assert LOST.format(1, 2) + " before its first step: its process has ended" in job.stderr


def test_rank_0_ends_with_a_code_of_its_own(serve, tmp_path):
    wrapper = tmp_path / "keep_code.sh"  # which outlives the signals that mpirun sends
    wrapper.write_text(f'trap : TERM INT\n"$@"\necho $? >{tmp_path}/code-$OMPI_COMM_WORLD_RANK\n')
    job = serve(2, wrapper=("sh", wrapper))
    job.signal(1, signal.SIGKILL)
    assert job.wait() != 0
    assert (tmp_path / "code-0").read_text() == "1\n", job.stderr


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_others_end_with_rank_0(serve, long_model, num_ranks):
    job = serve(num_ranks, long_model)
    stream = job.ask(**LONG, stream=True)
    stream.wait_for_tokens()
    job.signal(0, signal.SIGKILL)
    for rank in range(1, num_ranks):
        job.wait_for_end_of(rank, NOTICE_SECONDS)
    assert job.wait() != 0
    assert LOST.format(0, num_ranks) + " in step " in job.stderr


def test_generate_ends_with_an_error_when_a_rank_is_killed(start, long_model):
    arguments = ("--max-tokens", 90_000, "--ignore-eos", "--stream", "--max-num-seqs", 1)
    job = start(2, "generate", long_model, "-p", "a", *DEVICE, "--tensor-parallel-size", 2, *arguments)
    wait_until(lambda: len(job.stdout) > 100, START_SECONDS, "the first tokens")
    job.signal(1, signal.SIGKILL)
    job.wait_for_end_of(0, NOTICE_SECONDS)
    assert job.wait() != 0
    assert LOST.format(1, 2) + " in step " in job.stderr
