#!/usr/bin/env python3
"""
Times fad's dense attention kernels against PyTorch's backends in one process: FlashAttention 2
(the flash backend of scaled_dot_product_attention) and cuDNN. A sample is: flush L2 by reading,
start a spin kernel so that the host runs ahead, then event, kernel, event. Contestants
alternate; medians count. Inputs are random and rotated.

  boost      the GPU works at most a fifth of the time
  sustained  the GPU never idles: each contestant's samples follow its own load, and the
             first round, of at least a second, does not count

Every cell has 16,384 tokens and heads * dim = 2048 (unless --heads is given). Prints one line
per cell: TFLOP/s, our speed relative to each peer, clock and power. --json FILE writes the
input of bench/results/results.py keep.

Masks are full, causal, and windowN: causal, with the last N keys only. Each may end in -alibi
or -softcap. PyTorch's backends cannot do windows or these features; the peer is fad itself:

  full   for a window: the whole square; TFLOP/s of both count visible pairs
  plain  for -alibi and -softcap: the same mask without the feature

--data KIND,... times inputs that are not random, beside the same cell with random inputs
("random"): gainN: Q is N times as large; sinkN: the logits of key 0 are N nats above others;
peakN: those of the key in the middle; ascendingN, descendingN: logits change by N nats from the
first key to the last.

Results that PyTorch cannot judge, and those with shared KV heads, are compared with a naive
fp32 computation of rows from all parts of a sequence. A peer that fails, or is wrong, is left
out of the cell with a message.

--peers FILE.py adds contestants. The file defines contestants(cell), which returns
{name: launch} for what it can do in a cell (see class Cell; {} for nothing). launch(i)
enqueues the attention of cell.sets[i] on PyTorch's current stream and returns its result,
[batch, heads, tokens, dim], which is checked before anything is timed. It is called often:
prepare everything in contestants().
"""
import argparse
import ctypes
import datetime
import importlib.util
import itertools
import json
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

F32, F16, BF16 = 1, 2, 3
DTYPES = {"f32": (F32, torch.float32), "f16": (F16, torch.float16), "bf16": (BF16, torch.bfloat16)}
DATA = re.compile(r"(random|gain|sink|peak|ascending|descending)(\d*)")
MASK = re.compile(r"(full|causal|window(?P<window>[1-9]\d*))(-(?P<feature>alibi|softcap))?")


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("stride_batch", ctypes.c_int64),
                ("stride_token", ctypes.c_int64), ("stride_head", ctypes.c_int64)]


class Scales(ctypes.Structure):
    """struct fa_attention_scales"""
    _fields_ = [("data", ctypes.c_void_p), ("stride_batch", ctypes.c_int64),
                ("stride_token", ctypes.c_int64), ("stride_head", ctypes.c_int64)]


class Blocks(ctypes.Structure):
    """struct fa_attention_blocks"""
    _fields_ = [("rows", ctypes.c_int32), ("keys", ctypes.c_int32), ("offsets", ctypes.c_void_p),
                ("columns", ctypes.c_void_p), ("n_columns", ctypes.c_int64),
                ("offsets_stride_batch", ctypes.c_int64), ("offsets_stride_head", ctypes.c_int64),
                ("columns_stride_batch", ctypes.c_int64), ("columns_stride_head", ctypes.c_int64)]


class Pattern(ctypes.Structure):
    """struct fa_attention_pattern"""
    _fields_ = [("block_tokens", ctypes.c_int32), ("local_blocks", ctypes.c_int32),
                ("vert_stride", ctypes.c_int32), ("head_step", ctypes.c_int32),
                ("first_head", ctypes.c_int32)]


class Bits(ctypes.Structure):
    """struct fa_attention_bits"""
    _fields_ = [("words", ctypes.c_void_p), ("row_words", ctypes.c_int64),
                ("stride_batch", ctypes.c_int64), ("stride_head", ctypes.c_int64),
                ("stride_row", ctypes.c_int64)]


