"""
FlashInfer's kernels as contestants of bench/decode.py, from the package flashinfer-python 0.6.13
(README.md): XQA, which TensorRT-LLM has, too, and FlashInfer's own decode, on tensor cores and on
CUDA cores; and its prefill over tensors for bench/race.py and bench/traffic.py. They are compiled
when they are first used, about half a minute each.

XQA is called through its module, as flashinfer.xqa() does it, since that would compile for int8
sources that do not take it.
"""
import functools

import torch
from flashinfer import (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper,
                        BatchPrefillWithRaggedKVCacheWrapper)
from flashinfer.jit.xqa import gen_xqa_module

WORKSPACE_BYTES = 256 << 20
SEMAPHORE_BYTES = 8 << 20


@functools.cache
def workspace(_name):
    """A buffer of zeros for each use: some must be zeros when they are first used."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


# ---- XQA

def xqa_spec(dtype, page, group, n_new, dim=128):
    spec = gen_xqa_module(torch.bfloat16, dtype, page, dim, group, False, torch.bfloat16, n_new)
    if dtype == torch.int8:
        # The kernel for Hopper takes bf16 and e4m3 only.
        spec.sources = [path for path in spec.sources
                        if path.name not in ("mha_sm90.cu", "tensorMap.cpp")]
        spec.extra_cuda_cflags = ["-DUSE_SM90_MHA=0" if flag == "-DUSE_SM90_MHA=1" else flag
                                  for flag in spec.extra_cuda_cflags]
    return spec


@functools.cache
def xqa_module(*what):
    return xqa_spec(*what).build_and_load()


def causal_mask(batch, n_new):
    """Bit j of row i: new token i sees new token j. Two words of 16 bits for a row of at most 32."""
    rows = torch.tensor([(2 << i) - 1 for i in range(n_new)], dtype=torch.int64)
    words = torch.stack([rows & 0xffff, rows >> 16], 1).to(torch.uint16)
    return words.expand(batch, n_new, 2).contiguous().cuda()


def xqa(cell, k, v):
    module = xqa_module(cell.k.dtype, cell.page, cell.heads // cell.kv_heads, cell.n_new)
    several = cell.n_new > 1
    q, out = (x.unsqueeze(1) if several else x for x in (cell.q, cell.out))
    mask = causal_mask(cell.batch, cell.n_new) if several else None
    lengths = cell.lengths.unsqueeze(1)
    semaphores = workspace("xqa-semaphores")[:SEMAPHORE_BYTES]
    arguments = (
        cell.store == "e4m3", torch.cuda.get_device_properties(0).multi_processor_count,
        cell.kv_heads, 0, cell.scale * cell.dim ** 0.5, None, out, 1.0, q, None, k, v, None, None,
        cell.table, cell.table.shape[1] * cell.page, lengths, cell.batch, cell.k_scale, None,
        cell.n_new, mask, semaphores, workspace("xqa"), True)

    def launch(_):
        module.xqa_wrapper(*arguments)
        return cell.out
    return launch


# ---- FlashInfer's own

@functools.cache
def wrapper(kind, layout):
    if kind == "several":
        return BatchPrefillWithPagedKVCacheWrapper(workspace(layout), layout, backend="fa2")
    return BatchDecodeWithPagedKVCacheWrapper(workspace(layout), layout, backend="fa2",
                                              use_tensor_cores=kind == "tensor-cores")


def own(cell, kind, layout, kv):
    batch, each = cell.table.shape
    made = wrapper(kind, layout)
    arange = lambda step: torch.arange(0, batch * step + 1, step, dtype=torch.int32)
    last = torch.full((batch,), (cell.context - 1) % cell.page + 1, dtype=torch.int32)
    pages = (arange(each), cell.table.flatten(), last, cell.heads, cell.kv_heads, cell.dim,
             cell.page)
    types = {"q_data_type": cell.q.dtype, "kv_data_type": cell.k.dtype, "sm_scale": cell.scale}
    if kind == "several":
        made.plan(arange(cell.n_new), *pages, causal=True, **types)
    else:
        made.plan(*pages, **types)
    q, out = cell.q.flatten(0, 1), cell.out.flatten(0, 1)

    def launch(_):
        made.run(q, kv, out=out)
        return cell.out
    return launch


def paged(cell):
    layouts = {"NHD": (cell.k, cell.v), "HND": tuple(cell.hnd())}
    found = {}

    def add(name, make, *arguments):
        try:
            found[name] = make(*arguments)
        except (RuntimeError, ValueError, OSError) as error:
            print(f"{cell.shape}: {name}: {str(error)[:150]}", flush=True)
    for layout, kv in layouts.items():
        nhd = kv if layout == "NHD" else tuple(x.transpose(1, 2) for x in kv)
        if cell.page >= 16 and cell.n_new <= 32:
            add(f"xqa/{layout}", xqa, cell, *nhd)
        if cell.store == "int8":
            continue
        for kind in ("several",) if cell.n_new > 1 else ("tensor-cores", "cuda-cores"):
            add(f"flashinfer/{kind}-{layout}", own, cell, kind, layout, kv)
    return found


# ---- its prefill over tensors

def tensors(cell, backend):
    q, k, v = cell.sets[0]
    batch, _, n_q, _ = q.shape
    indices = lambda n: torch.arange(0, (batch + 1) * n, n, dtype=torch.int32, device="cuda")
    made = BatchPrefillWithRaggedKVCacheWrapper(workspace("tensors"), "NHD", backend=backend)
    made.plan(indices(n_q), indices(k.shape[2]), cell.heads, cell.kv_heads, q.shape[3],
              head_dim_vo=v.shape[3], causal=cell.causal,
              window_left=cell.window[0] if cell.window else -1,
              logits_soft_cap=cell.softcap or None, sm_scale=cell.scale, q_data_type=q.dtype,
              kv_data_type=k.dtype)
    inputs = [[x.transpose(1, 2).flatten(0, 1) for x in one] for one in cell.sets]

    def launch(i):
        return made.run(*inputs[i]).unflatten(0, (batch, n_q)).transpose(1, 2)
    return launch


def contestants(cell):
    if cell.dtype == "f32" or cell.alibi is not None or hasattr(cell, "cu_q"):
        return {}
    found = {}
    for backend in ("fa2", "fa3"):
        try:
            found[f"flashinfer-{backend}"] = tensors(cell, backend)
            found[f"flashinfer-{backend}"](0)
        except Exception as error:  # its compiler's, its planner's, CUDA's
            found.pop(f"flashinfer-{backend}", None)
            print(f"{cell.name}: flashinfer-{backend}: {str(error)[:150]}", flush=True)
    return found
