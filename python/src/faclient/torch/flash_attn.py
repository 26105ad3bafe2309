"""FlashAttention 3's functions, with its arguments, computed by fad.

    from faclient.torch.flash_attn import (flash_attn_func, flash_attn_varlen_func,
                                           flash_attn_with_kvcache)

Tensors may also be of the CPU, and of float32. There are no gradients. An argument that changes the
result and that fad does not support is an error that names it; `num_splits`, `pack_gqa`,
`deterministic`, `sm_margin` and `scheduler_metadata` change speed alone and are ignored.
"""
from __future__ import annotations

import torch

from . import _refuse_grad
from . import client as _client


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                    softmax_scale: float | None = None, causal: bool = False,
                    qv: torch.Tensor | None = None, q_descale: torch.Tensor | None = None,
                    k_descale: torch.Tensor | None = None, v_descale: torch.Tensor | None = None,
                    window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                    softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
                    deterministic: bool = False, sm_margin: int = 0,
                    return_attn_probs: bool = False
                    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """q [batch, n_q, heads, dim], k and v [batch, n_k, kv_heads, dim]. Row i sees keys from
    i + n_k - n_q - window_size[0] to i + n_k - n_q + window_size[1], if causal none after
    i + n_k - n_q; a negative size: all. Returns out; with return_attn_probs also the logarithm of
    the softmax's denominator [batch, heads, n_q]."""
    _refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
            attention_chunk=attention_chunk)
    return _attention(q, k, v, (q.shape[0], q.shape[-2], q.shape[1]) if q.dim() == 4 else None,
                      4, None, softmax_scale, causal, window_size, softcap, return_attn_probs)


def flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                           cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
                           max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
                           seqused_q: torch.Tensor | None = None,
                           seqused_k: torch.Tensor | None = None,
                           softmax_scale: float | None = None, causal: bool = False,
                           qv: torch.Tensor | None = None, q_descale: torch.Tensor | None = None,
                           k_descale: torch.Tensor | None = None,
                           v_descale: torch.Tensor | None = None,
                           window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                           softcap: float = 0.0, num_splits: int = 1,
                           pack_gqa: bool | None = None, deterministic: bool = False,
                           sm_margin: int = 0, return_attn_probs: bool = False
                           ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The same for sequences in one tensor: q [tokens, heads, dim]; sequence b has the rows
    cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of q, likewise of k and v. The logarithms are
    [heads, tokens]. `cu_seqlens_q` and `cu_seqlens_k` are read on the CPU, which waits for the GPU
    if they lie there; the longest lengths are not needed."""
    _refuse(seqused_q=seqused_q, seqused_k=seqused_k, qv=qv, q_descale=q_descale,
            k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    lengths = tuple(x.cpu().numpy() for x in (cu_seqlens_q, cu_seqlens_k))
    return _attention(q, k, v, (q.shape[-2], q.shape[0]) if q.dim() == 3 else None, 3, lengths,
                      softmax_scale, causal, window_size, softcap, return_attn_probs)


def flash_attn_with_kvcache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
                            k: torch.Tensor | None = None, v: torch.Tensor | None = None,
                            qv: torch.Tensor | None = None,
                            rotary_cos: torch.Tensor | None = None,
                            rotary_sin: torch.Tensor | None = None,
                            cache_seqlens: int | torch.Tensor | None = None,
                            cache_batch_idx: torch.Tensor | None = None,
                            cache_leftpad: torch.Tensor | None = None,
                            page_table: torch.Tensor | None = None,
                            cu_seqlens_q: torch.Tensor | None = None,
                            cu_seqlens_k_new: torch.Tensor | None = None,
                            max_seqlen_q: int | None = None,
                            rotary_seqlens: torch.Tensor | None = None,
                            q_descale: torch.Tensor | None = None,
                            k_descale: torch.Tensor | None = None,
                            v_descale: torch.Tensor | None = None,
                            softmax_scale: float | None = None, causal: bool = False,
                            window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                            softcap: float = 0.0, rotary_interleaved: bool = True,
                            scheduler_metadata: torch.Tensor | None = None, num_splits: int = 0,
                            pack_gqa: bool | None = None, sm_margin: int = 0,
                            return_softmax_lse: bool = False
                            ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of q to a cache, after k and v, if given, were written to it behind the first
    cache_seqlens tokens.

    k_cache, v_cache  [pages, page_tokens, kv_heads, dim] with page_table [batch, columns], of
                      pages of 1 to 256 tokens; else [batch, tokens, kv_heads, dim], of which
                      cache_batch_idx names each sequence's
    q      [batch, n_q, heads, dim], or with cu_seqlens_q [rows, heads, dim]
    k, v   [batch, n_new, kv_heads, dim], or with cu_seqlens_k_new [tokens, kv_heads, dim]

    The cache may also be of float8_e4m3fn with q of another dtype; k_descale and v_descale are
    then one scale for each KV head, the same for all sequences. On the CPU make the cache by
    faclient.torch.empty(), or it is copied. The tensors of lengths and pages are not read here: on
    a GPU they may be filled by work that still runs.
    """
    _refuse(qv=qv, rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_seqlens=rotary_seqlens,
            cache_leftpad=cache_leftpad, q_descale=q_descale, attention_chunk=attention_chunk)
    return _cached(q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, page_table,
                   cu_seqlens_q, cu_seqlens_k_new, max_seqlen_q, k_descale, v_descale,
                   softmax_scale, causal, window_size, softcap, return_softmax_lse)


