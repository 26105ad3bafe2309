"""An attention backend for vLLM: fad attends to vLLM's own KV blocks.

    vllm serve MODEL --attention-backend FAD

A layer is one request, Client.pages_attend(), which writes the new rows to their blocks and attends.
Each worker is a client. On a GPU requests are ordered by the current stream. On a CPU the worker's KV
cache is allocated in memory that the daemon sees, and a request that died with its daemon is repeated:
it writes the same rows to the same slots.
"""
from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from vllm.config import get_current_vllm_config, get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (AttentionBackend, AttentionImpl, AttentionMetadata,
                                       AttentionMetadataBuilder, AttentionType,
                                       CommonAttentionMetadata, MultipleOf)

from . import errors
from ._vllm_plugin import BACKEND
from .client import Client, connect
from .torch import _empty_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import AttentionLayer
    from vllm.v1.attention.selector import AttentionSelectorConfig
    from vllm.v1.kv_cache_interface import AttentionSpec

_log = init_logger("vllm.faclient")
_MAX_PAGE_TOKENS = 256
_MAX_SEQUENCES = 4096
#: Options of the backend, in `--additional-config '{"fad": {...}}'`.
_OPTIONS = {"socket": None, "spawn": False, "timeout": 60.0}
#: What tells that the daemon is gone, or not answering yet.
_GONE = (errors.DaemonLost, errors.Unreachable, errors.NotFound)
_clients: weakref.WeakValueDictionary[tuple[Any, ...], Client] = weakref.WeakValueDictionary()


def _options(vllm_config: VllmConfig) -> dict[str, Any]:
    given = vllm_config.additional_config
    given = given.get("fad", {}) if isinstance(given, dict) else {}
    unknown = set(given) - set(_OPTIONS)
    if unknown:
        raise ValueError(f'"fad" in additional_config has {", ".join(sorted(unknown))}; the backend '
                         f"knows {', '.join(_OPTIONS)}")
    return {**_OPTIONS, **given}


def _connect(options: dict[str, Any]) -> Client:
    """The process's client, which lives as long as an engine uses it."""
    key = (options["socket"], options["spawn"])
    client = _clients.get(key)
    if client is None or client.closed:
        client = connect(options["socket"], spawn=options["spawn"], name="vllm-attention")
        _clients[key] = client
    return client


@dataclasses.dataclass
class FadAttentionMetadata(AttentionMetadata):
    """A batch, the same for all layers of a KV cache group."""

    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor  # int32 [sequences + 1]
    seq_lens: torch.Tensor         # int32 [sequences]
    block_table: torch.Tensor      # int32 [sequences, columns]
    slot_mapping: torch.Tensor     # int64 [tokens]
    causal: bool


class FadAttentionMetadataBuilder(AttentionMetadataBuilder[FadAttentionMetadata]):
    """Passes on what vLLM has on the device; nothing is copied to the host."""

    def __init__(self, kv_cache_spec: AttentionSpec, layer_names: list[str],
                 vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if vllm_config.scheduler_config.max_num_seqs > _MAX_SEQUENCES:
            raise ValueError(f"max_num_seqs is {vllm_config.scheduler_config.max_num_seqs}; the "
                             f"backend {BACKEND} takes {_MAX_SEQUENCES} sequences in a batch")
        if device.type != "cpu" and vllm_config.parallel_config.world_size > 1:
            raise NotImplementedError(
                f"world_size is {vllm_config.parallel_config.world_size}; the backend {BACKEND} takes "
                "one GPU, as a daemon does")
        tried = set()
        for name, layer in get_layers_from_vllm_config(vllm_config, Attention, layer_names).items():
            if isinstance(layer.impl, FadAttentionImpl):
                layer.impl.try_out(name, kv_cache_spec, device, tried)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata,
              fast_build: bool = False) -> FadAttentionMetadata:
        common = common_attn_metadata
        if not isinstance(common.causal, bool):
            raise NotImplementedError(f"causal is a tensor; the backend {BACKEND} takes one mask for "
                                      "all sequences of a batch")
        return FadAttentionMetadata(
            common.num_actual_tokens, common.max_query_len, common.max_seq_len,
            common.query_start_loc, common.seq_lens, common.block_table_tensor,
            common.slot_mapping, common.causal)


