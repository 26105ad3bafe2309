"""KV caches, sequences and steps."""
from __future__ import annotations

import errno
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from . import errors
from ._cuda import Known, Pending
from ._lib import Unique, check, ffi, lib, new, string
from ._masks import Pattern, set_pattern
from ._memory import (DTYPES, Operand, as_operand, device_of, dtype_name, grad_enabled, is_torch,
                      placed, run_cuda)
from ._page_copies import copy_pages, read_pages
from .client import Client, _heads_vector, _kind, _set_options, _set_prefixes

_ALL = 2**64 - 1
_LAYERS_MAX = 256  # of one copy
_STORES = {"plain": lib.FA_STORE_PLAIN, "e4m3": lib.FA_STORE_E4M3, "int8": lib.FA_STORE_INT8}


def _fields(struct, kind):
    return {field: getattr(struct, field) for field, _ in ffi.typeof(f"struct {kind}").fields
            if field not in ("size", "reserved")}


class Cache(Unique):
    """Pages of keys and values of one model's layers, in the daemon. Without a name it ends with
    this object and its sequences'."""

    client: Client
    number: int
    name: str | None
    layers: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    page_tokens: int
    dtype: str
    v_in_k: bool
    states: tuple[int, ...]  #: bytes of each state of linear layers
    checkpoint_tokens: int

    def __init__(self, client: Client, number: int, name: str | None, info: Mapping[str, Any],
                 states: Iterable[int] = (), checkpoint_tokens: int = 0) -> None:
        self.client, self.number, self.name = client, number, name
        self.layers, self.kv_heads = info["layers"], info["kv_heads"]
        self.head_dim, self.head_dim_v = info["head_dim"], info["head_dim_v"]
        self.page_tokens = info["page_tokens"]
        #: values are the first head_dim_v elements of keys
        self.v_in_k = bool(info["flags"] & lib.FA_CACHE_V_IN_K)
        self.dtype = {n: text for text, (n, _) in DTYPES.items()}[info["dtype"]]
        self.states, self.checkpoint_tokens = tuple(states), checkpoint_tokens
        self._finalizer = weakref.finalize(self, lib.fa_cache_remove, client._handle, number)
        self._finalizer.atexit = False
        if name is not None:
            self._finalizer.detach()

    @classmethod
    def _open(cls, client, name, *, layers: int, kv_heads: int, head_dim: int,
              head_dim_v: int | None = None, dtype="bfloat16", page_tokens: int = 16,
              mode: int = 0, ttl: float | None = None, max_pages: int = 0,
              store: str = "plain", v_in_k: bool = False,
              states: Iterable[int] = (), checkpoint_tokens: int = 0) -> Cache:
        if store not in _STORES:
            raise ValueError(f"store is {store!r}; expected one of {', '.join(_STORES)}")
        states = tuple(states)
        state_bytes = ffi.new("uint32_t[]", states) if states else ffi.NULL
        wanted = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim,
                  "head_dim_v": head_dim_v or head_dim, "page_tokens": page_tokens,
                  "dtype": DTYPES[dtype_name(dtype)][0], "store": _STORES[store],
                  "flags": (lib.FA_CACHE_TOKEN_SCALES if _STORES[store] else 0) |
                           (lib.FA_CACHE_V_IN_K if v_in_k else 0)}
        out = ffi.new("uint64_t *")
        for _ in range(3):
            if name is not None:
                r = lib.fa_cache_find(client._handle, string(name), out)
                if r == 0:
                    break
                try:
                    check(r)
                except errors.NotFound:
                    pass
            text = string(name)
            options = new("fa_cache_options", name=text, mode=mode, max_pages=max_pages, **wanted)
            if ttl is not None:
                options.ttl_ns = max(1, int(ttl * 1e9))
            if states:
                options.state_bytes, options.n_states = state_bytes, len(states)
                options.checkpoint_tokens = checkpoint_tokens
            r = lib.fa_cache_create(client._handle, options, out)
            try:
                check(r)
                break
            except errors.Exists:
                continue  # another process was faster
        found = cls(client, out[0], name, wanted, states, checkpoint_tokens)
        info = found.info()
        wanted |= {"states": len(states), "checkpoint_bytes": sum(states),
                   "checkpoint_tokens": checkpoint_tokens}
        for key, value in wanted.items():
            if info[key] != value:
                raise errors.InvalidArgument(
                    22, f"the cache '{name}' has {key} {info[key]}; expected {value}: another "
                        "model uses this name")
        return found

    def info(self) -> dict[str, Any]:
        info = new("fa_cache_info")
        check(lib.fa_cache_info(self.client._handle, self.number, info))
        return _fields(info, "fa_cache_info")

    def remove(self) -> None:
        """Removes the cache with all its sequences."""
        self._finalizer.detach()
        check(lib.fa_cache_remove(self.client._handle, self.number))

    def sequence(self) -> Sequence:
        """A new, empty sequence. It ends with the object unless it gets a name."""
        out = ffi.new("uint64_t *")
        check(lib.fa_sequence_create(self.client._handle, self.number, out))
        return Sequence(self.client, out[0], cache=self)

    def attach(self, tokens: Any, *, extra: bytes = b"", shared: bool = False) -> Sequence:
        """A new sequence of the longest prefix of these tokens that anybody published, in whole
        pages. `Sequence.length` is how many tokens it has; may be 0."""
        sequence = self.sequence()
        sequence.attach(tokens, extra=extra, shared=shared)
        return sequence

    def find(self, tokens: Any, *, extra: bytes = b"", shared: bool = False) -> int:
        """Returns how many leading tokens attach() would find now. Changes nothing."""
        prefix, kept = _prefix(tokens, extra, shared)
        out = ffi.new("uint64_t *")
        check(lib.fa_prefix_find(self.client._handle, self.number, prefix, out))
        del kept
        return out[0]

    def step(self, items: Mapping[Sequence, int] | Iterable[tuple[Sequence, int]], *,
             checkpoints: Iterable[Sequence] = ()) -> Step:
        """Begins a step that appends this many tokens to each sequence. A context manager: its end
        commits, an exception aborts. checkpoints: sequences of the items of which the step also
        writes a checkpoint, all states after the new tokens (Step.write_state()); such an item may
        have no new tokens."""
        if isinstance(items, Mapping):
            items = items.items()
        return Step(self, list(items), checkpoints)


