#!/usr/bin/env python3
"""Compares the speed of a build with the figures of docs/figures.json: exit code 1 if one fell.

  check_figures.py --device cuda|cpu [--runs N] [QUIRE]   runs the commands and prints a table
  check_figures.py --check-docs                           holds docs/performance.md to the file

A figure is judged on a machine of the name in the file, and only printed on any other. A GPU's name is what `quire
doctor` says; a CPU's is its model, the cores that the process may use and its best instruction set. A figure fell where
the median of the runs is worse by more than `tolerance`, the share by which machines of one name (or runs on one)
differ.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
LESS_IS_BETTER = {"tokens/s": False, "ms": True, "s": True}  # by unit
KEYS = {"name", "machine", "commit", "command", "path", "value", "unit"}
OPTIONAL = {"must", "goal", "tolerance"}


class Failure(Exception):
    """What keeps the program from comparing anything."""


def load(path):
    """The machines by id, and the figures, of a file. Numbers keep the digits that they are written with."""
    document = json.loads(Path(path).read_text(encoding="utf-8"), parse_float=Decimal)
    machines = document["machines"]
    for figure in document["figures"]:
        keys, name = set(figure), figure.get("name", "a figure without a name")
        if not KEYS <= keys <= KEYS | OPTIONAL:
            raise Failure(f"{path}: {name}: missing or unknown keys: {', '.join(sorted((keys ^ KEYS) - OPTIONAL))}")
        if figure["machine"] not in machines or figure["unit"] not in LESS_IS_BETTER:
            raise Failure(f"{path}: {name}: unknown machine or unit")
    return machines, document["figures"]


def as_written(number):
    """A number as docs/performance.md writes it."""
    return f"{number:,}"


# --- Measuring

def run_quire(quire, arguments):
    """The JSON object that a command prints."""
    try:
        done = subprocess.run([quire, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise Failure(f"{quire}: {error.strerror}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise Failure(lines[-1] if lines else f"exit code {done.returncode}")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise Failure("it printed no JSON object") from error


def cpu_model(cpuinfo="/proc/cpuinfo"):
    found = re.search(r"^model name\s*:\s*(.+?)\s*$", Path(cpuinfo).read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else "unknown CPU"


def this_machine(quire, device):
    doctor = run_quire(quire, ["doctor"])
    if device == "cpu":
        return f"{cpu_model()}, {doctor['cores']} cores, {doctor['cpu_isas'][-1]}"
    if not doctor["gpus"]:
        raise Failure(f"no GPU: {doctor.get('gpu_problem')}")
    return doctor["gpus"][0]["name"]


def read(result, path):
    """The number at a path such as ttft_ms.p50; of an object, the sum; None where nothing was measured."""
    for key in path.split("."):
        result = result.get(key) if isinstance(result, dict) else None
    return sum(result.values()) if isinstance(result, dict) else result


def measure(quire, command, device, runs):
    """What each run of a command printed, and the reason if one failed."""
    print(f"{command} --device {device}", flush=True)
    results = []
    for _ in range(runs):
        try:
            results.append(run_quire(quire, [*shlex.split(command), "--device", device]))
        except Failure as failure:
            print(f"  {failure}", flush=True)
            return results, str(failure)
        print(f"  {json.dumps(results[-1])}", flush=True)
    return results, None


def compare(figure, machine, results, judged):
    """A row of the table, and whether the figure fell."""
    value, tolerance = float(figure["value"]), float(figure.get("tolerance", machine["tolerance"]))
    row = [figure["name"], as_written(figure["value"]), "", "", f"{100 * tolerance:g} %",
           *(as_written(figure[key]) if key in figure else "" for key in ("must", "goal"))]
    measured = [read(result, figure["path"]) for result in results]
    if not measured or None in measured:
        return [*row, "not measured"], judged
    now = median(measured)
    row[2] = f"{now:,.{0 if now >= 1000 else 1 if now >= 10 else 2}f}"
    row[3] = f"{100 * (now / value - 1):+.1f} %"
    better = (value - now if LESS_IS_BETTER[figure["unit"]] else now - value) / value
    if not judged:
        return [*row, "not judged"], False
    return [*row, "FELL" if better < -tolerance else "better" if better > tolerance else "holds"], better < -tolerance


def print_table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())


def check_speed(quire, device, runs, machines, figures):
    """Runs the commands of this machine's figures, or where it has none of all machines'. Returns how many fell."""
    here = this_machine(quire, device)
    of_device = {key: machine for key, machine in machines.items() if machine["device"] == device}
    judged = {key: machine for key, machine in of_device.items() if machine["name"] == here}
    chosen = judged or of_device
    measured, fallen = {}, 0
    tables = []
    for key, machine in chosen.items():
        rows = [["figure", "claimed", "now", "change", "may differ", "must", "goal", ""]]
        for figure in (figure for figure in figures if figure["machine"] == key):
            command = figure["command"]
            if command not in measured:
                measured[command] = measure(quire, command, device, runs or (machine["runs"] if judged else 1))
            results, problem = measured[command]
            row, fell = compare(figure, machine, [] if problem else results, bool(judged))
            fallen += fell
            rows.append(row)
        tables.append((machine["name"], rows))
    for name, rows in tables:
        print(f"\n{here}" if judged else f"\n{here}, beside the figures of another machine: {name}")
        print_table(rows)
    if judged:
        print(f"{fallen} of {sum(len(rows) - 1 for _, rows in tables)} figures fell or were not measured")
    return fallen


# --- Documents

def tables_of(text):
    """Yields the heading, the cells of the table's first row, and the cells of each row below it."""
    heading, head = None, None
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:].strip()
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if head is None:
            head = cells
        elif set(line) - set("|-: "):
            yield heading, head, cells


