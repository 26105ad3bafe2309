#!/usr/bin/env python3
"""Exit statuses of all programs: 0 for -h and --help, which write to stdout alone; 2 for wrong
usage, which is explained on stderr alone. The man pages name these and all others.

usage: test-exit-status.py SOURCE_DIRECTORY FAD FAD_SUPERVISE FACTL FABENCH FABENCH_POOL [FAD_METRICS]"""
import os
import re
import subprocess
import sys

# Wrong command lines of each program. None may start anything that stays.
WRONG = {
    "fad": ["stray", "--socket", "--threads many", "--threads 1025", "--log printer", "--log-level loud",
            "--drain-timeout-ms soon", "--listen-fd 99", "--listen-fd x", "--ready-fd 99", "--thread 1",
            "--supervise --listen-fd 0", "--check-config --threads x", "-x"],
    "fad-supervise": ["", "stray", "--exe-fd", "--exe-fd 99 -- fad", "--exe-fd x -- fad", "--exe-fd 0", "-x"],
    "factl": ["", "nonsense", "status stray", "rm", "rm cache", "rm stream x", "ping -c 0", "ping -c x", "-c",
              "ping --json", "metrics --listen x", "metrics --tenants 3", "top --sort x", "top --interval 99", "status --once", "status --prometheus", "metrics --no-wait", "version -c 2", "-x"],
    "fad-metrics": ["", "stray", "--listen", "--listen 0.0.0.0:1", "--tenants 129", "-x"],
    "fabench": ["", "nonsense", "wire nonsense", "--seconds 0 wire", "--seconds x wire", "--seconds 3601 wire",
                "--socket", "--socket /none restart", "-x"],
    "fabench-pool": ["stray", "-x"],
    "check": ["stray", "--jobs", "--draw 5", "-x"],
    "quickstart": ["stray", "--jobs", "-x"],
    "install-deps": ["-x"],
    "install-nvcc": ["stray", "-x"],
    "run-tests": ["--logs", "-x"],
    "gpu-bundle": ["", "-x"],
    "all.py": ["-x"],
    "profiles.py": ["", "-x"],
    "results.py": ["", "stray", "-x"],
}
STATUSES = {"fad.8": {0, 1, 2, 75}, "factl.1": {0, 1, 2, 3}, "fabench.1": {0, 1, 2}}

failed = False


def check(condition, what):
    global failed
    if not condition:
        print("FAILED:", what)
        failed = True


def run(program, *arguments):
    done = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60)
    return done.returncode, done.stdout, done.stderr


def check_program(program):
    name = os.path.basename(program)
    helps = [run(program, option) for option in ("-h", "--help")]
    check(helps[0] == helps[1], f"{name} -h and --help differ")
    status, out, error = helps[0]
    check(status == 0 and out.strip() and not error, f"{name} -h: status {status}, says {error!r}")
    for arguments in ["--no-such-option", *WRONG[name]]:
        status, out, error = run(program, *arguments.split())
        check(status == 2, f"{name} {arguments}: status {status}, expected 2")
        check(error.strip() and not out, f"{name} {arguments}: it says {error!r}, and on stdout {out!r}")


def check_page(path, expected):
    with open(path, encoding="utf-8") as file:
        section = file.read().split(".Sh EXIT STATUS\n")[1].split("\n.Sh ")[0]
    found = {int(status) for status in re.findall(r"^\.It (\d+)$", section, re.MULTILINE)}
    check(found == expected, f"{os.path.basename(path)} has the statuses {found}, expected {expected}")


def main():
    source, *programs = sys.argv[1:]
    scripts = ["check", "quickstart", "packaging/install-deps", "packaging/install-nvcc",
               "packaging/run-tests", "packaging/gpu-bundle", "bench/all.py", "bench/profiles.py",
               "bench/results/results.py"]
    programs += [os.path.join(source, script) for script in scripts]
    check({os.path.basename(program) for program in programs} | {"fad-metrics"} == set(WRONG),
          "a program has no row")
    for program in programs:
        check_program(program)
    for name, expected in STATUSES.items():
        check_page(os.path.join(source, "packaging/man", name), expected)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
