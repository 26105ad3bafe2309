#!/usr/bin/env python3
"""
Times decode over pages against other kernels in one process, in the boost state of bench/race.py: a
few new tokens of each sequence attend to many tokens, over pages of bf16 and of 8-bit codes. A
row's value is our time in us; its ratio is a peer's time over ours.

    bench/decode.py --library LIBFAGPU.SO [--own | --mla | --mla-plain] [--peers FILE.py]... [--json FILE]
        [--seconds N]

With --own our kernels read the peers' pages, NHD, with block table and lengths on the GPU, instead of
pages of our pool; pages have 1 to 64 tokens, and rows are named own-race. --mla races MLA in absorbed
form: head dims 576 and 512, one KV head, V is the front of K; our pool's pages are the peers'.
--mla-plain races its plain form, head dims 192 and 128, in prefill and extends.

Rows of codes have a scale for each token (bf16-e4m3, bf16-int8) or for each head (-heads). Their
peers have one scale for all of K and V. Besides those of the peers' files ratios are of

  bare     a read of the pages, and nothing else
  bf16     for codes, and pages of fp16: our own kernel over bf16 pages
  torch    PyTorch's attention over tensors instead of pages (one new token)
  best     the fastest peer; not bare, and not our own kernel

--peers FILE.py adds contestants. The file defines paged(cell), which returns {name: launch} for
what it can do in a cell (see class Cell; {} for nothing). A name is that of the peer, a slash and
the setting; the fastest setting counts. launch(i) enqueues the attention on PyTorch's current
stream and returns the result, like cell.q. Results are compared with fp32 before anything is timed;
who is wrong is left out, with a message. Numbers in codes lose about 1/32 of their value. Limits of
the errors of rows are LIMITS, of which half is normal.
"""
import argparse
import ctypes
import datetime
import json
import math
import shlex
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import race

DIM = 128
LATENT_DIMS = "576.512"  # of MLA: K's and V's
STORES = {"bf16": 0, "e4m3": 1, "int8": 2}
CODE_MAX = {"e4m3": 448.0, "int8": 127.0}
# The largest error allowed, as a part of the row's length (its norm).
LIMITS = {"bf16": 0.02, "f16": 0.02, "e4m3": 0.12, "int8": 0.05}
PIECE_BYTES = 16384
FA_PAGED_ATTEND, FA_PAGED_APPEND, FA_PAGED_ATTEND_OWN = 0, 1, 7

# batch, context
SIZES = ((1, 1024), (1, 16384), (8, 1024), (8, 4096), (32, 1024), (32, 4096), (128, 4096),
         (1, 131072))
FEW = ((8, 4096), (32, 4096), (1, 16384))
# heads, KV heads, tokens of a page, new tokens, sizes. The most telling ones come first.
GRID = (
    (32, 8, 64, 1, SIZES),
    (64, 8, 64, 1, FEW),
    (8, 1, 64, 1, FEW),
    (32, 8, 16, 1, FEW[:2]),
    (32, 8, 64, 4, FEW),
    (40, 8, 64, 1, FEW),
    (32, 32, 64, 1, FEW),
    (64, 8, 64, 4, FEW[:1]),
    (64, 8, 16, 1, FEW[:1]),
    (32, 8, 16, 4, FEW[:1]),
)

# With --own.
OWN_GRID = tuple((32, 8, page, n_new, sizes) for page in (1, 16, 4, 8, 64, 2)
                 for n_new, sizes in ((1, ((1, 16384), (8, 4096), (32, 4096))),
                                      (64, ((1, 32768), (4, 8192)))))


# With --mla.
MLA_SIZES = ((1, 4096), (1, 32768), (8, 4096), (8, 32768), (32, 4096), (32, 32768), (128, 4096),
             (128, 32768))
