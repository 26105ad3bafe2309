#!/usr/bin/env python3
"""The CPU kernels against PyTorch's scaled_dot_product_attention, on the same threads.

    bench/cpu.py --fabench PATH [--only PATTERN] [--rounds N]

For each result of `fabench cpu` whose name matches, fabench and PyTorch run in turn, --rounds
times; the medians count. Prints a JSON document of results whose peer is "torch", for
results.py keep. PyTorch gets contiguous tensors [batch, heads, tokens, dim], in whichever of its
three forms is the fastest: heads grouped by itself, expanded, or, in decode, as rows of one head.
oneDNN's use of AMX is off (ONEDNN_MAX_CPU_ISA), as the kernels have none.
"""
import argparse
import fnmatch
import json
import os
import re
import statistics
import subprocess
import sys
import time

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import torch.nn.functional as F

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NAME = re.compile(r"cpu/(?P<dtype>\w+)/d(?P<dim>\d+)-h(?P<heads>\d+)(\.(?P<kv_heads>\d+))?"
                  r"(-s(?P<square>\d+))?(-q(?P<q>\d+))?(-c(?P<keys>\d+))?(-p(?P<page>\d+))?"
                  r"/(?P<kind>\w+)")
SECONDS = 0.2  # seconds of samples in a round


def shape(name):
    found = NAME.fullmatch(name)
    if not found:
        raise SystemExit(f"cpu.py: the name {name} has no shape")
    numbers = {key: int(value) for key, value in found.groupdict().items()
               if value and key not in ("dtype", "kind")}
    keys = numbers.get("keys") or numbers["square"]
    queries = numbers.get("square") or numbers.get("q", 1)
    return (DTYPES[found["dtype"]], numbers["heads"], numbers.get("kv_heads", numbers["heads"]),
            numbers["dim"], queries, keys, found["kind"])


def forms(name):
    """Returns functions that compute the result's request, by the form's name."""
    dtype, heads, kv_heads, dim, queries, keys, kind = shape(name)
    group = heads // kv_heads
    q = torch.randn(1, heads, queries, dim).to(dtype)
    k, v = (torch.randn(1, kv_heads, keys, dim).to(dtype) for _ in range(2))
    made = {}
    if kind in ("full", "causal"):
        made["sdpa"] = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=kind == "causal")
        return made
    mask = None
    if kind == "extend":
        mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    if group == 1:
        made["sdpa"] = lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return made
    made["grouped"] = lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask,
                                                             enable_gqa=True)
    made["expanded"] = lambda: F.scaled_dot_product_attention(
        q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), attn_mask=mask)
    rows = q.view(1, kv_heads, group * queries, dim)
    of_rows = mask.repeat(group, 1) if mask is not None else None
    made["rows"] = lambda: F.scaled_dot_product_attention(rows, k, v, attn_mask=of_rows)
    return made


def samples(run):
    run()
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def work(name, unit):
    """Returns the request's bytes or FLOP, as fabench counts them."""
    dtype, heads, kv_heads, dim, queries, keys, kind = shape(name)
    if unit == "GB/s":
        return 2 * keys * kv_heads * dim * dtype.itemsize
    pairs = queries * keys
    if kind in ("causal", "extend"):
        pairs -= queries * (queries - 1) // 2
    return 4 * heads * dim * pairs


def fabench(arguments, name):
    command = [arguments.fabench, "cpu", "--json", "--only", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"cpu.py: fabench failed: {done.stderr.strip()}")
    return json.loads(done.stdout)["results"]


def names(arguments):
    command = [arguments.fabench, "cpu", "--json", "--list"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [name for name in done.stdout.split() if fnmatch.fnmatch(name, arguments.only)]


def race(arguments, name):
    ours, theirs, of_form = [], [], {}
    result = None
    made = forms(name)
    for _ in range(arguments.rounds):
        found = [x for x in fabench(arguments, name) if x["name"] == name and x["unit"] != "ms"]
        result = found[0]
        ours.append(result["value"])
        for form, run in made.items():
            of_form.setdefault(form, []).extend(samples(run))
    medians = {form: statistics.median(times) for form, times in of_form.items()}
    best = min(medians, key=medians.get)
    theirs = work(name, result["unit"]) / medians[best] * 1e-9
    value = statistics.median(ours)
    print(f"{name}: {value:.4g} {result['unit']}, {value / theirs:.3f} of torch ({best})",
          file=sys.stderr)
    return {**result, "value": value, "peer": "torch", "ratio": value / theirs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fabench", required=True)
    parser.add_argument("--only", default="cpu/*")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    results = [race(arguments, name) for name in names(arguments)]
    if not results:
        raise SystemExit(f"cpu.py: no result matches {arguments.only}")
    print(json.dumps({"command": " ".join(["bench/cpu.py", *sys.argv[1:]]),
                      "results": results}, indent=1))


if __name__ == "__main__":
    main()
