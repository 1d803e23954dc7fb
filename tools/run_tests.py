#!/usr/bin/env python3
"""Runs a build's tests, many in each process.

CTest starts a process a test. A sanitized program takes a fifth of a second to start, and there are thousands of tests.
The tests and the meaning of -R and -E are ctest's.

  tools/run_tests.py BUILD [-R REGEX] [-E REGEX] [-j N] [--sample N [--seed TEXT]]

--sample N: of tests that differ in their parameters alone, one in N, and one at least; which ones, --seed says.
Prints the output of what fails, and ends with code 1. BUILD/tests.xml says of each test how it ended, as JUnit's reports
do.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time
import zlib
from xml.etree import ElementTree

AT_ONCE = 20  # tests in a process
TIMEOUT = 1800  # seconds for them
SLOWEST = 20  # that are told of at the end
FILTER = "--gtest_filter="
ENDED = re.compile(r"^\[ +(OK|SKIPPED|FAILED) +\] (\S+?),?(?: .*)?\((\d+) ms\)$", re.MULTILINE)


def tests_of(build, regex, exclude):
    """Commands, as ctest would run them: [program, arguments...]."""
    command = ["ctest", "--test-dir", build, "--show-only=json-v1"]
    command += ["-R", regex] if regex else []
    command += ["-E", exclude] if exclude else []
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [test["command"] for test in shown["tests"]]


def name_of(command):
    """The test that a command of GoogleTest runs; else ""."""
    return "".join(argument[len(FILTER):] for argument in command if argument.startswith(FILTER))


def batches_of(commands, at_once=AT_ONCE):
    """Commands of as many tests as may be in a process. One that is no program of GoogleTest stays as it is."""
    names, others = {}, []
    for command in commands:
        name = name_of(command)
        if name and "*" not in name and command[0].endswith("_tests"):
            names.setdefault(command[0], []).append(name)
        else:
            others.append(command)
    batches = [[program, FILTER + ":".join(some[i:i + at_once])]
               for program, some in names.items() for i in range(0, len(some), at_once)]
    return batches + others


def kind_of(name):
    """The name of a test without its parameters."""
    return name.rsplit("/", 1)[0] if "/" in name.split(".")[-1] else name


def sample_of(commands, one_in, seed):
    """Of the commands of one kind of test every so manyth, beginning where the seed says."""
    kinds = {}
    for command in commands:
        of_program = [argument for argument in command if not argument.startswith(FILTER)]
        kinds.setdefault(" ".join([*of_program, kind_of(name_of(command))]), []).append(command)
    sample = []
    for kind, some in kinds.items():
        step = min(one_in, len(some))
        sample += some[zlib.crc32(f"{seed} {kind}".encode()) % step::step]
    return sample


def run(command):
    """(What is wrong: None or a line, its output, the state, name and milliseconds of each test that ended)."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT,
                              encoding="utf-8", errors="replace")
    except subprocess.TimeoutExpired as late:
        return f"not done in {TIMEOUT} s", (late.stdout or b"").decode("utf-8", "replace"), []
    output = done.stdout
    begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
    ended = ENDED.findall(output)
    wanted = sum(a.count(":") + 1 for a in command if a.startswith(FILTER) and "*" not in a)
    if done.returncode != 0:
        failed = [name for state, name, _ in ended if state == "FAILED"]
        if len(ended) < len(begun):
            failed.append(begun[-1])
        return f"code {done.returncode}: {' '.join(failed) or 'at its end'}", output, ended
    if wanted > len(ended):
        return f"{wanted - len(ended)} of its tests did not run", output, ended
    if not ended:  # a program of another kind
        ended = [("OK", os.path.basename(command[0]), "0")]
    return None, output, ended


def write_report(path, ended):
    suite = ElementTree.Element("testsuite")
    for state, name, ms in ended:
        whose, dot, test = name.partition(".")
        names = {"classname": whose, "name": test} if dot else {"classname": "", "name": name}
        case = ElementTree.SubElement(suite, "testcase", names, time=str(int(ms) / 1000))
        if state != "OK":
            ElementTree.SubElement(case, "skipped" if state == "SKIPPED" else "failure")
    ElementTree.ElementTree(suite).write(path)


def sums(times):
    """What tests that differ in their parameters take together, the longest first."""
    totals = {}
    for seconds, name in times:
        totals[kind_of(name)] = totals.get(kind_of(name), 0) + seconds
    return sorted(((seconds, kind) for kind, seconds in totals.items()), reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="build folder")
    parser.add_argument("-R", dest="regex", help="run what matches alone")
    parser.add_argument("-E", dest="exclude", help="leave out what matches")
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="run one in N of each kind")
    parser.add_argument("--seed", default="", metavar="TEXT", help="chooses these")
    options = parser.parse_args()
    if options.jobs < 1 or options.sample < 1:
        parser.error("-j and --sample are 1 or more")
    commands = tests_of(options.build, options.regex, options.exclude)
    batches = batches_of(sample_of(commands, options.sample, options.seed))
    if not batches:
        parser.error("no test matches")
    begin, wrong, ended = time.monotonic(), [], []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for number, result in enumerate(concurrent.futures.as_completed(pool.submit(run, b) for b in batches), 1):
            fault, output, some = result.result()
            ended += some
            if fault:
                wrong.append(fault)
                print(output, fault, sep="\n")
            if number % 20 == 0 or number == len(batches):
                seconds = time.monotonic() - begin
                print(f"{number} of {len(batches)} processes, {len(ended)} tests, {seconds:.0f} s", flush=True)
    write_report(os.path.join(options.build, "tests.xml"), ended)
    skipped = sum(state == "SKIPPED" for state, _, _ in ended)
    print(f"{len(ended)} tests ran, {skipped} of them were skipped; {len(wrong)} processes failed")
    times = [(int(ms) / 1000, name) for _, name, ms in ended]
    for seconds, name in sorted(times, reverse=True)[:SLOWEST]:
        print(f"{seconds:6.1f} s {name}")
    print("in all of a kind:")
    for seconds, name in sums(times)[:SLOWEST]:
        print(f"{seconds:6.1f} s {name}")
    for fault in wrong:
        print(f"FAILED {fault}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