def _prefix(tokens, extra, shared):
    """Makes a struct fa_prefix. Also returns objects that must outlive the call."""
    array = np.ascontiguousarray(_integers(tokens), np.uint32)
    data = ffi.from_buffer("char[]", bytes(extra)) if extra else ffi.NULL
    prefix = new("fa_prefix", n_tokens=array.size, extra=data, extra_bytes=len(extra),
                 tokens=ffi.cast("uint32_t *", array.ctypes.data),
                 flags=lib.FA_PREFIX_SHARED if shared else 0)
    return prefix, (array, data)


class Sequence(Unique):
    """A sequence of tokens in a cache."""

    client: Client
    number: int

    def __init__(self, client: Client, number: int, owned: bool = True,
                 cache: Cache | None = None) -> None:
        self.client, self.number = client, number
        self._cache = cache  # keeps the cache until this sequence ends
        self._finalizer = weakref.finalize(self, lib.fa_sequence_remove, client._handle, number)
        self._finalizer.atexit = False
        if not owned:
            self._finalizer.detach()

    def _info(self):
        info = new("fa_sequence_info")
        check(lib.fa_sequence_info(self.client._handle, self.number, info))
        return info

    def info(self) -> dict[str, Any]:
        return _fields(self._info(), "fa_sequence_info")

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._info().length

    def fork(self, tokens: int | None = None) -> Sequence:
        """A new sequence of the first tokens (default: all); in a cache with states, of those up to
        the last checkpoint that is not behind them. Copies nothing."""
        out = ffi.new("uint64_t *")
        check(lib.fa_sequence_fork(self.client._handle, self.number,
                                   _ALL if tokens is None else tokens, out))
        return Sequence(self.client, out[0], cache=self._cache)

    def truncate(self, tokens: int) -> int:
        """Removes all tokens from this number on; in a cache with states, all behind the last
        checkpoint that is not behind it. Returns how many are left."""
        out = ffi.new("uint64_t *")
        check(lib.fa_sequence_truncate_to(self.client._handle, self.number, tokens, out))
        return out[0]

    def drop_before(self, first: int) -> int:
        """Drops leading tokens in whole pages. Returns the first token left."""
        out = ffi.new("uint64_t *")
        check(lib.fa_sequence_drop_before(self.client._handle, self.number, first, out))
        return out[0]

    def attach(self, tokens: Any, *, extra: bytes = b"", shared: bool = False) -> int:
        prefix, kept = _prefix(tokens, extra, shared)
        out = ffi.new("uint64_t *")
        check(lib.fa_sequence_attach(self.client._handle, self.number, prefix, out))
        del kept
        return out[0]

    def publish(self, tokens: Any, *, extra: bytes = b"", shared: bool = False) -> int:
        """Says which tokens the sequence holds, so that others find its full pages. Wrong tokens
        corrupt their results. Returns the number of newly published pages."""
        prefix, kept = _prefix(tokens, extra, shared)
        out = ffi.new("uint64_t *")
        check(lib.fa_sequence_publish(self.client._handle, self.number, prefix, out))
        del kept
        return out[0]

    def read(self, first: int, k: Any, v: Any = None, *, layer: int = 0,
             timeout: float | None = None) -> None:
        """Copies committed tokens from number `first` on into k [layers, tokens, kv_heads,
        head_dim] and v [layers, tokens, kv_heads, head_dim_v], of as many layers from `layer` on.
        One of the two may be None. Arrays and tensors of the CPU, in the cache's dtype; those of
        Client.empty() are not staged."""
        self.client._drive(_copy(self.client, lib.fa_sequence_read_pages, self, first, k, v, layer,
                                 timeout, True))

    def read_pages(self, first: int, n_tokens: int, k: Iterable[Any] | None,
                   v: Iterable[Any] | None, pages: Any, *, layer: int = 0, page_offset: int = 0,
                   timeout: float | None = None) -> None:
        """Copies n_tokens committed tokens from number `first` on to pages of the caller's own, of
        as many layers from `layer` on as k and v have, by one request. k: a tensor a layer, [pages,
        tokens of a page, kv_heads, head_dim] in the cache's dtype; v likewise; one of the two may be
        None. Views do: heads may come before tokens, and K and V may be parts of one tensor. Each is
        in memory of Client.empty(), or all are on the daemon's GPU. Token first + i is at place
        p = page_offset + i, which is token p % size of page pages[p // size]; no page is named
        twice."""
        self.client._drive(self._read_pages(first, n_tokens, k, v, pages, layer, page_offset,
                                            timeout))

    def _read_pages(self, first, n_tokens, k, v, pages, layer=0, page_offset=0, timeout=None):
        return read_pages(self.client, self, first, n_tokens, k, v, _integers(pages), layer=layer,
                          page_offset=page_offset, timeout=timeout)

    def read_state(self, state: int, data: Any, *, tokens: int = 0,
                   timeout: float | None = None) -> None:
        """Copies a state of linear layers from the checkpoint after `tokens` tokens (0: the newest)
        into data, an array or tensor of as many bytes, without gaps. On the daemon's GPU: in the
        order of its stream."""
        self.client._drive(self._read_state(state, data, tokens, timeout))

    def _read_state(self, state, data, tokens=0, timeout=None):
        return _copy_state(self.client, lib.fa_sequence_read_state, self, state, data, tokens,
                           timeout, True, None)

    def set_name(self, name: str, *, mode: int = 0, ttl: float | None = None) -> None:
        """Names the sequence, which then outlives this process."""
        check(lib.fa_sequence_set_name(self.client._handle, self.number, string(name), mode,
                                       max(1, int(ttl * 1e9)) if ttl is not None else 0))
        self._finalizer.detach()

    def remove(self) -> None:
        """Removes the sequence, for all processes. Forks keep what they share."""
        self._finalizer.detach()
        check(lib.fa_sequence_remove(self.client._handle, self.number))


