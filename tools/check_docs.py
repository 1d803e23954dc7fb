#!/usr/bin/env python3
"""Checks the pages: one line a fault, exit code 1 if there is any.

Holds that the table of sizes in docs/folders.md is what tools/count_lines.sh prints, that links and names of files
lead to files that are there, that anchors lead to headings, and that lines have at most 120 columns (tables and code
blocks excepted). With --write it puts the table of sizes in first. Run in the project's root.
"""

import re
import subprocess
import sys
from pathlib import Path

SIZES = Path("docs/folders.md")
WIDTH = 120

TABLE = re.compile(r"^\| folder \| files \| lines \|\n(?:\|.*\n)+", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAME = re.compile(r"`((?:[\w.]+/)+\w+\.(?:cpp|h|cu|cuh|py|sh|md|yaml|txt)|\w+\.md)`")
FOLDERS = ["", "docs/", "src/", "src/backends/cuda/"]  # that the name of a file may begin in


def check_sizes(write):
    counted = subprocess.run(["tools/count_lines.sh"], check=True, capture_output=True, text=True).stdout
    text = SIZES.read_text()
    tables = TABLE.findall(text)
    if len(tables) != 1:
        return [f"{SIZES}: has {len(tables)} tables of sizes; there is to be one"]
    if tables[0] == counted:
        return []
    if write:
        SIZES.write_text(text.replace(tables[0], counted))
        return []
    stale = set(counted.splitlines()) - set(tables[0].splitlines())
    return [f"{SIZES}: the table of sizes lacks {row}; tools/check_docs.py --write puts it in" for row in sorted(stale)]


def anchors(page):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_target(page, number, target):
    if re.match(r"[a-z]+:", target):
        return []
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    if not file.exists():
        return [f"{page}:{number}: {target} leads to no file"]
    if anchor and anchor not in anchors(file):
        return [f"{page}:{number}: {target} leads to no heading"]
    return []


def check_page(page):
    faults = []
    in_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            in_code = not in_code
        if in_code:
            continue
        if len(line) > WIDTH and not line.startswith("|"):
            faults.append(f"{page}:{number}: {len(line)} columns; {WIDTH} is the limit")
        for target in LINK.findall(line):
            faults += check_target(page, number, target)
        for name in NAME.findall(line):
            if not any(Path(folder + name).exists() for folder in FOLDERS):
                faults.append(f"{page}:{number}: there is no file {name}")
    return faults


def main():
    faults = check_sizes("--write" in sys.argv[1:])
    for page in [*sorted(Path().glob("*.md")), *sorted(Path("docs").glob("*.md"))]:
        faults += check_page(page)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
