"""Allocations of a program that fail, by failing_new.cpp."""

import bisect
import mmap
import os
import struct
import subprocess

FRAMES = 32
SIZE = 16 + 16 * FRAMES
# Where a failed allocation may end the process: destructors of nlohmann::json take memory, and what is built before
# main has nobody to tell.
EXCUSED = ("nlohmann::", "_GLOBAL__sub_I")


class FailingNew:
    """Controls which allocation fails. `environment` is that of the program, `path` a file for it alone."""

    def __init__(self, binary, path):
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)
        build = binary.parent.parent
        self.library = build / "lib" / "failing_new.so"
        self.environment = os.environ | {"LD_PRELOAD": str(self.library), "QUIRE_FAILING_NEW": str(path)}
        self._modules = {1: build / "lib" / "libquire.so", 2: binary}
        self._symbols = {}

    def count(self):
        return struct.unpack_from("<q", self._memory, 0)[0]

    def arm(self, nth):
        """The nth one from now fails; 0: none."""
        struct.pack_into("<q", self._memory, 8, self.count() + nth if nth else 0)

    def begin(self, nth):
        """The nth one of a process that is about to start fails; 0: none."""
        self._memory[:] = bytes(SIZE)
        struct.pack_into("<q", self._memory, 8, nth)

    def callers(self):
        """Functions that asked for what failed, the innermost first."""
        frames = [struct.unpack_from("<qq", self._memory, 16 + 16 * i) for i in range(FRAMES)]
        return [self._name(module, offset) for module, offset in frames if module in self._modules]

    def is_excused(self):
        return any(excused in name for name in self.callers() for excused in EXCUSED)

    def _name(self, module, offset):
        if module not in self._symbols:
            listing = subprocess.run(["nm", "-C", self._modules[module]], check=True, capture_output=True, text=True)
            fields = (line.split(None, 2) for line in listing.stdout.splitlines())
            self._symbols[module] = sorted((int(f[0], 16), f[2]) for f in fields if len(f) == 3 and f[1] in "tTwW")
        symbols = self._symbols[module]
        return symbols[bisect.bisect(symbols, (offset,)) - 1][1]
