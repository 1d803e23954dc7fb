#!/usr/bin/env python3
"""Changes one place of the program at a time and sees whether a test notices.

A mutant is one line with one operator, number or call changed, or one statement left out. It is built, and the tests of
its area run until one fails, or hangs. What no test sees is printed: a test is missing, or the change means nothing.

  tools/mutate.py BUILD [--area AREA]... [--mutants 300] [--seed 1] [--part 1/1]

BUILD: a release build of this tree, which is as it was afterwards. Code 1: it fails without a change.
"""
import argparse
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Sources, and the test programs that are to notice, with the tests of them that are quick.
AREAS = {
    "kvcache": (["src/kvcache/*.cpp", "src/kvcache/*.h"], {"kvcache_tests": "*", "scheduler_tests": "-*Exhaustive*"}),
    "scheduler": (["src/scheduler/*.cpp"],
                  {"scheduler_tests": "-*Exhaustive*", "record_tests": "*", "engine_tests": "Fault*"}),
    "engine": (["src/engine/*.cpp"],
               {"engine_tests": "-*Golden/*:*Quantized*:*Families/*:*Pairs/*", "beams_tests": "*"}),
    "sampling": (["src/runner/sampler.cpp", "src/ops/reference/logits_rows.cpp"],
                 {"parity_tests": "*", "runner_tests": "*", "engine_tests": "*Sampling*:*Logprob*:*Structured*-Pairs/*"}),
    "ops": (["src/ops/reference/*.cpp"], {"parity_tests": "*", "engine_tests": "*Golden/*float32*"}),
    "tokenizer": (["src/tokenizer/*.cpp"], {"tokenizer_tests": "*"}),
    "checkpoint": (["src/checkpoint/*.cpp", "src/checkpoint/*/*.cpp"],
                   {"checkpoint_tests": "*", "engine_tests": "*Gguf*:*Quantized*"}),
    "server": (["src/server/*re*.cpp", "src/server/*_json.cpp"], {"server_tests": "*"}),
}
# What becomes what. Operators have spaces around them, as clang-format writes them; brackets of templates have none.
SWAPS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
         (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "), (" * ", " / "), (" += ", " -= "),
         (" -= ", " += "), ("true", "false"), ("false", "true"), ("std::min", "std::max"), ("std::max", "std::min"),
         ("++", "--"), ("if (!", "if ("), ("break;", "continue;"), ("continue;", "break;")]
STATEMENT = re.compile(r"^\s+(?!return\b|throw\b|using\b|break\b|continue\b)[\w.:>\-\[\]*]+(\(.*\)| [+\-|&]?= .*);$")
# Checks of what cannot be, texts of the log, and room taken beforehand: without them a right program does the same.
HARMLESS = re.compile(r"QUIRE_CHECK|log_\w+\(|\.reserve\(|^\s*(#|template|static_assert|namespace)")
NUMBER = re.compile(r"(?<![\w.'])(\d+)(?![\w.'])")
SLOWER = 10  # times as long as without a change: it hangs
MOST_BYTES = 16 << 30


def mutants_of(line):
    """All lines that differ from this one in one place, and compile as a rule."""
    code = line.split("//")[0]
    if HARMLESS.search(code):
        return []
    texts = [match.span() for match in re.finditer(r'"(?:\\.|[^"\\])*"', code)]
    found = []

    def change(begin, end, to):
        if not any(first < end and begin < last for first, last in texts):
            found.append(line[:begin] + to + line[end:])

    for old, new in SWAPS:
        word = r"\b" if old.isalpha() else ""
        for match in re.finditer(word + re.escape(old) + word, code):
            change(*match.span(), new)
    for match in NUMBER.finditer(code):
        change(*match.span(1), str(int(match[1]) + 1))
    if STATEMENT.match(line):
        found.append("")
    return found


def all_mutants(patterns):
    """(File, number of the line from 0, what stands there instead)."""
    for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern)}):
        for number, line in enumerate(path.read_text().split("\n")):
            yield from ((path, number, mutant) for mutant in mutants_of(line))


def run(command, seconds=None):
    """Whether it ended well in time and memory."""
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=seconds,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES)))
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


class Area:
    def __init__(self, build, patterns, tests):
        self.mutants = list(all_mutants(patterns))
        self.compile = ["cmake", "--build", build, "--target", *tests]
        self._tests = [[f"{build}/bin/{program}", f"--gtest_filter={only}", "--gtest_fail_fast", "--gtest_brief=1"]
                       for program, only in tests.items()]
        if not run(self.compile):
            sys.exit(f"mutate.py: {' '.join(self.compile)} fails without a change")
        begin = time.monotonic()
        if wrong := next((test for test in self._tests if not run(test)), None):
            sys.exit(f"mutate.py: {' '.join(wrong)} fails without a change")
        self._seconds = 10 + SLOWER * (time.monotonic() - begin)

    def try_one(self, path, number, mutant):
        """What became of it."""
        before = path.read_text()
        lines = before.split("\n")
        lines[number] = mutant
        try:
            path.write_text("\n".join(lines))
            if not run(self.compile):
                return "does not compile"
            return "survived" if all(run(test, self._seconds) for test in self._tests) else "killed"
        finally:
            path.write_text(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--area", action="append", choices=AREAS, help="all, if none is given")
    parser.add_argument("--mutants", type=int, default=300, help="that compile, over all areas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="of all mutants: for several builds side by side")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was changed is put back
    part, num_parts = map(int, options.part.split("/"))
    names = options.area or list(AREAS)
    table = {}
    try:
        for index, name in enumerate(names):
            area = Area(options.build, *AREAS[name])
            wanted = options.mutants * (index + 1) // len(names) - options.mutants * index // len(names)
            counts = table[name] = {"killed": 0, "survived": 0, "does not compile": 0}
            random.Random(options.seed).shuffle(area.mutants)
            for path, number, mutant in area.mutants[part - 1 :: num_parts]:
                if counts["killed"] + counts["survived"] == wanted:
                    break
                outcome = area.try_one(path, number, mutant)
                counts[outcome] += 1
                if outcome == "survived":
                    was, now = path.read_text().split("\n")[number].strip(), mutant.strip() or "left out"
                    print(f"{path.relative_to(ROOT)}:{number + 1}: {was}  ->  {now}", flush=True)
            run(area.compile)
    finally:  # as far as it came
        print("| area | mutants | killed | survived |\n|---|---|---|---|")
        for name, counts in table.items():
            killed, survived = counts["killed"], counts["survived"]
            print(f"| {name} | {killed + survived} | {killed} | {survived} |")


if __name__ == "__main__":
    main()
