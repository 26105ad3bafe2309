"""SGLang's hierarchical cache with fad as its storage: servers find pages that others computed.

    python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache
        --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
            "backend_name": "fad", "module_path": "faclient.sglang", "class_name": "FadStorage",
            "identity": "MODEL@REVISION"}'

SGLang names a page by a hash of all tokens up to it; here each is a page of the pool, found by its
name. Without a daemon nothing is found and nothing is kept.
"""
from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import errors
from ._blocks import Geometry, Link, discard
from .kv import Cache

if TYPE_CHECKING:
    class HiCacheStorage:
        """SGLang's modules without their types: it has none."""

        def register_mem_pool_host(self, mem_pool_host: Any) -> None: ...
else:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

_log = logging.getLogger(__name__)
#: Tokens of a page of the pool. They are made of the page's name.
_TOKENS = 64
_OPTIONS = {"socket": None, "spawn": False, "name": "sglang", "identity": None, "ttl": 86400.0,
            "shared": False, "timeout": 10.0, "retry": 5.0}
_SGLANG = {"backend_name", "module_path", "class_name", "interface_v1"}


class FadStorage(HiCacheStorage):
    """Pages of SGLang's host memory in the pool. Options, in the extra config of the backend:

    identity  of the model; needed, as SGLang does not tell which weights it has
    socket    the daemon's; default: the one that faclient.connect() finds
    spawn     start a daemon if none answers; it ends with the server
    name      the beginning of the caches' names: servers with the same one share pages
    ttl       seconds after which an unused cache is removed; default: a day
    shared    find pages of other tenants that say so, too
    timeout   seconds that the daemon may take for one page
    retry     seconds for which a daemon that does not answer is left alone
    """

    def __init__(self, storage_config: Any,
                 kwargs: dict[str, Any] | None = None) -> None:
        given = {key: value for key, value in (storage_config.extra_config or {}).items()
                 if key not in _SGLANG}
        unknown = set(given) - set(_OPTIONS)
        if unknown:
            raise ValueError(f"the extra config has {', '.join(sorted(unknown))}; FadStorage knows "
                             f"{', '.join(_OPTIONS)}")
        options = self._options = {**_OPTIONS, **given}
        if not options["identity"]:
            raise ValueError('the extra config lacks "identity", which tells the model\'s weights '
                             "from others")
        if storage_config.extra_config and storage_config.extra_config.get("interface_v1"):
            raise NotImplementedError("interface_v1: FadStorage copies flat pages; leave it out")
        if storage_config.should_split_heads:
            raise NotImplementedError("should_split_heads: FadStorage keeps whole pages")
        c = storage_config
        # With latent attention all ranks have the same pages.
        rank = "all" if c.is_mla_model else f"{c.tp_rank} of {c.tp_size}"
        parts = [str(options["identity"]), rank, c.pp_rank, c.pp_size, c.attn_cp_rank,
                 c.attn_cp_size]
        self._extra = hashlib.sha256(json.dumps(parts).encode()).digest()
        self._link = Link(_log.warning, options["retry"], socket=options["socket"],
                          spawn=options["spawn"], name="sglang", timeout=2.0,
                          reconnect_timeout=2.0)
        self._geometry: Geometry | None = None
        self._cache: Cache | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        page = mem_pool_host.get_dummy_flat_data_page()
        nbytes = page.numel() * page.element_size()
        try:
            version = importlib.metadata.version("sglang")
        except importlib.metadata.PackageNotFoundError:
            version = ""
        layout = f"{mem_pool_host.layout} {mem_pool_host.page_size} {page.dtype} {nbytes} {version}"
        name = f"{str(self._options['name'])[:24]}-" + \
            hashlib.sha256(layout.encode()).hexdigest()[:16]
        self._geometry = Geometry(name, 1, _TOKENS, nbytes)

    def close(self) -> None:
        self._link.close()

    # ---- pages

    def _open(self) -> Cache:
        if self._geometry is None:
            raise RuntimeError("register_mem_pool_host() was not called")
        client, cache = self._link.client(), self._cache
        if cache is None or cache.client is not client:
            cache = self._cache = self._geometry.open(client, self._options["ttl"])
        return cache

    def _try(self, doing: str, work: Any) -> Any:
        """Returns what work(cache) returns; None if the daemon fails it. A lost cache is opened
        again."""
        for attempt in range(2):
            try:
                return work(self._open())
            except errors.NotFound as error:
                self._cache = None
                if attempt:
                    self._link.failed(error, doing)
            except errors.Error as error:
                self._link.failed(error, doing)
                break
        return None

    def _prefix(self) -> dict[str, Any]:
        return {"extra": self._extra, "shared": self._options["shared"]}

    def _rows(self, page: torch.Tensor) -> np.ndarray:
        g = self._geometry
        assert g is not None
        data = page.view(torch.uint8).numpy().view(np.uint16)
        return data.reshape(1, _TOKENS, 2, g.kv_heads, g.head_dim)

    def _fits(self, page: Any) -> bool:
        return isinstance(page, torch.Tensor) and page.device.type == "cpu" and \
            page.is_contiguous() and self._geometry is not None and \
            page.numel() * page.element_size() == self._geometry.block_bytes

    def exists(self, key: str) -> bool:
        return bool(self._try("no page was looked up", lambda cache: cache.find(
            _tokens(key), **self._prefix())))

    def get(self, key: str, target_location: Any = None,
            target_sizes: Any = None) -> torch.Tensor | None:
        """Fills target_location, a flat page, and returns it. Returns None if the page is not
        there."""
        if not self._fits(target_location):
            raise ValueError("the target is no flat page of SGLang's host memory")
        target = target_location.reshape(-1)
        rows = self._rows(target)

        def read(cache):
            sequence = cache.attach(_tokens(key), **self._prefix())
            try:
                if not sequence.length:
                    return False
                sequence.read(0, rows[:, :, 0], rows[:, :, 1], timeout=self._options["timeout"])
                return True
            finally:
                discard(sequence)
        return target_location if self._try("a page was not read", read) else None

    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        """Keeps a flat page. False if it could not be kept."""
        page = value.contiguous() if isinstance(value, torch.Tensor) else value
        if not self._fits(page):
            raise ValueError("the value is no flat page of SGLang's host memory")
        rows = self._rows(page.reshape(-1))

        def write(cache):
            tokens, prefix = _tokens(key), self._prefix()
            if cache.find(tokens, **prefix):
                return True
            sequence = cache.sequence()
            try:
                with cache.step({sequence: _TOKENS}) as step:
                    step.write(sequence, 0, rows[:, :, 0], rows[:, :, 1],
                               timeout=self._options["timeout"])
                sequence.publish(tokens, **prefix)
                return True
            finally:
                discard(sequence)
        return bool(self._try("a page was not kept", write))

    def batch_get(self, keys: list[str], target_locations: Any = None,
                  target_sizes: Any = None) -> list[torch.Tensor | None]:
        return [self.get(key, target) for key, target in zip(keys, target_locations)]

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        return all(self.set(key, value) for key, value in zip(keys, values))

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Returns how many of the keys exist, counted from the first one to the first that does
        not."""
        for i, key in enumerate(keys):
            if not self.exists(key):
                return i
        return len(keys)

    def clear(self) -> None:
        """Removes the pages of all servers that share this one's caches."""
        def remove(cache):
            cache.remove()
            self._cache = None
            return True
        self._try("the pages were not removed", remove)


def _tokens(key):
    """Returns tokens that stand for a page's name."""
    return np.frombuffer(hashlib.shake_256(key.encode()).digest(4 * _TOKENS), np.uint32)
