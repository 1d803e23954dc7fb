"""Arguments that are given by name: unknown ones are refused, with the nearest that there is."""

from __future__ import annotations

import difflib
from typing import Any, Collection, Mapping


def refuse_unknown(where: str, given: Collection[str], known: Collection[str], unsupported: Collection[str]) -> None:
    """TypeError for the first name that is not known. unsupported: vLLM's, which there is nothing for here."""
    for name in given:
        if name in known:
            continue
        if name in unsupported:
            raise TypeError(f"{where}: {name!r} is an argument of vLLM's that Quire does not support")
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
        hint = f"; the nearest is {near[0]!r}" if near else f"; it takes {', '.join(sorted(known))}"
        raise TypeError(f"{where} has no argument {name!r}{hint}")


def refuse_unsupported(where: str, given: Mapping[str, Any], neutral: Mapping[str, Any]) -> None:
    """TypeError for an argument that has another value than the one that changes nothing: vLLM knows others."""
    for name, value in given.items():
        if value is None or value == neutral.get(name):
            continue
        raise TypeError(f"{where}: {name}={value!r} is not supported by Quire")
