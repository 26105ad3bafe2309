#!/usr/bin/env python3
"""Compiles a file of device code to a fatbin. Fails if a kernel spills, uses local memory, or
loses setmaxnreg or asynchronous wgmma to ptxas.

    compile.py [--unchecked | --tolerant] --depfile FILE --resources FILE --output FILE NVCC ARGUMENT...

ARGUMENTs go to nvcc. --resources: writes a table of registers, shared memory and spills per
kernel. --unchecked: for device code that is not shipped. --tolerant: for compilers that the kernels are
not tuned with: what makes a kernel slow, but not wrong, is a warning.
"""

import argparse
import re
import subprocess
import sys

# Warnings of ptxas that are errors here: setmaxnreg ignored, wgmma serialised.
LOSSES = re.compile(r"\((C7508|C751[0-4]|C7520)\)")

COMPILING = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
BYTES = re.compile(r"(\d+) bytes (smem|lmem|cumulative stack size)")
CODE = re.compile(r"\bsm_\w+")


class Kernel:
    def __init__(self, name, arch):
        self.name, self.arch = name, arch
        self.registers = self.stack = self.stores = self.loads = None
        self.bytes = {"smem": 0, "lmem": 0, "cumulative stack size": 0}

    def is_reported(self):
        return None not in (self.registers, self.stack)

    def losses(self):
        local = max(self.stack, self.bytes["lmem"], self.bytes["cumulative stack size"])
        losses = []
        if self.stores or self.loads:
            losses.append(f"spills {self.stores} bytes of stores, {self.loads} bytes of loads")
        if local:
            losses.append(f"uses {local} bytes of local memory")
        return losses


def read(report):
    kernels = []
    for line in report.splitlines():
        if match := COMPILING.search(line):
            kernels.append(Kernel(*match.groups()))
        if not kernels:
            continue
        if match := MEMORY.search(line):
            # Functions that a kernel calls follow it; the largest value counts.
            kernel, values = kernels[-1], map(int, match.groups())
            kernel.stack, kernel.stores, kernel.loads = (
                max(old or 0, new)
                for old, new in zip((kernel.stack, kernel.stores, kernel.loads), values)
            )
        if match := REGISTERS.search(line):
            kernels[-1].registers = int(match.group(1))
            for number, kind in BYTES.findall(line):
                kernels[-1].bytes[kind] = int(number)
    return kernels


def check(report, wanted):
    """Returns the faults of a report, and what makes kernels slow; @wanted: the architectures that
    it must have."""
    kernels = read(report)
    faults = [
        f"{k.name} ({k.arch}) is missing in the report of ptxas"
        for k in kernels
        if not k.is_reported()
    ]
    faults += [
        f"no kernel was compiled for {arch}" for arch in sorted(wanted - {k.arch for k in kernels})
    ]
    losses = [f"{k.name} ({k.arch}) {x}" for k in kernels if k.is_reported() for x in k.losses()]
    losses += [line.strip() for line in report.splitlines() if LOSSES.search(line)]
    return faults, losses


def table(kernels):
    lines = [f"{'kernel':48} {'arch':8} {'registers':>9} {'shared':>7} {'spills':>7}"]
    for k in kernels:
        spills = (k.stores or 0) + (k.loads or 0)
        lines.append(
            f"{k.name:48} {k.arch:8} {k.registers or 0:9} {k.bytes['smem']:7} {spills:7}"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unchecked", action="store_true")
    parser.add_argument("--tolerant", action="store_true")
    parser.add_argument("--depfile", required=True)
    parser.add_argument("--resources", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("nvcc")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()

    # Only device code is compiled: any host compiler that can preprocess will do.
    run = subprocess.run(
        [args.nvcc, "-fatbin", "-Xfatbin", "-compress-all", "-allow-unsupported-compiler", "-Xptxas", "-v", "-MD", "-MF",
         args.depfile, "-o", args.output, *args.arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    if run.returncode:
        sys.exit(run.stdout + f"{args.nvcc} failed with {run.returncode}")
    kernels = read(run.stdout)
    with open(args.resources, "w", encoding="utf-8") as file:
        file.write(table(kernels))
    # Other warnings.
    for line in run.stdout.splitlines():
        if "warning" in line and not LOSSES.search(line):
            print(line)
    if args.unchecked:
        return
    wanted = {
        arch
        for before, argument in zip(args.arguments, args.arguments[1:])
        if before == "-gencode"
        for arch in CODE.findall(argument)
    }
    faults, losses = check(run.stdout, wanted)
    if args.tolerant:
        for loss in losses:
            print(f"warning: {loss}")
    else:
        faults += losses
    if faults:
        sys.exit("\n".join(["this device code must not be shipped:", *faults]))


if __name__ == "__main__":
    main()
