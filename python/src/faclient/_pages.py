"""Attention over a program's own pages: the request of Client.pages_attend()."""
from __future__ import annotations

import numpy as np

from ._lib import check, ffi, lib, new
from ._memory import DTYPES, Operand, as_operand, device_of, is_torch, placed, run_cuda

_STORED = (*DTYPES, "float8_e4m3fn")


def _operands(q, k, v, out, lse, table, lengths, cu_q, k_new, v_new, slots, k_scales, v_scales,
              prefix_lengths):
    """The operands that there are, and the fields of the struct that they fill."""
    given = {
        "q": (q, {}),
        "k": (k, {"only": _STORED, "copies_back": k_new is not None, "reads": True}),
        "v": (v, {"only": _STORED, "copies_back": v_new is not None, "reads": True}),
        "table": (table, {"only": ("int32",)}),
        "lengths": (lengths, {"only": ("int32",)}),
        "cu_q": (cu_q, {"only": ("int32",)}),
        "k_new": (k_new, {}),
        "v_new": (v_new, {}),
        "slots": (slots, {"only": ("int64",)}),
        "k_scales": (k_scales, {"only": ("float32",)}),
        "v_scales": (v_scales, {"only": ("float32",)}),
        "prefix_lengths": (prefix_lengths, {"only": ("int32",)}),
        "out": (out, {"copies_back": True}),
        "lse": (lse, {"copies_back": True, "only": ("float32",)}),
    }
    return {field: Operand(as_operand(x, field), field, **options)
            for field, (x, options) in given.items() if x is not None}


def attend_pages(client, q, k, v, table, lengths, *, cu_q=None, max_q=0, max_k=0, k_new=None,
                 v_new=None, slots=None, k_scales=None, v_scales=None, out=None, causal=False,
                 window=None, scale=None, softcap=0.0, sinks=None, alibi_slopes=None, lse=None,
                 deterministic=False, timeout=None, chunk_tokens=0, prefix_lengths=None,
                 pattern=None):
    """Yields the ticket that it waits for, and returns out."""
    from ._masks import set_pattern
    from .client import _kind, _set_options
    q, v = as_operand(q, "q"), as_operand(v, "v")
    if out is None:
        shape = (*q.shape[:-1], v.shape[-1])
        out = q.new_empty(shape) if is_torch(q) else np.empty(shape, q.dtype)
    ops = _operands(q, k, v, out, lse, table, lengths, cu_q, k_new, v_new, slots, k_scales,
                    v_scales, prefix_lengths)
    request = new("fa_pages_attend", scale=scale or 0.0, softcap=softcap, max_q=max_q, max_k=max_k,
                  chunk_tokens=chunk_tokens,
                  flags=lib.FA_PAGES_DETERMINISTIC if deterministic else 0)
    kept = _set_options(request, causal, window, sinks, alibi_slopes, timeout,
                        lib.FA_PAGES_CAUSAL, lib.FA_PAGES_WINDOW)
    set_pattern(request, pattern)
    operands = list(ops.values())
    device = device_of(operands)
    if device is not None:
        pending = client._cuda_gate().pending
        pending.collect()
        if 0 not in ops["q"].shape or slots is not None:
            run_cuda(client, device, operands, list(ops), request,
                     lib.fa_pages_attend, client._handle, pending, kept,
                     ("pages", max_q > 1, *_kind(causal, window, softcap, sinks, alibi_slopes, None,
                                                 chunk_tokens, prefix_lengths, pattern)))
        return out
    ticket = ffi.new("struct fa_ticket *")
    with placed(client, [x for x in operands if not x.copies_back],
                [x for x in operands if x.copies_back]):
        for field, x in ops.items():
            x.fill(getattr(request, field))
        check(lib.fa_pages_attend(client._handle, request, ticket))
        yield ticket
    del kept
    return out
