#!/usr/bin/env python3
"""
Times fad's dense attention kernels on the shapes of real traffic, against the same peers and in the
same way as bench/race.py (boost state): prompts of one sequence, and extends, which are few new
tokens behind many keys. A row's value is our time in us; its ratio is a peer's time over ours.
"best" is the fastest peer of the cell.

  prompt   one sequence of 256 to 4,096 tokens, causal
  extend   16 to 2,048 new tokens; the last of 8k, 32k and 128k keys is the last new token's
"""
import argparse
import datetime
import itertools
import json
import shlex
import statistics
import sys

import torch

import race

PROMPTS = [(heads, kv_heads, 128, n, n)
           for heads, kv_heads in ((32, 8), (8, 8), (64, 8)) for n in (256, 512, 1024, 2048, 4096)]
PROMPTS += [(32, 8, 64, 512, 512), (32, 8, 64, 2048, 2048), (16, 8, 256, 1024, 1024)]
EXTENDS = [(heads, kv_heads, 128, n_q, n_k)
           for (heads, kv_heads), n_k, n_q in itertools.product(
               ((32, 8), (4, 1)), (8192, 32768, 131072), (16, 64, 128, 512, 2048))]
EXTENDS += [(32, 8, 64, 64, 32768), (64, 8, 64, 512, 8192), (16, 8, 256, 64, 32768),
            (40, 8, 128, 64, 32768), (32, 32, 128, 64, 8192)]
PARTS = {"prompt": PROMPTS, "extend": EXTENDS}


class Cell(race.Cell):
    def __init__(self, part, dtype, heads, kv_heads, dim, n_q, n_k):
        super().__init__(dtype, dim, n_k, "causal", heads, kv_heads, tokens=n_k)
        self.name = f"{part}/{dtype}/h{heads}.{kv_heads}-d{dim}-q{n_q}-k{n_k}/causal"
        self.n_k, self.seqlen = n_k, n_q
        self.sets = [(q[:, :, :n_q].transpose(1, 2).contiguous().transpose(1, 2), k, v)
                     for q, k, v in self.sets]
        self.out = self.out[:, :, :n_q].transpose(1, 2).contiguous().transpose(1, 2)
        for params, (q, _, _) in zip(self.params, self.sets):
            params.seqlen_q, params.q, params.out = n_q, race.view(q), race.view(self.out)

    def naive(self, i, rows):
        q, k, v = self.sets[i]
        want = torch.empty((1, self.heads, len(rows), self.dim), device="cuda")
        group = self.heads // self.kv_heads
        distance = torch.arange(self.n_k, device="cuda") - (rows + self.n_k - self.seqlen)[:, None]
        for head in range(self.heads):
            logits = self.scale * (q[0, head, rows].float() @ k[0, head // group].float().T)
            logits.masked_fill_(distance > 0, float("-inf"))
            want[0, head] = logits.softmax(-1) @ v[0, head // group].float()
        return want

    def torch_peers(self, cudnn):
        # Their causal masks begin at the first key.
        return super().torch_peers(cudnn) if self.n_k == self.seqlen else {}

    def unpacked(self, gpu):
        """Returns the fastest of our kernels that take one head's rows at a time."""
        found = {}
        for kernel in gpu.kernels:
            name = kernel.symbol.decode()
            launch = self.ours(gpu, kernel) if kernel.dim == self.dim and kernel.keys else None
            if launch and name.endswith(("band", "band_short")):
                found[name] = launch
        return found


def rows_of(cell, times, best, device, commit):
    ours = times["fad"]
    for name, seconds in times.items():
        if name != "fad":
            yield {"name": cell.name, "value": round(ours * 1e6, 2), "unit": "us", "peer": name,
                   "ratio": round(seconds / ours, 3), "commit": commit, "device": device}
    if best:
        yield {"name": cell.name, "value": round(ours * 1e6, 2), "unit": "us", "peer": "best",
               "ratio": round(times[best] / ours, 3), "commit": commit, "device": device}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="build/tests/gpu/libfagpu.so")
    parser.add_argument("--peers", action="append", default=[], metavar="FILE.py",
                        help="more contestants, as in race.py")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16"))
    parser.add_argument("--samples", type=int, default=14)
    parser.add_argument("--commit", default="?", help="commit of the library")
    parser.add_argument("--json")
    args = parser.parse_args()
    gpu = race.Gpu(args.library)
    more_peers = [race.load_peers(path) for path in args.peers]
    device, cudnn = torch.cuda.get_device_name(), torch.backends.cudnn.version()
    print(f"{device}, torch {torch.__version__}, cuDNN {cudnn}")
    results = []
    for part in args.parts.split(","):
        for shape in PARTS[part]:
            cell = Cell(part, args.dtype, *shape)
            ours = cell.ours(gpu)
            cell.check("fad", ours)
            peers = cell.correct_peers(cell.torch_peers(True))
            for contestants in more_peers:
                peers.update(cell.correct_peers(contestants(cell)))
            unpacked = cell.correct_peers(cell.unpacked(gpu))
            times = race.boost(gpu, {"fad": ours, **peers, **unpacked}, args.samples)
            if unpacked:
                name = min(unpacked, key=times.get)
                times["unpacked"] = times[name]
                for other in unpacked:
                    del times[other]
            best = min(peers, key=times.get) if peers else None
            line = [f"{cell.name:46s} {times['fad'] * 1e6:8.1f} us"]
            line += [f"{name} {times[name] * 1e6:.1f} ({times[name] / times['fad']:.3f})"
                     for name in times if name != "fad"]
            print("  ".join(line), flush=True)
            results += rows_of(cell, times, best, device, args.commit)
            del cell, ours, peers, unpacked
    for part in args.parts.split(","):
        ratios = [row["ratio"] for row in results
                  if row["peer"] == "best" and row["name"].startswith(part)]
        if ratios:
            print(f"{part}/best: min {min(ratios):.3f}, geometric mean "
                  f"{statistics.geometric_mean(ratios):.3f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"command": shlex.join(["bench/traffic.py", *sys.argv[1:]]),
                       "machine": f"{device}, torch {torch.__version__}, cuDNN {cudnn}",
                       "date": datetime.date.today().isoformat(), "results": results},
                      file, indent=1)


if __name__ == "__main__":
    main()