class Params(ctypes.Structure):
    """struct fa_attention_params"""
    _fields_ = [("dtype", ctypes.c_int), ("e4m3", ctypes.c_bool), ("batch", ctypes.c_int32),
                ("heads", ctypes.c_int32), ("kv_heads", ctypes.c_int32),
                ("head_dim", ctypes.c_int32),
                ("head_dim_v", ctypes.c_int32), ("seqlen_q", ctypes.c_int64),
                ("seqlen_k", ctypes.c_int64), ("cu_seqlens_q", ctypes.c_void_p),
                ("cu_seqlens_k", ctypes.c_void_p), ("q", Tensor), ("k", Tensor), ("v", Tensor),
                ("out", Tensor), ("q_scales", Scales), ("k_scales", Scales),
                ("v_scales", Scales), ("lse", ctypes.c_void_p),
                ("lse_stride_batch", ctypes.c_int64),
                ("lse_stride_head", ctypes.c_int64), ("lse_stride_token", ctypes.c_int64),
                ("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("causal", ctypes.c_bool),
                ("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64),
                ("alibi_slopes", ctypes.c_void_p), ("sinks", ctypes.c_void_p),
                ("chunk_tokens", ctypes.c_int64), ("prefix_lengths", ctypes.c_void_p),
                ("blocks", Blocks), ("pattern", Pattern), ("bits", Bits)]


class Kernel(ctypes.Structure):
    """struct fa_cuda_kernel"""
    _fields_ = [("symbol", ctypes.c_char_p)] + [(name, ctypes.c_int32) for name in (
        "image", "dtype", "kind", "arch", "dim", "dim_v", "rows", "threads", "shared_bytes",
        "arch_end", "keys", "rows_q", "seqlen_k_max", "state_bytes")]


class Gpu:
    def __init__(self, library):
        self.lib = ctypes.CDLL(library)
        self.lib.fa_gpu_open.restype = ctypes.c_void_p
        self.lib.fa_gpu_chip.restype = ctypes.c_void_p
        self.lib.fa_cuda_kernel_covers.restype = ctypes.c_bool
        self.gpu = ctypes.c_void_p(self.lib.fa_gpu_open())
        if not self.gpu:
            raise SystemExit(77)
        self.chip = ctypes.c_void_p(self.lib.fa_gpu_chip(self.gpu))
        count = ctypes.c_size_t.in_dll(self.lib, "fa_cuda_kernels_count").value
        self.kernels = (Kernel * count).in_dll(self.lib, "fa_cuda_kernels")

    def stream(self):
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def flush(self):
        self.lib.fa_gpu_flush(self.gpu, self.stream())

    def spin(self, ns):
        self.lib.fa_gpu_spin(self.gpu, ctypes.c_uint64(ns), self.stream())

    def planned(self, params):
        def launch():
            assert self.lib.fa_gpu_attention(self.gpu, ctypes.byref(params), self.stream()) == 0
        return launch

    def on(self, kernel, params):
        """Returns a launch of one kernel of the table, or None if it does not cover @params."""
        buffer, text = ctypes.create_string_buffer(1024), ctypes.create_string_buffer(256)
        if not self.lib.fa_cuda_kernel_covers(ctypes.byref(kernel), ctypes.byref(params)):
            return None
        if self.lib.fa_cuda_attention_plan_on(self.chip, ctypes.byref(kernel),
                                              ctypes.byref(params), text,
                                              ctypes.c_size_t(256), buffer) < 0:
            return None
        return lambda: self.lib.fa_gpu_launch(self.gpu, buffer, self.stream())


def view(tensor):
    batch, head, token, _ = tensor.stride()
    return Tensor(tensor.data_ptr(), batch, token, head)


class Cell:
    """
    One size and mask, with inputs: sets[i] is q, k, v, each [batch, heads or kv_heads, tokens,
    dim] as a view of [batch, tokens, heads, dim]. dtype is a key of DTYPES, scale is that of
    q . k. causal is true of windows, too; window is None, or how many keys a row sees to its
    left and right, besides its own. alibi is None or a slope in fp32 for each head, softcap
    0 for none. kernels/attention.h says what they mean.
    """
    SETS = 2
    SOFTCAP = 5.0  # So low that it changes logits of random inputs.

    def __init__(self, dtype, dim, seqlen, mask, heads=None, kv_heads=None, tokens=16384,
                 width=2048, like=None, data="random", dim_v=None):
        """@like: a cell of the same sizes, to have its inputs. @dim_v: of V, if not @dim."""
        code, torch_dtype = DTYPES[dtype]
        window, feature = MASK.fullmatch(mask).group("window", "feature")
        shape = f"h{heads}.{kv_heads or heads}-d{dim}" if heads else f"d{dim}"
        self.name = f"prefill/{dtype}/{shape}-s{seqlen}/{mask}"
        self.data = data
        if data != "random":
            self.name += f"/{data}"
        self.tokens, batch = tokens, tokens // seqlen
        heads = heads or width // dim
        kv_heads = kv_heads or heads
        self.dtype, self.dim, self.seqlen, self.mask = dtype, dim, seqlen, mask
        self.dim_v = dim_v or dim
        self.heads, self.kv_heads = heads, kv_heads
        self.causal = not mask.startswith("full")
        self.window = (int(window) - 1, 0) if window else None
        self.softcap = self.SOFTCAP if feature == "softcap" else 0
        self.alibi = None
        if feature == "alibi":
            self.alibi = torch.tensor([2 ** (-8 * (head + 1) / heads) for head in range(heads)],
                                      device="cuda", dtype=torch.float32)
        self.scale = dim ** -0.5
        make = lambda heads, dim: torch.randn((batch, seqlen, heads, dim), device="cuda",
                                              dtype=torch_dtype).transpose(1, 2)
        self.sets = like.sets if like else [(make(heads, dim), make(kv_heads, dim),
                                             make(kv_heads, self.dim_v))
                                            for _ in range(self.SETS)]
        if not like:
            self.shape_data()
        self.out = like.out if like else make(heads, self.dim_v)
        self.params = [Params(dtype=code, batch=batch, heads=heads, kv_heads=kv_heads,
                              head_dim=dim, head_dim_v=self.dim_v, seqlen_q=seqlen,
                              seqlen_k=seqlen,
                              q=view(q), k=view(k), v=view(v), out=view(self.out),
                              scale=self.scale, softcap=self.softcap, causal=self.causal,
                              window_left=self.window[0] if window else -1,
                              window_right=self.window[1] if window else -1,
                              alibi_slopes=None if self.alibi is None else self.alibi.data_ptr())
                       for q, k, v in self.sets]
        seen = min(int(window or seqlen), seqlen)
        pairs = seen * (seen + 1) // 2 + (seqlen - seen) * seen if self.causal else seqlen * seqlen
        self.flops = 2 * pairs * (dim + self.dim_v) * heads * batch

    def shape_data(self):
        """Makes random inputs those of self.data."""
        kind, size = DATA.fullmatch(self.data).groups()
        n = self.seqlen
        nats = torch.zeros(n, device="cuda")
        if kind == "gain":
            for q, _, _ in self.sets:
                q *= int(size)
        elif kind in ("sink", "peak"):
            nats[0 if kind == "sink" else n // 2] = int(size)
        elif kind != "random":
            nats = torch.linspace(0, int(size), n, device="cuda")
            if kind == "descending":
                nats = nats.flip(0)
        if kind in ("sink", "peak", "ascending", "descending"):
            for q, k, _ in self.sets:
                q[..., 0] = 8
                k[..., 0] = (nats / (8 * self.scale)).to(k.dtype)

    def own_peers(self):
        """Returns the (name, cell) pairs of fad itself to compare with."""
        if self.data != "random":
            return [("random", Cell(self.dtype, self.dim, self.seqlen, self.mask, self.heads,
                                    self.kv_heads, tokens=self.tokens))]
        plain, _, feature = self.mask.partition("-")
        beside = [("plain", plain)] if feature else [("full", "full")] if self.window else []
        return [(name, Cell(self.dtype, self.dim, self.seqlen, mask, self.heads, self.kv_heads,
                            tokens=self.tokens, like=self)) for name, mask in beside]

    def ours(self, gpu, kernel=None):
        """Returns a function that launches set i, with the planned kernel or @kernel; None if that
        does not cover the cell."""
        launches = [gpu.on(kernel, params) if kernel else gpu.planned(params)
                    for params in self.params]
        if not all(launches):
            return None

        def launch(i):
            launches[i]()
            return self.out
        return launch

    def peer(self, backend):
        shared = self.heads != self.kv_heads

        def launch(i):
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*self.sets[i], is_causal=self.causal,
                                                    enable_gqa=shared)
        return launch

    def torch_peers(self, cudnn):
        if self.window or self.alibi is not None or self.softcap:
            return {}
        if self.dtype == "f32":
            return {"efficient": self.peer(SDPBackend.EFFICIENT_ATTENTION)}
        peers = {"fa2": self.peer(SDPBackend.FLASH_ATTENTION)}
        if cudnn:
            peers["cudnn"] = self.peer(SDPBackend.CUDNN_ATTENTION)
        return peers

    def naive(self, i, rows):
        """Computes @rows of set i in fp32."""
        q, k, v = self.sets[i]
        k, v = (x.float().repeat_interleave(self.heads // self.kv_heads, 1) for x in (k, v))
        logits = self.scale * (q[:, :, rows].float() @ k.transpose(2, 3))
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        distance = torch.arange(self.seqlen, device=rows.device) - rows[:, None]
        if self.alibi is not None:
            logits -= self.alibi[:, None, None] * distance.abs()
        if self.causal:
            logits.masked_fill_(distance > 0, float("-inf"))
        if self.window:
            logits.masked_fill_(distance < -self.window[0], float("-inf"))
        return logits.softmax(-1) @ v

    def check_rows(self, name, i, result, count=256):
        assert torch.isfinite(result).all(), f"{name}, set {i}: not every element is finite"
        # A random row of each of @count parts; always the first and the last row.
        n = self.seqlen
        rows = torch.arange(count, device="cuda") * n // count
        rows += torch.randint(max(n // count, 1), (count,), device="cuda")
        rows[0], rows[-1] = 0, n - 1
        want = self.naive(i, rows)
        error = (result[:, :, rows].float() - want).norm(dim=-1) / want.norm(dim=-1)
        assert error.max() < 2e-2, \
            f"{name}, set {i}: a row is wrong by {error.max():.3f} of its length"

    def check(self, name, launch, judge=None):
        """@judge: a launch with correct results; None: the naive computation."""
        for i in range(self.SETS):
            self.out.fill_(float("nan"))
            result = launch(i)
            if judge:
                torch.testing.assert_close(result, judge(i), atol=2e-2, rtol=2e-2,
                                           msg=lambda text: f"{name}, set {i}: {text}")
            else:
                self.check_rows(name, i, result)

    def correct_peers(self, peers, judge=None):
        """Returns those @peers that can do this cell and do it correctly."""
        found = {}
        for name, launch in peers.items():
            try:
                self.check(name, launch, judge)
                found[name] = launch
            except (AssertionError, RuntimeError) as error:
                print(f"{self.name}: {name} is left out: {str(error).strip().splitlines()[0]}",
                      flush=True)
        return found


# Longer than the host needs for any launch: some peers take over 200 us.
SPIN_NS = 1_000_000


def sample(gpu, launch, i):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    gpu.flush()
    gpu.spin(SPIN_NS)
    start.record()
    launch(i % Cell.SETS)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3


def boost_samples(gpu, contestants, samples):
    """Returns the samples of each contestant, in seconds."""
    times = {name: [] for name in contestants}
    for i in range(samples + 1):
        for name, launch in contestants.items():
            seconds = sample(gpu, launch, i)
            time.sleep(4 * (seconds + 300e-6))
            if i:
                times[name].append(seconds)
    return times


def boost(gpu, contestants, samples):
    times = boost_samples(gpu, contestants, samples)
    return {name: statistics.median(values) for name, values in times.items()}


def load(launch, seconds, kernel_seconds):
    """Keeps the GPU busy: the queue neither runs empty nor grows long."""
    end, events = time.monotonic() + seconds, []
    while time.monotonic() < end:
        for i in range(max(1, int(0.01 / kernel_seconds))):
            launch(i % Cell.SETS)
        events.append(torch.cuda.Event())
        events[-1].record()
        if len(events) > 3:
            events.pop(0).synchronize()


def sustained(gpu, contestants, samples, rounds=3):
    times = {name: [] for name in contestants}
    kernel_seconds = {name: sample(gpu, launch, 0) for name, launch in contestants.items()}
    for n in range(rounds):
        for name, launch in contestants.items():
            load(launch, 0.1 if n else 1.0 / len(contestants), kernel_seconds[name])
            for i in range(max(1, samples // (rounds - 1))):
                seconds = sample(gpu, launch, i)
                if n:
                    times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def load_peers(path, function="contestants"):
    spec = importlib.util.spec_from_file_location("peers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


class Clocks:
    """Reads clock and power continuously in a thread."""

    def __init__(self):
        self.lines = []
        try:
            self.process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits",
                 "-lms", "100"], stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self.read, daemon=True).start()
        except OSError:
            self.process = None

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def since(self, mark):
        """Returns the median clock and power since @mark as text."""
        values = []
        for line in self.lines[mark:]:
            try:
                values.append([float(value) for value in line.split(",")])
            except ValueError:
                pass
        if not values:
            return "? MHz ? W"
        return "{:.0f} MHz {:.0f} W".format(*(statistics.median(column)
                                              for column in zip(*values)))

    def mark(self):
        return len(self.lines)

    def close(self):
        if self.process:
            self.process.terminate()
            self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="build/tests/gpu/libfagpu.so")
    parser.add_argument("--other", help="another build of it, as one more contestant")
    parser.add_argument("--peers", metavar="FILE.py", help="more contestants, see above")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--seqlens", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--masks", default="full,causal", help="see above")
    parser.add_argument("--data", default="random", help="see above")
    parser.add_argument("--heads", type=int, help="query heads, instead of 2048 / dim")
    parser.add_argument("--kv-heads", type=int, help="KV heads (default: as many)")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--state", choices=("boost", "sustained"), default="boost")
    parser.add_argument("--kernels", action="store_true",
                        help="all kernels of the table that cover a cell, not the planned one")
    parser.add_argument("--no-cudnn", action="store_true")
    parser.add_argument("--profile", action="store_true",
                        help="run each cell's kernel once, without checks and timing, for profiles.py")
    parser.add_argument("--commit", default="?", help="commit of the library")
    parser.add_argument("--json")
    args = parser.parse_args()
    for mask in args.masks.split(","):
        if not MASK.fullmatch(mask):
            parser.error(f"there is no mask {mask}")
    for data in args.data.split(","):
        kind = DATA.fullmatch(data)
        if not kind or (kind[1] == "random") == bool(kind[2]):
            parser.error(f"there is no data {data}")
    if args.kv_heads and (not args.heads or args.heads % args.kv_heads):
        parser.error("--heads must be a multiple of --kv-heads")

    gpu = Gpu(args.library)
    other = Gpu(args.other) if args.other else None
    more_peers = load_peers(args.peers) if args.peers else lambda cell: {}
    clocks = None if args.profile else Clocks()
    results = []
    device = torch.cuda.get_device_name()
    cudnn = torch.backends.cudnn.version()
    print(f"{device}, torch {torch.__version__}, cuDNN {cudnn}, {args.state}")
    for dtype in args.dtypes.split(","):
        for dim in map(int, args.dims.split(",")):
            for mask in args.masks.split(","):
                for seqlen, data in itertools.product(map(int, args.seqlens.split(",")),
                                                      args.data.split(",")):
                    cell = Cell(dtype, dim, seqlen, mask, args.heads, args.kv_heads,
                                data=data)
                    if args.profile:
                        cell.ours(gpu)(0)
                        torch.cuda.synchronize()
                        results.append({"name": cell.name, "commit": args.commit, "device": device})
                        continue
                    ours = {}
                    if args.kernels:
                        for kernel in gpu.kernels:
                            launch = cell.ours(gpu, kernel)
                            if launch and kernel.dim == dim:
                                ours[kernel.symbol.decode()] = launch
                    else:
                        ours["fad"] = cell.ours(gpu)
                    peers = cell.torch_peers(not args.no_cudnn)
                    judge = None
                    if peers and cell.heads == cell.kv_heads and data == "random":
                        judge = next(iter(peers.values()))
                    else:
                        peers = cell.correct_peers(peers)
                    for name, launch in ours.items():
                        cell.check(name, launch, judge)
                    flops = {}
                    for name, beside in cell.own_peers():
                        peers[name], flops[name] = beside.ours(gpu), beside.flops
                        beside.check(name, peers[name])
                    if other:
                        peers["other"] = cell.ours(other)
                    peers.update(cell.correct_peers(more_peers(cell), judge))
                    mark = clocks.mark()
                    times = (boost if args.state == "boost" else sustained)(
                        gpu, {**ours, **peers}, args.samples)
                    rate = {name: flops.get(name, cell.flops) / seconds * 1e-12
                            for name, seconds in times.items()}
                    best = max(rate[name] for name in ours)
                    line = [f"{cell.name:36s}", *(f"{name} {rate[name]:.0f}" for name in rate)]
                    for name in peers or [None]:
                        result = {"name": cell.name, "value": round(best, 1), "unit": "TFLOP/s"}
                        if name:
                            line.append(f"/{name} {best / rate[name]:.3f}")
                            result.update(peer=name, ratio=round(best / rate[name], 3))
                        results.append({**result, "commit": args.commit, "device": device})
                    line.append(f"({clocks.since(mark)})")
                    print("  ".join(line), flush=True)
                    del cell
    if clocks:
        clocks.close()
    for name in sorted({result["peer"] for result in results if "peer" in result}):
        ratios = [result["ratio"] for result in results if result.get("peer") == name]
        print(f"/{name}: min {min(ratios):.3f}, geometric mean "
              f"{statistics.geometric_mean(ratios):.3f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"command": shlex.join(["bench/race.py", *sys.argv[1:]]),
                       "machine": f"{device}, torch {torch.__version__}, cuDNN {cudnn}",
                       "date": datetime.date.today().isoformat(), "results": results},
                      file, indent=1)


if __name__ == "__main__":
    main()
