#!/usr/bin/env python3
"""
What the KV cache is measured by on a GPU, in one run: its kernels beside what bounds them
(bench/time-paged: decode beside a bare read and beside every --peer, prefill beside the
dense kernels, append beside a copy), and the time from a daemon's death to the next answer
over a pool of 64 GiB (bin/fabench restart). Run in the GPU bundle, as bench/kv.py; prints
a line a number, and --json FILE writes what bench/results/results.py keeps.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys

BUNDLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
TIME_PAGED = "bench/time-paged"
PROGRAMS = ([TIME_PAGED, "--json"], ["bin/fabench", "restart", "--json"])


def measure(bundle, command):
    output = subprocess.run([os.path.join(bundle, command[0]), *command[1:]],
                            stdout=subprocess.PIPE, check=False)
    if output.returncode:
        sys.exit(f"{' '.join(command)}: status {output.returncode}")
    return json.loads(output.stdout)


def run(programs, name, description):
    """Runs each of @programs, and keeps what they say as if @name had said it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default=BUNDLE, help="where bin/ and bench/ are (default: beside this)")
    if any(command[0] == TIME_PAGED for command in programs):
        parser.add_argument("--peer", metavar="LIBRARY[:NAME]", action="append", default=[],
                            help="other kernels for decode, see bench/kernels/peer.h")
        parser.add_argument("--store", metavar="NAME", action="append", default=[],
                            help="decode over pages of codes as well: e4m3, int8, e4m3-heads, int8-heads")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()

    device, results = "", []
    stores = [[TIME_PAGED, "--json", "--only", "decode", "--store", name]
              for name in getattr(args, "store", [])]
    for command in [*programs, *stores]:
        if command[0] == TIME_PAGED and command not in stores:
            command = [*command, *(word for peer in args.peer for word in ("--peer", peer))]
        said = measure(args.bundle, command)
        device = device or said.get("device", "")
        for result in said["results"]:
            result.setdefault("commit", "")
            result.setdefault("device", device)
            results.append(result)
            peer = f"{result['ratio']:.3f} of {result['peer']}" if result.get("peer") else ""
            print(f"{result['name']:<52} {result['value']:10.4g} {result['unit']:<8} {peer}", flush=True)
    if args.json:
        recorded = {
            "command": name,
            "machine": device,
            "date": datetime.date.today().isoformat(),
            "results": results,
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(recorded, file, indent=1, ensure_ascii=False)
            file.write("\n")


if __name__ == "__main__":
    run(PROGRAMS, "bench/kv.py", __doc__)
