"""How far a batch is: tqdm's bar, also in notebooks, where tqdm is installed; else a line on a terminal."""

from __future__ import annotations

import sys
from typing import Any, Callable, Union

UseTqdm = Union[bool, Callable[..., Any]]


class _Line:
    def __init__(self, total: int, desc: str) -> None:
        self._done, self._total, self._desc = 0, total, desc
        self._shown = sys.stderr is not None and sys.stderr.isatty()

    def update(self, count: int) -> None:
        self._done += count
        if self._shown:
            print(f"\r{self._desc}: {self._done}/{self._total}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._shown:
            print(file=sys.stderr)


class _Nothing:
    def update(self, count: int) -> None:
        pass

    def close(self) -> None:
        pass


def make_progress(use_tqdm: UseTqdm, total: int, desc: str) -> Any:
    """Something with `update` and `close`. use_tqdm: whether, or what to call in tqdm's place."""
    if not use_tqdm:
        return _Nothing()
    if callable(use_tqdm):
        return use_tqdm(total=total, desc=desc)
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return _Line(total, desc)
    return tqdm(total=total, desc=desc, dynamic_ncols=True)
