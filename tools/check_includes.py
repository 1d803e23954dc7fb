#!/usr/bin/env python3
"""Checks who includes whom: one line a violation, exit code 1 if there is any.

Holds the table below, that a part that can be left out is included by itself alone, that headers form no cycle, that
each outside library stays in its folder, that nothing uses assert (it vanishes in release builds), that CUDA is named
only where it is implemented, and that no namespace has two classes of one name (the linker would take one's members for
the other's and say nothing).
"""

import re
import sys
from pathlib import Path

# What a folder of src/ may include besides itself, and does: folders, or single headers.
ALLOWED = {
    "base": [],
    "ops": ["base"],
    "http": ["base"],
    "tokenizer": ["base"],
    "kvcache": ["base", "quire/cache_end.h"],
    "checkpoint": ["base", "ops"],
    "parallel": ["base", "ops"],
    "hub": ["base", "http", "checkpoint/weight_index.h", "checkpoint/gguf/gguf_name.h"],
    "backends": ["base", "ops", "backends/*"],  # the registry
    "backends/*": ["base", "ops", "backends/isa.h"],
    "layers": ["base", "ops"],
    "models": ["base", "ops", "layers", "checkpoint/model_config.h"],
    "scheduler": ["base", "kvcache", "quire"],
    "record": ["base", "scheduler", "quire"],
    "runner": ["base", "ops", "layers/step.h", "models", "quire", "kvcache/cache_layout.h", "scheduler/step_plan.h"],
    "grammar": ["base", "quire"],
    "engine": ["base", "ops", "tokenizer", "kvcache", "checkpoint", "parallel", "scheduler", "runner", "record",
               "grammar", "quire", "backends/registry.h"],
    "beams": ["base", "engine"],
    "inspect": ["base", "ops", "tokenizer", "checkpoint", "parallel", "models", "runner", "record", "engine", "quire",
                "backends"],
    "simulate": ["base", "record", "engine", "inspect"],
    "load": ["base", "http", "tokenizer", "inspect"],
    "dialects": ["base"],
    "server": ["base", "dialects", "engine", "tokenizer", "quire", "scheduler", "record"],
    "cli": ["base", "record", "hub", "inspect", "simulate", "load", "server", "engine", "quire"],
    "python": ["base", "engine", "hub", "tokenizer", "quire"],
    "quire": [],  # include/quire, the public API
}

# The part of a folder, and of every folder below it, that a build may leave out.
PARTS = {
    "simd": "simd", "beams": "beams", "grammar": "grammar", "hub": "hub", "server": "server", "load": "server",
    "dialects": "server", "window": "window", "cuda": "cuda", "mpi": "mpi"}

# Outside headers that only these folders may include.
OUTSIDE = {
    r"spdlog/": ["base"],
    r"nlohmann/": ["base"],
    r"CLI/": ["cli"],
    r"xxhash\.h": ["kvcache", "record"],
    r"pcre2\.h": ["tokenizer", "checkpoint"],
    r"utf8proc\.h": ["tokenizer"],
    r"boost/": ["parallel", "server", "dialects"],
    r"openssl/": ["base", "server"],
    r"curl/": ["http"],
    r"yaml-cpp/": ["cli"],
    r"mpi\.h": ["parallel"],
    r"(cuda|cublas|cudnn|nccl|cub/|cutlass/)": ["backends/cuda"],
    r"(cassert|assert\.h)": [],
}

# Where CUDA may be named outside backends/cuda: in code, and in strings.
CUDA_IN_CODE = {"base/tensor.h"}
CUDA_IN_STRINGS = ("base/tensor.h", "backends/registry.", "cli/")

SOURCES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/', re.DOTALL)
STRING_OR_COMMENT = re.compile(f"({STRING.pattern})|{COMMENT.pattern}", re.DOTALL)
CUDA = re.compile(r"cuda|cublas|cudnn|nccl", re.IGNORECASE)
NAMESPACE = re.compile(r"namespace\s*([\w:]*)\s*\{|\}  // namespace")
CLASS = re.compile(r"(?:class|struct|union|enum class)\s+(?:alignas\([^)]*\)\s*)?(\w+)(?:\s+final)?\s*(?:\{|:[^:])")


def folder_of(name):
    """The row of the table that a file such as "backends/cpu/simd/x.h" belongs to."""
    folders = [folder for folder in name.split("/")[:-1] if folder != "absent"]
    return "/".join(folders[:2] if folders[0] == "backends" else folders[:1])


