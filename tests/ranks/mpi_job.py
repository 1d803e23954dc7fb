"""Processes that mpirun starts together, seen from outside: what they say, who lives, what a client of theirs gets."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time
import uuid

START_SECONDS = 60
END_SECONDS = 40

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe")
LOST = "rank {} of {} is lost"


def wait_until(condition, seconds, what):
    """Returns what the condition does once that is true."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return result


class Stream:
    """A request that is under way, by curl: another process can be in another network."""

    def __init__(self, job, path, fields, file):
        self.file = file
        # The status comes after the body: what is left of a stream would hide it otherwise.
        command = ["curl", "-sN", "--max-time", "120", "-w", "\nstatus %{http_code}\n", "-d", json.dumps(fields)]
        command += ["-H", "Content-Type: application/json", job.url + path]
        with file.open("wb") as out:
            self.process = subprocess.Popen([*job.inside, *command], stdout=out)

    @property
    def body(self):
        return self.file.read_bytes().decode(errors="replace")

    def wait_for_tokens(self):
        wait_until(lambda: self.body.count("data: {") > 5, START_SECONDS, "a stream's first tokens")

    def end(self, seconds=END_SECONDS):
        """Status and body once it has ended; status 0: there was no answer."""
        self.process.wait(seconds)
        body, _, status = self.body.rpartition("\nstatus ")
        return int(status), body

    def events(self, seconds=END_SECONDS):
        """What a stream had, which ended in order."""
        status, body = self.end(seconds)
        assert status == 200 and body.endswith("data: [DONE]\n\n"), f"a stream ended with {body[-300:]!r}"
        return [json.loads(line.removeprefix("data: ")) for line in body.split("\n\n")[:-2]]


class MpiJob:
    """Ends with close(), whatever state it is in.

    inside: what runs a command where the job's first process is, such as another network's host.
    wrapper: a program that each process is started through.
    """

    def __init__(self, directory, num_ranks, *arguments, binary, mpirun=(), inside=(), wrapper=(), host="127.0.0.1"):
        self.directory = directory
        self.inside = [*inside]
        self.num_ranks = num_ranks
        self.host = host
        self.num_streams = 0
        self.mark = f"QUIRE_TEST_JOB={uuid.uuid4().hex}".encode()
        name, value = self.mark.decode().split("=")
        environment = os.environ | {
            name: value,
            "TMPDIR": str(directory),  # for what MPI leaves behind when it is killed
            "OMPI_MCA_btl_vader_backing_directory": str(directory),
        }
        command = [*inside, *MPIRUN, *mpirun, "-np", num_ranks, *wrapper, binary, *arguments]
        with self.path("stdout").open("wb") as out, self.path("stderr").open("wb") as err:
            self.process = subprocess.Popen([*map(str, command)], env=environment, stdout=out, stderr=err)

    def path(self, name):
        return self.directory / name

    @property
    def stdout(self):
        return self.path("stdout").read_bytes().decode(errors="replace")

    @property
    def stderr(self):
        return self.path("stderr").read_bytes().decode(errors="replace")

    def lines(self):
        """What the program itself said, without mpirun's own."""
        return [line for line in self.stderr.splitlines() if line.startswith("quire: ")]

    def wait_until_it_says(self, text):
        """On stderr, which mpirun passes on after a while."""
        wait_until(lambda: text in self.stderr, 10, f"{text!r} in:\n{self.stderr}")

    def processes(self):
        """Of the whole job that live: process id -> (program, rank or None)."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")  # empty once the process has ended
                program = (entry / "comm").read_text().strip()
            except OSError:
                continue
            if self.mark in variables:
                ranks = [v.partition(b"=")[2] for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
                found[int(entry.name)] = (program, int(ranks[0]) if ranks else None)
        return found

    def pids(self):
        """Rank -> process id."""
        return {rank: pid for pid, (program, rank) in self.processes().items() if program == "quire"}

    def signal(self, rank, number):
        os.kill(self.pids()[rank], number)

    def wait(self, seconds=END_SECONDS):
        """mpirun's code. Nothing of the job is left."""
        code = self.process.wait(seconds)
        code = 128 - code if code < 0 else code
        wait_until(lambda: not self.processes(), 10, f"the end of {self.processes()}")
        return code

    def wait_for_end_of(self, rank, seconds):
        wait_until(lambda: rank not in self.pids(), seconds, f"the end of rank {rank}:\n{self.stderr}")

    def close(self):
        for _ in range(3):  # what mpirun starts meanwhile, too
            for pid in self.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        self.process.wait()

    # Of `quire serve`, started with --port 0.

    def wait_until_it_serves(self):
        def serves():
            assert self.process.poll() is None, f"it does not serve:\n{self.stderr}"
            return re.search(r"^quire: serving .* on http://\S+:(\d+) ", self.stderr, re.M)

        said = wait_until(serves, START_SECONDS, "the start of the server")
        self.url = f"http://{self.host}:{said[1]}"

    def ask(self, path="/v1/completions", **fields):
        """Starts a request."""
        self.num_streams += 1
        return Stream(self, path, fields, self.path(f"answer-{self.num_streams}"))

    def get(self, path):
        """Status and text; status 0: nobody listens, or hangs up."""
        command = [*self.inside, "curl", "-s", "--max-time", "5", "-w", "\n%{http_code}", self.url + path]
        text = subprocess.run(command, capture_output=True, text=True).stdout
        body, _, status = text.rpartition("\n")
        return int(status), body

    def num_waiting(self):
        _, metrics = self.get("/metrics")
        return float(re.search(r"^vllm:num_requests_waiting\S* (\S+)$", metrics, re.M)[1])
