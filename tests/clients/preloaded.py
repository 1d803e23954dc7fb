"""A library that is preloaded into a program, and what it and the test share."""

import mmap
import pathlib
import subprocess


class Preloaded:
    """Made of SOURCE, a file beside this one. `variables` are of the program; that of this name names a file of
    `size` bytes, which is `memory` here."""

    def __init__(self, folder, source, variable, size):
        library, file = folder / f"{source}.so", folder / f"{source}.shared"
        compiler = ["c++", "-std=c++20", "-shared", "-fPIC", "-o", library]
        subprocess.run([*compiler, pathlib.Path(__file__).with_name(source)], check=True)
        file.write_bytes(bytes(size))
        self.variables = {"LD_PRELOAD": str(library), variable: str(file)}
        with file.open("r+b") as opened:
            self.memory = mmap.mmap(opened.fileno(), size)
