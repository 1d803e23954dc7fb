#!/usr/bin/env python3
"""Checks the files of src/server/window/page: one line a fault, exit code 1 if there is any.

Holds that the HTML is valid (tidy), that scripts import what is exported and use what they import, that ids, classes
and custom properties that one file names another one has, that nothing comes from elsewhere, and that lines have at most
120 columns. Chromium reads the scripts in tests/clients/test_window.py.
"""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path("src/server/window/page")
WIDTH = 120
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:const|function|class) (\w+)", re.MULTILINE)
CONSTANTS = re.compile(r"^export const ([^;=]* = [^;]*);", re.MULTILINE)


def exports(text):
    names = set(EXPORT.findall(text))
    for line in CONSTANTS.findall(text):
        names |= set(re.findall(r"(\b[A-Z_]+) = ", line))
    return names


def check_html(path):
    tidy = ["tidy", "-quiet", "-errors", "--drop-empty-elements", "no", "--gnu-emacs", "yes", path]
    return [line for line in subprocess.run(tidy, capture_output=True, text=True).stderr.splitlines() if line]


def check_scripts(scripts):
    faults = []
    used = set()
    for path, text in scripts.items():
        for names, source in IMPORT.findall(text):
            for name in filter(None, (part.strip() for part in names.split(","))):
                used.add((source, name))
                if name not in exports(scripts.get(PAGE / source, "")):
                    faults.append(f"{path}: {source} exports no {name}")
                if len(re.findall(rf"\b{name}\b", IMPORT.sub("", text))) == 0:
                    faults.append(f"{path}: {name} is imported and not used")
    for path, text in scripts.items():
        for name in exports(text):
            inside = len(re.findall(rf"\b{name}\b", text))
            if (path.name, name) not in used and inside == 1:
                faults.append(f"{path}: {name} is not used")
            if (path.name, name) not in used and inside > 1:
                faults.append(f"{path}: {name} is exported and used here alone")
    return faults


def check_names(html, css, code):
    faults = []
    selectors = re.sub(r"\{[^{}]*\}", " ", css)
    ids = set(re.findall(r'\bid="([\w-]+)"', html))
    for name in set(re.findall(r'(?:byId|getElementById)\("([\w-]+)"\)', code)) | set(re.findall(r"#([\w-]+)", selectors)):
        if name not in ids:
            faults.append(f"index.html has no id {name}")
    classes = set(re.findall(r"\.([a-z][\w-]*)", selectors))
    named = set(" ".join(re.findall(r'class="([^"]*)"', html)).split()) | set(re.findall(r'className(?: =|:) "([\w-]+)"', code))
    faults += [f"style.css has a class {name} that nothing has" for name in classes - named]
    faults += [f"style.css has no class {name}" for name in named - classes]
    themes = [set(re.findall(r"(--[\w-]+):", block)) for block in re.findall(r":root \{([^}]*)\}", css)]
    if len(themes) != 2 or themes[0] != themes[1]:
        faults.append("style.css: the themes do not have the same properties")
    faults += [f"style.css has no property {name}" for name in set(re.findall(r"var\((--[\w-]+)\)", css)) - themes[0]]
    if css.count("{") != css.count("}"):
        faults.append("style.css: a brace is missing")
    return faults


def main():
    files = {path: path.read_text(encoding="utf-8") for path in sorted(PAGE.iterdir())}
    scripts = {path: text for path, text in files.items() if path.suffix == ".js"}
    faults = check_html(PAGE / "index.html") + check_scripts(scripts)
    faults += check_names(files[PAGE / "index.html"], files[PAGE / "style.css"], "\n".join(scripts.values()))
    for path, text in files.items():
        faults += [f"{path}:{i}: over {WIDTH} columns" for i, line in enumerate(text.splitlines(), 1) if len(line) > WIDTH]
        faults += [f"{path}: names another host: {url}" for url in re.findall(r"\bhttps?://\S+|\bsrc=\"//\S+", text)]
        if path.suffix == ".html" and re.search(r"<script(?![^>]*\bsrc=)|\bstyle=|\bon\w+=", text):
            faults.append(f"{path}: has a script or a style within, which its policy forbids")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