class FadAttentionImpl(AttentionImpl[FadAttentionMetadata]):
    """One layer."""

    def __init__(self, num_heads: int, head_size: int, scale: float,
                 num_kv_heads: int | None = None, alibi_slopes: list[float] | None = None,
                 sliding_window: int | None = None, kv_cache_dtype: str = "auto",
                 logits_soft_cap: float | None = None, attn_type: str = AttentionType.DECODER,
                 kv_sharing_target_layer_name: str | None = None,
                 sinks: torch.Tensor | None = None) -> None:
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"attn_type {attn_type}: the backend {BACKEND} takes decoders")
        config = get_current_vllm_config()
        self.num_heads: int = num_heads
        self.head_size: int = head_size
        self.scale: float = float(scale)
        self.num_kv_heads: int = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self._dtype: torch.dtype = config.model_config.dtype
        self._appends = kv_sharing_target_layer_name is None
        self._sinks = sinks
        self._window = None if sliding_window is None else (sliding_window - 1, 0)
        self._how: dict[str, Any] = {"scale": self.scale, "softcap": logits_soft_cap or 0.0}
        if alibi_slopes is not None:
            self._how["alibi_slopes"] = torch.tensor(alibi_slopes, dtype=torch.float32).numpy()
        self._options = _options(config)
        self._client = _connect(self._options)

    def try_out(self, name: str, spec: AttentionSpec, device: torch.device,
                tried: set[Any]) -> None:
        """One tiny request of this layer's kind, so that an engine whose model fad does not
        support, or that has no daemon, does not start."""
        if spec.block_size > _MAX_PAGE_TOKENS:
            raise ValueError(f"block_size is {spec.block_size}; the backend {BACKEND} takes blocks "
                             f"of at most {_MAX_PAGE_TOKENS} tokens")
        kind = (self._window, self._how["softcap"], "alibi_slopes" in self._how,
                self._sinks is not None, self.num_heads, self.num_kv_heads, self.head_size)
        if kind in tried:
            return
        tried.add(kind)
        dim_v = spec.head_size_v
        content = self.head_size + dim_v
        shape = (1, self.num_kv_heads, spec.block_size, content)
        cache = torch.zeros(shape, dtype=spec.dtype, device=device) if device.type == "cuda" else \
            _empty_of(self._client, shape, spec.dtype)
        numbers = {"dtype": torch.int32, "device": device}
        metadata = FadAttentionMetadata(
            1, 1, 1, torch.tensor([0, 1], **numbers), torch.ones(1, **numbers),
            torch.zeros(1, 1, **numbers), torch.zeros(1, dtype=torch.int64, device=device), True)
        rows = [torch.zeros(1, heads, dim, dtype=self._dtype, device=device)
                for heads, dim in ((self.num_heads, self.head_size),
                                   (self.num_kv_heads, self.head_size),
                                   (self.num_kv_heads, dim_v), (self.num_heads, dim_v))]
        try:
            self._attend(None, *rows[:3], cache, metadata, rows[3])
        except errors.Error as error:
            raise ValueError(f"the backend {BACKEND} cannot compute {name}: {error.strerror}") \
                from error

    def forward(self, layer: AttentionLayer, query: torch.Tensor, key: torch.Tensor,
                value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: FadAttentionMetadata | None, output: torch.Tensor,
                output_scale: torch.Tensor | None = None,
                output_block_scale: torch.Tensor | None = None) -> torch.Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(f"output_scale: the backend {BACKEND} does not quantise its "
                                      "results")
        if attn_metadata is None:
            return output.zero_()  # vLLM measures its memory
        self._attend(layer, query, key, value, kv_cache, attn_metadata, output)
        return output

    def _attend(self, layer, query, key, value, kv_cache, batch, output):
        if kv_cache.device.type == "cpu" and not self._client._buffers.find(
                kv_cache.data_ptr(), 1):
            raise RuntimeError("the KV cache is not in memory that the daemon sees: vLLM did not "
                               f"allocate it for the backend {BACKEND}")
        n = batch.num_actual_tokens
        how = dict(self._how)
        if kv_cache.element_size() == 1:
            kv_cache = kv_cache.view(torch.float8_e4m3fn)
            for side in ("k", "v") if layer is not None else ():
                scale = getattr(layer, f"_{side}_scale").float().reshape(-1)
                how[f"{side}_scales"] = scale.expand(self.num_kv_heads).contiguous()
        pages = kv_cache.permute(0, 2, 1, 3)  # [blocks, tokens, kv_heads, K and V]
        if self._appends and key is not None:
            how.update(k_new=key[:n], v_new=value[:n], slots=batch.slot_mapping[:n])
        if self._sinks is not None:
            how["sinks"] = self._sinks
        left = self._window
        if left is not None:
            how["window"] = left if batch.causal else (left[0], left[0])
        self._repeat(lambda: self._client.pages_attend(
            query[:n], pages[..., :self.head_size], pages[..., self.head_size:], batch.block_table,
            batch.seq_lens, cu_q=batch.query_start_loc, max_q=batch.max_query_len,
            max_k=batch.max_seq_len, causal=batch.causal, out=output[:n],
            timeout=self._options["timeout"], **how), repeats=kv_cache.device.type == "cpu")

    def _repeat(self, request, repeats):
        """Submits a request, again if the daemon dies, until `timeout` seconds have passed."""
        until = None
        while True:
            try:
                request()
            except _GONE as error:
                now = time.monotonic()
                if until is None:
                    until = now + self._options["timeout"]
                    _log.warning("attention: %s", error.strerror)
                if not repeats or now > until:
                    raise RuntimeError(f"attention was not computed, as the daemon is gone: "
                                       f"{error.strerror}") from error
                time.sleep(0.05)
                continue
            if until is not None:
                _log.warning("the daemon answers again: the request was repeated")
            return


