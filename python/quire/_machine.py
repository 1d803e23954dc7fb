"""What a machine offers and a model takes, as the command line finds it."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from . import _native
from .exceptions import InvalidRequestError

_USER_MISTAKE = 2


def _run_json(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([str(_native.program()), *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode == _USER_MISTAKE or not done.stdout:
        raise InvalidRequestError(done.stderr.strip() or f"quire {arguments[0]} has failed")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def doctor() -> dict[str, Any]:
    """What this machine offers, and under "problems" what is wrong with it, a line each."""
    return _run_json("doctor")


def plan(model: str = "", **flags: Any) -> dict[str, Any]:
    """The memory that a model takes, in bytes, and what it has room for; nothing is loaded.

    flags: those of `quire plan`, such as max_model_len=4096 or memory="24GiB".
    """
    arguments = [os.fspath(model)] if model else []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments += [flag, str(value)]
    return _run_json("plan", *arguments)
