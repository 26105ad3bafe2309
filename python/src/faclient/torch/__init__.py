"""Attention for PyTorch: a custom operator that torch.compile keeps in its graph.

    import faclient.torch as fad

    out = fad.attention(q, k, v, is_causal=True)        # [batch, heads, tokens, dim]

Tensors on the daemon's GPU are computed where they lie, in the order of the current stream, and the
call returns at once: an error that comes later is raised by the next call or by `synchronize()`.
Tensors on the CPU are copied, unless `empty()` made them.
"""
from __future__ import annotations

import math
from typing import Any

import torch

from ..client import Client, default_client
from .._masks import Blocks, Pattern
from .._memory import PAGES_DTYPES, dtype_name

_client: Client | None = None


def use(client: Client | None) -> None:
    """Sets the client of this module's functions. None: the process's own (default_client())."""
    global _client
    _client = client


def client() -> Client:
    """The client of this module's functions."""
    return _client or default_client()


def empty(*shape: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A zeroed tensor that the daemon sees: requests on it copy nothing."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    dtype_name(dtype, PAGES_DTYPES)
    return _empty_of(client(), shape, dtype)


def _empty_of(client, shape, dtype):
    nbytes = math.prod(shape) * dtype.itemsize
    array = client.empty(max(nbytes, dtype.itemsize), "float8_e4m3fn")  # in numpy uint8
    return torch.from_numpy(array)[:nbytes].view(dtype).view(shape)


def synchronize() -> None:
    """As Client.synchronize()."""
    client().synchronize()


#: A CUDA graph cannot hold requests to a daemon: torch.compile leaves the operator out of them.
_TAGS = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",)
              if hasattr(torch.Tag, name))


@torch.library.custom_op("faclient::attention", mutates_args=(), tags=_TAGS)
def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float,
               window_left: int, window_right: int, softcap: float, chunk_tokens: int = 0,
               prefix_lengths: list[int] | None = None, mask: torch.Tensor | None = None,
               block_offsets: torch.Tensor | None = None,
               block_columns: torch.Tensor | None = None, block_rows: int = 0, block_keys: int = 0,
               pattern: list[int] | None = None) -> torch.Tensor:
    window = None if window_left < 0 and window_right < 0 else (window_left, window_right)
    out = q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]))
    client().attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), out=out,
                       causal=is_causal, scale=scale or None, window=window, softcap=softcap,
                       chunk_tokens=chunk_tokens, prefix_lengths=prefix_lengths, mask=mask,
                       blocks=None if block_offsets is None else
                       (block_offsets, block_columns, block_rows, block_keys),
                       pattern=None if pattern is None else Pattern(*pattern))
    return out.transpose(1, 2)


@_attention.register_fake
def _(q, k, v, is_causal, scale, window_left, window_right, softcap, chunk_tokens=0,
      prefix_lengths=None, mask=None, block_offsets=None, block_columns=None, block_rows=0,
      block_keys=0, pattern=None):
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3])).transpose(1, 2)


def _refuse_grad(*tensors):
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise RuntimeError("a tensor requires a gradient, and fad computes none: use "
                           "torch.no_grad() or another attention")


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool = False,
              scale: float | None = None, window: tuple[int, int] | None = None,
              softcap: float = 0.0, chunk_tokens: int = 0,
              prefix_lengths: list[int] | None = None, blocks: Blocks | None = None,
              mask: torch.Tensor | None = None, pattern: Pattern | None = None) -> torch.Tensor:
    """q [batch, heads, n_q, dim], k and v [batch, kv_heads, n_k, dim]. With is_causal row i sees
    keys up to i + n_k - n_q. window: (left, right); -1: all. chunk_tokens, prefix_lengths [batch],
    blocks, mask, pattern: as of Client.attention()."""
    _refuse_grad(q, k, v)
    left, right = window if window is not None else (-1, -1)
    return torch.ops.faclient.attention(q, k, v, is_causal, scale or 0.0, left, right, softcap,
                                        chunk_tokens, prefix_lengths, mask,
                                        *(blocks or (None, None, 0, 0)),
                                        None if pattern is None else list(pattern))


def scaled_dot_product_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                                 attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> torch.Tensor:
    """A drop-in for torch.nn.functional.scaled_dot_product_attention, without dropout, and with masks
    of booleans alone. A query that sees no key gives zeros.

    With is_causal and fewer queries than keys torch aligns the mask at the top left, which fad
    does not compute: that is an error.
    """
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        raise NotImplementedError(f"attn_mask is {attn_mask.dtype}: fad takes masks of booleans only")
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask is given, and is_causal is set; expected one of them")
    if dropout_p:
        raise NotImplementedError("dropout_p: fad drops nothing")
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise NotImplementedError(
            f"is_causal with {query.shape[-2]} queries and {key.shape[-2]} keys: torch aligns the "
            "mask at the first key and fad at the last; use faclient.torch.attention()")
    if query.shape[-3] != key.shape[-3] and not enable_gqa:
        raise ValueError(f"query has {query.shape[-3]} heads and key {key.shape[-3]}; enable_gqa "
                         "allows that")
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-2], query.shape[-2], key.shape[-2])
    if query.dim() == 3:
        return attention(query[None], key[None], value[None], is_causal=is_causal, scale=scale,
                         mask=attn_mask)[0]
    return attention(query, key, value, is_causal=is_causal, scale=scale, mask=attn_mask)