def section_of(text, heading):
    found = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def begins_with(cell, number):
    return re.match(re.escape(as_written(number)) + r"(?!\d|[.,]\d)", cell) is not None


def check_row(figure, row, section):
    """Yields what differs between a figure and its row, whose first cell is its name and whose second its value."""
    if not begins_with(row[1][1], figure["value"]):
        yield f"the file has {as_written(figure['value'])}, the page {row[1][1]}"
    cells = dict(zip(row[0], row[1]))
    for key in ("must", "goal"):
        expected = as_written(figure[key]) if key in figure else ""
        if cells.get(key, "") != expected:
            yield f"{key} is {expected or 'nothing'} in the file, {cells.get(key) or 'nothing'} on the page"
    if cells["command"] != f"`{figure['command']}`":
        yield f"the file has the command {figure['command']}, the page {cells['command']}"
    if figure["commit"] not in cells.get("commit", section):
        yield f"the commit {figure['commit']} does not stand beside it"


def check_docs(text, machines, figures):
    """Yields what differs between the page and the file."""
    rows, command = {}, ""
    for heading, head, cells in tables_of(text):
        if "command" in head and len(cells) == len(head):
            column = head.index("command")
            command = cells[column] = command if cells[column] == "the same" else cells[column]
            if command.startswith("`bench "):
                rows.setdefault((heading, cells[0]), []).append((head, cells))
    names = set()
    for figure in figures:
        section = machines[figure["machine"]]["section"]
        name = (section, figure["name"])
        if name in names:
            yield f"{figure['name']}: stands twice in the file"
        names.add(name)
        if len(rows.get(name, [])) != 1:
            yield f"{figure['name']}: has {len(rows.get(name, []))} rows with a command under '{section}'"
        else:
            for problem in check_row(figure, rows[name][0], section_of(text, section)):
                yield f"{figure['name']}: {problem}"
    sections = {machine["section"] for machine in machines.values()}
    for section, name in rows:
        if section in sections and (section, name) not in names:
            yield f"{name}: is a row of the page and not in the file"
    values = [as_written(figure["value"]) for figure in figures]
    for value in dict.fromkeys(values):  # shorter ones are elsewhere by chance
        count = len(re.findall(rf"(?<![\d.,]){re.escape(value)}(?!\d|[.,]\d)", text))
        if sum(map(str.isdigit, value)) >= 4 and count > values.count(value):
            yield f"{value} stands {count} times on the page"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire", nargs="?", default=ROOT / "build/release/bin/quire")
    parser.add_argument("--device", choices=["cuda", "cpu"])
    parser.add_argument("--runs", type=int, help="of each command; their median counts (default: as the file says)")
    parser.add_argument("--check-docs", action="store_true")
    parser.add_argument("--figures", default=ROOT / "docs/figures.json")
    parser.add_argument("--page", default=ROOT / "docs/performance.md")
    options = parser.parse_args()
    if options.check_docs == bool(options.device) or (options.runs is not None and options.runs < 1):
        parser.error("give either --check-docs or --device cuda|cpu; --runs is at least 1")
    try:
        machines, figures = load(options.figures)
        if options.device:
            quire = os.path.abspath(options.quire)
            return 1 if check_speed(quire, options.device, options.runs, machines, figures) else 0
    except Failure as failure:
        print(f"check_figures.py: {failure}", file=sys.stderr)
        return 2
    problems = list(check_docs(Path(options.page).read_text(encoding="utf-8"), machines, figures))
    for problem in problems:
        print(f"{options.page}: {problem}")
    print(f"{len(figures)} figures, {len(problems)} problems", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