MLA_GRID = (
    (128, 1, 64, 1, MLA_SIZES),
    (128, 1, 64, 2, MLA_SIZES),
    (16, 1, 64, 1, MLA_SIZES),
    (64, 1, 64, 1, MLA_SIZES),
    (16, 1, 64, 2, MLA_SIZES[:4]),
    (128, 1, 16, 1, MLA_SIZES[:4]),
)

# With --mla-plain.
PLAIN_DIMS = "192.128"
PLAIN_GRID = tuple((heads, heads, 64, n_new, ((1, context),))
                   for context, n_new in ((4096, 4096), (8192, 512), (8192, 2048), (32768, 64),
                                          (32768, 512))
                   for heads in (16, 128))


class Cache(ctypes.Structure):
    """struct fa_paged_cache"""
    _fields_ = [("pool", ctypes.c_void_p), ("dtype", ctypes.c_int), ("layers", ctypes.c_int32),
                ("kv_heads", ctypes.c_int32), ("head_dim", ctypes.c_int32),
                ("head_dim_v", ctypes.c_int32), ("page_tokens", ctypes.c_int32),
                ("layer_stride", ctypes.c_int64), ("v_offset", ctypes.c_int64),
                ("store", ctypes.c_int), ("k_scales", ctypes.c_void_p),
                ("v_scales", ctypes.c_void_p)]


class Step(ctypes.Structure):
    """struct fa_paged_step"""
    _fields_ = [("batch", ctypes.c_int32), ("cu_new", ctypes.c_void_p),
                ("lengths", ctypes.c_void_p), ("lengths_before", ctypes.c_void_p),
                ("first", ctypes.c_void_p), ("table", ctypes.c_void_p),
                ("table_start", ctypes.c_void_p), ("table_entries", ctypes.c_uint32),
                ("host_table", ctypes.c_void_p)]