def _refuse(**arguments):
    for name, value in arguments.items():
        if value is not None and not (name == "attention_chunk" and value == 0):
            raise NotImplementedError(f"{name}: fad does not support it")


@torch.compiler.disable
def _attention(q, k, v, lse_shape, rank, lengths, scale, causal, window, softcap, with_lse):
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != rank:
            raise ValueError(f"{name} has {x.dim()} dimensions; expected {rank}")
    _refuse_grad(q, k, v)
    if scale == 0:
        raise NotImplementedError("softmax_scale: fad does not support 0")
    lse = q.new_empty(lse_shape, dtype=torch.float32) if with_lse else None
    out = _client().attention(q, k, v, causal=causal, scale=scale, softcap=softcap, lse=lse,
                              window=_limits(causal, window), lengths=lengths)
    return out if lse is None else (out, lse)


def _limits(causal, window):
    left, right = (max(-1, int(n)) for n in window)
    if causal:
        right = 0
    return None if left < 0 and (causal or right < 0) else (left, right)


def _check_rank(rank, **tensors):
    for name, x in tensors.items():
        if x.dim() != rank:
            raise ValueError(f"{name} has {x.dim()} dimensions; expected {rank}")


def _head_scales(scales, heads, name):
    """One scale for each head, of a tensor [heads], or [batch, heads] that repeats one row."""
    if scales is None:
        return None
    if scales.dim() == 2 and scales.shape[0] > 1 and scales.stride(0) != 0:
        raise NotImplementedError(f"{name}: fad does not support a scale for each sequence; expected "
                                  "one row, expanded")
    row = scales[0] if scales.dim() == 2 else scales
    if row.shape != (heads,):
        raise ValueError(f"{name} has shape {tuple(scales.shape)}; expected [batch, {heads}]")
    return row.float().contiguous()


