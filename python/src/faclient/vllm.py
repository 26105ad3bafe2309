"""A KV connector for vLLM: engines find prefixes that another engine, or an earlier life of
themselves, computed.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "FadConnector", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute"}'

Each tensor-parallel worker keeps its blocks in a cache of its own. The scheduler looks prefixes up
for all workers and hands them over as named sequences, which a worker reads and removes. Blocks are
saved once vLLM has accepted the step that computed them: one of a step whose loading failed is not.
Without a daemon the engine works as without the connector.

`FadAttentionBackend` is vLLM's attention by fad, over vLLM's own blocks: `--attention-backend FAD`.
"""
from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import re
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1,
                                                               KVConnectorHandshakeMetadata,
                                                               KVConnectorMetadata,
                                                               KVConnectorRole)
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import FullAttentionSpec

from . import errors
from ._blocks import Geometry, Link, Store, discard
from ._vllm_attention import FadAttentionBackend as FadAttentionBackend
from .kv import Cache, Sequence

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

_log = init_logger("vllm.faclient")
#: How long a sequence waits for a worker to take it over.
_HANDOVER_S = 120.0
_WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|gguf)$")
_OPTIONS = {"socket": None, "spawn": False, "name": "vllm", "identity": None, "ttl": 86400.0,
            "shared": False, "timeout": 10.0, "retry": 5.0, "save_tokens": 256}


@dataclasses.dataclass
class _Load:
    """Blocks that workers fill before the step."""

    names: list[str]   # of the sequences, by rank
    first: int         # number of the first block in the sequence
    blocks: list[int]  # of vLLM


@dataclasses.dataclass
class _Save:
    """Blocks that workers publish after the step. `finished`: the request whose blocks vLLM keeps
    until then."""

    tokens: bytes  # uint32
    extra: bytes
    blocks: list[int]
    finished: str | None = None


@dataclasses.dataclass
class _Metadata(KVConnectorMetadata):
    loads: list[_Load]
    saves: list[_Save]


@dataclasses.dataclass
class _Handshake(KVConnectorHandshakeMetadata):
    """A worker's cache, so that the scheduler finds it."""

    name: str
    layers: int
    block_tokens: int
    block_bytes: int


@dataclasses.dataclass
class _Promise:
    """What the pool has for a request, held until the workers take it over."""

    sequences: list[Sequence]  # by rank
    tokens: int
    local: int = 0  # tokens that vLLM itself has

    def discard(self) -> None:
        for sequence in self.sequences:
            discard(sequence)


@dataclasses.dataclass
class _Tracked:
    """A request that has blocks."""

    request: Request
    extra: bytes
    saved: int  # blocks that are published, or whose publication was asked for


def register() -> None:
    """Makes `"kv_connector": "FadConnector"` and `--attention-backend FAD` known to vLLM, which calls
    it as a plugin."""
    from . import _vllm_plugin
    _vllm_plugin.register()


def identity(vllm_config: VllmConfig) -> bytes:
    """32 bytes that differ for models that compute different keys and values: from vLLM's version,
    the configuration, and the checkpoint's files. They are read once, when the engine starts,
    unless the Hugging Face cache names them by their checksums."""
    model = vllm_config.model_config
    digest = hashlib.sha256(f"vllm {vllm.__version__}".encode())
    config = {key: value for key, value in model.hf_config.to_dict().items()
              if key not in ("_name_or_path", "transformers_version", "use_cache")}
    parts = [config, str(model.dtype), str(model.quantization),
             str(vllm_config.load_config.load_format)]
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    if str(vllm_config.load_config.load_format).rpartition(".")[2].lower() == "dummy":
        raise ValueError('the weights are random (load_format "dummy"): name them by "identity" in '
                         "kv_connector_extra_config")
    files = _weight_files(vllm_config)
    if not files:
        raise ValueError(f"there are no files of weights of '{model.model}' to tell them apart from "
                         'others: name them by "identity" in kv_connector_extra_config')
    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for path, checksum in zip(files, pool.map(_checksum, files)):
            digest.update(f"{os.path.basename(path)} {checksum}\n".encode())
    return digest.digest()


def _weight_files(vllm_config):
    model, load = vllm_config.model_config, vllm_config.load_config
    path = model.model
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        import huggingface_hub
        try:
            path = huggingface_hub.snapshot_download(
                path, revision=model.revision, cache_dir=load.download_dir, local_files_only=True)
        except (OSError, ValueError):
            return []
    return sorted(os.path.join(path, name) for name in os.listdir(path) if _WEIGHTS.search(name))