def parts_of(name):
    """The parts that a file is left out with."""
    return {PARTS[folder] for folder in name.split("/")[:-1] if folder in PARTS}


def row_of(folder):
    return "backends/*" if folder.startswith("backends/") else folder


def allowed_by(name, header):
    """What of a file's row allows that it includes a header of another folder; None: nothing."""
    rules, target = ALLOWED.get(row_of(folder_of(name)), []), folder_of(header)
    return next((rule for rule in (header, target, row_of(target)) if rule in rules), None)


def without_comments(text):
    """The text with comments blanked and lines kept."""
    return STRING_OR_COMMENT.sub(lambda m: m.group(1) or "\n" * m.group(0).count("\n"), text)


def check_include(name, bracket, header, files):
    """Returns what is wrong with one include of a file, or None."""
    folder = folder_of(name)
    if folder not in ALLOWED and not folder.startswith("backends/"):
        return f"the folder {folder} is not in the table"
    if header in files:
        if others := parts_of(header) - parts_of(name):
            return f"only the part {others.pop()} may include {header}, since it can be left out"
        allowed = folder_of(header) == folder or allowed_by(name, header)
        return None if allowed else f"{folder} may not include {header}"
    if bracket == '"' and not header.endswith(".inc"):  # which CMake makes of a file of data
        return f"no file {header} in src or include"
    for pattern, folders in OUTSIDE.items():
        if re.match(pattern, header) and folder not in folders:
            return f"{folder} may not include <{header}>" + (f", only {', '.join(folders)}" if folders else "")
    return None


def check_cuda(name, text):
    """Yields the lines that name CUDA where it must not be named."""
    if folder_of(name) == "backends/cuda":
        return
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        in_code = CUDA.search(STRING.sub('""', line)) and name not in CUDA_IN_CODE
        in_string = any(map(CUDA.search, STRING.findall(line))) and not name.startswith(CUDA_IN_STRINGS)
        if (in_code or in_string) and not INCLUDE.match(line):
            yield number, "names CUDA outside backends/cuda"


def classes(text):
    """Yields the number of the line and the full name of each class that other files see."""
    namespaces = []
    for number, line in enumerate(text.splitlines(), 1):
        if match := NAMESPACE.match(line):
            if match.group(1) is None:
                namespaces.pop()
            else:
                namespaces.append(match.group(1))
        elif (match := CLASS.match(line)) and "" not in namespaces:
            yield number, "::".join([*namespaces, match.group(1)])


def find_cycle(graph):
    """A list of headers that include one another in a circle, or None."""
    state = {}
    for start in sorted(graph):
        stack = [(start, iter(graph[start]))] if start not in state else []
        while stack:
            header, targets = stack[-1]
            state[header] = "open"
            target = next(targets, None)
            if target is None:
                state[header] = "done"
                stack.pop()
            elif state.get(target) == "open":
                path = [item for item, _ in stack]
                return path[path.index(target):] + [target]
            elif target not in state:
                stack.append((target, iter(graph[target])))
    return None


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    files = {path.relative_to(base).as_posix(): path
             for base in (root / "src", root / "include")
             for path in sorted(base.rglob("*")) if path.suffix in SOURCES}
    violations = []
    graph = {}
    owners = {}
    for name, path in files.items():
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(root)
        includes = [(number, *match.groups()) for number, line in enumerate(text.splitlines(), 1)
                    if (match := INCLUDE.match(line))]
        for number, bracket, header in includes:
            problem = check_include(name, bracket, header, files)
            if problem:
                violations.append(f"{where}:{number}: {problem}")
        violations += [f"{where}:{number}: {problem}" for number, problem in check_cuda(name, text)]
        for number, full_name in classes(text):
            owner = owners.setdefault(full_name, where)
            if owner != where:
                violations.append(f"{where}:{number}: {full_name} is a class of {owner}, too")
        graph[name] = [header for _, _, header in includes if header in files]
    used = {(row_of(folder_of(name)), allowed_by(name, header))
            for name, headers in graph.items() for header in headers}
    violations += [f"the table lets {folder} include {rule}, and nothing does"
                   for folder, rules in ALLOWED.items() for rule in rules if (folder, rule) not in used]
    cycle = find_cycle(graph)
    if cycle:
        violations.append("headers include one another in a circle: " + " -> ".join(cycle))
    for violation in violations:
        print(violation)
    if not files:
        print(f"no sources under {root}")
    print(f"{len(files)} files, {len(violations)} violations", file=sys.stderr)
    return 1 if violations or not files else 0


if __name__ == "__main__":
    sys.exit(main())
