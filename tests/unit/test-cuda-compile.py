#!/usr/bin/env python3
"""kernels/cuda/compile.py lets good device code pass and nothing else: with a compiler
that writes the reports which nvcc writes.

    test-cuda-compile.py COMPILE
"""

import os
import subprocess
import sys
import tempfile

GOOD = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'fa_one' for 'sm_80'
ptxas info    : Function properties for fa_one
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 250.672 ms
ptxas info    : Compiling entry function 'fa_one' for 'sm_90'
ptxas info    : Function properties for fa_one
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers
"""
PROPERTIES = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
LOSS = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain ...\n"
CALLED = "ptxas info    : Function properties for fa_called\n"

# (what, the compiler's report, what must be said; None: it passes)
CASES = [
    ("good", GOOD, None),
    ("another warning", "ptxas warning : something else\n" + GOOD, None),
    ("spill", GOOD.replace("0 bytes spill stores", "8 bytes spill stores", 1), "fa_one (sm_80) spills 8"),
    ("reload", GOOD.replace("0 bytes spill loads", "4 bytes spill loads", 1), "fa_one (sm_80) spills"),
    ("stack", GOOD.replace("0 bytes stack", "16 bytes stack", 1), "16 bytes of local memory"),
    ("local memory", GOOD.replace("cmem[0]", "cmem[0], 24 bytes lmem"), "24 bytes of local memory"),
    ("called function", GOOD + CALLED + PROPERTIES.replace("0 bytes stack", "32 bytes stack"),
     "fa_one (sm_90) uses 32 bytes"),
    ("setmaxnreg", LOSS + GOOD, "C7508"),
    ("serialised", GOOD + LOSS.replace("C7508", "C7510"), "C7510"),
    ("serialised by a path", GOOD + LOSS.replace("C7508", "C7520"), "C7520"),
    ("serialised too", GOOD + LOSS.replace("C7508", "C7514").replace("info", "warning"), "C7514"),
    ("no report", "", "no kernel was compiled for sm_80"),
    ("half a report", GOOD[: GOOD.rindex("ptxas info    : Compiling")], "compiled for sm_90"),
    ("cut report", GOOD[: GOOD.rindex("ptxas info    : Used")], "is missing in the report of ptxas"),
]


def main():
    compile_py = sys.argv[1]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        def path(name):
            return os.path.join(folder, name)

        def run(report, status, *options):
            with open(path("report"), "w", encoding="utf-8") as file:
                file.write(report)
            with open(path("nvcc"), "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\ncat {path('report')} >&2\nexit {status}\n")
            os.chmod(path("nvcc"), 0o700)
            return subprocess.run(
                [compile_py, *options, "--depfile", path("d"), "--resources", path("r"),
                 "--output", path("o"), path("nvcc"),
                 "-gencode", "arch=compute_80,code=sm_80",
                 "-gencode", "arch=compute_90,code=[sm_90,compute_90]", "x.cu"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )

        def expect(what, ok, said):
            nonlocal failed
            print("ok" if ok else "FAILED", what)
            if not ok:
                failed += 1
                print(said)

        for what, report, want in CASES:
            done = run(report, 0)
            expect(what, done.returncode == 0 if want is None
                   else done.returncode == 1 and want in done.stdout, done.stdout)
            done = run(report, 0, "--unchecked")
            expect(f"{what}, unchecked", done.returncode == 0, done.stdout)
            done = run(report, 0, "--tolerant")
            is_fault = "report" in what
            expect(f"{what}, tolerant", done.returncode == is_fault and (want or "") in done.stdout,
                   done.stdout)
        done = run("x.cu(1): error: no\n", 2)
        expect("compiler fails", done.returncode == 1 and "error: no" in done.stdout, done.stdout)

        run(GOOD, 0)
        with open(path("r"), encoding="utf-8") as file:
            lines = [line.split() for line in file]
        expect("table", lines[1:] == [["fa_one", "sm_80", "255", "4096", "0"],
                                      ["fa_one", "sm_90", "128", "0", "0"]], lines)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