def _integers(tokens):
    if is_torch(tokens):
        tokens = tokens.detach().cpu().numpy()
    array = np.asarray(tokens)
    if array.size == 0:
        return np.empty(0, np.uint32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"tokens have shape {array.shape} and dtype {array.dtype}; expected one "
                         "dimension of integers")
    if array.min() < 0 or array.max() > 2**32 - 1:
        raise ValueError("a token is not a 32-bit number")
    return array


def _copy(client, send, sequence, first, k, v, layer, timeout, reads):
    """One request for all layers: the tokens of each are one page of its tensors."""
    dtype = sequence._cache.dtype if sequence._cache is not None else None
    ops = [Operand(x, name, dtype, copies_back=reads) for x, name in
           ((as_operand(k, "k"), "k"), (as_operand(v, "v"), "v")) if x is not None]
    if not ops:
        raise ValueError("k and v are both None: there is nothing to copy")
    for op in ops:
        if len(op.shape) != 4:
            raise ValueError(f"{op.name} has {len(op.shape)} dimensions; expected 4: layers, "
                             "tokens, heads, dim")
        if op.shape[:2] != ops[0].shape[:2]:
            raise ValueError(f"v has {op.shape[0]} layers of {op.shape[1]} tokens, and k "
                             f"{ops[0].shape[0]} of {ops[0].shape[1]}")
        if op.device is not None:
            raise errors.NotSupported(errno.ENOTSUP, f"{op.name} is on a GPU; copies take arrays "
                                      "and tensors of the CPU")
    if 0 in ops[0].shape:
        return
    n_layers, n_tokens = ops[0].shape[:2]
    with placed(client, [] if reads else ops, ops if reads else []):
        for i in range(0, n_layers, _LAYERS_MAX):
            n = min(n_layers - i, _LAYERS_MAX)
            page = ffi.new("uint32_t[]", 1)
            request = new("fa_sequence_pages", sequence=sequence.number, first=first,
                          n_tokens=n_tokens, layer=layer + i, n_layers=n, pages=page, n_pages=1)
            if timeout is not None:
                request.timeout_ns = max(1, int(timeout * 1e9))
            kept = [page]
            for op in ops:
                tensors = ffi.new("struct fa_tensor[]", n)
                for j in range(n):
                    op.fill_page(tensors[j], i + j)
                setattr(request, op.name, tensors)
                kept.append(tensors)
            ticket = ffi.new("struct fa_ticket *")
            check(send(client._handle, request, ticket))
            yield ticket
            del kept


