"""FlashAttention 3's functions, with its arguments, computed by fad.

    from faclient.torch.flash_attn import flash_attn_func, flash_attn_varlen_func

Tensors may also be of the CPU, and of float32. There are no gradients. An argument that changes the
result and that fad does not support is an error that names it; `num_splits`, `pack_gqa`,
`deterministic` and `sm_margin` change speed alone and are ignored. `flash_attn_with_kvcache` does
not exist: fad attends to pages of its own pool only.
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
    left, right = (max(-1, int(n)) for n in window)
    if causal:
        right = 0
    limits = None if left < 0 and (causal or right < 0) else (left, right)
    lse = q.new_empty(lse_shape, dtype=torch.float32) if with_lse else None
    out = _client().attention(q, k, v, causal=causal, scale=scale, softcap=softcap, lse=lse,
                              window=limits, lengths=lengths)
    return out if lse is None else (out, lse)
