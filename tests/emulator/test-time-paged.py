#!/usr/bin/env python3
"""
Checks on the emulator, with small sizes, that bench/time-paged accepts what bench/all.py asks of it,
prints rows with the names and peers that targets need, and finds its results right.
    test-time-paged.py TIME_PAGED ALL.PY
"""
import importlib.util
import json
import re
import subprocess
import sys

# Peers of each part's rows.
PEERS = {
    "decode": {"bare", "sm80"},
    "codes": {"bare", "bf16", "sm80"},
    "shared": {"bare", "unshared", "singles"},
    "deterministic": {"bare", "usual"},
    "own": {"pool"},
    "copies": {"copy"},
    "prefill": {"sm80", "dense"},
    "append": {"copy"},
}
NAME = re.compile(r"((decode|extend|prefill)-own|decode(-shared|-deterministic)?|append|copies)/bf16(-(e4m3|int8)(-heads)?)?/[a-z0-9-]+"
                  r"-h\d+\.\d+-d\d+-p\d+(-q\d+)?/[a-z-]+|prefill/bf16/b\d+-s\d+-h\d+\.\d+-d\d+-p\d+/causal")


def measure(program, *options):
    said = json.loads(subprocess.run([program, "--json", "--quick", *options], stdout=subprocess.PIPE,
                                     check=True, timeout=600).stdout)
    assert said["device"] == "emulator", said
    for row in said["results"]:
        assert NAME.fullmatch(row["name"]), row
        assert row["value"] > 0 and row["ratio"] >= 0 and row["unit"] in ("us", "GB/s", "TFLOP/s"), row
    keys = [(row["name"], row["peer"]) for row in said["results"]]
    assert len(set(keys)) == len(keys), keys
    return keys


def main():
    program, path = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("all", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)

    few = ("--heads", "8", "--kv-heads", "2", "--samples", "2")
    parts = {part: measure(program, "--only", part, *few) for part in PEERS}
    for part, keys in parts.items():
        assert {peer for _, peer in keys} == PEERS[part], (part, keys)
    stores = {name.split("/")[1] for name, _ in parts["codes"]}
    assert stores == {"bf16-e4m3", "bf16-e4m3-heads", "bf16-int8", "bf16-int8-heads"}, stores
    # Without --only: the usual three.
    keys = measure(program, *few)
    assert sorted(keys) == sorted(parts["decode"] + parts["prefill"] + parts["append"]), keys

    # Some shapes alone; and for a profiler each once, by its name alone.
    some = measure(program, "--only", "decode", "--shapes", "b2-c*", *few)
    assert some and some == [key for key in parts["decode"] if "/b2-c" in key[0]], some
    for part, keys in parts.items():
        said = json.loads(subprocess.run([program, "--profile", "--quick", "--only", part, *few], check=True,
                                         stdout=subprocess.PIPE, timeout=600).stdout)
        names = list(dict.fromkeys(name for name, _ in keys if not name.endswith("/rate")))
        assert said["results"] == [{"name": name} for name in names], (said, names)

    # The commands of all.py with all their options but --json and the number of samples.
    asked = set()
    for _, _, commands in bench.PARTS:
        for command in commands:
            if command[0] != bench.TIME_PAGED[0]:
                continue
            asked.add(command[command.index("--only") + 1])
            if not asked & {"codes", "shared", "deterministic"}:
                assert measure(program, *command[2:], "--samples", "1"), command
    assert {"decode", "codes", "shared", "deterministic", "prefill"} <= asked, asked

    for wrong in (["--only", "all"], ["--store", "fp8"], ["--samples", "0"], ["--page"], ["--what", "1"]):
        said = subprocess.run([program, *wrong], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        assert said.returncode == 2 and wrong[0].encode() in said.stderr, (wrong, said)


if __name__ == "__main__":
    main()
