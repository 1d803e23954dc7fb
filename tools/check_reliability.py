#!/usr/bin/env python3
"""Checks docs/reliability.md: each test, fault, invariant and fuzz target has one row, and each test it names exists.

  tools/check_reliability.py [--ran REPORT...]

--ran: and each has run, by one of these reports of JUnit's form. Those that were skipped alone are told of, as tests
without a GPU are. What `make soak` alone runs (soak.py) is in none.

A row begins with its number: T1 to T48, fault 1 to 20, I1 to I20, F1 to F12. Its last cell names tests in code marks:
`Suite.Test` of GoogleTest, `file.py::test_name`, `soak.py` or `fuzz_NAME`; or it begins with "open:" or "does not
apply:". In a row that is held in part, "open:" stands behind the names.
"""

import argparse
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reliability.md"
WANTED = {"T": 48, "fault ": 20, "I": 20, "F": 12}
NOT_IN_CI = {"soak.py"}
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


def tests_of(row: str) -> list[str]:
    held_by = row.rstrip(" |").split("|")[-1]
    return re.findall(r"`([^`]+)`", held_by.split("open:")[0].split("does not apply:")[0])


def rows_of(page: str) -> dict[str, str]:
    return {found[1]: found[0] for found in re.finditer(r"^\| ((?:T|I|F|fault )\d+) \|.*$", page, re.M)}


def name_of(case: ElementTree.Element) -> str:
    """A test as the page names it."""
    whose, name = case.get("classname"), case.get("name")
    if python := re.search(r"\b(test_\w+)", whose):
        return f"{python[1]}.py::{name.partition('[')[0]}"
    return f"{whose.rpartition('/')[2]}.{name.partition('/')[0]}" if whose else name


def check_ran(page: str, reports: list[ElementTree.Element]) -> tuple[list[str], list[str]]:
    """What is wrong, and the tests that were skipped."""
    passed, skipped = set(), set()
    for case in (case for report in reports for case in report.iter("testcase")):
        states = {child.tag for child in case} & {"skipped", "failure", "error"}
        if states <= {"skipped"}:
            (skipped if states else passed).add(name_of(case))
    wanted = {(row, name) for row, line in rows_of(page).items() for name in tests_of(line)}
    faults = [f"{row}: {name} did not run" for row, name in sorted(wanted) if name not in passed | skipped | NOT_IN_CI]
    return faults, sorted({name for _, name in wanted} & skipped - passed)


def check(page: str, tests: set[str]) -> list[str]:
    faults, seen = [], []
    wanted = [f"{kind}{i}" for kind, count in WANTED.items() for i in range(1, count + 1)]
    for line in page.splitlines():
        found = re.match(r"\| ((?:T|I|F|fault )\d+) \|", line)
        if not found:
            continue
        seen.append(found[1])
        held_by = line.rstrip(" |").split("|")[-1].strip()
        named = tests_of(line)
        faults += [f"{found[1]}: there is no test {name}" for name in named if name not in tests]
        if not named and not held_by.startswith(("open:", "does not apply:")):
            faults.append(f"{found[1]}: it names no test, and does not say why")
    faults += [f"{row}: there is no row" for row in wanted if row not in seen]
    wrong = [row for row in seen if seen.count(row) > 1 or row not in wanted]
    faults += [f"{row}: it is no row that is wanted, or stands there twice" for row in wrong]
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ran", nargs="+", default=[], metavar="REPORT", help="reports that are to have each test")
    options = parser.parse_args()
    page = PAGE.read_text()
    faults = check(page, existing_tests(ROOT))
    if options.ran:
        not_run, skipped = check_ran(page, [ElementTree.parse(path).getroot() for path in options.ran])
        faults += not_run
        print(*(f"skipped: {name}" for name in skipped), sep="\n", end="\n" if skipped else "")
    print(*faults, sep="\n", end="\n" if faults else "")
    rows = rows_of(page).values()
    still_open = sum("open:" in row for row in rows)
    print(f"docs/reliability.md: {len(rows)} rows, {still_open} of them open or in part, {len(faults)} problems")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
