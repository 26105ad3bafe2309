"""Transformers models whose attention fad computes, and whose KV cache outlives the process.

    import faclient.transformers as fad

    fad.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fad")

    cache = fad.FadCache(model, client, name="llama")
    cache.attach(tokens)                   # the longest prefix that any process published
    model.generate(tokens, past_key_values=cache)
    cache.publish(tokens)

Keys and values lie in the daemon; `FadCache` stores none.
"""
from __future__ import annotations

import inspect
import itertools
import threading
import warnings
import weakref
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache as _Cache
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

from . import errors
from . import torch as _torch
from ._identity import Adapters
from ._identity import fingerprint as fingerprint
from ._linear import Linear, decoder_of
from ._masks import pack_bits
from ._pass import REPEATS, Pass, is_on_gpu
from ._rows import Caches, Row, Shape, shapes_of
from .client import Client
from .kv import Cache, Step

_CROP_REMOVES = "tokens_to_remove" in inspect.signature(_Cache.crop).parameters


def register(name: str = "fad") -> None:
    """Makes `attn_implementation=name` known to Transformers."""
    AttentionInterface.register(name, attention_forward)
    # Without a mask function of its own an implementation gets no mask, and would attend to
    # padding.
    AttentionMaskInterface.register(name, _attention_mask)


def _attention_mask(*arguments, **options):
    mask = options.get("attention_mask")
    if not torch.compiler.is_compiling():
        _refuse_blocks(options.get("mask_function"), options.get("q_length", 0))
        _refuse_room(**options)
        documents = _documents(options.get("mask_function"))
        if documents is not None:
            return (documents + 1).cpu()[:, None, None]  # one wait for a GPU, not one in each layer
    if mask is None or not torch.compiler.is_compiling():
        mask = flash_attention_mask(*arguments, **options)
    else:
        # Whether the mask hides anything is known only when the graph runs.
        mask = mask[:, -options["kv_length"]:]
    chunk = getattr(options.get("config"), "attention_chunk_size", None)
    if chunk and options.get("local_size") == chunk and options.get("kv_offset"):
        mask = _hide_earlier_chunks(chunk, mask, **options)
    elif mask is None and torch.compiler.is_compiling():
        mask = _traced_documents(**options)
    if mask is not None and mask.dtype == torch.bool:
        mask = mask.to(torch.uint8)  # a mask of booleans is the caller's own
    # Models may slice rows of queries.
    return None if mask is None else mask[:, None, None]


def _documents(function):
    """The number of each token's document, [batch, tokens], where position_ids pack several documents
    into a row; else None. Transformers tells a mask by a function, and not what that was made of."""
    if getattr(function, "__qualname__", "").startswith("packed_sequence_mask_function."):
        return next(cell.cell_contents for cell in function.__closure__
                    if isinstance(cell.cell_contents, torch.Tensor))
    for cell in getattr(function, "__closure__", None) or ():
        parts = cell.cell_contents
        for part in parts if isinstance(parts, (tuple, list)) else (parts,):
            found = _documents(part) if callable(part) else None
            if found is not None:
                return found
    return None


def _traced_documents(*, batch_size, q_length=0, mask_function=None, device=None, **_):
    """As _documents() + 1, where torch.compile traces the function: a row is cut before each token that
    does not see the one before it. A cache's rows are not packed, and their layers ignore the result."""
    if mask_function is None or not q_length:
        return None
    row = torch.arange(batch_size, device=device)[:, None]
    token = torch.arange(1, q_length, device=device)[None]
    joined = mask_function(row, torch.zeros_like(row), token, token - 1).expand(batch_size, -1)
    return torch.nn.functional.pad((~joined).cumsum(1), (1, 0)).cpu() + 1


def _refuse_blocks(function, rows):
    """Refuses tokens that see later ones of their block, as those of an image: no mask has them here."""
    for ids in _block_ids(function) if rows > 1 else ():
        if (ids >= 0).any():
            raise NotImplementedError("fad has no blocks of tokens that see each other, as the tokens of "
                                      "an image do in Gemma 3: use another attn_implementation")


