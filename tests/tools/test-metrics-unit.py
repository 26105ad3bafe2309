#!/usr/bin/env python3
"""fad-metrics.service: systemd accepts the unit, it may do little, its user is made, and the command that
it runs is one that factl has.

usage: test-metrics-unit.py SYSTEMD_DIRECTORY FACTL UNIT..."""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

spec = importlib.util.spec_from_file_location(
    "test_units", os.path.join(os.path.dirname(os.path.abspath(__file__)), "test-units.py"))
units = importlib.util.module_from_spec(spec)
spec.loader.exec_module(units)
check = units.check


def check_unit(service, directory, factl):
    unit = units.settings(service)
    with tempfile.TemporaryDirectory(prefix="fad-units-") as temporary:
        copy = os.path.join(temporary, os.path.basename(service))
        with open(service, encoding="utf-8") as file, open(copy, "w", encoding="utf-8") as out:
            out.write(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=" + os.path.abspath(factl), file.read()))
        units.verify([copy])
        units.exposure(copy, 1.5)
    with open(os.path.join(directory, "fad.sysusers.conf"), encoding="utf-8") as file:
        check(f"\nu {unit['User'][-1]} " in file.read(), "nobody makes its user")
    check("fad" in unit["SupplementaryGroups"], "it may not connect to fad")
    arguments = unit["ExecStart"][-1].replace("%i", "0").split()[1:]
    check(arguments[:2] == ["metrics", "--listen"], f"it runs {arguments}")
    # The addresses are ones that the exporter takes: another cannot be bound, or it has no daemon.
    done = subprocess.run([factl, *arguments, "--listen", "x"], capture_output=True, text=True, timeout=60)
    check(done.returncode in (1, 2) and "loopback" not in done.stderr, f"{arguments}: {done.stderr}")


def main():
    directory, factl, *services = sys.argv[1:]
    for service in services:
        check_unit(service, directory, factl)
    return 1 if units.failed else 0


if __name__ == "__main__":
    sys.exit(main())