def _bytes_of(x, name, reads):
    """An operand of the bytes of an array or tensor without gaps."""
    x = as_operand(x, name)
    if is_torch(x):
        import torch
        if not x.is_contiguous():
            raise ValueError(f"{name} has strides {tuple(x.stride())}; expected no gaps")
        x = x.detach().reshape(-1).view(torch.uint8)
        x = x.numpy() if x.device.type == "cpu" else x.view(torch.float8_e4m3fn)
    else:
        x = np.asarray(x)
        if not x.flags.c_contiguous:
            raise ValueError(f"{name} has strides {x.strides}; expected no gaps")
        x = x.reshape(-1).view(np.uint8)
    return Operand(x, name, copies_back=reads, only=("float8_e4m3fn",))


def _copy_state(client, call, sequence, state, data, tokens, timeout, reads, pending):
    """Yields the ticket of a copy, unless data is on a GPU: then it returns the lane."""
    op = _bytes_of(data, "data", reads)
    request = new("fa_sequence_state", sequence=sequence.number, state=state, tokens=tokens)
    if timeout is not None:
        request.timeout_ns = max(1, int(timeout * 1e9))
    if op.device is not None:
        gate = client._cuda_gate()
        if pending is None:
            pending = gate.pending
            pending.collect()
        return run_cuda(client, op.device, [op], ["data"], request, call, client._handle, pending,
                        [], ("state", reads))
    ticket = ffi.new("struct fa_ticket *")
    with placed(client, [] if reads else [op], [op] if reads else []):
        op.fill(request.data)
        check(call(client._handle, request, ticket))
        yield ticket


