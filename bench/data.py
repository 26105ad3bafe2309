#!/usr/bin/env python3
"""
Times fad's kernels on inputs that are not random, beside the same with random inputs, in the way of
bench/race.py (boost state). A row's value is the time in us; its ratio is that of random inputs over
it. bench/race.py --data does so on its own grid; here are the other kinds of kernels:

  dense   a prompt, extends and ragged batches over tensors (shapes of bench/traffic.py)
  paged   decode and extends over pages of bf16 and of 8-bit codes (as in bench/decode.py)

The kinds of data are those of bench/race.py. Results are compared with a naive computation in fp32,
but of codes only that they are finite: a key far above others leaves few codes to the others.
"""
import argparse
import datetime
import json
import shlex
import statistics
import sys

import torch

import decode
import race
import traffic

KINDS = ("random", "gain4", "gain8", "sink30", "sink100", "sink300", "peak100", "peak300",
         "ascending100", "ascending300", "descending100", "descending300")
# heads, KV heads, head dim, new tokens, keys
DENSE = [(32, 8, 128, 1024, 1024), (32, 8, 128, 64, 32768), (4, 1, 128, 512, 32768),
         (32, 8, 64, 64, 32768)]
RAGGED = [(32, 8, 128, "lognormal", 1), (32, 8, 128, "contexts", 1)]
# batch, context, heads, KV heads, page, new tokens, stores
PAGED = [(8, 4096, 32, 8, 64, 1, ("bf16", "e4m3", "e4m3-heads", "int8")),
         (1, 16384, 32, 8, 64, 1, ("bf16", "e4m3")),
         (8, 4096, 8, 1, 64, 4, ("bf16", "e4m3")),
         (1, 32768, 32, 8, 64, 64, ("bf16",)),
         (4, 4096, 32, 8, 64, 1024, ("bf16",))]


def nats_of(kind, size, n):
    """What is added to the logits of n keys; None: nothing."""
    nats = torch.zeros(n, device="cuda")
    if kind in ("sink", "peak"):
        nats[0 if kind == "sink" else n // 2] = size
    elif kind in ("ascending", "descending"):
        nats = torch.linspace(0, size, n, device="cuda")
        nats = nats.flip(0) if kind == "descending" else nats
    else:
        return None
    return nats


def shape(q, k, data, lengths, scale):
    """Changes inputs in place. q: [..., dim]; k: [tokens, KV heads, dim], of sequences of @lengths,
    one behind the other."""
    kind, size = race.DATA.fullmatch(data).groups()
    if kind == "gain":
        q *= int(size)
    nats = [nats_of(kind, int(size or 0), n) for n in lengths]
    if nats[0] is None:
        return
    q[..., 0] = 8
    k[..., 0] = (torch.cat(nats) / (8 * scale)).to(k.dtype)[:, None]


def dense_contestants(gpu, kind, shape_, kinds):
    """Returns the cells' name, and a launch for each kind of data."""
    part = "ragged" if kind is traffic.Ragged else "extend"
    launches, name = {}, None
    for data in kinds:
        cell = kind(part, "bf16", *shape_)
        name = name or cell.name
        lengths = cell.n_k if kind is traffic.Ragged else [cell.n_k]
        for q, k, _ in cell.sets:
            shape(q, k[0].transpose(0, 1), data, lengths, cell.scale)
        launches[data] = cell.ours(gpu)
        cell.check(data, launches[data])
    return name, launches


class PagedCell(decode.Cell):
    def __init__(self, *shape_, data):
        super().__init__(*shape_)
        keys = self.dense_k.flatten(0, 1)
        shape(self.q, keys, data, [self.context] * self.batch, self.scale)
        self.plain[0][self.table.flatten().long()] = keys.view(-1, self.page, self.kv_heads, self.dim)
        self.choose("bf16")


def paged_contestants(gpu, shape_, store, kinds):
    launches, name = {}, None
    for data in kinds:
        cell = PagedCell(*shape_, data=data)
        name = name or f"{'bf16' if store == 'bf16' else 'bf16-' + store}/{cell.shape}"
        bare, _, heads = store.partition("-")
        launch = decode.Ours(gpu, cell, bare, bool(heads))
        if store == "bf16":
            cell.check(launch, store)
        else:
            assert torch.isfinite(launch(0)).all(), f"{name}, {data}: not every element is finite"
        launches[data] = launch
    return name, launches


def rows_of(name, samples, device, commit):
    times = {data: statistics.median(values) for data, values in samples.items()}
    for data, seconds in times.items():
        if data != "random":
            yield {"name": f"data/{name}/{data}", "value": round(seconds * 1e6, 2), "unit": "us",
                   "peer": "random", "ratio": round(times["random"] / seconds, 3),
                   "spread": decode.spread(samples[data]), "commit": commit, "device": device}


def races(args):
    """Yields the name and the contestants of each race."""
    if "dense" in args.parts.split(","):
        gpu = race.Gpu(args.library)
        for kind, shapes in ((traffic.Cell, DENSE), (traffic.Ragged, RAGGED)):
            for shape_ in shapes:
                yield gpu, *dense_contestants(gpu, kind, shape_, args.kinds.split(","))
    if "paged" in args.parts.split(","):
        gpu = decode.Gpu(args.library)
        for *shape_, stores in PAGED:
            for store in stores:
                yield gpu, *paged_contestants(gpu, shape_, store, args.kinds.split(","))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="build/tests/gpu/libfagpu.so")
    parser.add_argument("--parts", default="dense,paged")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of data; random comes first")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--commit", default="?", help="commit of the library")
    parser.add_argument("--json")
    args = parser.parse_args()
    device, cudnn = torch.cuda.get_device_name(), torch.backends.cudnn.version()
    results = []
    for gpu, name, launches in races(args):
        samples = race.boost_samples(gpu, launches, args.samples)
        rows = list(rows_of(name, samples, device, args.commit))
        print(f"{name:60s} random {statistics.median(samples['random']) * 1e6:8.1f} us  " +
              "  ".join(f"{row['name'].rpartition('/')[2]} {row['ratio']:.3f}" for row in rows),
              flush=True)
        results += rows
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"command": shlex.join(["bench/data.py", *sys.argv[1:]]),
                       "machine": f"{device}, torch {torch.__version__}, cuDNN {cudnn}",
                       "date": datetime.date.today().isoformat(), "results": results},
                      file, indent=1)


if __name__ == "__main__":
    main()
