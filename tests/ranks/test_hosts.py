"""Two hosts: network namespaces with a cable between them, and names of their own. Needs root."""

import json
import re
import signal
import subprocess
import uuid

import pytest

import network_namespaces
from conftest import DEVICE, PROMPTS, generate_arguments, json_lines
from network_namespaces import ip
from test_failures import NOTICE_SECONDS, SLACK_SECONDS, check_that_clients_hear, start_requests

ADDRESSES = ("10.99.0.1", "10.99.0.2")
# Of processes that connect to others, one range a host; what MPI listens at is in neither.
OWN_PORTS = ("40000 49999", "50000 59999")
MPI_PORTS = ("--mca", "oob_tcp_dynamic_ipv4_ports", "20000-20999", "--mca", "btl_tcp_port_min_v4", "30000")


class Hosts:
    def __init__(self, directory):
        mark = uuid.uuid4().hex[:8]
        self.names = [f"quire-{mark}-{i}" for i in (1, 2)]
        # What mpirun starts a daemon with on the other host, where ssh would do it: HOST COMMAND...
        self.agent = directory / "agent.sh"
        self.agent.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {self.names[1]} unshare --uts sh -c '
                              f'"hostname {self.names[1]}; $*"\n')  # fmt: skip
        self.agent.chmod(0o755)

    def start(self):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", self.names[1], host=self.names[0])
        for name, address, ports in zip(self.names, ADDRESSES, OWN_PORTS):
            ip("address", "add", f"{address}/24", "dev", "cable", host=name)
            for device in ("lo", "cable"):
                ip("link", "set", device, "up", host=name)
            setting = f"echo {ports} >/proc/sys/net/ipv4/ip_local_port_range"
            ip("netns", "exec", name, "sh", "-c", setting)

    def stop(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def keywords(self):
        """How a job is started that has a rank on each host."""
        name = self.names[0]
        inside = ("ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh")
        hosts = ",".join(f"{address}:1" for address in ADDRESSES)
        return {"mpirun": ("-H", hosts, "--mca", "plm_rsh_agent", self.agent, *MPI_PORTS), "inside": inside}

    def cut(self):
        ip("link", "set", "cable", "down", host=self.names[0])

    def keep_from_connecting(self):
        """The second host's processes to the first one's; those of the first one still reach the second."""
        own, others = (ports.replace(" ", "-") for ports in reversed(OWN_PORTS))
        ip("rule", "add", "ipproto", "tcp", "sport", own, "dport", others, "unreachable", host=self.names[1])


@pytest.fixture
def hosts(tmp_path):
    with network_namespaces.started(Hosts(tmp_path)) as hosts:
        yield hosts


def test_two_hosts_say_what_one_says(hosts, start, texts):
    job = start(2, *generate_arguments(PROMPTS), "--tensor-parallel-size", 2, **hosts.keywords())
    assert job.wait() == 0, job.stderr
    assert {PROMPTS[output["prompt"]]: output["text"] for output in json_lines(job.stdout)} == texts


def test_a_server_of_two_hosts_ends_in_order(hosts, serve):
    job = serve(2, **hosts.keywords())
    status, body = job.ask(prompt=PROMPTS[0], max_tokens=20).end()
    assert status == 200 and json.loads(body)["usage"]["completion_tokens"] > 0
    job.signal(0, signal.SIGTERM)
    assert job.wait() == 0, job.stderr


def test_a_killed_rank_of_another_host_ends_requests_and_server(hosts, serve, long_model):
    job = serve(2, long_model, "--max-num-seqs", 1, **hosts.keywords())
    requests = start_requests(job)
    job.signal(1, signal.SIGKILL)
    check_that_clients_hear(job, *requests, 1, NOTICE_SECONDS)
    assert job.wait() != 0


def test_a_host_out_of_reach_is_lost_after_the_watchdogs_time(hosts, serve, long_model):
    job = serve(2, long_model, "--max-num-seqs", 1, "--watchdog", 1, **hosts.keywords())
    requests = start_requests(job)
    hosts.cut()
    check_that_clients_hear(job, *requests, 1, 1 + SLACK_SECONDS)
    assert "it has not been heard of for 1 s" in job.stderr
    # The other side finds it out by itself. mpirun and its daemon there wait until TCP gives up, minutes later.
    job.wait_for_end_of(1, 1 + SLACK_SECONDS)


def test_a_rank_that_cannot_reach_rank_0_says_so(hosts, start):
    hosts.keep_from_connecting()
    job = start(2, "generate", "-p", "a", *DEVICE, "--tensor-parallel-size", 2, **hosts.keywords())
    assert job.wait() != 0
    (line,) = job.lines()
    assert re.match(rf"quire: rank 1 cannot reach rank 0 at {ADDRESSES[0]}:\d+: network is unreachable; ", line), line
