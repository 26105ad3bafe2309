#!/usr/bin/env python3
"""Checks that every public function of libfaclient begins with fa_uncancelled()
(client/cancel.h), except those that neither lock, wait nor allocate (usage:
test-uncancelled.py SOURCE_ROOT)."""

import pathlib
import re
import sys

EXEMPT = {
    "fa_buffer_bytes", "fa_buffer_data", "fa_buffer_device_data", "fa_dtype_bytes", "fa_free",
    "fa_socket_path", "fa_step_number", "fa_tensor_bytes", "fa_tensor_init", "fa_version",
}
# A definition: from its name to the first line of its body.
DEFINITION = re.compile(r"^[^\s#/*}].*\b(fa_\w+)\([^;{}]*\)\n\{\n(.*)$", re.MULTILINE)


def faults(names, text):
    """The functions of @names that @text defines: how many, and those without the guard."""
    found = {name: line for name, line in DEFINITION.findall(text) if name in names}
    return set(found), [name for name, line in found.items()
                        if name not in EXEMPT and line.strip() != "fa_uncancelled();"]


def main():
    good = "int fa_a(int b,\n         int c)\n{\n\tfa_uncancelled();\n\treturn 0;\n}\n"
    bad = "struct x *fa_a(void)\n{\n\treturn 0;\n}\n"
    assert faults({"fa_a"}, good) == ({"fa_a"}, []), "the check refuses what is right"
    assert faults({"fa_a"}, bad) == ({"fa_a"}, ["fa_a"]), "the check cannot fail"

    client = pathlib.Path(sys.argv[1]) / "client"
    names = set(re.findall(r"\b(fa_\w+);", (client / "libfaclient.map").read_text()))
    missing, bare = set(names), []
    for path in sorted(client.glob("*.c")):
        found, without = faults(names, path.read_text())
        missing -= found
        bare += [f"{path.name}: {name}() does not begin with fa_uncancelled()" for name in without]
    bare += [f"no definition of {name}() was found" for name in sorted(missing)]
    print("\n".join(bare) or f"{len(names)} functions")
    return 1 if bare or not names else 0


sys.exit(main())