def _checksum(path):
    blob = os.path.basename(os.path.realpath(path))
    if os.path.islink(path) and re.fullmatch("[0-9a-f]{64}", blob):
        return blob  # the Hugging Face cache's: the file's SHA-256
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while data := file.read(1 << 24):
            digest.update(data)
    return digest.hexdigest()


class FadConnector(KVConnectorBase_V1):
    """vLLM's KV connector over fad. Options, in `kv_connector_extra_config`:

    socket       the daemon's; default: the one that faclient.connect() finds
    spawn        start a daemon if none answers; it ends with the engine
    name         the beginning of the caches' names: engines with the same one share prefixes
    identity     of the model, instead of a checksum of its files
    ttl          seconds after which an unused cache is removed; default: a day
    shared       find prefixes of other tenants that say so, too
    timeout      seconds that the daemon may take for one copy
    retry        seconds for which a daemon that does not answer is left alone
    save_tokens  save while decoding each time that this many tokens are new; the prompt, and the
                 rest at the end, are saved in any case
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole,
                 kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        given = self._kv_transfer_config.kv_connector_extra_config or {}
        unknown = set(given) - set(_OPTIONS)
        if unknown:
            raise ValueError(f"kv_connector_extra_config has {', '.join(sorted(unknown))}; "
                             f"FadConnector knows {', '.join(_OPTIONS)}")
        self._options = {**_OPTIONS, **given}
        _refuse(vllm_config, kv_cache_config)
        self._block_tokens: int = vllm_config.cache_config.block_size
        self._loads_too = self._kv_transfer_config.is_kv_consumer
        self._saves_too = self._kv_transfer_config.is_kv_producer
        self._link = Link(_log.warning, self._options["retry"], socket=self._options["socket"],
                          spawn=self._options["spawn"], name=f"vllm-{role.name.lower()}",
                          timeout=2.0, reconnect_timeout=2.0)
        # The worker's.
        self._store: Store | None = None
        self._handshake: _Handshake | None = None
        self._rank = 0
        self._failed: set[int] = set()
        self._sent: set[str] = set()
        # The scheduler's.
        self._identity = b""
        self._geometries: list[Geometry] = []
        self._caches: list[Cache] = []
        self._promises: dict[str, _Promise] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._loads: list[_Load] = []
        self._last_saves: list[_Save] = []
        if role == KVConnectorRole.SCHEDULER:
            named = self._options["identity"]
            self._identity = hashlib.sha256(str(named).encode()).digest() if named else \
                identity(vllm_config)

    # ---- both sides

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a block that was not saved is computed again."""
        return False

    def shutdown(self) -> None:
        for promise in self._promises.values():
            promise.discard()
        self._promises.clear()
        self._link.close()

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        from vllm.distributed import (get_tensor_model_parallel_rank,
                                      get_tensor_model_parallel_world_size)
        tensors, layout = [], hashlib.sha256()
        layers = self._vllm_config.compilation_config.static_forward_context
        for name, tensor in kv_caches.items():
            if any(tensor.data_ptr() == other.data_ptr() for other in tensors):
                continue  # layers that share their keys and values
            if tensor.dim() != 4 or self._block_tokens % tensor.shape[2]:
                raise NotImplementedError(
                    f"the KV cache of {name} has shape {tuple(tensor.shape)}; expected "
                    f"[blocks, heads, tokens, dim] with a divisor of {self._block_tokens} tokens")
            first = tensors[0] if tensors else tensor
            if tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
                raise NotImplementedError(
                    f"the KV cache of {name} has shape {tuple(tensor.shape)} and dtype "
                    f"{tensor.dtype}; expected {tuple(first.shape)} and {first.dtype}, as others "
                    "have: FadConnector takes models whose layers are alike")
            tensors.append(tensor)
            layer = layers.get(name)
            backend = getattr(layer, "attn_backend", None)
            # What decides how keys and values lie in a block.
            layout.update(f"{name} {tuple(tensor.shape[1:])} {tensor.stride()[1:]} {tensor.dtype} "
                          f"{backend.get_name() if backend is not None else ''} "
                          f"{getattr(layer, 'isa', '')}\n".encode())
        tensor = tensors[0]
        each = self._block_tokens // tensor.shape[2]
        block_bytes = each * tensor[0].numel() * tensor.element_size()
        layout.update(f"{self._block_tokens} {self._vllm_config.cache_config.cache_dtype} "
                      f"{vllm.__version__}".encode())
        rank, size = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        name = f"{str(self._options['name'])[:24]}-{layout.hexdigest()[:16]}-{rank}of{size}"
        self._handshake = _Handshake(name, len(tensors), self._block_tokens, block_bytes)
        self._store = Store(self._link, _geometry(self._handshake), tensors, each,
                            ttl=self._options["ttl"], timeout=self._options["timeout"])
        self._rank = rank
        try:
            self._store.cache()
        except (errors.NotSupported, errors.InvalidArgument, errors.NotAllowed):
            raise  # waiting does not help
        except errors.Error as error:
            self._link.failed(error, "the engine begins without fad")

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._handshake

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        metadata, store = self._connector_metadata, self._store
        if not isinstance(metadata, _Metadata) or store is None:
            return
        for load in metadata.loads:
            try:
                sequence = self._link.client().sequence(load.names[self._rank])
                try:
                    store.load(sequence, load.first, load.blocks)
                finally:
                    discard(sequence)
            except errors.Error as error:
                self._link.failed(error, f"{len(load.blocks)} blocks were not loaded")
                self._failed.update(load.blocks)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is left to wait for: start_load_kv() has loaded all layers."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor,
                      attn_metadata: AttentionMetadata, **kwargs: Any) -> None:
        """Nothing is saved by the layer: wait_for_save() saves earlier steps' blocks."""

    def wait_for_save(self) -> None:
        metadata, store = self._connector_metadata, self._store
        if not isinstance(metadata, _Metadata) or store is None:
            return
        for save in metadata.saves:
            if save.finished is not None:
                self._sent.add(save.finished)
            tokens = np.frombuffer(save.tokens, np.uint32)
            for attempt in range(2):
                try:
                    store.save(tokens, save.extra, save.blocks, self._options["shared"])
                except errors.NotFound as error:
                    store.forget()  # the pool was lost; the cache is made anew
                    if attempt:
                        self._link.failed(error, "blocks were not saved")
                    continue
                except errors.Error as error:
                    self._link.failed(error, f"{len(save.blocks)} blocks were not saved")
                break

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent, self._sent = self._sent, set()
        return sent or None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    # ---- scheduler

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        self._geometries = [_geometry(metadata[rank]) for rank in sorted(metadata)]

    def _open(self) -> list[Cache]:
        """The workers' caches."""
        client = self._link.client()
        if not self._caches:
            self._caches = [g.open(client, self._options["ttl"]) for g in self._geometries]
        return self._caches

    def _extra(self, request: Request) -> bytes:
        """What a request's keys and values depend on besides its tokens."""
        digest = hashlib.sha256(self._identity)
        parts = [request.cache_salt,
                 [(x.identifier, x.mm_position.offset, x.mm_position.length)
                  for x in request.mm_features or ()]]
        digest.update(json.dumps(parts).encode())
        return digest.digest()

    def _attach(self, request: Request, limit: int) -> _Promise:
        """The longest prefix of at most `limit` tokens that every worker has."""
        tokens, extra = _tokens(request, limit), self._extra(request)
        for attempt in range(2):
            promise = _Promise([], limit)
            try:
                for cache in self._open():
                    sequence = cache.attach(tokens, extra=extra, shared=self._options["shared"])
                    promise.sequences.append(sequence)
                    promise.tokens = min(promise.tokens, sequence.length)
                return promise
            except errors.NotFound:
                promise.discard()
                self._caches = []  # the pool was lost; the caches are made anew
                if attempt:
                    raise
            except BaseException:
                promise.discard()
                raise
        raise AssertionError

    def get_num_new_matched_tokens(self, request: Request,
                                   num_computed_tokens: int) -> tuple[int | None, bool]:
        self._forget(request.request_id)
        size = self._block_tokens
        # The last token is always computed: the next one is sampled from its result.
        limit = (request.num_tokens - 1) // size * size
        if not self._loads_too or not self._geometries or limit <= num_computed_tokens or \
                not _takes(request) or getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        try:
            promise = self._attach(request, limit)
        except errors.Error as error:
            self._link.failed(error, "no prefix was looked up")
            return 0, False
        promise.local = num_computed_tokens
        self._promises[request.request_id] = promise
        return max(promise.tokens - num_computed_tokens, 0), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks,
                                 num_external_tokens: int) -> None:
        promise = self._promises.pop(request.request_id, None)
        size = self._block_tokens
        if _takes(request):
            have = promise.tokens // size if promise is not None else 0
            self._tracked[request.request_id] = _Tracked(request, self._extra(request), have)
        if promise is None:
            return
        if num_external_tokens <= 0:
            promise.discard()
            return
        first = promise.local // size
        names = []
        for sequence in promise.sequences:
            names.append(f"vllm-{uuid.uuid4().hex}")
            try:
                sequence.set_name(names[-1], ttl=_HANDOVER_S)
            except errors.Error as error:  # the worker will not find it, and say so
                self._link.failed(error, "a prefix was not handed over")
        self._loads.append(_Load(names, first, list(
            blocks.get_block_ids()[0][first:first + num_external_tokens // size])))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        metadata = _Metadata(self._loads, self._last_saves)
        self._loads, self._last_saves = [], []
        manager = self._kv_cache_manager
        if self._saves_too and manager is not None:
            for name in scheduler_output.num_scheduled_tokens:
                tracked = self._tracked.get(name)
                if tracked is None:
                    continue
                request, size = tracked.request, self._block_tokens
                ready, prompt = _accepted(request) // size, request.num_prompt_tokens // size
                new = ready - tracked.saved
                if new <= 0 or not (tracked.saved < prompt <= ready or
                                    new * size >= self._options["save_tokens"]):
                    continue
                metadata.saves.append(_Save(
                    _tokens(request, ready * size).tobytes(), tracked.extra,
                    list(manager.get_block_ids(name)[0][:ready])))
                tracked.saved = ready
        return metadata

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if connector_output.invalid_block_ids:
            # What the pool was thought to have may be gone; workers look before they copy.
            for tracked in self._tracked.values():
                tracked.saved = 0

    def request_finished(self, request: Request,
                         block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._forget(request.request_id)
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None or not self._saves_too:
            return False, None
        size = self._block_tokens
        ready = min(_accepted(request) // size, len(block_ids))
        if ready <= tracked.saved:
            return False, None
        self._last_saves.append(_Save(_tokens(request, ready * size).tobytes(), tracked.extra,
                                      list(block_ids[:ready]), request.request_id))
        return True, None

    def reset_cache(self) -> bool | None:
        """After new weights: what is published from now on, nobody else finds."""
        self._identity = hashlib.sha256(self._identity + uuid.uuid4().bytes).digest()
        for tracked in self._tracked.values():
            tracked.extra, tracked.saved = self._extra(tracked.request), 0
        return True

    def _forget(self, request_id: str) -> None:
        promise = self._promises.pop(request_id, None)
        if promise is not None:
            promise.discard()


def _geometry(handshake):
    return Geometry(handshake.name, handshake.layers, handshake.block_tokens,
                    handshake.block_bytes)


def _refuse(config, kv_cache_config):
    """Raises NotImplementedError for what the connector does not do."""
    parallel = config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size",
                 "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise NotImplementedError(f"{name} is {getattr(parallel, name)}; FadConnector takes 1")
    if getattr(config.cache_config, "calculate_kv_scales", False):
        raise NotImplementedError("calculate_kv_scales: the scales of one engine are not those of "
                                  "another")
    speculative = config.speculative_config
    if speculative is not None and speculative.method != "ngram":
        raise NotImplementedError(f'speculative decoding by "{speculative.method}" has weights of '
                                  'its own; FadConnector takes "ngram"')
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise NotImplementedError(f"the model has {len(groups)} groups of KV caches; FadConnector "
                                  "takes 1: --disable-hybrid-kv-cache-manager may make it one")
    spec = groups[0].kv_cache_spec
    if not isinstance(spec, FullAttentionSpec):
        raise NotImplementedError(f"the model's KV cache is of kind {type(spec).__name__}; "
                                  "FadConnector takes those that keep all tokens")


def _takes(request):
    """False for requests whose keys and values depend on what has no checksum."""
    return request.prompt_token_ids is not None and request.lora_request is None and \
        getattr(request, "prompt_embeds", None) is None and request.pooling_params is None


def _tokens(request, count):
    return np.array(request.all_token_ids[:count], np.uint32)


def _accepted(request):
    """Tokens whose keys and values were computed by steps that vLLM has taken the results of."""
    return min(request.num_computed_tokens - request.num_in_flight_tokens, request.num_tokens)
