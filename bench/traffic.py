#!/usr/bin/env python3
"""
Times fad's dense attention kernels on the shapes of real traffic, against the same peers and in the
same way as bench/race.py (boost state): prompts of one sequence, and extends, which are few new
tokens behind many keys. A row's value is our time in us; its ratio is a peer's time over ours.
"best" is the fastest peer of the cell.

  prompt   one sequence of 256 to 4,096 tokens, causal
  extend   16 to 2,048 new tokens; the last of 8k, 32k and 128k keys is the last new token's
  ragged   about 16,384 tokens in sequences of unequal lengths, drawn from a log-normal or a Zipf
           distribution, and new tokens of unequal contexts
  sinks    prompts with attention sinks; the peer is the same without
  mla-plain  prompts and extends of MLA in plain form: 192 columns of Q and K, 128 of V
"""
import argparse
import ctypes
import datetime
import itertools
import json
import math
import random
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
# heads, KV heads, head dim, how lengths are drawn, seed
RAGGED = [(32, 8, 128, "lognormal", 1), (32, 8, 128, "lognormal", 2), (32, 8, 128, "zipf", 1),
          (8, 8, 128, "lognormal", 3), (32, 32, 128, "lognormal", 1), (64, 8, 64, "lognormal", 1),
          (16, 8, 256, "lognormal", 1), (32, 8, 128, "contexts", 1), (4, 1, 128, "contexts", 2)]
# heads, KV heads, head dim, tokens, window
SINKS = [(64, 8, 64, 1024, None), (64, 8, 64, 4096, None), (64, 8, 64, 4096, 128),
         (64, 8, 64, 16384, 128), (32, 8, 128, 4096, None)]
# The same, with DIMS_V columns of V.
MLA_PLAIN = [(heads, heads, 192, n, n) for heads, n in (
    (16, 1024), (16, 2048), (16, 4096), (16, 8192), (16, 16384), (128, 1024), (128, 4096))]
MLA_PLAIN += [(heads, heads, 192, n_q, n_k)
              for heads, n_k, n_q in itertools.product((16, 128), (8192, 32768), (64, 512, 2048))]
DIMS_V = {192: 128}


