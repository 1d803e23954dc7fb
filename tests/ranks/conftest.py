import json
import os
import pathlib
import shutil
import subprocess

import pytest

from mpi_job import MpiJob

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOY = ROOT / "models" / "toy"
# QUIRE_TEST_DEVICE=cuda: on GPUs, as far as there are enough. Everything on one thread in float32: on a machine that others use, too, and the same text for any number of ranks.
DEVICE = ("--device", os.environ.get("QUIRE_TEST_DEVICE", "cpu"), "--cpu-threads", 1)
PROMPTS = ["Once there was", "The KV cache keeps", "What is Quire?", "A scheduler", "In the morning"]


@pytest.fixture(scope="session")
def binary():
    path = pathlib.Path(os.environ.get("QUIRE", ROOT / "build" / "release" / "bin" / "quire")).resolve()
    if not path.is_file():
        pytest.exit(f"{path} is missing; build it, or name another one in QUIRE", returncode=2)
    return path


@pytest.fixture
def start(binary, tmp_path):
    """Starts jobs of several processes, of which nothing is left when the test ends."""
    jobs = []

    def start(num_ranks, *arguments, **keywords):
        if DEVICE[1] == "cuda" and num_ranks > num_gpus():
            pytest.skip(f"{num_ranks} ranks, {num_gpus()} GPUs")
        directory = tmp_path / f"job-{len(jobs)}"
        directory.mkdir()
        jobs.append(MpiJob(directory, num_ranks, *arguments, **{"binary": binary} | keywords))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


@pytest.fixture
def serve(start):
    """Starts `quire serve` in as many processes as there are ranks."""

    def serve(num_ranks, *arguments, **keywords):
        flags = ("--tensor-parallel-size", num_ranks, "--port", 0, "--access-log", "off")
        job = start(num_ranks, "serve", *arguments, *DEVICE, *flags, **keywords)
        job.wait_until_it_serves()
        return job

    return serve


@pytest.fixture(scope="session")
def long_model(tmp_path_factory):
    """The bundled model, with room for requests that last as long as a test."""
    model = tmp_path_factory.mktemp("models") / "long"
    shutil.copytree(TOY, model)
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = 100_000
    (model / "config.json").write_text(json.dumps(config))
    return model


def num_gpus():
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.count("GPU ")


@pytest.fixture(scope="session")
def texts(binary):
    """Prompt -> what one process continues it with."""
    command = [binary, *generate_arguments(PROMPTS)]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    return {PROMPTS[output["prompt"]]: output["text"] for output in json_lines(done.stdout)}


def generate_arguments(prompts):
    flags = [flag for prompt in prompts for flag in ("-p", prompt)]
    return ["generate", *flags, *DEVICE, "--dtype", "float32", "--json", "--temperature", 0, "--max-tokens", 40]


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]