class FadAttentionBackend(AttentionBackend):
    """vLLM's attention by fad. Options are in `additional_config`, under "fad":

    socket   the daemon's; default: the one that faclient.connect() finds
    spawn    start a daemon if none answers; it ends with the engine
    timeout  seconds that a layer may take, and on a CPU for which a daemon that died is awaited
    """

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", "fp8",
                                                      "fp8_e4m3"]
    forward_includes_kv_cache_update: bool = True

    @staticmethod
    def get_name() -> str:
        return BACKEND

    @staticmethod
    def get_impl_cls() -> type[FadAttentionImpl]:
        return FadAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[FadAttentionMetadataBuilder]:
        return FadAttentionMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def supports_block_size(cls, block_size: int | None) -> bool:
        return block_size is None or block_size % 16 == 0 and block_size <= _MAX_PAGE_TOKENS

    @classmethod
    def supports_combination(cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Any,
                             *others: Any, **more: Any) -> str | None:
        if kv_cache_dtype in ("float16", "bfloat16") and dtype != getattr(torch, kv_cache_dtype):
            return f"kv_cache_dtype is {kv_cache_dtype}, and the model's dtype {dtype}"
        return None

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


# ---- on a CPU

def choose_on_cpu(config: AttentionSelectorConfig) -> str:
    """What vLLM's platforms for GPUs do with a backend that is asked for: the class's path, or an
    error that says why it can't be had. Also makes workers allocate the KV cache for it."""
    reasons = FadAttentionBackend.validate_configuration(device_capability=None,
                                                         **config._asdict())
    if reasons:
        raise ValueError(f"Selected backend {BACKEND} is not valid for this configuration. "
                         f"Reason: {reasons}")
    _place_kv_cache()
    return f"{__name__}.{FadAttentionBackend.__name__}"


class _Allocation(TorchFunctionMode):
    """Zeroed bytes come from memory that the daemon sees."""

    def __init__(self, client):
        super().__init__()
        self._client = client

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.zeros and kwargs.get("dtype") == torch.int8 and len(args) == 1 and \
                isinstance(args[0], int):
            return _empty_of(self._client, (args[0],), torch.int8)
        return func(*args, **kwargs)


def _place_kv_cache():
    """vLLM allocates the KV cache within a context, by which platforms choose the memory. That for
    CPUs has none."""
    from vllm.v1.worker.cpu_worker import CPUWorker
    if "_maybe_get_memory_pool_context" in vars(CPUWorker):
        return
    default = CPUWorker._maybe_get_memory_pool_context

    def context(self, tag):
        config = self.vllm_config.attention_config
        chosen = [config.backend, *config.backend_per_kind.values()]
        if tag != "kv_cache" or all(x is None or x.name != BACKEND for x in chosen):
            return default(self, tag)
        stack = contextlib.ExitStack()
        stack.enter_context(_Allocation(_connect(_options(self.vllm_config))))
        return stack

    CPUWorker._maybe_get_memory_pool_context = context