def _refuse_room(*, q_length=0, kv_length=0, q_offset=0, kv_offset=0, mask_function=None, **_):
    """Refuses a cache whose last key is not the last query's, as a StaticCache's with room left."""
    if mask_function is None or not q_length:
        return
    row, token, key = (torch.tensor(n) for n in (0, int(q_offset) + q_length - 1,
                                                 kv_offset + kv_length - 1))
    if key > token and not mask_function(row, row, token, key):
        raise NotImplementedError("fad takes keys up to the last query's own, and this cache has room behind "
                                  "them, as a StaticCache has: use a DynamicCache or a FadCache")


def _block_ids(function):
    """The tensors of all blockwise_overlay() that Transformers has put together in a mask function."""
    for cell in getattr(function, "__closure__", None) or ():
        inner = cell.cell_contents
        if isinstance(inner, torch.Tensor):
            if function.__qualname__.startswith("blockwise_overlay."):
                yield inner
        else:
            for part in inner if isinstance(inner, tuple) else (inner,):
                yield from _block_ids(part)


def _hide_earlier_chunks(chunk, mask, *, batch_size, q_length, kv_length, kv_offset, attention_mask,
                         device=None, **_):
    """The mask of a cache that has dropped its first tokens: what is left begins with a chunk, as
    chunks are counted from the first key that the mask shows."""
    if attention_mask is None:
        mask = torch.ones((batch_size, kv_length), dtype=torch.bool, device=device)
        before = kv_offset
    else:
        mask = attention_mask[:, -kv_length:].bool()
        before = attention_mask[:, :-kv_length].sum(1, keepdim=True)
    own = before + mask.cumsum(1) - 1
    first = before + mask[:, :-q_length].sum(1, keepdim=True)  # of the new tokens
    return mask & (own >= first // chunk * chunk)


_caches: weakref.WeakValueDictionary[int, FadCache] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


class _Traced:
    """The layer whose keys the cache was given last, while torch.compile traces a model. With MLA
    also the latents and rotated keys. Both are there from the start: a graph depends on that."""

    def __init__(self) -> None:
        self.layer: _Layer | None = None
        self.latents: tuple[torch.Tensor, torch.Tensor] | None = None


_traced = _Traced()


class _Latents:
    """What a layer with multi-head latent attention (MLA) gave to the cache last, in this thread.
    Its attention gets keys and values that were expanded from it, which carry no tag."""

    last: threading.local = threading.local()

    @classmethod
    def put(cls, cache, index, latent, rotated):
        cls.last.given = (weakref.ref(cache), index, latent, rotated)

    @classmethod
    def take(cls, module):
        """Returns cache, layer, latents and rotated keys if they are this module's."""
        cache, index, *tensors = getattr(cls.last, "given", None) or (lambda: None, -1)
        cache = cache()
        if cache is None or cache._attends[index] != getattr(module, "layer_idx", None) or \
                not hasattr(module, "expand_kv") or cache._pass is None or \
                cache._pass.waiting != index:
            return None
        cls.last.given = None
        return cache, index, *tensors


def _mla_shape(model):
    """The shape of what layers with MLA give to a cache, as K whose front is V; None: others."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    for module in decoder.modules():
        if hasattr(module, "expand_kv"):
            return Shape(1, module.kv_lora_rank + module.qk_rope_head_dim, module.kv_lora_rank, True)
    return None


class _Layer(CacheLayerMixin):
    """One layer of a FadCache, for what Transformers asks of layers."""

    is_sliding = False
    is_croppable = True

    def __init__(self, cache, index):
        super().__init__()
        self.cache, self.index = cache, index

    @property
    def device(self):
        return self.cache.device

    def lazy_initialization(self, key_states, value_states=None):
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if torch.compiler.is_compiling():
            _traced.layer = self
            if self.cache._mla is not None:
                _traced.latents = key_states, value_states
            return key_states, value_states
        return self.cache._tag(self.index, key_states, value_states)

    def get_mask_sizes(self, query_length):
        if not isinstance(query_length, int):  # older releases pass positions
            query_length = query_length.shape[0]
        return self.cache.tokens + query_length, 0

    def get_seq_length(self, *args):
        return self.cache.tokens

    def get_max_length(self):
        return -1

    def get_max_cache_shape(self):
        return -1

    def reset(self):
        self.cache.reset()

    def reorder_cache(self, beam_idx):
        self.cache.reorder_cache(beam_idx)


class FadCache(_Cache):
    """A KV cache in the daemon, for a model with attn_implementation="fad".

    model   whose cache it is
    client  default: the process's own, `faclient.default_client()`
    name    of the cache: others with the same name and the same model share published prefixes,
            also after this process. None: nothing outlives the process
    ttl     seconds after which an unused named cache is removed; default: a day
    shared  find prefixes of other tenants that say so, too
    checkpoint_tokens  of models with linear layers: their states after each multiple of so many
            tokens are kept, where a pass ends there; a prefix is found up to the last of them
    """

    client: Client
    config: Any
    identity: bytes       #: fingerprint(model)
    device: torch.device
    tokens: int           #: of the longest row, with padding
    checkpoint_tokens: int  #: between states that are kept; 0: a model without linear layers

    def __init__(self, model: Any, client: Client | None = None, name: str | None = None, *,
                 ttl: float = 86400.0, shared: bool = False, page_tokens: int = 16,
                 checkpoint_tokens: int = 256) -> None:
        self.client = client or _torch.client()
        self.config = model.config.get_text_config(decoder=True)
        if getattr(self.config, "index_topk", None):
            raise NotImplementedError("an indexer chooses the tokens that the model's attention sees "
                                      "(DeepSeek V3.2), which fad does not compute")
        # The model's dtype, because model.to(torch.bfloat16) does not change the configuration's.
        self._dtype = model.dtype
        self.identity = fingerprint(model)
        self._adapters = Adapters(model)
        self.device = model.device
        self.tokens = 0
        self._name = name and f"{name[:40]}-{self.identity.hex()[:16]}"
        self._ttl, self._shared, self._page_tokens = ttl, shared, page_tokens
        self._caches: Caches | None = None
        self._rows: list[Row] = []
        self._lengths: list[int] = []  # tokens of the rows, without padding
        self._valid: torch.Tensor | None = None  # [rows, tokens], which are no padding; None: all
        self._pass: Pass | None = None
        self._committing: Pass | None = None  # a pass on a GPU whose commit nobody waited for
        # For compiled graphs, which see no objects: the cache's number, and a count of calls.
        number = next(_numbers)
        self._state = torch.tensor([number, 0])
        _caches[number] = self
        # The last layers may use earlier ones' keys and values.
        n_layers = self.config.num_hidden_layers
        linear = Linear(model, self.config)
        others = {**linear.layers, **linear.others}
        self._linear, self._states = linear.layers, linear.states
        self._n_calls = n_layers - len(others)
        n_layers -= getattr(self.config, "num_kv_shared_layers", None) or 0
        #: the layers with attention
        self._attends = attends = [i for i in range(n_layers) if i not in others]
        self._mla = _mla_shape(model)
        shapes = shapes_of(model, n_layers)
        self._shapes = [self._mla] * len(attends) if self._mla is not None else \
            linear.shapes or [shapes[i] for i in attends]
        layers = [others.get(i) or _Layer(self, attends.index(i)) for i in range(n_layers)]
        self.checkpoint_tokens = checkpoint_tokens if self._linear else 0
        if self._linear:
            self._end_with_forward(model)
        super().__init__(layers=layers)

    def _end_with_forward(self, model):
        """A pass of a model with linear layers ends with the decoder's forward(), as its last
        layers may be linear."""
        here = weakref.ref(self)

        def end_of_pass(*_):
            cache = here()
            if cache is not None:
                cache._end_of_forward()

        handle = decoder_of(model).register_forward_hook(end_of_pass)
        weakref.finalize(self, handle.remove)

    # ---- what Transformers calls

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the longest row, with padding."""
        return self.tokens

    def reset(self) -> None:
        """Forgets all rows. After a daemon that took its pool with it (Stale), the cache can be
        used again."""
        try:
            self._end_pass()
        except errors.Error:
            pass  # the commit of tokens that are forgotten
        if self._caches is not None:
            try:
                for cache in self._caches.all:
                    cache.info()
            except errors.NotFound:
                self._caches = None
        self._rows, self._lengths, self._valid, self.tokens = [], [], None, 0
        for layer in self._linear.values():
            layer.reset()

    def crop(self, tokens_to_remove: int) -> None:
        """Removes -tokens_to_remove tokens from the end of every row. In releases whose `crop`
        takes a length, a number that is not negative is the length to keep."""
        self._end_pass()
        if tokens_to_remove < 0 or (_CROP_REMOVES and not tokens_to_remove):
            remove = -tokens_to_remove
        elif _CROP_REMOVES:
            raise ValueError(f"crop({tokens_to_remove}): expected a negative number of tokens")
        else:
            remove = self.tokens - tokens_to_remove
        remove = min(max(remove, 0), self.tokens)
        if not remove:
            return
        if self._linear:
            raise NotImplementedError("linear layers cannot go back to an earlier token")
        self.tokens -= remove
        if self._valid is not None:
            self._valid = self._valid[:, :self.tokens]
        for i, sequence in enumerate(self._rows):
            self._lengths[i] = self.tokens if self._valid is None else int(self._valid[i].sum())
            sequence.truncate(self._lengths[i])

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Rows become those of the beams."""
        self._select([int(i) for i in beam_idx])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps these rows."""
        if indices.dtype == torch.bool:
            indices = indices.nonzero()[:, 0]
        self._select([int(i) for i in indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row."""
        self._select([i for i in range(len(self._rows)) for _ in range(repeats)])

    def _select(self, indices):
        """Rows become those of the indices; a row that is wanted again is forked."""
        self._end_pass()
        if not self._rows:
            return
        used, rows = set(), []
        if self._linear and len(set(indices)) < len(indices):
            self.checkpoint()  # at which the forks end
        for layer in self._linear.values():
            layer.select(torch.tensor(indices))
        for i in indices:
            rows.append(self._rows[i].fork() if i in used else self._rows[i])
            used.add(i)
        self._lengths = [self._lengths[i] for i in indices]
        if self._valid is not None:
            self._valid = self._valid[indices]
        self._rows = rows

    # ---- states of linear layers

    def checkpoint(self) -> None:
        """Makes the states of linear layers after the last pass durable, in a checkpoint of each
        row. Passes over several tokens do so, and those that end at a multiple of checkpoint_tokens;
        other ones leave the rows longer than their newest checkpoint."""
        self._end_pass()
        for _ in range(REPEATS if self._linear and self._rows else 0):
            try:
                rows = [row.sequences[0] for row, n in zip(self._rows, self._lengths) if n]
                with Step(self._cache, [(x, 0) for x in rows], rows) as step:
                    self._write_states(step, [n > 0 for n in self._lengths])
                return
            except errors.DaemonLost:
                continue  # what is written twice is the same

    def _write_states(self, step, flags):
        for i, state in enumerate(self._states):
            tensor = state.of(self._linear[state.layer])
            for row, sequence in enumerate(x.sequences[0] for x in self._rows):
                if flags[row]:
                    step.write_state(sequence, i, tensor[row].contiguous())

    def _read_states(self):
        """Takes the states from the rows' checkpoints, which are at their ends."""
        for i, state in enumerate(self._states):
            tensor = torch.zeros((len(self._rows), *state.shape), dtype=state.dtype,
                                 device=self.device)
            for row, sequence in enumerate(x.sequences[0] for x in self._rows):
                if self._lengths[row]:
                    sequence.read_state(i, tensor[row], tokens=self._lengths[row])
            state.put(self._linear[state.layer], tensor)

    def _end_of_forward(self):
        current = self._pass
        if current is None:
            return
        if current.done < self._n_calls:
            self._end_pass()
            raise RuntimeError(
                "a layer did not use fad's attention over the keys that it gave the cache: load "
                'the model with attn_implementation="fad" after faclient.transformers.register()')
        try:
            current.commit()
        except errors.Error:
            self._pass = None
            current.close()
            raise
        self._passed(current)

    # ---- prefixes

    @property
    def _cache(self) -> Cache | None:
        """The cache of the first layer's shape; _caches has those of other shapes, too."""
        return self._caches.all[0] if self._caches is not None else None

    def _open(self, first: Shape, dtype) -> Caches:
        if self._caches is None:
            self._caches = Caches(
                self.client, self._name, [shape or first for shape in self._shapes], dtype=dtype,
                page_tokens=self._page_tokens, ttl=self._ttl if self._name else None,
                states=[x.nbytes for x in self._states], checkpoint_tokens=self.checkpoint_tokens)
        return self._caches

    def _first_shape(self) -> Shape:
        """Heads and dims before the first pass, by the projections or the configuration."""
        if self._shapes[0] is not None:
            return self._shapes[0]
        config = self.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or \
            config.hidden_size // config.num_attention_heads
        return Shape(heads, dim, dim)

    def attach(self, tokens: Any, attention_mask: Any = None) -> int:
        """Fills an empty cache with the longest prefixes that any process published, and returns
        its new length, with padding; generate() computes the rest.

        tokens          one row, or [rows, length] as generate() takes them
        attention_mask  0 where a row has padding; None: it has none

        All rows end at the same column: that of the row of which the least is known. The last token
        is never taken: a model must run at least one.
        """
        self._adapters.check()
        tokens = torch.as_tensor(tokens).cpu()
        tokens = tokens[None] if tokens.dim() == 1 else tokens
        mask = torch.ones_like(tokens, dtype=torch.bool) if attention_mask is None else \
            torch.as_tensor(attention_mask).cpu().bool().reshape(tokens.shape)
        self.reset()
        caches = self._open(self._first_shape(), self._dtype)
        end = max(tokens.shape[1] - 1, 0)
        # Others can be shortened to any token.
        most = end if self._linear else tokens.shape[1]
        rows = [self._find(caches, row[:most][valid[:most]]) for row, valid in zip(tokens, mask)]
        for i, valid in enumerate(mask):
            columns = valid.nonzero()[:, 0]
            if columns.numel():
                end = min(end, int(columns[min(rows[i].length, columns.numel() - 1)]))
        fits = False
        while not fits:
            fits = True
            for i, valid in enumerate(mask):
                keep = int(valid[:end].sum())
                if rows[i].length > keep and self._linear:
                    # It has no earlier checkpoint than that at its end.
                    rows[i] = self._find(caches, tokens[i][:end][valid[:end]])
                elif rows[i].length > keep:
                    rows[i].truncate(keep)
                if rows[i].length < keep:
                    end, fits = int(valid.nonzero()[rows[i].length, 0]), False
        self._lengths = [int(valid[:end].sum()) for valid in mask]
        self._rows, self.tokens = rows, end
        self._valid = None if bool(mask[:, :end].all()) else mask[:, :end]
        if self._linear and end:
            self._read_states()
        return end

    def _find(self, caches, tokens):
        """A row of the longest published prefix of these tokens."""
        return caches.attach(tokens, extra=self.identity, shared=self._shared)

    def publish(self, tokens: Any, row: int = 0) -> int:
        """Publishes a row's pages. tokens: the row from its beginning, as generate() took or
        returned it, with its padding; what is beyond the cache is ignored. Returns the number of
        newly published pages."""
        self._adapters.check()
        self._settle()
        tokens = torch.as_tensor(tokens).reshape(-1)[:self.tokens]
        if self._valid is not None:
            tokens = tokens[self._valid[row, :tokens.numel()].to(tokens.device)]
        return self._rows[row].publish(tokens, extra=self.identity, shared=self._shared)

    # ---- a pass through the layers

    def _tag(self, index, key, value):
        """Remembers a layer's new keys and values, which its attention appends."""
        if index == 0 or self._pass is None:
            self._end_pass()
            self._adapters.check()
            self._pass = Pass(self, key.shape[0], key.shape[2])
        if self._pass.waiting is not None:
            raise RuntimeError(
                f"layer {self._pass.waiting} did not use fad's attention: load the model with "
                'attn_implementation="fad" after faclient.transformers.register()')
        self._pass.waiting = index
        tagged = key.view_as(key)
        if self._mla is not None:
            _Latents.put(self, index, key, value)
            return tagged, value
        tagged._fad = (self, index)
        return tagged, value

    def _end_pass(self):
        if self._pass is not None:
            self._pass.close()
        self._pass = None
        self._settle()

    def _settle(self):
        """Waits for the commit of the last pass. If it failed, that pass's tokens are removed."""
        current, self._committing = self._committing, None
        if current is None:
            return
        try:
            current.settle()
        except errors.Error:
            self.tokens, self._lengths, self._valid = current.before
            raise

    def _attend(self, index, query, key, value, mask, options):
        current = self._pass
        shares = current is not None and current.waiting is None and index in current.places
        if current is None or (current.waiting != index and not shares):
            raise RuntimeError(f"layer {index} is out of turn")
        current.waiting = None
        try:
            out = current.attend(index, query, None if shares else key, value, mask, options)
            if current.done == self._n_calls and not self._linear:
                current.commit()
        except errors.Error:
            if is_on_gpu(query):
                self._pass = None
                current.close()
            raise
        if current.done == self._n_calls and not self._linear:
            self._passed(current)
        return out

    def _passed(self, current):
        """Takes over what a committed pass has appended."""
        if current.ticket is not None:
            self._committing = current
        self._keep_valid(current)
        self._lengths = [n + m for n, m in zip(self._lengths, current.n_new)]
        self.tokens += current.width
        self._pass = None

    def _keep_valid(self, current):
        if self._valid is None and current.valid is None:
            return
        shape = (current.batch, current.width)
        new = torch.ones(shape, dtype=torch.bool) if current.valid is None else \
            current.valid.cpu()
        old = self._valid if self._valid is not None else \
            torch.ones(current.batch, self.tokens, dtype=torch.bool)
        self._valid = torch.cat([old, new], 1)


def _bits(mask, query, key):
    """A mask of each row and key, [batch or 1, heads or 1, n_q or 1, n_k], as words of bits."""
    n_q, n_k = query.shape[2], key.shape[2]
    for size, wanted, name in zip(mask.shape, (len(query), query.shape[1], n_q), ("batch", "heads", "n_q")):
        if size not in (1, wanted):
            raise ValueError(f"the attention mask is {list(mask.shape)}; expected {name} {wanted} or 1")
    if mask.shape[3] != n_k:
        raise ValueError(f"the attention mask is {list(mask.shape)}; expected {n_k} keys")
    seen = mask
    if mask.dtype.is_floating_point:
        # Sums of a mask's least numbers are -infinity; each dtype has its own least number.
        seen = mask == 0
        if not (seen | (mask <= torch.finfo(torch.float16).min)).all():
            raise NotImplementedError("the attention mask adds numbers to scores that are neither 0 nor "
                                      "-infinity (or the least one of a dtype), which fad does not "
                                      "compute: use another attn_implementation")
    elif mask.dtype != torch.bool:
        raise NotImplementedError(f"the attention mask holds {mask.dtype}; fad takes booleans, and "
                                  "floating-point numbers that are added to scores")
    return pack_bits(seen.expand(-1, -1, n_q, -1))


def _plain(query, key, value, mask, options):
    """Attention without a FadCache."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    # The numbers of documents, from 1. Other tokens than the keys' are those of a pass with a cache.
    documents = mask is not None and mask.dtype == torch.int64 and mask.dim() == 2 and \
        bool((mask > 0).all())
    if documents and (mask.shape[1] != k.shape[1] or bool((mask == mask[:, :1]).all())):
        mask = None  # each row is one
    if mask is None and options["chunk_tokens"] and is_on_gpu(q):
        # On a GPU chunks need sequences that follow one another in memory.
        return torch.cat([_torch.client().attention(q[i:i + 1], k[i:i + 1], v[i:i + 1], **options)
                          for i in range(len(q))])
    if mask is None:
        return _torch.client().attention(q, k, v, **options)
    if mask.dim() == 4:
        # It tells all that rows see, also of causality and windows.
        options = {**options, "causal": False, "window": None, "chunk_tokens": 0}
        return _torch.client().attention(q, k, v, mask=_bits(mask, query, key), **options)
    if mask.dim() != 2:
        raise NotImplementedError(f"an attention mask has {mask.dim()} dimensions; expected 2 or 4")
    out = q.new_zeros((*q.shape[:3], v.shape[3]))
    if documents:
        first = k.shape[1] - q.shape[1]  # key of the first query
        for i, row in enumerate(mask):
            end = 0
            for n in row.unique_consecutive(return_counts=True)[1].tolist():
                at, end = end, end + n
                rows = slice(max(at - first, 0), max(end - first, 0))
                if rows.start < rows.stop:
                    out[i, rows] = _torch.client().attention(
                        q[i:i + 1, rows], k[i:i + 1, at:end], v[i:i + 1, at:end], **options)[0]
        return out
    valid = mask[:, -k.shape[1]:].bool()
    # Queries of cross attention are of other tokens than the keys.
    all_rows = not (options["causal"] or options["window"] or options["chunk_tokens"])
    for i, row in enumerate(valid):
        if not row.any():
            continue
        rows = slice(None) if all_rows else row[-q.shape[1]:]
        out[i, rows] = _torch.client().attention(q[i:i + 1, rows], k[i:i + 1, row],
                                                 v[i:i + 1, row], **options)[0]
    return out


def _options(causal, scale, window_left, window_right, softcap, sinks, chunk_tokens):
    return {"causal": causal, "scale": scale or None, "softcap": softcap, "sinks": sinks,
            "window": (window_left, window_right) if window_left >= 0 else None,
            "chunk_tokens": chunk_tokens}


# What the daemon has is no part of a graph: `state` stands for it, and keeps calls in their order.
@torch.library.custom_op("faclient::cached_attention", mutates_args=("state",), tags=_torch._TAGS)
def _cached_attention(state: torch.Tensor, layer: int, query: torch.Tensor, key: torch.Tensor,
                      value: torch.Tensor, mask: torch.Tensor | None, causal: bool, scale: float,
                      window_left: int, window_right: int, softcap: float,
                      sinks: torch.Tensor | None, chunk_tokens: int) -> torch.Tensor:
    cache = _caches[int(state[0])]
    state[1] += 1
    if not is_on_gpu(key):
        # Copies them: they are kept for a repetition, and the graph uses their memory again.
        key, value = key.clone(), value.clone()
    key, value = cache._tag(layer, key, value)
    return cache._attend(layer, query, key, value, mask, _options(
        causal, scale, window_left, window_right, softcap, sinks, chunk_tokens))


@torch.library.custom_op("faclient::masked_attention", mutates_args=(), tags=_torch._TAGS)
def _masked_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      mask: torch.Tensor | None, causal: bool, scale: float, window_left: int,
                      window_right: int, softcap: float, sinks: torch.Tensor | None,
                      chunk_tokens: int) -> torch.Tensor:
    return _plain(query, key, value, mask, _options(causal, scale, window_left, window_right,
                                                    softcap, sinks, chunk_tokens))


@_cached_attention.register_fake
def _(state, layer, query, key, value, *rest):
    return _like_output(query, value)


@_masked_attention.register_fake
def _(query, key, value, *rest):
    return _like_output(query, value)


def _like_output(query, value):
    batch, heads, width, _ = query.shape
    return query.new_empty((batch, width, heads, value.shape[3]))


def _attend_latents(module, query, latent, rotated, attend):
    """MLA in its absorbed form: the cache has latents, of one head, and their front is V. Queries
    are multiplied by what would expand keys, and results by what would expand values. @attend
    gets query, key and value."""
    heads, nope = query.shape[1], module.qk_nope_head_dim
    weights = module.kv_b_proj.weight.view(heads, -1, latent.shape[-1])
    parts = torch.split(query, [nope, query.shape[-1] - nope], dim=-1)
    query = torch.cat([parts[0] @ weights[:, :nope], parts[1]], dim=-1)
    key = torch.cat([latent, rotated], dim=-1)
    out = attend(query, key, latent)
    return (out.transpose(1, 2) @ weights[:, nope:].transpose(1, 2)).transpose(1, 2)


def _chunk_of(module):
    """Tokens of the chunks of a module's attention; 0: it has none."""
    config, layer = (getattr(module, name, None) for name in ("config", "layer_idx"))
    types = getattr(config, "layer_types", None)
    if types is not None and layer is not None and types[layer] != "chunked_attention":
        return 0
    return getattr(config, "attention_chunk_size", None) or 0


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor,
                      value: torch.Tensor, attention_mask: torch.Tensor | None,
                      scaling: float | None = None, dropout: float = 0.0,
                      sliding_window: int | None = None, softcap: float | None = None,
                      is_causal: bool | None = None, s_aux: torch.Tensor | None = None,
                      position_bias: torch.Tensor | None = None,
                      **kwargs: Any) -> tuple[torch.Tensor, None]:
    """The attention function that register() gives to Transformers."""
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or
                                    value.requires_grad):
        raise RuntimeError("fad computes no gradients: use torch.no_grad() or another "
                           "attn_implementation")
    if dropout:
        raise NotImplementedError(f"dropout {dropout}: fad drops nothing; use model.eval()")
    if position_bias is not None:
        raise NotImplementedError("fad computes no position bias")
    if kwargs.get("output_attentions"):
        warnings.warn("fad returns no attention weights", stacklevel=2)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if attention_mask is not None and attention_mask.dim() == 4 and \
            attention_mask.shape[1:3] == (1, 1) and \
            attention_mask.dtype in (torch.uint8, torch.int64):
        attention_mask = attention_mask[:, 0, 0]  # of _attention_mask()
        if attention_mask.dtype == torch.uint8:
            attention_mask = attention_mask.bool()
    window = (sliding_window - 1, 0 if causal else sliding_window - 1) if sliding_window else None
    if torch.compiler.is_compiling():
        if getattr(module, "is_kv_shared_layer", False):
            raise NotImplementedError("a layer uses another one's keys and values, which fad's "
                                      "attention does not follow under torch.compile")
        layer, _traced.layer = _traced.layer, None
        if layer is not None and attention_mask is not None and attention_mask.dtype == torch.int64:
            attention_mask = None  # documents, which rows of a cache are not made of
        left, right = window or (-1, -1)
        rest = (attention_mask, causal, scaling or 0.0, left, right, softcap or 0.0, s_aux,
                _chunk_of(module))
        if layer is None:
            return torch.ops.faclient.masked_attention(query, key, value, *rest), None

        def attend(query, key, value):
            return torch.ops.faclient.cached_attention(layer.cache._state, layer.index, query, key,
                                                       value, *rest)

        latents, _traced.latents = _traced.latents, None
        if latents is not None:
            return _attend_latents(module, query, *latents, attend), None
        return attend(query, key, value), None
    options = {"causal": causal, "scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux,
               "window": window, "chunk_tokens": _chunk_of(module)}
    latents = _Latents.take(module)
    if latents is not None:
        cache, index, *latents = latents
        return _attend_latents(module, query, *latents, lambda *tensors: cache._attend(
            index, *tensors, attention_mask, options)), None
    tag = getattr(key, "_fad", None)
    if tag is None:
        return _plain(query, key, value, attention_mask, options), None
    cache, index = tag
    return cache._attend(index, query, key, value, attention_mask, options), None
