#!/usr/bin/env python3
"""
Measures the KV cache on a GPU: its kernels against what bounds them (bench/time-paged: decode
against a bare read and every --peer, prefill against the dense kernels, append against a copy),
and the time from a daemon's death to the next answer with a pool of 64 GiB (bin/fabench restart).
Runs in the GPU bundle, as bench/kv.py. Prints one line per number; --json FILE writes the input
of bench/results/results.py keep.
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
    """Runs @programs, and writes their results under @name."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default=BUNDLE, help="directory of bin/ and bench/ (default: that of this script)")
    if any(command[0] == TIME_PAGED for command in programs):
        parser.add_argument("--peer", metavar="LIBRARY[:NAME]", action="append", default=[],
                            help="other kernels for decode, see bench/kernels/peer.h")
        parser.add_argument("--store", metavar="NAME", action="append", default=[],
                            help="also decode over pages of codes: e4m3, int8, e4m3-heads, int8-heads")
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
