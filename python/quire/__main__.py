"""The command line: `quire`, and `python -m quire`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn, Optional


def main() -> Optional[int]:
    if sys.argv[1:2] == ["batch"]:
        from .batch import main as batch

        return batch(sys.argv[2:])
    return run_program()


def run_program() -> NoReturn:
    """This process becomes the program."""
    from ._native import program

    os.execv(program(), ["quire", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
