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
    the softmax's denominator [batch, heads, n_q]. Tensors of float8_e4m3fn have scales
    [batch, kv_heads], as in flash_attn_with_kvcache(), and give a result of bfloat16."""
    _refuse(qv=qv)
    if q.dtype == torch.float8_e4m3fn:
        return _cached(q, k, v, None, None, _NO_ROTARY, None, None, None, None, None, None, None,
                       (q_descale, k_descale, v_descale), softmax_scale, causal, window_size,
                       softcap, return_attn_probs, attention_chunk)
    _refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    return _attention(q, k, v, (q.shape[0], q.shape[-2], q.shape[1]) if q.dim() == 4 else None,
                      4, None, softmax_scale, causal, window_size, softcap, return_attn_probs,
                      attention_chunk)


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
    if they lie there; the longest lengths are not needed. seqused_k [batch]: only so many keys of each
    sequence count; with it, or with tensors of float8_e4m3fn, no lengths are read, and keys are
    read token by token, which takes longer."""
    _refuse(seqused_q=seqused_q, qv=qv)
    if q.dtype == torch.float8_e4m3fn or seqused_k is not None:
        return _ragged(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k,
                       (q_descale, k_descale, v_descale), softmax_scale, causal, window_size,
                       softcap, return_attn_probs, attention_chunk)
    _refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    lengths = tuple(x.cpu().numpy() for x in (cu_seqlens_q, cu_seqlens_k))
    return _attention(q, k, v, (q.shape[-2], q.shape[0]) if q.dim() == 3 else None, 3, lengths,
                      softmax_scale, causal, window_size, softcap, return_attn_probs,
                      attention_chunk)


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

    rotary_cos, rotary_sin [positions, half of the rotary dim]: k's rows are rotated for positions
    from rotary_seqlens on, by default cache_seqlens; q's, too, if causal or with a window, else all
    of them for that first position. cache_leftpad [batch]: the first tokens of the cache that no
    row sees, which cache_seqlens counts; the cache is then read token by token, which takes longer.

    The cache may also be of float8_e4m3fn, and q of that or another dtype. An element is code *
    descale; q_descale, k_descale and v_descale are [batch, kv_heads]. New rows of float8_e4m3fn are
    written as they are, others are divided by their descale. Unless all sequences have the same
    (`expand()` of one row), each of them is a request of its own.

    On the CPU make the cache by faclient.torch.empty(), or it is copied. The tensors of lengths and
    pages are not read here: on a GPU they may be filled by work that still runs.
    """
    _refuse(qv=qv)
    return _cached(q, k_cache, v_cache, k, v, (rotary_cos, rotary_sin, rotary_seqlens,
                                               rotary_interleaved),
                   cache_seqlens, cache_batch_idx, cache_leftpad, page_table,
                   cu_seqlens_q, cu_seqlens_k_new, max_seqlen_q, (q_descale, k_descale, v_descale),
                   softmax_scale, causal, window_size, softcap, return_softmax_lse,
                   attention_chunk)


def _refuse(**arguments):
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{name}: fad does not support it")


@torch.compiler.disable
def _attention(q, k, v, lse_shape, rank, lengths, scale, causal, window, softcap, with_lse, chunk):
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != rank:
            raise ValueError(f"{name} has {x.dim()} dimensions; expected {rank}")
    _refuse_grad(q, k, v)
    if scale == 0:
        raise NotImplementedError("softmax_scale: fad does not support 0")
    lse = q.new_empty(lse_shape, dtype=torch.float32) if with_lse else None
    out = _client().attention(q, k, v, causal=causal, scale=scale, softcap=softcap, lse=lse,
                              window=_limits(causal, window), lengths=lengths,
                              chunk_tokens=chunk)
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


# ---- float8

def _scales(scales, batch, heads, name):
    """[1, heads] if all sequences have the same, else [batch, heads]."""
    if scales is None:
        return None
    rows = scales if scales.dim() == 2 else scales[None]
    if rows.dim() != 2 or rows.shape[1] != heads or rows.shape[0] not in (1, batch):
        raise ValueError(f"{name} has shape {tuple(scales.shape)}; expected [{batch}, {heads}]")
    return (rows[:1] if rows.stride(0) == 0 else rows).float()


def _descales(q, k_cache, descales, batch):
    """Scales of keys and of values. The key's also have q's, as a score is a product of both."""
    heads = k_cache.shape[2]
    of_q, of_k, of_v = (_scales(x, batch, heads, name) for x, name in
                        zip(descales, ("q_descale", "k_descale", "v_descale")))
    if q.dtype == torch.float8_e4m3fn and k_cache.dtype != q.dtype:
        raise TypeError(f"k_cache has dtype {k_cache.dtype}; expected that of q, {q.dtype}")
    if of_q is not None and q.dtype != torch.float8_e4m3fn:
        raise ValueError(f"q_descale: q has dtype {q.dtype}; expected torch.float8_e4m3fn")
    if of_q is not None:
        of_k = of_q if of_k is None else of_q * of_k
    return of_k, of_v


# ---- rotary embedding

def _check_rotary(cos, sin, q, k):
    if cos is None or sin is None:
        raise ValueError(f"rotary_{'cos' if sin is None else 'sin'} came alone; expected both, or "
                         "neither")
    if k is None:
        raise ValueError("rotary_cos: there is no k; expected k and v to be appended")
    if cos.dim() != 2 or cos.shape != sin.shape or not cos.shape[0] or not cos.shape[1]:
        raise ValueError(f"rotary_cos has shape {tuple(cos.shape)}, and rotary_sin "
                         f"{tuple(sin.shape)}; expected the same [positions, rotary dim / 2]")
    if 2 * cos.shape[1] > q.shape[-1]:
        raise ValueError(f"rotary_cos has {cos.shape[1]} columns; expected at most half of the head "
                         f"dim, {q.shape[-1] // 2}")
    if q.dtype == torch.float8_e4m3fn:
        raise NotImplementedError(f"rotary_cos: fad does not support it for q of {q.dtype}")


def _rotate(x, cos, sin, positions, interleaved):
    """Rows [rows, heads, dim] rotated for their positions, in float32. A position without an angle
    has that of the nearest."""
    n = cos.shape[1]
    at = positions.clamp(0, cos.shape[0] - 1)
    c, s = (angles.float()[at][:, None] for angles in (cos, sin))
    turned, rest = x[..., :2 * n].float(), x[..., 2 * n:]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
    else:
        a, b = turned[..., :n], turned[..., n:]
    parts = (a * c - b * s, a * s + b * c)
    turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


# ---- caches

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


def _places(cu, rows, batch, device):
    """The sequence of each row, and its number in it. cu None: all have as many rows."""
    i = torch.arange(rows, device=device)
    if cu is None:
        each = max(1, rows // max(1, batch))
        return i // each, i % each
    cu = cu.long()
    sequence = (torch.searchsorted(cu, i, right=True) - 1).clamp(0, max(0, batch - 1))
    return sequence, i - cu[sequence]


def _slots(table, page_tokens, sequence, at):
    """Where tokens number `at` of these sequences are. One beyond the table has no place."""
    column = at // page_tokens
    page = table.long()[sequence, column.clamp(0, table.shape[1] - 1)]
    slots = page * page_tokens + at % page_tokens
    return torch.where((column >= 0) & (column < table.shape[1]), slots, -1)


def _as_tokens(cache, name):
    """A cache as pages of one token, and how many of them are from one page to the next."""
    pages, size = cache.shape[:2]
    row = cache.stride(1)
    apart = cache.stride(0) // row if pages > 1 and row else size
    if pages > 1 and (not row or cache.stride(0) % row):
        raise ValueError(f"{name} has strides {cache.stride()}; expected pages a multiple of the stride "
                         "of tokens apart, as there is cache_leftpad")
    return _as_pages(cache, 1, (pages - 1) * apart + size), apart


def _after_leftpad(k_cache, v_cache, table, leftpad):
    """Caches of pages of one token, and the table of their tokens after the first `leftpad`."""
    pages, size = k_cache.shape[:2]
    k_cache, apart = _as_tokens(k_cache, "k_cache")
    v_cache, apart_v = _as_tokens(v_cache, "v_cache")
    if apart != apart_v or k_cache.shape[0] != v_cache.shape[0]:
        raise ValueError("v_cache has other pages or tokens than k_cache, or other strides")
    tokens = table.shape[1] * size
    at = leftpad.long().clamp(0, tokens)[:, None] + torch.arange(tokens, device=table.device)
    page = table.long().gather(1, (at // size).clamp(max=table.shape[1] - 1))
    return k_cache, v_cache, (page.clamp(0, pages - 1) * apart + at % size).int()


def _ragged(q, k, v, cu_q, cu_k, max_q, max_k, used, descales, *options):
    """Ragged keys and values as pages of one token."""
    _check_rank(3, q=q, k=k, v=v)
    if cu_q.dim() != 1 or cu_q.shape != cu_k.shape or len(cu_q) < 2:
        raise ValueError(f"lengths have shapes {tuple(cu_q.shape)} and {tuple(cu_k.shape)}; expected "
                         "as many for q and k, and one more than sequences")
    if used is not None and used.shape != (len(cu_k) - 1,):
        raise ValueError(f"seqused_k has shape {tuple(used.shape)}; expected [{len(cu_k) - 1}]")
    own = cu_k[1:] - cu_k[:-1]
    columns = max(1, k.shape[0] if max_k is None else min(max_k, k.shape[0]))
    table = cu_k[:-1, None] + torch.arange(columns, device=k.device)
    return _cached(q, k[:, None], v[:, None], None, None, _NO_ROTARY,
                   own if used is None else torch.minimum(used.to(own.dtype), own), None, None,
                   table, cu_q, None, max_q, descales, *options)


#: rotary_cos, rotary_sin, rotary_seqlens, rotary_interleaved
_NO_ROTARY = (None, None, None, True)


@torch.compiler.disable
def _cached(q, k_cache, v_cache, k, v, rotary, cache_seqlens, batch_idx, leftpad, page_table, cu_q,
            cu_new, max_q, descales, scale, causal, window, softcap, with_lse, chunk):
    _check_rank(4, k_cache=k_cache, v_cache=v_cache)
    _check_rank(4 if cu_q is None else 3, q=q)
    if (k is None) != (v is None):
        raise ValueError(f"{'k' if v is None else 'v'} came alone; expected k and v, or neither")
    if k is not None:
        _check_rank(4 if cu_new is None else 3, k=k, v=v)
        if cache_seqlens is None:
            raise ValueError("cache_seqlens is None; expected lengths, as k and v are given")
    cos, sin, rotary_start, interleaved = rotary
    if cos is not None or sin is not None:
        _check_rotary(cos, sin, q, k)
    _refuse_grad(q, k_cache, v_cache, *(x for x in (k, v, cos, sin) if x is not None))
    if scale == 0:
        raise NotImplementedError("softmax_scale: fad does not support 0")
    batch = q.shape[0] if cu_q is None else cu_q.shape[0] - 1
    for name, x in (("cache_leftpad", leftpad), ("rotary_seqlens", rotary_start)):
        if x is not None and x.shape != (batch,):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected [{batch}], as q has so many "
                             "sequences")
    k_scales, v_scales = _descales(q, k_cache, descales, batch)
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
    before = cache_seqlens.long()
    request = _Request(q if cu_q is not None else q.flatten(0, 1), cu_q, max_q, batch,
                       q.shape[1] if cu_q is None else None)
    lengths = before
    new = None
    if k is not None:
        rows = [x if cu_new is not None else x.flatten(0, 1) for x in (k, v)]
        sequence, i = _places(cu_new, len(rows[0]), batch, k.device)
        lengths = before + (k.shape[1] if cu_new is None else cu_new[1:] - cu_new[:-1])
        if cos is not None:
            start = before if rotary_start is None else rotary_start.long()
            rows[0] = _rotate(rows[0], cos, sin, start[sequence] + i, interleaved)
            of_q, i_q = _places(cu_q, len(request.q), batch, q.device)
            moves = _moves(causal, window, table.shape[1] * size, request.max_q)
            request.q = _rotate(request.q, cos, sin, start[of_q] + (i_q if moves else 0),
                                interleaved)
        new = (*rows, _slots(table, size, sequence, before[sequence] + i), sequence)
    if new is not None and (leftpad is not None or q.dtype == torch.float8_e4m3fn):
        _append(k_cache, v_cache, new, table, lengths, k_scales, v_scales, q)
        new = None
    if leftpad is not None:
        k_cache, v_cache, table = _after_leftpad(k_cache, v_cache, table, leftpad)
        lengths = lengths - leftpad.long()
    if q.dtype == torch.float8_e4m3fn:
        request.q = request.q.to(torch.bfloat16)  # exact
    out, lse = request.attend(k_cache, v_cache, table, lengths, new, k_scales, v_scales, with_lse,
                              {"causal": causal, "scale": scale, "softcap": softcap,
                               "window": _limits(causal, window), "chunk_tokens": chunk})
    if cu_q is None:
        out = out.view(*q.shape[:-1], out.shape[-1])
        if lse is not None:
            lse = lse.view(q.shape[2], *q.shape[:2]).transpose(0, 1)
    return out if lse is None else (out, lse)


def _moves(causal, window, tokens, max_q):
    """True if FlashAttention rotates each row of q for a position of its own."""
    left, right = window
    return causal or 0 <= left < tokens - 1 or 0 <= right < max_q - 1


def _append(k_cache, v_cache, new, table, lengths, k_scales, v_scales, q):
    """Writes new rows to their slots, by requests without queries."""
    *rows, slots, sequence = new
    none = q.new_empty((0, k_cache.shape[2], k_cache.shape[3]), dtype=torch.bfloat16)
    if q.dtype == torch.float8_e4m3fn:
        rows, k_scales, v_scales = [x.to(torch.bfloat16) for x in rows], None, None  # codes
    else:
        none = none.to(q.dtype)
    for b, of_k, of_v in _each(k_scales, v_scales):
        _client().pages_attend(none, k_cache, v_cache, table, lengths.int(), k_new=rows[0],
                               v_new=rows[1], slots=_only(slots, sequence, b), k_scales=of_k,
                               v_scales=of_v)


def _each(k_scales, v_scales):
    """The requests that scales need: a sequence, or None for all, and its scales."""
    batch = max(1 if x is None else len(x) for x in (k_scales, v_scales))
    for b in range(batch):
        yield (None if batch == 1 else b,
               *(None if x is None else x[b if len(x) > 1 else 0].contiguous()
                 for x in (k_scales, v_scales)))


def _only(slots, sequence, b):
    return slots if b is None else torch.where(sequence == b, slots, -1)


class _Request:
    """The rows of a call, as one request or as one for each sequence."""

    def __init__(self, q, cu_q, max_q, batch, each):
        self.q, self.cu, self.batch, self.each = q, cu_q, batch, each
        self.max_q = each if cu_q is None else len(q) if max_q is None else min(max_q, len(q))

    def attend(self, k_cache, v_cache, table, lengths, new, k_scales, v_scales, with_lse, how):
        max_k = 0
        if lengths.device.type == "cpu" and self.batch:
            max_k = max(0, min(int(lengths.max()), table.shape[1] * k_cache.shape[1]))
        lengths = lengths.int()
        out = self.q.new_empty((*self.q.shape[:-1], v_cache.shape[-1]))
        lse = None
        if with_lse:
            lse = self.q.new_empty((self.q.shape[-2], len(self.q)), dtype=torch.float32)
        for b, of_k, of_v in _each(k_scales, v_scales):
            rows, which, cu = self._rows(b)
            part = None if lse is None else lse[:, rows].contiguous()
            options = {} if new is None else {"k_new": new[0], "v_new": new[1],
                                              "slots": _only(new[2], new[3], b)}
            _client().pages_attend(
                self.q[rows], k_cache, v_cache, table[which], lengths[which],
                cu_q=cu, max_q=0 if cu is None else min(self.max_q, len(self.q[rows])), max_k=max_k, k_scales=of_k,
                v_scales=of_v, out=out[rows], lse=lse if b is None else part, **options, **how)
            if b is not None and lse is not None:
                lse[:, rows] = part
        return out, lse

    def _rows(self, b):
        """Rows and sequences of one request: b's, or all."""
        if b is None:
            return slice(None), slice(None), None if self.cu is None else self.cu.int()
        which = slice(b, b + 1)
        if self.cu is None:
            return slice(b * self.each, (b + 1) * self.each), which, None
        if self.cu.device.type != "cpu":
            return slice(None), which, self.cu[b:b + 2].int()
        # Rows of others would be copied back, too.
        first, end = (min(max(0, int(x)), len(self.q)) for x in self.cu[b:b + 2])
        rows = slice(first, max(first, end))
        return rows, which, torch.tensor([0, rows.stop - first], dtype=torch.int32)
