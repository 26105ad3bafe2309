"""Writes the C source of faclient._faclient, cffi's module for libfaclient, from its headers.

    build_ffi.py .../faclient.h OUTPUT
"""
import os
import re
import subprocess
import sys

import cffi


def constants(directory):
    """The names of the headers' integer constants. The C compiler finds their values."""
    for name in ("faclient.h", "faclient_kv.h", "faclient_timeline.h"):
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            for match in re.finditer(r"^#define (FA_\w+) +\S", file.read(), re.MULTILINE):
                yield match.group(1)


def declarations(header):
    """The header as the preprocessor leaves it, without what other headers declare."""
    compiler = os.environ.get("CC", "cc").split()
    text = subprocess.run([*compiler, "-E", header], check=True, capture_output=True,
                          text=True).stdout
    own, lines = False, []
    for line in text.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            own = os.path.basename(marker.group(1)).startswith("faclient")
        elif own and not line.startswith("#"):
            lines.append(line)
    return "\n".join(lines)


def main(header, output):
    ffi = cffi.FFI()
    names = "".join(f"#define {name} ...\n" for name in constants(os.path.dirname(header)))
    ffi.cdef(names + declarations(header))
    ffi.set_source("faclient._faclient", '#include "faclient.h"\n', py_limited_api=True)
    ffi.emit_c_code(output)


main(*sys.argv[1:])
