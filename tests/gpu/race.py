#!/usr/bin/env python3
"""
Times fad's attention kernels beside PyTorch's backends in one process: FlashAttention 2
(the flash backend of scaled_dot_product_attention) and cuDNN. Every sample: L2 is
flushed by reading, a spin kernel lets the host run ahead, then event, kernel, event.
Contestants take turns; the median of the samples counts. Inputs are random and rotated.

  boost      the GPU is busy at most a fifth of the time
  sustained  it is never idle: each contestant's samples follow load of its own, and
             the first round, of a second or more, does not count

Heads * dim is 2048 and tokens 16,384 in every cell. Prints a line a cell, TFLOP/s,
our speed over each peer's, and clock and power; --json FILE writes what
tests/bench/results.py keeps.

--peers FILE.py adds contestants. The file defines contestants(cell), which returns
{name: launch} for what it can do of a cell (see class Cell; {} for nothing). launch(i)
enqueues the attention of cell.sets[i] on PyTorch's current stream and returns its result,
[batch, heads, tokens, dim], which is compared with the others' before anything is timed. It
is called often: what it needs is to be prepared in contestants().
"""
import argparse
import ctypes
import datetime
import importlib.util
import json
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


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("stride_batch", ctypes.c_int64),
                ("stride_token", ctypes.c_int64), ("stride_head", ctypes.c_int64)]