def _form(cache, q, k_new, v_new, out, causal, window, scale, softcap, sinks, chunk_tokens, pattern=None):
    """Requests of equal forms need the same checks, and differ in the layer and the addresses of
    their tensors. None: the request needs all checks."""
    tensors = (q, k_new, v_new) if out is None else (q, k_new, v_new, out)
    grad = grad_enabled()
    form = [cache, bool(causal), None if window is None else tuple(map(int, window)), float(scale or 0.0),
            float(softcap), sinks is not None, int(chunk_tokens),
            None if pattern is None else tuple(pattern)]
    for x in tensors:
        if not is_torch(x) or grad and x.requires_grad:
            return None
        form += (x.device, x.dtype, x.shape, x.stride())
    return tuple(form)


class Step(Unique):
    """One pass over new tokens of some sequences."""

    cache: Cache
    client: Client
    n_new: int   #: new tokens of all items
    number: int  #: Sequence.info()["step"] after the commit

    def __init__(self, cache: Cache, items: list[tuple[Sequence, int]],
                 checkpoints: Iterable[Sequence] = ()) -> None:
        self.cache, self.client = cache, cache.client
        self.n_new = sum(n for _, n in items)
        array = ffi.new("struct fa_step_item[]", max(len(items), 1))
        for i, (sequence, n) in enumerate(items):
            array[i].sequence, array[i].n_new = sequence.number, n
        numbers = {sequence.number for sequence in checkpoints}
        for i, (sequence, _) in enumerate(items):
            if sequence.number in numbers:
                array[i].flags = lib.FA_STEP_CHECKPOINT
        self._items = items  # sequences live as long as the step
        options = new("fa_step_options", n_items=len(items), items=array)
        out = ffi.new("struct fa_step **")
        check(lib.fa_step_begin(self.client._handle, options, out))
        self._handle = out[0]
        self.number = lib.fa_step_number(self._handle)
        self._pending = Pending(self.client)  # requests on a GPU; the commit tells of their errors
        self._stream = 0
        self._finalizer = weakref.finalize(self, lib.fa_step_free, self._handle)
        self._finalizer.atexit = False

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        if kind is None and self._finalizer.alive:
            self.commit()
        else:
            self.close()

    def attend(self, layer: int, q: Any, k_new: Any, v_new: Any, *, out: Any = None,
               causal: bool = True, window: tuple[int, int] | None = None,
               scale: float | None = None, softcap: float = 0.0, sinks: Any = None,
               alibi_slopes: Any = None, timeout: float | None = None,
               cache: Cache | None = None, chunk_tokens: int = 0,
               prefix_lengths: Any = None, pattern: Pattern | None = None) -> Any:
        """Appends a layer's new keys and values and computes attention over all tokens.

        q [new, heads, head_dim], k_new and v_new [new, kv_heads, head_dim]; new counts the tokens
        of all items, in their order. q None: appends only, and returns None. k_new and v_new
        None: they were appended before. v_new None alone: the cache's values are in its keys. cache: of the items that are meant, in a step over sequences of
        several caches; new counts theirs alone. chunk_tokens, pattern, and prefix_lengths [items of
        the step]: as of Client.attention().

        Tensors of a GPU: as Client.attention(). If a layer fails later, the commit raises.
        """
        return self.client._drive(self._attend(layer, q, k_new, v_new, out, causal, window, scale,
                                               softcap, sinks, alibi_slopes, timeout, cache,
                                               chunk_tokens=chunk_tokens,
                                               prefix_lengths=prefix_lengths, pattern=pattern))

    def _attend(self, layer, q, k_new, v_new, out=None, causal=True, window=None, scale=None,
                softcap=0.0, sinks=None, alibi_slopes=None, timeout=None, cache=None, form=None,
                out_shape=None, chunk_tokens=0, prefix_lengths=None, pattern=None):
        """form: under which the request is remembered; None: that of its tensors."""
        number, cache = (0, self.cache) if cache is None else (cache.number, cache)
        if form is None and self.client._gate is not None and alibi_slopes is None and \
                timeout is None and prefix_lengths is None:
            form = _form(number, q, k_new, v_new, out, causal, window, scale, softcap, sinks,
                         chunk_tokens, pattern)
            again = self._attend_again(form, layer, q, k_new, v_new, out, sinks)
            if again is not None:
                return again
        ops, fields = [], []
        q, k_new, v_new, out = (as_operand(x, name) for x, name in
                                zip((q, k_new, v_new, out), ("q", "k_new", "v_new", "out")))
        for x, name in ((q, "q"), (k_new, "k_new"), (v_new, "v_new")):
            if x is None:
                continue
            op = Operand(x, name, cache.dtype)
            if len(op.shape) != 3:
                raise ValueError(f"{name} has {len(op.shape)} dimensions; expected 3: tokens, "
                                 "heads, dim")
            ops.append(op)
            fields.append(name)
        if not ops:
            raise ValueError("there is nothing to append and nothing to compute")
        outs = []
        if q is not None:
            if out is None:
                shape = (*ops[0].shape[:2], cache.head_dim_v)
                out = q.new_empty(shape) if is_torch(q) else np.empty(shape, ops[0].x.dtype)
            outs.append(Operand(out, "out", cache.dtype, copies_back=True))
        request = new("fa_step_attend", layer=layer, cache=number)
        kept = []
        if q is not None:
            request.scale, request.softcap = scale or 0.0, softcap
            kept = _set_options(request, causal, window, sinks, alibi_slopes, timeout,
                               lib.FA_STEP_CAUSAL, lib.FA_STEP_WINDOW)
            request.chunk_tokens = chunk_tokens
            kept += _set_prefixes(request, prefix_lengths, len(self._items))
            set_pattern(request, pattern)
        device = device_of(ops + outs)
        if device is not None:
            ops, fields = ops + outs, [*fields, "out"]
            lane = run_cuda(self.client, device, ops, fields, request, lib.fa_step_attend,
                            self._handle, self._pending, kept,
                            _kind(causal, window, softcap, sinks, alibi_slopes, None, chunk_tokens,
                                  prefix_lengths, pattern))
            self._stream = lane.stream
            if form is not None and all(x.copy is None and 0 not in x.shape for x in ops):
                self.client._cuda_gate().remember(lane, form, Known(
                    device, request, fields, [x.span() for x in ops], out_shape or out.shape))
            return out
        ticket = ffi.new("struct fa_ticket *")
        with placed(self.client, ops, outs):
            for op, field in zip(ops + outs, [*fields, "out"]):
                op.fill(getattr(request, field))
            check(lib.fa_step_attend(self._handle, request, ticket))
            yield ticket
        del kept
        return out

    def _attend_again(self, form, layer, q, k_new, v_new, out, sinks):
        """Sends a layer like an earlier one, without the checks that an equal form makes needless.
        Returns its output; None: the earlier one had none."""
        gate = self.client._gate
        found = gate.find(form) if gate is not None and form is not None else None
        if found is None:
            return None
        lane, known = found
        if out is None:
            out = q.new_empty(known.out_shape)
        gate.attend_again(lane, known, self._handle, layer,
                          (q.data_ptr(), k_new.data_ptr(), v_new.data_ptr(), out.data_ptr()),
                          None if sinks is None else _heads_vector(sinks), self._pending)
        self._stream = lane.stream
        return out

    def _attend_batch(self, layer, query, key, value, *, causal, window, scale, softcap, sinks,
                      cache, chunk_tokens=0):
        """attend() of tensors [batch, heads, new, dim] on a GPU. Returns [batch, new, heads,
        dim]."""
        form = _form(cache.number if cache is not None else 0, query, key, value, None, causal, window, scale, softcap, sinks,
                     chunk_tokens)
        out = self._attend_again(form, layer, query, key, value, None, sinks)
        if out is not None:
            return out
        batch, heads, width, _ = query.shape
        out = query.new_empty((batch, width, heads, value.shape[3]))
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
        # A copy's address is no other tensor's of the form.
        is_view = all(x.data_ptr() == y.data_ptr() for x, y in zip(flat, (query, key, value)))
        self.client._drive(self._attend(
            layer, *flat, out=out.flatten(0, 1), causal=causal, window=window, scale=scale,
            softcap=softcap, sinks=sinks, cache=cache, form=form if is_view else None, out_shape=out.shape,
            chunk_tokens=chunk_tokens))
        return out

    def write(self, sequence: Sequence, first: int, k: Any, v: Any = None, *, layer: int = 0,
              timeout: float | None = None) -> None:
        """Copies keys and values into tokens that this step has reserved, from the sequence's
        token number `first` on; shapes as in Sequence.read(). An alternative to attend()."""
        self.client._drive(_copy(self.client, lib.fa_sequence_write_pages, sequence, first, k, v, layer,
                                 timeout, False))

    def write_pages(self, sequence: Sequence, first: int, n_tokens: int, k: Iterable[Any] | None,
                    v: Iterable[Any] | None, pages: Any, *, layer: int = 0, page_offset: int = 0,
                    timeout: float | None = None) -> None:
        """Copies pages of the caller's own into tokens that this step has reserved; arguments as of
        Sequence.read_pages(). A page may be named twice."""
        self.client._drive(self._write_pages(sequence, first, n_tokens, k, v, pages, layer,
                                             page_offset, timeout))

    def _write_pages(self, sequence, first, n_tokens, k, v, pages, layer=0, page_offset=0,
                     timeout=None):
        lane = yield from copy_pages(
            self.client, lib.fa_sequence_write_pages, sequence, first, n_tokens, k, v,
            _integers(pages), layer=layer, page_offset=page_offset, timeout=timeout, reads=False,
            pending=self._pending)
        if lane is not None:
            self._stream = lane.stream

    def write_state(self, sequence: Sequence, state: int, data: Any, *,
                    timeout: float | None = None) -> None:
        """Copies data, an array or tensor of as many bytes as the state has, without gaps, into the
        checkpoint that this step writes of the sequence."""
        self.client._drive(self._write_state(sequence, state, data, timeout))

    def _write_state(self, sequence, state, data, timeout=None):
        lane = yield from _copy_state(self.client, lib.fa_sequence_write_state, sequence, state,
                                      data, 0, timeout, False, self._pending)
        if lane is not None:
            self._stream = lane.stream

    def commit(self) -> None:
        """Ends the step; its tokens then outlive the daemon. Waits for its requests."""
        self.client._drive(self._commit())

    def _commit(self):
        yield self._submit_commit()
        self.close()

    def _submit_commit(self):
        # In the stream of the step's requests: a commit that waits for a GPU must not hold up the
        # beginning of the next step.
        options = new("fa_step_commit", stream=self._stream)
        ticket = ffi.new("struct fa_ticket *")
        check(lib.fa_step_commit(self._handle, options, ticket))
        return ticket

    def close(self) -> None:
        """Aborts the step, unless it is committed."""
        self._finalizer()
