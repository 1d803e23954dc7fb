"""Text patterns: "(a|b|)" chooses one alternative, groups nest, "{name}" is a slot that the caller fills."""

import random
import re
from functools import lru_cache


def _parse(pattern: str, pos: int, depth: int) -> tuple[list, int]:
    """Returns the alternatives of one group, each a list of strings and groups, and where the group ended."""
    alternatives: list[list] = [[]]
    text = ""

    def flush() -> None:
        nonlocal text
        if text:
            alternatives[-1].append(text)
            text = ""

    while pos < len(pattern):
        char = pattern[pos]
        pos += 1
        if char == "(":
            flush()
            group, pos = _parse(pattern, pos, depth + 1)
            alternatives[-1].append(group)
        elif char == "|":
            flush()
            alternatives.append([])
        elif char == ")" and depth > 0:
            flush()
            return alternatives, pos
        else:
            text += char
    if depth > 0:
        raise ValueError(f"unclosed group in pattern: {pattern}")
    flush()
    return alternatives, pos


@lru_cache(maxsize=None)
def _parsed(pattern: str) -> list:
    return _parse(pattern, 0, 0)[0]


def _choose(alternatives: list, rng: random.Random) -> str:
    return "".join(part if isinstance(part, str) else _choose(part, rng) for part in rng.choice(alternatives))


def expand(pattern: str, rng: random.Random) -> str:
    return _choose(_parsed(pattern), rng)


def fill(text: str, slots: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: slots[match.group(1)], text)


def split_names(line: str) -> list[str]:
    """Splits at each "|" that stands outside any group."""
    names, depth = [""], 0
    for char in line:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            names.append("")
        else:
            names[-1] += char
    return [name.strip() for name in names if name.strip()]


def read_lines(path) -> list[str]:
    lines = (line.rstrip("\n") for line in open(path, encoding="utf-8"))
    return [line for line in lines if line and not line.startswith("#")]


def read_sections(path) -> dict[str, list[list[str]]]:
    """A file of "[name]" headers with lines below; a header that occurs again adds another list to its name."""
    sections: dict[str, list[list[str]]] = {}
    for line in read_lines(path):
        if line.startswith("[") and line.endswith("]"):
            sections.setdefault(line[1:-1], []).append([])
            current = sections[line[1:-1]][-1]
        else:
            current.append(line)
    return sections