def draw_lengths(how, seed):
    """Returns the numbers of new tokens and of keys of each sequence."""
    rng = random.Random(seed)
    if how == "zipf":
        n_k = [max(64, 6144 // rank) for rank in range(1, 25)]
        rng.shuffle(n_k)
        return n_k, n_k
    if how == "contexts":
        n_q = [min(1024, round(rng.lognormvariate(math.log(96), 1))) for _ in range(24)]
        return n_q, [n + round(rng.lognormvariate(math.log(3000), 0.7)) for n in n_q]
    n_k = []
    while sum(n_k) < 16384:
        n_k.append(max(16, round(rng.lognormvariate(math.log(700), 0.8))))
    return n_k, n_k


class Cell(race.Cell):
    def __init__(self, part, dtype, heads, kv_heads, dim, n_q, n_k):
        dim_v = DIMS_V.get(dim, dim)
        super().__init__(dtype, dim, n_k, "causal", heads, kv_heads, tokens=n_k, dim_v=dim_v)
        dims = dim if dim_v == dim else f"{dim}.{dim_v}"
        self.name = f"{part}/{dtype}/h{heads}.{kv_heads}-d{dims}-q{n_q}-k{n_k}/causal"
        self.n_k, self.seqlen = n_k, n_q
        self.sets = [(q[:, :, :n_q].transpose(1, 2).contiguous().transpose(1, 2), k, v)
                     for q, k, v in self.sets]
        self.out = self.out[:, :, :n_q].transpose(1, 2).contiguous().transpose(1, 2)
        for params, (q, _, _) in zip(self.params, self.sets):
            params.seqlen_q, params.q, params.out = n_q, race.view(q), race.view(self.out)

    def naive(self, i, rows):
        q, k, v = self.sets[i]
        want = torch.empty((1, self.heads, len(rows), self.dim_v), device="cuda")
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

    def beside(self, gpu):
        """Returns the fastest of our kernels that take one head's rows at a time."""
        found = {}
        for kernel in gpu.kernels:
            name = kernel.symbol.decode()
            fits = kernel.keys and (kernel.dim, kernel.dim_v) == (self.dim, self.dim_v)
            launch = self.ours(gpu, kernel) if fits else None
            if launch and name.endswith(("band", "band_few", "band_short")):
                found[name] = launch
        found = self.correct_peers(found)
        times = race.boost(gpu, found, 3)
        return {"unpacked": found[min(found, key=times.get)]} if found else {}


class Ragged(race.Cell):
    """sets[i] is q, k, v, each [1, heads or kv_heads, all tokens, dim]."""

    def __init__(self, _, dtype, heads, kv_heads, dim, how, seed):
        self.n_q, self.n_k = draw_lengths(how, seed)
        code, torch_dtype = race.DTYPES[dtype]
        total_q, total_k = sum(self.n_q), sum(self.n_k)
        self.name = (f"ragged/{dtype}/h{heads}.{kv_heads}-d{dim}-n{len(self.n_q)}-q{total_q}"
                     f"-k{total_k}-max{max(self.n_k)}/{how}")
        self.dtype, self.dim, self.heads, self.kv_heads = dtype, dim, heads, kv_heads
        self.causal, self.window, self.softcap, self.alibi, self.mask = True, None, 0, None, "causal"
        self.scale = dim ** -0.5
        make = lambda n, heads: torch.randn((1, n, heads, dim), device="cuda",
                                            dtype=torch_dtype).transpose(1, 2)
        self.sets = [(make(total_q, heads), make(total_k, kv_heads), make(total_k, kv_heads))
                     for _ in range(self.SETS)]
        self.out = make(total_q, heads)
        starts = [list(itertools.accumulate(n, initial=0)) for n in (self.n_q, self.n_k)]
        self.cu_q, self.cu_k = (torch.tensor(n, dtype=torch.int32, device="cuda") for n in starts)
        self.starts = [(ctypes.c_uint32 * len(n))(*n) for n in starts]
        addresses = [ctypes.addressof(n) for n in self.starts]
        self.params = [race.Params(dtype=code, batch=len(self.n_q), heads=heads, kv_heads=kv_heads,
                                   head_dim=dim, head_dim_v=dim, seqlen_q=max(self.n_q),
                                   seqlen_k=max(self.n_k), cu_seqlens_q=addresses[0],
                                   cu_seqlens_k=addresses[1], q=race.view(q), k=race.view(k),
                                   v=race.view(v), out=race.view(self.out), scale=self.scale,
                                   causal=True, window_left=-1, window_right=-1)
                       for q, k, v in self.sets]

    def check_rows(self, name, i, result, count=256):
        assert torch.isfinite(result).all(), f"{name}, set {i}: not every element is finite"
        q, k, v = (x[0].float() for x in self.sets[i])
        group = self.heads // self.kv_heads
        for b, (n_q, n_k) in enumerate(zip(self.n_q, self.n_k)):
            rows = torch.unique(torch.cat([torch.tensor([0, n_q - 1]),
                                           torch.randint(n_q, (16,))])).cuda()
            keys = slice(self.starts[1][b], self.starts[1][b] + n_k)
            at = rows + self.starts[0][b]
            logits = self.scale * (q[:, at] @
                                   k[:, keys].repeat_interleave(group, 0).transpose(1, 2))
            hidden = torch.arange(n_k, device="cuda") > (rows + n_k - n_q)[:, None]
            want = logits.masked_fill(hidden, float("-inf")).softmax(-1)
            want = want @ v[:, keys].repeat_interleave(group, 0)
            error = (result[0, :, at].float() - want).norm(dim=-1) / want.norm(dim=-1)
            assert error.max() < 2e-2, f"{name}, set {i}, sequence {b}: wrong by {error.max():.3f}"

    def torch_peers(self, cudnn):
        """Each peer takes its tensors as it wants them, as bench/peers does."""
        return {}

    def beside(self, gpu):
        return {}


class Sinks(race.Cell):
    def __init__(self, _, dtype, heads, kv_heads, dim, seqlen, window):
        mask = f"window{window}" if window else "causal"
        super().__init__(dtype, dim, seqlen, mask, heads, kv_heads)
        self.plain = [race.Params.from_buffer_copy(params) for params in self.params]
        self.sinks = torch.randn(heads, device="cuda") * 3
        for params in self.params:
            params.sinks = self.sinks.data_ptr()
        self.name = f"sinks/{dtype}/h{heads}.{kv_heads}-d{dim}-s{seqlen}/{mask}"

    def naive(self, i, rows):
        q, k, v = self.sets[i]
        k, v = (x.repeat_interleave(self.heads // self.kv_heads, 1) for x in (k, v))
        logits = self.scale * (q[:, :, rows].float() @ k.float().transpose(2, 3))
        distance = torch.arange(self.seqlen, device="cuda") - rows[:, None]
        logits.masked_fill_(distance > 0, float("-inf"))
        if self.window:
            logits.masked_fill_(distance < -self.window[0], float("-inf"))
        sink = self.sinks[None, :, None, None].expand(*logits.shape[:3], 1)
        return torch.cat([logits, sink], -1).softmax(-1)[..., :-1] @ v.float()

    def torch_peers(self, cudnn):
        return {}

    def beside(self, gpu):
        """Returns the same without sinks; it is checked where it is a cell of bench/race.py."""
        launches = [gpu.planned(params) for params in self.plain]
        return {"plain": lambda i: launches[i]()}


PARTS = {"prompt": (Cell, PROMPTS), "extend": (Cell, EXTENDS), "ragged": (Ragged, RAGGED),
         "sinks": (Sinks, SINKS), "mla-plain": (Cell, MLA_PLAIN)}


def title(shape):
    heads, kv_heads, dim, *rest = shape
    rest = f"q{rest[0]}-k{rest[1]}" if isinstance(rest[0], int) else "".join(map(str, rest))
    return f"h{heads}.{kv_heads}-d{dim}-{rest}"


def rows_of(cell, times, best, device, commit):
    ours = times["fad"]
    peers = {name: name for name in times if name != "fad"}
    if best:
        peers["best"] = best
    fa3 = [name for name in times if name.startswith("fa3-")]
    if fa3 and cell.name.startswith("mla-plain"):
        peers["fa3"] = min(fa3, key=times.get)
    for peer, name in peers.items():
        yield {"name": cell.name, "value": round(ours * 1e6, 2), "unit": "us", "peer": peer,
               "ratio": round(times[name] / ours, 3), "commit": commit, "device": device}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="build/tests/gpu/libfagpu.so")
    parser.add_argument("--peers", action="append", default=[], metavar="FILE.py",
                        help="more contestants, as in race.py")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16"))
    parser.add_argument("--cells", metavar="TEXT,...", help="only cells with one of these in "
                        "h..-d..-q..-k.., or h..-d..-lognormal1")
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
        kind, shapes = PARTS[part]
        for shape in shapes:
            if args.cells and not any(text in title(shape) for text in args.cells.split(",")):
                continue
            cell = kind(part, args.dtype, *shape)
            ours = cell.ours(gpu)
            cell.check("fad", ours)
            peers = cell.correct_peers(cell.torch_peers(True))
            for contestants in more_peers if part != "sinks" else ():
                peers.update(cell.correct_peers(contestants(cell)))
            beside = cell.beside(gpu)
            times = race.boost(gpu, {"fad": ours, **peers, **beside}, args.samples)
            best = min(peers, key=times.get) if peers else None
            line = [f"{cell.name:46s} {times['fad'] * 1e6:8.1f} us"]
            line += [f"{name} {times[name] * 1e6:.1f} ({times[name] / times['fad']:.3f})"
                     for name in times if name != "fad"]
            print("  ".join(line), flush=True)
            results += rows_of(cell, times, best, device, args.commit)
            del cell, ours, peers, beside
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
