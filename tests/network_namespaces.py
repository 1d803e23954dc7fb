"""Networks of hosts that are network namespaces, for tests of several folders. They need root and iproute2."""

import contextlib
import os
import shutil
import subprocess

import pytest


def ip(*arguments, host=None):
    command = ["ip", *(("-n", host) if host else ()), *arguments]
    subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def started(network):
    """Between its start() and its stop(); skips the test where it cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        try:
            network.start()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr}")
        yield network
    finally:
        network.stop()
