"""An allocation of a program that fails, by failing_allocation.cpp."""

import bisect
import mmap
import os
import pathlib
import struct
import subprocess

FRAME = struct.Struct("<56sq")  # the end of a file's name, and where in it
FRAMES = 32
SIZE = 16 + FRAME.size * FRAMES
# Where a failed allocation may end a process that starts by a signal: what is made before main has nobody to tell, and
# OpenSSL 3.0 does not survive one while it prepares itself.
EXCUSED = ("__static_initialization_and", "_GLOBAL__sub_I", "__sub_I__", "libcrypto.so")


class FailingAllocation:
    """Controls which allocation fails. `environment` is that of the program, `path` a file for it alone."""

    def __init__(self, binary, path):
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)
        build = binary.parent.parent
        self.library = build / "lib" / "failing_allocation.so"
        self.variables = {"LD_PRELOAD": str(self.library), "QUIRE_FAILING_ALLOCATION": str(path)}
        self.environment = os.environ | self.variables
        self._ours = {"libquire.so": build / "lib" / "libquire.so", "quire": binary}
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
        """Functions that asked for what failed, the innermost first; of libraries that are not ours, the library."""
        frames = FRAME.iter_unpack(self._memory[16:])
        return [self._name(pathlib.Path(file.rstrip(b"\0").decode()).name, offset) for file, offset in frames if offset]

    def was_in(self, names):
        """Whether one of `names` is in that of a caller."""
        return any(name in caller for caller in self.callers() for name in names)

    def _name(self, file, offset):
        ours = self._ours.get(file.split(".so")[0] + ".so" if ".so" in file else file)
        if not ours:
            return file
        if ours not in self._symbols:
            listing = subprocess.run(["nm", "-C", ours], check=True, capture_output=True, text=True)
            fields = (line.split(None, 2) for line in listing.stdout.splitlines())
            self._symbols[ours] = sorted((int(f[0], 16), f[2]) for f in fields if len(f) == 3 and f[1] in "tTwW")
        symbols = self._symbols[ours]
        return symbols[bisect.bisect(symbols, (offset,)) - 1][1]