class Attention(ctypes.Structure):
    """struct fa_paged_attention"""
    _fields_ = [("cache", ctypes.POINTER(Cache)), ("step", ctypes.POINTER(Step)),
                ("layer", ctypes.c_int32), ("heads", ctypes.c_int32), ("q", race.Tensor),
                ("out", race.Tensor), ("lse", ctypes.c_void_p),
                ("lse_stride_token", ctypes.c_int64), ("lse_stride_head", ctypes.c_int64),
                ("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("causal", ctypes.c_bool),
                ("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64),
                ("alibi_slopes", ctypes.c_void_p), ("sinks", ctypes.c_void_p),
                ("deterministic", ctypes.c_bool), ("tree", ctypes.c_void_p),
                ("tree_start", ctypes.c_void_p), ("positions", ctypes.c_void_p),
                ("chunk_tokens", ctypes.c_int64), ("prefix_lengths", ctypes.c_void_p),
                ("pattern", race.Pattern)]


class Rotary(ctypes.Structure):
    """struct fa_paged_rotary"""
    _fields_ = [("dim", ctypes.c_int32), ("first", ctypes.c_int32),
                ("interleaved", ctypes.c_bool), ("base", ctypes.c_double),
                ("scale", ctypes.c_double), ("cos", ctypes.c_void_p), ("sin", ctypes.c_void_p),
                ("table_positions", ctypes.c_uint32), ("positions", ctypes.c_void_p)]


class Append(ctypes.Structure):
    """struct fa_paged_append"""
    _fields_ = [("cache", ctypes.POINTER(Cache)), ("step", ctypes.POINTER(Step)),
                ("layer", ctypes.c_int32), ("k", race.Tensor), ("v", race.Tensor),
                ("heads", ctypes.c_int32), ("q", race.Tensor), ("q_out", race.Tensor),
                ("rotary", Rotary)]


class OwnPages(ctypes.Structure):
    """struct fa_paged_own"""
    _fields_ = [("dtype", ctypes.c_int), ("kv_heads", ctypes.c_int32),
                ("head_dim", ctypes.c_int32), ("head_dim_v", ctypes.c_int32),
                ("page_tokens", ctypes.c_int32), ("pages", ctypes.c_int32),
                ("store", ctypes.c_int), ("k", race.Tensor), ("v", race.Tensor),
                ("k_scales", ctypes.c_void_p), ("v_scales", ctypes.c_void_p)]


class OwnAttention(ctypes.Structure):
    """struct fa_paged_own_attention"""
    _fields_ = [("pages", ctypes.POINTER(OwnPages)), ("batch", ctypes.c_int32),
                ("heads", ctypes.c_int32), ("table", ctypes.c_void_p),
                ("table_columns", ctypes.c_int32), ("table_stride", ctypes.c_int64),
                ("lengths", ctypes.c_void_p), ("cu_q", ctypes.c_void_p),
                ("max_q", ctypes.c_int32), ("total_q", ctypes.c_int64),
                ("max_k", ctypes.c_int32), ("q", race.Tensor), ("out", race.Tensor),
                ("lse", ctypes.c_void_p), ("lse_stride_token", ctypes.c_int64),
                ("lse_stride_head", ctypes.c_int64), ("scale", ctypes.c_float),
                ("softcap", ctypes.c_float), ("causal", ctypes.c_bool),
                ("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64),
                ("alibi_slopes", ctypes.c_void_p), ("sinks", ctypes.c_void_p),
                ("deterministic", ctypes.c_bool), ("chunk_tokens", ctypes.c_int64),
                ("prefix_lengths", ctypes.c_void_p), ("pattern", race.Pattern)]


class Operation(ctypes.Union):
    _fields_ = [("attention", Attention), ("append", Append), ("own_attention", OwnAttention)]


class Request(ctypes.Structure):
    """struct fa_paged_request; other operations are not larger."""
    _anonymous_ = ("operation",)
    _fields_ = [("op", ctypes.c_int), ("operation", Operation)]


PLAN_BYTES = 1 << 16  # at least struct paged_gpu_plan


class Gpu:
    """tests/gpu/paged-gpu.h. Work goes to the default stream, PyTorch's too."""

    def __init__(self, library):
        self.lib = ctypes.CDLL(library)
        self.lib.paged_gpu_open.restype = ctypes.c_void_p
        self.gpu = ctypes.c_void_p(self.lib.paged_gpu_open())
        if not self.gpu:
            raise SystemExit(77)
        self.lib.paged_gpu_chip.restype = ctypes.c_void_p
        self.chip = ctypes.c_void_p(self.lib.paged_gpu_chip(self.gpu))

    def flush(self):
        self.lib.paged_gpu_flush(self.gpu)

    def spin(self, ns):
        self.lib.paged_gpu_spin(self.gpu, ctypes.c_uint64(ns))

    def plan(self, request):
        """Returns a function that runs a request, or raises the reason why there is none."""
        plan = ctypes.create_string_buffer(PLAN_BYTES)
        if self.lib.paged_gpu_plan(self.gpu, self.chip, ctypes.byref(request), plan) < 0:
            raise RuntimeError("no kernel covers it")
        return Planned(self, plan, request)

    def bare(self, pieces, bytes_):
        return lambda _: self.lib.paged_gpu_bare(
            self.gpu, ctypes.c_uint64(pieces.data_ptr()), ctypes.c_uint64(len(pieces)),
            ctypes.c_uint32(bytes_))


class Planned:
    def __init__(self, gpu, plan, request):
        self.gpu, self.plan, self.request = gpu, plan, request

    def __call__(self):
        self.gpu.lib.paged_gpu_launch(self.gpu.gpu, self.plan, ctypes.byref(self.request))

    def __del__(self):
        self.gpu.lib.paged_gpu_plan_free(self.gpu.gpu, self.plan)


def tensor(x):
    """x: [token][head][dim]"""
    token, head, _ = x.stride()
    return race.Tensor(x.data_ptr(), 0, token, head)


def host(values):
    return (ctypes.c_uint32 * len(values))(*values)


class Cell:
    """
    Sequences of equal lengths, whose pages are scattered.

    q             [batch, n_new, heads, dim], bf16
    k, v          [pages, page, kv_heads, dim], of the dtype of self.store ("bf16", "e4m3", "int8")
    hnd()         the same with heads before tokens: [pages, kv_heads, page, dim]
    k_scale, v_scale  what codes are times, equal
    dense_k, dense_v  [batch, context, kv_heads, dim], bf16
    table         [batch, pages of a sequence]; lengths: [batch], new tokens included; int32
    scale         of q . k. Masks are causal: the last new token sees all.
    """
    dim, dim_v = DIM, DIM

    def __init__(self, batch, context, heads, kv_heads, page, n_new):
        self.batch, self.context, self.heads, self.kv_heads = batch, context, heads, kv_heads
        self.page, self.n_new, self.scale = page, n_new, self.dim ** -0.5
        self.pages = batch * context // page
        dims = self.dim if self.dim == self.dim_v else f"{self.dim}.{self.dim_v}"
        self.shape = shape_name(batch, context, heads, kv_heads, page, n_new, dims)
        self.table = torch.randperm(self.pages, device="cuda").int().view(batch, -1)
        self.lengths = torch.full((batch,), context, device="cuda", dtype=torch.int32)
        random = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        self.q = random(batch, n_new, heads, self.dim)
        self.plain = [random(self.pages, page, kv_heads, dim) for dim in (self.dim, self.dim_v)]
        self.dense_k, self.dense_v = (
            x[self.table.flatten().long()].view(batch, context, kv_heads, -1) for x in self.plain)
        self.out = torch.empty_like(self.q[..., :self.dim_v])
        self.choose("bf16")

    def choose(self, store):
        """Sets what the pages of peers hold."""
        self.store, self.k_scale, self._hnd = store, 1.0, None
        self.k, self.v = self.plain
        if store == "e4m3":
            self.k, self.v = (x.to(torch.float8_e4m3fn) for x in self.plain)
        elif store == "int8":
            self.k_scale = max(float(x.abs().amax()) for x in self.plain) / CODE_MAX[store]
            self.k, self.v = (torch.cat([(part.float() / self.k_scale).round_().to(torch.int8)
                                         for part in x.split(4096)]) for x in self.plain)
        self.v_scale = self.k_scale

    def hnd(self):
        if self._hnd is None:
            self._hnd = [x.transpose(1, 2).contiguous() for x in (self.k, self.v)]
        return self._hnd

    def keys(self, b, kv_head):
        return self.dense_k[b, :, kv_head]

    def values(self, b, kv_head):
        return self.dense_v[b, :, kv_head]

    def check(self, launch, store):
        """Raises an error if some row is wrong."""
        self.out.fill_(float("nan"))
        result = launch(0)
        assert torch.isfinite(result).all(), "not every element is finite"
        group = self.heads // self.kv_heads
        for b in {0, self.batch - 1, int(torch.randint(self.batch, ()))}:
            for kv_head in {0, self.kv_heads - 1, int(torch.randint(self.kv_heads, ()))}:
                heads = slice(kv_head * group, (kv_head + 1) * group)
                q = self.q[b, :, heads].float()  # [new, group, dim]
                logits = self.scale * (q @ self.keys(b, kv_head).float().T)
                seen = self.context - self.n_new + torch.arange(self.n_new, device="cuda")
                hidden = torch.arange(self.context, device="cuda") > seen[:, None]
                logits.masked_fill_(hidden[:, None], float("-inf"))
                want = logits.softmax(-1) @ self.values(b, kv_head).float()
                error = (result[b, :, heads].float() - want).norm(dim=-1) / want.norm(dim=-1)
                assert error.max() < LIMITS[store], \
                    f"a row is wrong by {error.max():.3f} of its length"

    def torch_peers(self):
        if self.n_new > 1 or self.store != "bf16":
            return {}
        inputs = [x.transpose(1, 2) for x in (self.q, self.dense_k, self.dense_v)]

        def peer(backend):
            def launch(_):
                with sdpa_kernel(backend):
                    return scaled_dot_product_attention(*inputs, enable_gqa=True).transpose(1, 2)
            return launch
        return {"torch/fa2": peer(SDPBackend.FLASH_ATTENTION),
                "torch/cudnn": peer(SDPBackend.CUDNN_ATTENTION)}


class LatentCell(Cell):
    """A cell of MLA. v is the front of k; dim_v: its columns. There are no dense_k and dense_v."""

    def __init__(self, batch, context, heads, kv_heads, page, n_new):
        self.batch, self.context, self.heads, self.kv_heads = batch, context, heads, kv_heads
        self.page, self.n_new, self.dim, self.dim_v = page, n_new, 576, 512
        self.scale = self.dim ** -0.5
        self.pages = batch * context // page
        self.shape = shape_name(batch, context, heads, kv_heads, page, n_new, LATENT_DIMS)
        self.table = torch.randperm(self.pages, device="cuda").int().view(batch, -1)
        self.lengths = torch.full((batch,), context, device="cuda", dtype=torch.int32)
        random = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        self.q = random(batch, n_new, heads, self.dim)
        self.out = torch.empty_like(self.q[..., :self.dim_v])
        self.k = random(self.pages, page, kv_heads, self.dim)
        self.v = self.k[..., :self.dim_v]
        self.choose("bf16")

    def choose(self, store):
        """Peers have pages of bf16 only."""
        self.store, self.k_scale, self.v_scale = store, 1.0, 1.0

    def keys(self, b, kv_head):
        return self.k[self.table[b].long()].flatten(0, 1)[:, kv_head]

    def values(self, b, kv_head):
        return self.keys(b, kv_head)[:, :self.dim_v]

    def torch_peers(self):
        return {}


class PlainCell(Cell):
    """A cell of MLA in plain form. dim_v: columns of v."""
    dim, dim_v = 192, 128


class Ours:
    """Our own pool with the tokens of a cell. With @head_scales codes have a scale for each head,
    else one for each token."""

    def __init__(self, gpu, cell, store, head_scales=False):
        self.cell, self.gpu, self.kept = cell, gpu, []
        self.q, self.out = cell.q, cell.out
        rows = cell.kv_heads * cell.page
        of_rows = [dim * 2 if store == "bf16" else dim + (0 if head_scales else 4)
                   for dim in (cell.dim, cell.dim_v)]
        part, part_v = ((rows * of_row + 127) // 128 * 128 for of_row in of_rows)
        self.page_bytes = part + part_v
        self.pool = torch.empty(cell.pages * self.page_bytes, device="cuda", dtype=torch.uint8)
        self.cache = Cache(pool=self.pool.data_ptr(), dtype=race.BF16, layers=1,
                           kv_heads=cell.kv_heads, head_dim=cell.dim, head_dim_v=cell.dim_v,
                           page_tokens=cell.page, v_offset=part, store=STORES[store])
        if head_scales:
            for name, x in zip(("k_scales", "v_scales"), cell.plain):
                scales = x.abs().amax((0, 1, 3)).float() / CODE_MAX[store]
                self.kept.append((ctypes.c_float * cell.kv_heads)(*scales.tolist()))
                setattr(self.cache, name, ctypes.addressof(self.kept[-1]))
        slots = (cell.table.flatten() * (self.page_bytes // 256)).contiguous()
        self.slots = slots
        append = Request(op=FA_PAGED_APPEND, append=Append(
            cache=ctypes.pointer(self.cache), step=ctypes.pointer(self.step(cell.context)),
            k=tensor(cell.dense_k.flatten(0, 1)), v=tensor(cell.dense_v.flatten(0, 1))))
        gpu.plan(append)()
        self.attend()

    def attend(self):
        cell, gpu = self.cell, self.gpu
        self.launch = gpu.plan(Request(op=FA_PAGED_ATTEND, attention=Attention(
            cache=ctypes.pointer(self.cache), step=ctypes.pointer(self.step(cell.n_new)),
            heads=cell.heads, q=tensor(self.q.flatten(0, 1)), out=tensor(self.out.flatten(0, 1)),
            scale=cell.scale, causal=True, window_left=-1, window_right=-1)))
        torch.cuda.synchronize()

    def step(self, n_new):
        cell, batch, each = self.cell, self.cell.batch, self.cell.table.shape[1]
        arrays = [host([b * n_new for b in range(batch + 1)]), host([cell.context] * batch),
                  host([cell.context - n_new] * batch), host([b * each for b in range(batch)]),
                  host(self.slots.tolist())]
        cu_new, lengths, before, start, table = map(ctypes.addressof, arrays)
        step = Step(batch=batch, cu_new=cu_new, lengths=lengths, lengths_before=before,
                    table=self.slots.data_ptr(), table_start=start,
                    table_entries=batch * each, host_table=table)
        self.kept += [*arrays, step]
        return step

    def __call__(self, _):
        self.launch()
        return self.out

    def bare(self):
        """Returns a launch that reads the pages in the order of the sequences."""
        size = PIECE_BYTES
        while size > 0 and self.page_bytes % size:
            size -= 4096
        size = size or self.page_bytes
        first = self.pool.data_ptr() + self.slots.long() * 256
        offsets = torch.arange(0, self.page_bytes, size, device="cuda")
        self.pieces = (first[:, None] + offsets).flatten().contiguous()
        return self.gpu.bare(self.pieces, size)


class LatentOurs(Ours):
    """Pages of bf16 are the peers' memory: a pool of one KV head has their layout."""

    def __init__(self, gpu, cell, store="bf16", head_scales=False):
        self.cell, self.gpu, self.kept, self.pool = cell, gpu, [], cell.k
        self.q, self.out = cell.q, cell.out
        self.cache = Cache(dtype=race.BF16, layers=1, kv_heads=1, head_dim=cell.dim,
                           head_dim_v=cell.dim_v, page_tokens=cell.page, v_offset=0,
                           store=STORES["bf16"])
        if store == "f16":
            self.cache.dtype = race.F16
            self.pool, self.q, self.out = (x.half() for x in (cell.k, cell.q, cell.out))
        elif store != "bf16":
            self.pool = self.quantise(cell.k, store, head_scales)
        self.page_bytes = self.pool[0].nbytes
        self.cache.pool = self.pool.data_ptr()
        self.slots = (cell.table.flatten() * (self.page_bytes // 256)).contiguous()
        self.attend()

    def quantise(self, k, store, head_scales):
        """Returns pages of codes, and of each token's scale if there is none for the head."""
        self.cache.store = STORES[store]
        parts = []
        most = float(k.abs().amax())
        if head_scales:
            self.kept.append((ctypes.c_float * 1)(most / CODE_MAX[store]))
            self.cache.k_scales = ctypes.addressof(self.kept[-1])
        for x in k.squeeze(2).split(4096):
            scales = torch.full_like(x[..., 0], most / CODE_MAX[store], dtype=torch.float) \
                if head_scales else x.abs().amax(-1).float() / CODE_MAX[store]
            codes = (x.float() / scales[..., None]).to(torch.float8_e4m3fn)
            codes = codes.view(torch.uint8).flatten(1)
            parts.append(codes if head_scales else
                         torch.cat([codes, scales.view(torch.uint8).flatten(1)], 1))
        return torch.cat(parts)


class Own:
    """Our kernels over the peers' pages, whose table and lengths only the GPU reads."""

    def __init__(self, gpu, cell):
        self.cell, batch, each = cell, *cell.table.shape
        pages = lambda x: race.Tensor(x.data_ptr(), *x.stride()[:3])
        self.pages = OwnPages(dtype=race.BF16, kv_heads=cell.kv_heads, head_dim=DIM,
                              head_dim_v=DIM, page_tokens=cell.page, pages=cell.pages,
                              k=pages(cell.k), v=pages(cell.v))
        self.launch = gpu.plan(Request(op=FA_PAGED_ATTEND_OWN, own_attention=OwnAttention(
            pages=ctypes.pointer(self.pages), batch=batch, heads=cell.heads,
            table=cell.table.data_ptr(), table_columns=each, table_stride=each,
            lengths=cell.lengths.data_ptr(), max_q=cell.n_new, total_q=batch * cell.n_new,
            max_k=cell.context, q=tensor(cell.q.flatten(0, 1)),
            out=tensor(cell.out.flatten(0, 1)), scale=cell.scale, causal=True, window_left=-1,
            window_right=-1)))

    def __call__(self, _):
        self.launch()
        return self.cell.out


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0][:150]


def correct(cell, contestants, type_):
    found = {}
    for name, launch in contestants.items():
        try:
            cell.check(launch, cell.store)
            found[name] = launch
        except (AssertionError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            print(f"decode-race/{type_}/{cell.shape}: {name} is left out: {first_line(error)}",
                  flush=True)
    return found


def spread(samples):
    """The middle half of the samples, of the median."""
    quarters = statistics.quantiles(samples, n=4)
    return round((quarters[2] - quarters[0]) / quarters[1], 3)


def rows_of(name, samples, device, commit):
    """The results of a cell. @samples: by contestant; ours is "fad"."""
    times = {key: statistics.median(values) for key, values in samples.items()}
    ours, fastest = times["fad"], {}
    for key in times:
        peer = key.partition("/")[0]
        if key != "fad" and (peer not in fastest or times[key] < times[fastest[peer]]):
            fastest[peer] = key
    peers = [peer for peer in fastest if peer not in ("bare", "bf16")]
    if peers:
        fastest["best"] = fastest[min(peers, key=lambda peer: times[fastest[peer]])]
    for peer, key in fastest.items():
        yield {"name": name, "value": round(ours * 1e6, 2), "unit": "us", "peer": peer,
               "ratio": round(times[key] / ours, 3), "setting": key,
               "spread": spread(samples["fad"]), "peer_spread": spread(samples[key]),
               "commit": commit, "device": device}


def race_store(gpu, cell, store, plain, peers, args):
    """Races the kernels over one kind of pages. Yields (type, samples of contestants)."""
    cell.choose(store)
    type_ = store if store in ("bf16", "f16") else f"bf16-{store}"
    of = LatentOurs if args.mla else Ours
    ours = {"fad": plain} if store == "bf16" else \
        {"fad": of(gpu, cell, store), "heads": of(gpu, cell, store, True)}
    if store == "f16":
        del ours["heads"]
    for kernel in ours.values():
        cell.check(kernel, store)
    contestants = ours if args.own else {**ours, "bare": ours["fad"].bare()}
    if store != "bf16":
        contestants["bf16"] = plain
    for found in (cell.torch_peers(), *(paged(cell) for paged in peers)):
        found = {name: launch for name, launch in found.items()
                 if not args.skip or not name.startswith(tuple(args.skip.split(",")))}
        contestants.update(correct(cell, found, type_))
    times = race.boost_samples(gpu, contestants, args.samples)
    heads = times.pop("heads", None)
    yield type_, times
    if heads:
        yield f"{type_}-heads", {**times, "fad": heads}


def line_of(name, rows):
    parts = [f"{name:62s} {rows[0]['value']:8.1f} us"]
    parts += [f"{row['setting'] if row['peer'] != 'best' else 'best'} {row['ratio']:.3f}"
              for row in rows]
    return "  ".join(parts)


def shape_name(batch, context, heads, kv_heads, page, n_new, dims=DIM):
    return f"b{batch}-c{context}-h{heads}.{kv_heads}-d{dims}-p{page}-q{n_new}"


def cells(patterns, grid, dims):
    """Returns the cells whose names, as results have them, contain one of @patterns: texts with commas between them,
    or None for all. A text that no cell contains is an error."""
    found = [(batch, context, heads, kv_heads, page, n_new)
             for heads, kv_heads, page, n_new, sizes in grid for batch, context in sizes]
    if not patterns:
        return found
    names = [shape_name(*cell, dims) for cell in found]
    texts = patterns.split(",")
    for text in texts:
        if not any(text in name for name in names):
            raise SystemExit(f"decode.py: no cell has {text!r} in its name; names are like {names[0]}")
    return [cell for cell, name in zip(found, names) if any(text in name for text in texts)]


def summary(results):
    for peer in dict.fromkeys(row["peer"] for row in results):
        for type_ in dict.fromkeys(row["name"].split("/")[1] for row in results):
            ratios = [row["ratio"] for row in results
                      if row["peer"] == peer and row["name"].split("/")[1] == type_]
            if ratios:
                print(f"{type_} /{peer}: {len(ratios)} cells, min {min(ratios):.3f}, geometric "
                      f"mean {math.exp(statistics.mean(map(math.log, ratios))):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="build/tests/gpu/libfagpu.so")
    parser.add_argument("--peers", action="append", default=[], metavar="FILE.py")
    parser.add_argument("--own", action="store_true", help="our kernels read the peers' pages")
    parser.add_argument("--mla", action="store_true")
    parser.add_argument("--mla-plain", action="store_true")
    parser.add_argument("--stores", metavar="STORE,...",
                        help="bf16, e4m3, int8 (bf16 with --own and --mla-plain); with --mla bf16, f16, e4m3")
    parser.add_argument("--cells", metavar="TEXT,...",
                        help="only cells with one of these in b..-c..-h..-d..-p..-q..")
    parser.add_argument("--skip", metavar="NAME,...", help="no contestants whose names begin so")
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell later")
    parser.add_argument("--commit", default="?", help="commit of the library")
    parser.add_argument("--json")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    kind, cell_of, ours_of, grid, dims = \
        ("own-race", Cell, Own, OWN_GRID, DIM) if args.own else \
        ("mla-race", LatentCell, LatentOurs, MLA_GRID, LATENT_DIMS) if args.mla else \
        ("mla-plain", PlainCell, lambda gpu, cell: Ours(gpu, cell, "bf16"), PLAIN_GRID,
         PLAIN_DIMS) if args.mla_plain else \
        ("decode-race", Cell, lambda gpu, cell: Ours(gpu, cell, "bf16"), GRID, DIM)
    shapes = cells(args.cells, grid, dims)
    gpu = Gpu(args.library)
    peers = [race.load_peers(path, "paged") for path in args.peers]
    device, cudnn = torch.cuda.get_device_name(), torch.backends.cudnn.version()
    machine = f"{device}, torch {torch.__version__}, cuDNN {cudnn}"
    print(machine)
    results, failed = [], False
    args.stores = args.stores or ("bf16" if args.own or args.mla_plain else
                                  "bf16,f16,e4m3" if args.mla else ",".join(STORES))
    for shape in shapes:
        if time.monotonic() > end:
            print(f"no time is left for {shape} and what follows", flush=True)
            break
        cell = cell_of(*shape)
        plain = ours_of(gpu, cell)
        for store in args.stores.split(","):
            try:
                for type_, times in race_store(gpu, cell, store, plain, peers, args):
                    name = f"{kind}/{type_}/{cell.shape}/us"
                    rows = list(rows_of(name, times, device, args.commit))
                    print(line_of(name, rows), flush=True)
                    results += rows
            except (AssertionError, RuntimeError) as error:
                failed = True
                print(f"decode-race/{store}/{cell.shape}: {first_line(error)}", flush=True)
        del cell, plain
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"command": shlex.join(["bench/decode.py", *sys.argv[1:]]),
                           "machine": machine, "date": datetime.date.today().isoformat(),
                           "results": results}, file, indent=1)
    summary(results)
    if not results:
        print("nothing was measured", flush=True)
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
