"""Blocks of an engine's own KV cache, kept in the pool as published pages.

A block is copied as it lies: a page holds the engine's bytes, in the engine's layout, and is not
meant for fad's attention. Engines of one kind find each other's pages by a cache's name, which says
the layout, and by the tokens.
"""
from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import errors
from .client import Client, connect
from .kv import Cache, Sequence

#: Bytes of memory through which blocks are copied.
_STAGING = 64 << 20
#: Errors which say that the daemon is gone or does not answer.
_GONE = (errors.DaemonLost, errors.Unreachable, errors.TimedOut)


class Link:
    """A connection that its owner can do without. After a failure nobody waits for the daemon until
    `retry` seconds have passed: `client()` raises at once."""

    def __init__(self, warn: Callable[[str], None], retry: float = 5.0, **options: Any) -> None:
        self._warn, self._retry, self._options = warn, retry, options
        self._client: Client | None = None
        self._down_until = 0.0
        self._down = False

    def client(self) -> Client:
        """The client, connected when it is first needed."""
        if time.monotonic() < self._down_until:
            raise errors.Unreachable(111, "the daemon did not answer a moment ago")
        if self._client is None:
            try:
                self._client = connect(**self._options)
            except errors.NotFound as error:
                raise errors.Unreachable(111, error.strerror) from error
        if self._down:
            self._client.ping()
            self._down = False
            self._warn("the daemon answers again")
        return self._client

    def failed(self, error: errors.Error, doing: str) -> None:
        """Notes the error of a call, and warns about it unless the same was warned about before."""
        if isinstance(error, _GONE):
            now = time.monotonic()
            if now < self._down_until:
                return  # a call during the pause does not prolong it
            self._down_until = now + self._retry
            if self._down:
                return
            self._down = True
        self._warn(f"{doing}: {error.strerror}")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Geometry:
    """How many bytes a block has, and in how many layers; the shape of its cache in the pool."""

    def __init__(self, name: str, layers: int, block_tokens: int, block_bytes: int) -> None:
        if block_tokens not in (16, 32, 64, 128, 256):
            raise NotImplementedError(f"a block has {block_tokens} tokens; expected a power of two "
                                      "from 16 to 256, the sizes of fad's pages")
        elements, rest = divmod(block_bytes, 4 * block_tokens)  # of elements of 2 bytes, for K or for V
        dim = math.gcd(elements, 128)
        if rest or dim % 8:
            raise NotImplementedError(f"a token has {block_bytes / block_tokens:g} bytes in a "
                                      "layer; expected a multiple of 32")
        self.name, self.layers, self.block_tokens = name, layers, block_tokens
        self.block_bytes, self.kv_heads, self.head_dim = block_bytes, elements // dim, dim

    def open(self, client: Client, ttl: float) -> Cache:
        """Finds or creates the cache of these blocks."""
        return client.cache(self.name, layers=self.layers, kv_heads=self.kv_heads,
                            head_dim=self.head_dim, dtype="bfloat16",
                            page_tokens=self.block_tokens, ttl=ttl)


class Store:
    """Moves blocks between an engine's tensors and a cache of the pool.

    tensors: one per layer; a block is `blocks_each` consecutive elements of the first dimension."""

    def __init__(self, link: Link, geometry: Geometry, tensors: list[torch.Tensor],
                 blocks_each: int = 1, *, ttl: float = 86400.0, timeout: float = 10.0) -> None:
        self.geometry = geometry
        self._link, self._tensors, self._each = link, tensors, blocks_each
        self._ttl, self._timeout = ttl, timeout
        self._cache: Cache | None = None
        self._staging: tuple[Client, np.ndarray] | None = None
        self._at_once = max(1, _STAGING // (geometry.block_bytes * geometry.layers))

    def cache(self) -> Cache:
        """The cache. It is opened when it is first needed, and again after it was lost."""
        client = self._link.client()
        if self._cache is not None and self._cache.client is client:
            return self._cache
        self._cache = self.geometry.open(client, self._ttl)
        return self._cache

    def forget(self) -> None:
        """Call after an error which says that the cache, or what it held, is gone."""
        self._cache = None

    def _stage(self, blocks: int) -> tuple[np.ndarray, torch.Tensor]:
        """Memory for this many blocks of all layers, as rows of tokens and as bytes of blocks."""
        g, client = self.geometry, self._link.client()
        count = g.layers * blocks * g.block_bytes // 2
        if self._staging is None or self._staging[0] is not client or \
                self._staging[1].size < count:
            self._staging = client, client.empty(count, "bfloat16")
        flat = self._staging[1][:count]
        rows = flat.reshape(g.layers, blocks * g.block_tokens, 2, g.kv_heads, g.head_dim)
        return rows, torch.from_numpy(flat.view(np.uint8)).view(g.layers, blocks, -1)

    def _indices(self, blocks: list[int], tensor: torch.Tensor) -> torch.Tensor:
        index = torch.tensor(blocks, dtype=torch.int64)
        if self._each > 1:
            index = (index[:, None] * self._each + torch.arange(self._each)).reshape(-1)
        return index.to(tensor.device)

    def load(self, sequence: Sequence, first: int, blocks: list[int]) -> None:
        """Copies blocks of a sequence, from number `first` on, into these blocks of the engine."""
        for start in range(0, len(blocks), self._at_once):
            part = blocks[start:start + self._at_once]
            rows, staged = self._stage(len(part))
            sequence.read((first + start) * self.geometry.block_tokens, rows[:, :, 0],
                          rows[:, :, 1], timeout=self._timeout)
            for tensor, source in zip(self._tensors, staged):
                shape = (len(part) * self._each, *tensor.shape[1:])
                tensor[self._indices(part, tensor)] = \
                    source.view(tensor.dtype).view(shape).to(tensor.device)

    def save(self, tokens: Any, extra: bytes, blocks: list[int], shared: bool = False) -> int:
        """Publishes these blocks of the engine, which hold these tokens, from the first one on.
        Copies only blocks that nobody has published; returns how many."""
        size = self.geometry.block_tokens
        cache = self.cache()
        sequence = cache.attach(tokens, extra=extra, shared=shared)
        try:
            have = sequence.length // size
            if have >= len(blocks):
                return 0
            with cache.step({sequence: (len(blocks) - have) * size}) as step:
                for start in range(have, len(blocks), self._at_once):
                    part = blocks[start:start + self._at_once]
                    rows, staged = self._stage(len(part))
                    for tensor, target in zip(self._tensors, staged):
                        found = tensor[self._indices(part, tensor)]
                        target.copy_(found.reshape(len(part), -1).view(torch.uint8))
                    step.write(sequence, start * size, rows[:, :, 0], rows[:, :, 1],
                               timeout=self._timeout)
            sequence.publish(tokens, extra=extra, shared=shared)
            return len(blocks) - have
        finally:
            discard(sequence)


def discard(sequence: Sequence) -> None:
    """Removes a sequence that may be gone already."""
    try:
        sequence.remove()
    except errors.Error:
        pass  # the sequence goes with its session, or at the end of its time to live