def _dense_pages(cache, batch_idx, batch):
    """A cache without pages as pages, and their table."""
    n, tokens = cache.shape[:2]
    row = cache.stride(1)
    # The distance of sequences in tokens; pages must divide it.
    apart = cache.stride(0) // row if n > 1 and row else tokens
    if n > 1 and (not row or cache.stride(0) % row or apart < tokens):
        raise ValueError(f"k_cache has strides {cache.stride()}; expected sequences a multiple of the "
                         "stride of tokens apart, as there is no page_table")
    size = next(p for p in range(256, 0, -1) if tokens % p == 0 and apart % p == 0)
    columns = tokens // size
    first = torch.arange(n, device=cache.device, dtype=torch.int32) * (apart // size)
    if batch_idx is not None:
        first = first[batch_idx.long()]
    elif n < batch:
        raise ValueError(f"k_cache has {n} sequences; expected {batch}, as q")
    table = first[:batch, None] + torch.arange(columns, device=cache.device, dtype=torch.int32)
    return size, (n - 1) * (apart // size) + columns, table


def _as_pages(cache, size, pages):
    strides = (size * cache.stride(1), *cache.stride()[1:])
    return cache.as_strided((pages, size, *cache.shape[2:]), strides)


def _new_slots(table, page_tokens, lengths, k, cu_new, batch):
    """Where the new rows go, and how many each sequence has."""
    if cu_new is None:
        n_new = k.shape[1]
        at = lengths[:, None] + torch.arange(n_new, device=k.device)
        sequence = torch.arange(batch, device=k.device)[:, None].expand(batch, n_new)
    else:
        rows = torch.arange(k.shape[0], device=k.device)
        cu_new = cu_new.long()
        sequence = (torch.searchsorted(cu_new, rows, right=True) - 1).clamp(0, batch - 1)
        at = lengths[sequence] + rows - cu_new[sequence]
        n_new = cu_new[1:] - cu_new[:-1]
    column = at // page_tokens
    page = table.long()[sequence, column.clamp(0, table.shape[1] - 1)]
    slots = page * page_tokens + at % page_tokens
    # A token beyond the table has no place.
    return torch.where((column >= 0) & (column < table.shape[1]), slots, -1).reshape(-1), n_new


@torch.compiler.disable
def _cached(q, k_cache, v_cache, k, v, cache_seqlens, batch_idx, page_table, cu_q, cu_new, max_q,
            k_descale, v_descale, scale, causal, window, softcap, with_lse):
    _check_rank(4, k_cache=k_cache, v_cache=v_cache)
    _check_rank(4 if cu_q is None else 3, q=q)
    if (k is None) != (v is None):
        raise ValueError(f"{'k' if v is None else 'v'} came alone; expected k and v, or neither")
    if k is not None:
        _check_rank(4 if cu_new is None else 3, k=k, v=v)
        if cache_seqlens is None:
            raise ValueError("cache_seqlens is None; expected lengths, as k and v are given")
    _refuse_grad(q, k_cache, v_cache, *(x for x in (k, v) if x is not None))
    if scale == 0:
        raise NotImplementedError("softmax_scale: fad does not support 0")
    batch = q.shape[0] if cu_q is None else cu_q.shape[0] - 1
    if page_table is not None:
        if batch_idx is not None:
            raise NotImplementedError("cache_batch_idx: fad does not support it with page_table")
        size, table = k_cache.shape[1], page_table.int()
    else:
        size, pages, table = _dense_pages(k_cache, batch_idx, batch)
        if tuple(v_cache.shape[:2]) != tuple(k_cache.shape[:2]) or (
                v_cache.shape[0] > 1 and
                v_cache.stride(0) * k_cache.stride(1) != k_cache.stride(0) * v_cache.stride(1)):
            raise ValueError("v_cache has other sequences or tokens than k_cache, or other strides")
        k_cache, v_cache = (_as_pages(x, size, pages) for x in (k_cache, v_cache))
    if cache_seqlens is None:
        cache_seqlens = table.shape[1] * size
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, device=q.device)
    lengths, slots = cache_seqlens.long(), None
    if k is not None:
        slots, n_new = _new_slots(table, size, lengths, k, cu_new, batch)
        lengths = lengths + n_new
        if cu_new is None:
            k, v = k.flatten(0, 1), v.flatten(0, 1)
    max_k = 0
    if lengths.device.type == "cpu" and batch:
        max_k = max(0, min(int(lengths.max()), table.shape[1] * size))
    rows = q if cu_q is not None else q.flatten(0, 1)
    lse = rows.new_empty((rows.shape[-2], rows.shape[0]), dtype=torch.float32) if with_lse else None
    if cu_q is not None and max_q is None:
        max_q = rows.shape[0]
    out = _client().pages_attend(
        rows, k_cache, v_cache, table, lengths.int(),
        cu_q=None if cu_q is None else cu_q.int(),
        max_q=min(max_q, rows.shape[0]) if cu_q is not None else 0, max_k=max_k, k_new=k, v_new=v,
        slots=slots, k_scales=_head_scales(k_descale, k_cache.shape[2], "k_descale"),
        v_scales=_head_scales(v_descale, k_cache.shape[2], "v_descale"), causal=causal,
        scale=scale, softcap=softcap, window=_limits(causal, window), lse=lse)
    if cu_q is None:
        out = out.view(*q.shape[:-1], out.shape[-1])
        if lse is not None:
            lse = lse.view(q.shape[2], *q.shape[:2]).transpose(0, 1)
    return out if lse is None else (out, lse)
