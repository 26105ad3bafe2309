#!/usr/bin/env python3
"""
Times fad's attention kernels beside PyTorch's backends in one process: FlashAttention 2
(the flash backend of scaled_dot_product_attention) and cuDNN. Every sample: L2 is
flushed by reading, a spin kernel lets the host run ahead, then event, kernel, event.
Contestants take turns; the median of the samples counts.

  boost      the GPU is busy at most a fifth of the time
  sustained  each contestant follows a second of load of its own

Heads * dim is 2048 and tokens 16,384 in every cell. Prints a line a cell, TFLOP/s and
our speed over each peer's; --json FILE writes the results as fabench does.
"""
import argparse
import ctypes
import json
import statistics
import subprocess
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
        "image", "dtype", "kind", "arch", "dim", "dim_v", "rows", "threads", "shared_bytes")]


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
    def __init__(self, gpu, dtype, dim, seqlen, causal, tokens=16384, width=2048):
        code, torch_dtype = DTYPES[dtype]
        self.name = f"prefill/{dtype}/d{dim}-s{seqlen}/{'causal' if causal else 'full'}"
        self.batch, self.heads, self.causal = tokens // seqlen, width // dim, causal
        shape = (self.batch, seqlen, self.heads, dim)
        make = lambda: torch.randn(shape, device="cuda", dtype=torch_dtype).transpose(1, 2)
        self.q, self.k, self.v = make(), make(), make()
        self.out = torch.full(shape, float("nan"), device="cuda",
                              dtype=torch_dtype).transpose(1, 2)
        self.params = Params(dtype=code, batch=self.batch, heads=self.heads, kv_heads=self.heads,
                             head_dim=dim, head_dim_v=dim, seqlen_q=seqlen, seqlen_k=seqlen,
                             q=view(self.q), k=view(self.k), v=view(self.v), out=view(self.out),
                             scale=dim ** -0.5, causal=causal, window_left=-1, window_right=-1)
        pairs = seqlen * (seqlen + 1) // 2 if causal else seqlen * seqlen
        self.flops = 4 * pairs * dim * self.heads * self.batch

    def peer(self, backend):
        def launch():
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal)
        return launch


def sample(gpu, launch):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    gpu.flush()
    gpu.spin(150_000)
    start.record()
    launch()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3


def boost(gpu, contestants, samples):
    times = {name: [] for name in contestants}
    for i in range(samples + 1):
        for name, launch in contestants.items():
            seconds = sample(gpu, launch)
            time.sleep(4 * (seconds + 300e-6))
            if i:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def sustained(gpu, contestants, samples):
    times = {}
    for name, launch in contestants.items():
        seconds = sample(gpu, launch)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for _ in range(max(1, int(0.05 / seconds))):
                launch()
            torch.cuda.synchronize()
        times[name] = statistics.median(sample(gpu, launch) for _ in range(samples))
    return times


def clocks():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,power.draw",
                               "--format=csv,noheader"], capture_output=True,
                              text=True).stdout.strip()
    except OSError:
        return "?"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--seqlens", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--state", choices=("boost", "sustained"), default="boost")
    parser.add_argument("--kernels", action="store_true",
                        help="every kernel of the table that covers a cell, not the planned one")
    parser.add_argument("--no-cudnn", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()

    gpu = Gpu(args.library)
    results = []
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, {args.state}, clock and power {clocks()}")
    for dtype in args.dtypes.split(","):
        for dim in map(int, args.dims.split(",")):
            for mask in args.masks.split(","):
                for seqlen in map(int, args.seqlens.split(",")):
                    cell = Cell(gpu, dtype, dim, seqlen, mask == "causal")
                    ours = {}
                    if args.kernels:
                        for kernel in gpu.kernels:
                            launch = gpu.on(kernel, cell.params)
                            if launch and kernel.dim == dim:
                                ours[kernel.symbol.decode()] = launch
                    else:
                        ours["fad"] = gpu.planned(cell.params)
                    peers = {"fa2": cell.peer(SDPBackend.FLASH_ATTENTION)}
                    if not args.no_cudnn:
                        peers["cudnn"] = cell.peer(SDPBackend.CUDNN_ATTENTION)
                    if dtype == "f32":
                        peers = {"efficient": cell.peer(SDPBackend.EFFICIENT_ATTENTION)}
                    want = next(iter(peers.values()))()
                    for launch in ours.values():
                        cell.out.fill_(float("nan"))
                        launch()
                        torch.testing.assert_close(cell.out, want, atol=2e-2, rtol=2e-2)
                    times = (boost if args.state == "boost" else sustained)(
                        gpu, {**ours, **peers}, args.samples)
                    line = [f"{cell.name:32s}"]
                    for name, seconds in times.items():
                        line.append(f"{name} {cell.flops / seconds * 1e-12:.0f}")
                    for name in peers:
                        best = min(times[o] for o in ours)
                        line.append(f"/{name} {times[name] / best:.3f}")
                        results.append({"name": cell.name, "value": cell.flops / best * 1e-12,
                                        "unit": "TFLOP/s", "peer": name,
                                        "ratio": times[name] / best, "commit": "",
                                        "device": device, "state": args.state})
                    line.append(f"({clocks()})" if args.state == "sustained" else "")
                    print("  ".join(line), flush=True)
    for name in sorted({result["peer"] for result in results}):
        ratios = [result["ratio"] for result in results if result["peer"] == name]
        print(f"/{name}: least {min(ratios):.3f}, geometric mean "
              f"{statistics.geometric_mean(ratios):.3f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"results": results}, file, indent=1)


if __name__ == "__main__":
    main()
