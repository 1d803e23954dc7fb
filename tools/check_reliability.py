#!/usr/bin/env python3
"""Checks docs/reliability.md: each test, fault, invariant and fuzz target has one row, and each test it names exists.

A row begins with its number: T1 to T48, fault 1 to 20, I1 to I15, F1 to F12. Its last cell names tests in code marks:
`Suite.Test` of GoogleTest, `file.py::test_name`, `soak.py` or `fuzz_NAME`; or it begins with "open:" or "does not
apply:". In a row that is held in part, "open:" stands behind the names.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reliability.md"
WANTED = {"T": 48, "fault ": 20, "I": 15, "F": 12}
GTEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.M)
PYTHON = re.compile(r"^\s*(?:async )?def (test_\w+)", re.M)


def existing_tests(root: Path) -> set[str]:
    names = set()
    for path in (root / "tests").rglob("*.cpp"):
        if path.name.startswith("fuzz_"):
            names.add(path.stem)
        tests = GTEST.findall(path.read_text())
        names.update(f"{suite}.{test}" for suite, test in tests if not test.startswith("DISABLED_"))
    for path in (root / "tests").rglob("*.py"):
        names.add(path.name)
        names.update(f"{path.name}::{test}" for test in PYTHON.findall(path.read_text()))
    return names


def check(page: str, tests: set[str]) -> list[str]:
    faults, seen = [], []
    wanted = [f"{kind}{i}" for kind, count in WANTED.items() for i in range(1, count + 1)]
    for line in page.splitlines():
        found = re.match(r"\| ((?:T|I|F|fault )\d+) \|", line)
        if not found:
            continue
        seen.append(found[1])
        held_by = line.rstrip(" |").split("|")[-1].strip()
        named = re.findall(r"`([^`]+)`", held_by.split("open:")[0].split("does not apply:")[0])
        faults += [f"{found[1]}: there is no test {name}" for name in named if name not in tests]
        if not named and not held_by.startswith(("open:", "does not apply:")):
            faults.append(f"{found[1]}: it names no test, and does not say why")
    faults += [f"{row}: there is no row" for row in wanted if row not in seen]
    wrong = [row for row in seen if seen.count(row) > 1 or row not in wanted]
    faults += [f"{row}: it is no row that is wanted, or stands there twice" for row in wrong]
    return faults


def main() -> int:
    page = PAGE.read_text()
    faults = check(page, existing_tests(ROOT))
    print(*faults, sep="\n", end="\n" if faults else "")
    rows = re.findall(r"^\| (?:T|I|F|fault )\d+ \|.*$", page, re.M)
    still_open = sum("open:" in row for row in rows)
    print(f"docs/reliability.md: {len(rows)} rows, {still_open} of them open or in part, {len(faults)} problems")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