class Params(ctypes.Structure):
    """struct fa_attention_params"""
    _fields_ = [("dtype", ctypes.c_int), ("batch", ctypes.c_int32), ("heads", ctypes.c_int32),
                ("kv_heads", ctypes.c_int32), ("head_dim", ctypes.c_int32),
                ("head_dim_v", ctypes.c_int32), ("seqlen_q", ctypes.c_int64),
                ("seqlen_k", ctypes.c_int64), ("cu_seqlens_q", ctypes.c_void_p),
                ("cu_seqlens_k", ctypes.c_void_p), ("q", Tensor), ("k", Tensor), ("v", Tensor),
                ("out", Tensor), ("lse", ctypes.c_void_p), ("lse_stride_batch", ctypes.c_int64),
                ("lse_stride_head", ctypes.c_int64), ("lse_stride_token", ctypes.c_int64),
                ("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("causal", ctypes.c_bool),
                ("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64),
                ("alibi_slopes", ctypes.c_void_p), ("sinks", ctypes.c_void_p)]


class Kernel(ctypes.Structure):
    """struct fa_cuda_kernel"""
    _fields_ = [("symbol", ctypes.c_char_p)] + [(name, ctypes.c_int32) for name in (
        "image", "dtype", "kind", "arch", "dim", "dim_v", "rows", "threads", "shared_bytes",
        "arch_end", "keys", "rows_q", "seqlen_k_max")]


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
        """The launch on a kernel of the table, or None if that does not cover it."""
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
    One size and mask, with inputs: sets[i] is q, k, v, each [batch, heads, tokens, dim]
    as a view of [batch, tokens, heads, dim]. dtype is a key of DTYPES, scale is that of q . k.
    """
    SETS = 2

    def __init__(self, dtype, dim, seqlen, causal, tokens=16384, width=2048):
        code, torch_dtype = DTYPES[dtype]
        self.name = f"prefill/{dtype}/d{dim}-s{seqlen}/{'causal' if causal else 'full'}"
        batch, heads = tokens // seqlen, width // dim
        self.dtype, self.dim, self.seqlen, self.causal = dtype, dim, seqlen, causal
        self.scale = dim ** -0.5
        shape = (batch, seqlen, heads, dim)
        make = lambda: torch.randn(shape, device="cuda", dtype=torch_dtype).transpose(1, 2)
        self.sets = [(make(), make(), make()) for _ in range(self.SETS)]
        self.out = torch.full(shape, float("nan"), device="cuda",
                              dtype=torch_dtype).transpose(1, 2)
        self.params = [Params(dtype=code, batch=batch, heads=heads, kv_heads=heads,
                              head_dim=dim, head_dim_v=dim, seqlen_q=seqlen, seqlen_k=seqlen,
                              q=view(q), k=view(k), v=view(v), out=view(self.out),
                              scale=self.scale, causal=causal, window_left=-1, window_right=-1)
                       for q, k, v in self.sets]
        pairs = seqlen * (seqlen + 1) // 2 if causal else seqlen * seqlen
        self.flops = 4 * pairs * dim * heads * batch

    def ours(self, gpu, kernel=None):
        """A launch of set i, on what the plan picks or on one kernel; None if that
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
        def launch(i):
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*self.sets[i], is_causal=self.causal)
        return launch

    def check(self, name, launch, judge):
        for i in range(self.SETS):
            self.out.fill_(float("nan"))
            torch.testing.assert_close(launch(i), judge(i), atol=2e-2, rtol=2e-2,
                                       msg=lambda text: f"{name}, set {i}: {text}")


def sample(gpu, launch, i):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    gpu.flush()
    gpu.spin(150_000)
    start.record()
    launch(i % Cell.SETS)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3


def boost(gpu, contestants, samples):
    times = {name: [] for name in contestants}
    for i in range(samples + 1):
        for name, launch in contestants.items():
            seconds = sample(gpu, launch, i)
            time.sleep(4 * (seconds + 300e-6))
            if i:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def load(launch, seconds, kernel_seconds):
    """Keeps the GPU busy; the queue never runs dry and never grows far."""
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


def load_peers(path):
    spec = importlib.util.spec_from_file_location("peers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.contestants


class Clocks:
    """Clock and power, read beside the measurement all the time."""

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
        """Medians of the clock in MHz and the power in W, as text."""
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
    parser.add_argument("--other", help="another build of it, as a further contestant")
    parser.add_argument("--peers", metavar="FILE.py", help="further contestants, see above")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--seqlens", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--state", choices=("boost", "sustained"), default="boost")
    parser.add_argument("--kernels", action="store_true",
                        help="every kernel of the table that covers a cell, not the planned one")
    parser.add_argument("--no-cudnn", action="store_true")
    parser.add_argument("--commit", default="?", help="what the library was built from")
    parser.add_argument("--json")
    args = parser.parse_args()

    gpu = Gpu(args.library)
    other = Gpu(args.other) if args.other else None
    more_peers = load_peers(args.peers) if args.peers else lambda cell: {}
    clocks = Clocks()
    results = []
    device = torch.cuda.get_device_name()
    cudnn = torch.backends.cudnn.version()
    print(f"{device}, torch {torch.__version__}, cuDNN {cudnn}, {args.state}")
    for dtype in args.dtypes.split(","):
        for dim in map(int, args.dims.split(",")):
            for mask in args.masks.split(","):
                for seqlen in map(int, args.seqlens.split(",")):
                    cell = Cell(dtype, dim, seqlen, mask == "causal")
                    ours = {}
                    if args.kernels:
                        for kernel in gpu.kernels:
                            launch = cell.ours(gpu, kernel)
                            if launch and kernel.dim == dim:
                                ours[kernel.symbol.decode()] = launch
                    else:
                        ours["fad"] = cell.ours(gpu)
                    peers = {"fa2": cell.peer(SDPBackend.FLASH_ATTENTION)}
                    if not args.no_cudnn:
                        peers["cudnn"] = cell.peer(SDPBackend.CUDNN_ATTENTION)
                    if dtype == "f32":
                        peers = {"efficient": cell.peer(SDPBackend.EFFICIENT_ATTENTION)}
                    if other:
                        peers["other"] = cell.ours(other)
                    judge = next(iter(peers.values()))
                    more = more_peers(cell)
                    for name, launch in {**ours, **more}.items():
                        cell.check(name, launch, judge)
                    peers.update(more)
                    mark = clocks.mark()
                    times = (boost if args.state == "boost" else sustained)(
                        gpu, {**ours, **peers}, args.samples)
                    line = [f"{cell.name:32s}"]
                    for name, seconds in times.items():
                        line.append(f"{name} {cell.flops / seconds * 1e-12:.0f}")
                    for name in peers:
                        best = min(times[o] for o in ours)
                        line.append(f"/{name} {times[name] / best:.3f}")
                        results.append({"name": cell.name,
                                        "value": round(cell.flops / best * 1e-12, 1),
                                        "unit": "TFLOP/s", "peer": name,
                                        "ratio": round(times[name] / best, 3),
                                        "commit": args.commit, "device": device})
                    line.append(f"({clocks.since(mark)})")
                    print("  ".join(line), flush=True)
                    del cell
    clocks.close()
    for name in sorted({result["peer"] for result in results}):
        ratios = [result["ratio"] for result in results if result["peer"] == name]
        print(f"/{name}: least {min(ratios):.3f}, geometric mean "
              f"{statistics.geometric_mean(ratios):.3f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"command": shlex.join(["tests/gpu/race.py", *sys.argv[1:]]),
                       "machine": f"{device}, torch {torch.__version__}, cuDNN {cudnn}",
                       "date": datetime.date.today().isoformat(), "results": results},
                      file, indent=1)


if __name__ == "__main__":
    main()
