"""What cannot work is said in one line, by whoever finds it out, and soon."""

import re
import time

import pytest

from conftest import DEVICE, ROOT, TOY

# Of which mpirun itself takes some to end the processes.
REFUSAL_SECONDS = 20

RANKS = "--tensor-parallel-size"
GENERATE = ("generate", "-p", "a", *DEVICE)
SERVE = ("serve", "--port", 0, *DEVICE)


def check_refusal(job, message, code=2):
    begin = time.monotonic()
    assert job.wait() == code, job.stderr
    assert time.monotonic() - begin < REFUSAL_SECONDS
    # A server has its port before it has its model.
    lines = {line for line in job.lines() if not line.startswith("quire: loading the model; ")}
    assert len(lines) == 1 and re.fullmatch(f"quire: {message}", lines.pop()), job.stderr
    assert job.stdout == ""


@pytest.mark.parametrize(
    "num_ranks, arguments, message",
    [
        (2, (*GENERATE, RANKS, 4), "mpirun started 2 processes, and --tensor-parallel-size is 4; .*"),
        (2, SERVE, "mpirun started 2 processes, and --tensor-parallel-size is 1; .*"),
        (3, (*GENERATE, RANKS, 3), ".*: 4 attention heads cannot be divided among 3 ranks"),
        (2, ("bench", "latency", *DEVICE), "bench runs in one process; under mpirun there are .*"),
        (2, ("verify", TOY), "verify runs in one process; under mpirun there are .*"),
        (2, (*SERVE, "/nowhere", RANKS, 2), ".*/nowhere: no such directory.*"),
    ],
)
def test_what_no_rank_can_do_is_refused(start, num_ranks, arguments, message):
    check_refusal(start(num_ranks, *arguments), message)


@pytest.mark.parametrize(
    "arguments, others, own, message",
    [
        (GENERATE, TOY, "/nowhere", "/nowhere: no such directory.*"),
        (SERVE, TOY, "/nowhere", "/nowhere: no such directory.*"),
        (GENERATE, TOY, ROOT / "tests" / "golden" / "qwen3", ".* 3 layers, .*; rank 0 has .* 6 layers, .*"),
        (GENERATE, "--block-size 32", "--block-size 16", "block-size 16; rank 0 has block-size 32"),
    ],
)
def test_what_one_rank_has_of_its_own_is_refused_with_its_name(start, tmp_path, arguments, others, own, message):
    wrapper = tmp_path / "each_its_own.sh"
    wrapper.write_text(f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && own="{own}" || own="{others}"\nexec "$@" $own\n')
    job = start(2, *arguments, RANKS, 2, wrapper=("sh", wrapper))
    check_refusal(job, f"(/.*: )?rank 1 of 2: {message}")


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--block-size 8", ".*: rank 1 of 2: block-size 8; rank 0 has block-size 16"),
        ("--max-num-seqs 2", ".*: rank 1 of 2: max-num-seqs 2; rank 0 has max-num-seqs 256"),
        ("--dtype float16", ".*: rank 1 of 2: dtype float16; rank 0 has dtype bfloat16"),
        ("--deterministic", ".*: rank 1 of 2: deterministic true; rank 0 has deterministic false"),
        ("--kv-cache-dtype fp8", ".*: rank 1 of 2: kv-cache-dtype fp8, .*; rank 0 has kv-cache-dtype auto, .*"),
        ("--disable-custom-all-reduce", ".*: rank 1 of 2: disable-custom-all-reduce true; rank 0 has .* false"),
        ("--cpu-isa none", "rank 1 of 2: cpu-isa .*none.*"),
    ],
)
def test_flags_that_differ_are_refused(start, tmp_path, flags, message):
    wrapper = tmp_path / "other_flags.sh"
    wrapper.write_text(f'[ "$OMPI_COMM_WORLD_RANK" != 1 ] || set -- "$@" {flags}\nexec "$@"\n')
    job = start(2, *GENERATE, RANKS, 2, wrapper=("sh", wrapper))
    check_refusal(job, message)
