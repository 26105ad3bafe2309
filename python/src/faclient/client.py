"""Connections to a daemon, and attention."""
from __future__ import annotations

import errno
import json
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Sequence as _Items
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._cuda import Gate, Ranges
from ._lib import Unique, check, ffi, lib, new, string
from ._masks import Blocks, Pattern, mask_operands, set_pattern
from ._memory import (PAGES_DTYPES, Buffers, Operand, as_operand, device_of, dtype_name, is_torch,
                      placed, run_cuda)
from ._pages import attend_pages
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    import types

    from .kv import Cache, Sequence

_FOREVER = 2**64 - 1
#: How long the library waits before Python looks for signals.
_WAIT_NS = 100_000_000


def _bundled_daemon() -> str | None:
    path = os.path.join(os.path.dirname(__file__), "bin", "fad")
    return path if os.access(path, os.X_OK) else None


def connect(socket: str | None = None, *, spawn: bool = False, private: bool = False,
            name: str | None = None, daemon: str | None = None, config: str | None = None,
            timeout: float | None = None, reconnect_timeout: float | None = None) -> Client:
    """Connects to a daemon.

    socket   its path; default: FAD_SOCKET, the user's daemon, the system's
    spawn    start a daemon if none answers (and no socket is named)
    private  always start one
    name     shown by factl; default: the program's
    daemon   the program to start; default: FAD_DAEMON, else the package's, else the installed one
    config   configuration of a started daemon
    timeout, reconnect_timeout  in seconds; default 5

    Raises Unreachable, NotFound (no daemon), NotAllowed, TimedOut.
    """
    starts = spawn or private
    if starts and daemon is None and not os.environ.get("FAD_DAEMON"):
        daemon = _bundled_daemon()
    texts = {"socket": socket, "config": config if starts else None,
             "daemon": daemon if starts else None,
             "name": name or os.path.basename(sys.argv[0] or "python")[:64] or "python"}
    kept = {field: string(text) for field, text in texts.items()}
    flags = (lib.FA_CONNECT_SPAWN if spawn else 0) | (lib.FA_CONNECT_PRIVATE if private else 0)
    options = new("fa_options", flags=flags, **kept)
    if timeout is not None:
        options.connect_ns = max(1, int(timeout * 1e9))
    if reconnect_timeout is not None:
        options.reconnect_ns = max(1, int(reconnect_timeout * 1e9))
    out = ffi.new("struct fa_client **")
    check(lib.fa_connect(options, out))
    return Client(out[0])


class Client(Unique):
    """A connection. Any number of threads may use it. A context manager."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._finalizer = weakref.finalize(self, lib.fa_disconnect, handle)
        self._finalizer.atexit = False
        self._buffers = Buffers(self)
        self._ranges = Ranges(self)
        self._gate: Gate | None = None
        self._gate_lock = threading.Lock()

    def close(self) -> None:
        """Disconnects. What lies in the client's arrays stays readable. May be called again.
        Warns of a request on the GPU that failed if no call has reported it yet."""
        if self._gate is not None and not self.closed:
            try:
                self._gate.pending.collect()
            except Error as error:
                warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        self._buffers.clear()
        self._ranges.clear()
        self._finalizer()

    def _cuda_gate(self) -> Gate:
        if self._gate is None:
            with self._gate_lock:
                if self._gate is None:
                    self._gate = Gate(self)
        return self._gate

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return not self._finalizer.alive

    @property
    def socket(self) -> str:
        """The path of the daemon's socket."""
        path = lib.fa_socket_path(self._handle)
        return ffi.string(path).decode() if path else ""

    def ping(self) -> None:
        """One empty round trip."""
        check(lib.fa_ping(self._handle))

    def info(self) -> dict[str, Any]:
        """What the daemon said at the last connect, by the names of struct fa_info."""
        info = new("fa_info")
        check(lib.fa_info(self._handle, info))
        values = {}
        for field, _ in ffi.typeof("struct fa_info").fields:
            value = getattr(info, field)
            if isinstance(value, ffi.CData):
                is_text = ffi.typeof(value).item.cname == "char"
                value = ffi.string(value).decode() if is_text else tuple(value)
            if field != "size":
                values[field] = value
        return values

    def status(self) -> dict[str, Any]:
        """The daemon's state, as `factl status --json` prints it."""
        out = ffi.new("char **")
        check(lib.fa_status(self._handle, out))
        try:
            return json.loads(ffi.string(out[0]))
        finally:
            lib.fa_free(out[0])

    def reconnect(self) -> None:
        """Reconnects now, if the connection is lost."""
        check(lib.fa_reconnect(self._handle))

    # ---- memory

    def empty(self, shape: int | _Items[int], dtype: Any = "float32") -> npt.NDArray[Any]:
        """A zeroed numpy array that the daemon sees: requests on it copy nothing. bfloat16 is
        shown as uint16, float8_e4m3fn as uint8; `faclient.torch.empty()` makes tensors. int32 and
        int64 are for pages_attend()."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        name = dtype_name(dtype, PAGES_DTYPES)
        count = 1
        for n in shape:
            if n < 0:
                raise ValueError(f"shape {shape} has a negative size")
            count *= n
        itemsize = PAGES_DTYPES[name][1]
        return self._buffers.new(max(count * itemsize, 1))._view(0, shape, name)

    # ---- requests

    def _wait(self, ticket) -> None:
        """Waits for a request. An exception meanwhile (KeyboardInterrupt) cancels it, and leaves
        when the daemon has let go of its memory."""
        try:
            while True:
                r = lib.fa_wait(self._handle, ticket, _WAIT_NS, ffi.NULL)
                if r != -errno.EAGAIN:
                    break
        except BaseException:
            lib.fa_cancel(self._handle, ticket)
            lib.fa_wait(self._handle, ticket, _FOREVER, ffi.NULL)
            raise
        check(r)

    def _drive(self, work):
        """Runs `work`, a generator of the tickets that it waits for, and returns its result."""
        try:
            ticket = next(work)
            while True:
                self._wait(ticket)
                ticket = work.send(None)
        except StopIteration as end:
            return end.value
        finally:
            work.close()

    def attention(self, q: Any, k: Any, v: Any, *, out: Any = None, causal: bool = False,
                  window: tuple[int, int] | None = None, scale: float | None = None,
                  softcap: float = 0.0, sinks: Any = None, alibi_slopes: Any = None,
                  lse: Any = None, lengths: tuple[Any, Any] | None = None,
                  timeout: float | None = None, chunk_tokens: int = 0,
                  prefix_lengths: Any = None, blocks: Blocks | None = None, mask: Any = None,
                  pattern: Pattern | None = None) -> Any:
        """softmax(scale · q kᵀ) v, as struct fa_attention describes it.

        q [batch, n_q, heads, dim], k and v [batch, n_k, kv_heads, dim], of float32, float16 or
        bfloat16; numpy arrays (bfloat16: as uint16), torch tensors of the CPU or of the daemon's
        GPU, or arrays with __dlpack__ or __cuda_array_interface__. window: (left, right), -1: all.
        Returns out, which is new unless given.

        lengths: (cu_q, cu_k) of a ragged batch, all without the batch's dimension: sequence b has
        the rows cu_q[b] to cu_q[b + 1] - 1 of q and out, likewise cu_k of k and v.

        chunk_tokens: rows see keys of their own chunk alone, of chunks of so many tokens; 0: of all.
        prefix_lengths [sequences]: keys that causal hides from no row, from each sequence's first
        on; only with causal.

        blocks: a block-sparse mask; time is in proportion to the blocks that are seen. mask [batch
        or 1, heads or 1, n_q, n_k] of booleans, or packed by pack_bits() once: the keys that a row
        sees; leading dimensions of size 1 may be left out. pattern: local and strided blocks, by
        numbers. All masks are combined.

        On a GPU the call returns at once: the request is ordered with the current stream of
        PyTorch, like a kernel. If it fails later, the next call or synchronize() raises.
        """
        return self._drive(self._attention(q, k, v, out, causal, window, scale, softcap, sinks,
                                           alibi_slopes, lse, lengths, timeout, chunk_tokens,
                                           prefix_lengths, blocks, mask, pattern))

    def _attention(self, q, k, v, out=None, causal=False, window=None, scale=None, softcap=0.0,
                   sinks=None, alibi_slopes=None, lse=None, lengths=None, timeout=None,
                   chunk_tokens=0, prefix_lengths=None, blocks=None, mask=None, pattern=None):
        q, k, v, out, lse = (as_operand(x, name) for x, name in
                             zip((q, k, v, out, lse), ("q", "k", "v", "out", "lse")))
        ops = [Operand(q, "q"), Operand(k, "k"), Operand(v, "v")]
        for op in ops:
            rank, names = (4, "batch, tokens") if lengths is None else (3, "tokens")
            if len(op.shape) != rank:
                raise ValueError(f"{op.name} has {len(op.shape)} dimensions; expected {rank}: "
                                 f"{names}, heads, dim")
        if out is None:
            shape = (*ops[0].shape[:-1], ops[2].shape[-1])
            out = q.new_empty(shape) if is_torch(q) else np.empty(shape, ops[0].x.dtype)
        outs = [Operand(out, "out", copies_back=True)]
        if lse is not None:
            outs.append(Operand(lse, "lse", copies_back=True))
        request = new("fa_attention", scale=scale or 0.0, softcap=softcap)
        kept = _set_options(request, causal, window, sinks, alibi_slopes, timeout,
                           lib.FA_ATTENTION_CAUSAL, lib.FA_ATTENTION_WINDOW)
        request.chunk_tokens = chunk_tokens
        sequences = ops[0].shape[0] if lengths is None else len(lengths[0]) - 1
        if lengths is not None:
            kept += _set_lengths(request, *lengths)
        kept += _set_prefixes(request, prefix_lengths, sequences)
        set_pattern(request, pattern)
        masks, mask_fields = mask_operands(request, blocks, mask)
        fields = ("q", "k", "v", *mask_fields, "out", "lse")
        device = device_of(ops + masks + outs)
        if device is not None:
            pending = self._cuda_gate().pending
            pending.collect()
            _check_shapes(*ops, *outs)
            if 0 not in ops[0].shape:
                run_cuda(self, device, ops + masks + outs, fields, request,
                         lib.fa_attention, self._handle, pending, kept,
                         _kind(causal, window, softcap, sinks, alibi_slopes, lengths,
                               chunk_tokens, prefix_lengths, pattern))
            return out
        ticket = ffi.new("struct fa_ticket *")
        with placed(self, ops + masks, outs):
            for op, field in zip(ops + masks + outs, fields):
                op.fill(getattr(request, field))
            check(lib.fa_attention(self._handle, request, ticket))
            yield ticket
        del kept
        return out

    def pages_attend(self, q: Any, k: Any, v: Any, table: Any, lengths: Any, *, cu_q: Any = None,
                     max_q: int = 0, max_k: int = 0, k_new: Any = None, v_new: Any = None,
                     slots: Any = None, k_scales: Any = None, v_scales: Any = None,
                     out: Any = None, causal: bool = False,
                     window: tuple[int, int] | None = None, scale: float | None = None,
                     softcap: float = 0.0, sinks: Any = None, alibi_slopes: Any = None,
                     lse: Any = None, deterministic: bool = False,
                     timeout: float | None = None, chunk_tokens: int = 0,
                     prefix_lengths: Any = None, pattern: Pattern | None = None) -> Any:
        """Attention over pages of your own, as struct fa_pages_attend describes it.

        q [rows, heads, dim]; k and v [pages, page_tokens, kv_heads, dim], with any strides, of q's
        dtype or float8_e4m3fn; table int32 [batch, columns]; lengths int32 [batch]; cu_q int32
        [batch + 1], or None: each sequence has as many rows. max_q, max_k: the most rows and keys
        of a sequence; max_k 0: as many as the table has room for. prefix_lengths int32 [batch].

        k_new, v_new [tokens, kv_heads, dim] are first written to the pages: row i to token
        slots[i] % page_tokens of page slots[i] // page_tokens; slots int64, others are skipped.

        On the CPU, tensors that the daemon does not see are copied: make k and v by empty(). What
        else is said of attention() holds here, too.
        """
        return self._drive(attend_pages(
            self, q, k, v, table, lengths, cu_q=cu_q, max_q=max_q, max_k=max_k, k_new=k_new,
            v_new=v_new, slots=slots, k_scales=k_scales, v_scales=v_scales, out=out, causal=causal,
            window=window, scale=scale, softcap=softcap, sinks=sinks, alibi_slopes=alibi_slopes,
            lse=lse, deterministic=deterministic, timeout=timeout, chunk_tokens=chunk_tokens,
            prefix_lengths=prefix_lengths, pattern=pattern))

    def synchronize(self) -> None:
        """Waits for all requests on the GPU, and raises the error of the first that failed and that
        no call has told of."""
        if self._gate is not None:
            self._gate.pending.collect(wait=True)

    def trim(self) -> None:
        """Makes the daemon close the memory of the GPU that it has opened, so that what PyTorch has
        freed (torch.cuda.empty_cache()) returns to the GPU. That happens soon after the call, once
        the GPU runs nothing of the daemon's."""
        self._ranges.clear()
        check(lib.fa_cuda_trim(self._handle))

    # ---- KV caches

    def cache(self, name: str | None = None, *, layers: int, kv_heads: int, head_dim: int,
              head_dim_v: int | None = None, dtype: Any = "bfloat16", page_tokens: int = 16,
              mode: int = 0, ttl: float | None = None, max_pages: int = 0,
              store: str = "plain", v_in_k: bool = False, states: _Items[int] = (),
              checkpoint_tokens: int = 0) -> Cache:
        """Finds the cache with this name, or creates it. Without a name it ends with the object.

        page_tokens a power of two from 16 to 256; mode whom a named cache admits (enum fa_mode of
        faclient_kv.h); ttl seconds after which an unused named cache is removed; max_pages 0: no
        limit but the pool's; store "plain", or "e4m3" or "int8": codes of one byte, with a scale
        of each token and head; v_in_k values are the first head_dim_v elements of keys (MLA), and
        are not kept; states the bytes of each state of linear layers, which steps write
        into checkpoints; checkpoint_tokens: those after its multiples are kept, 0: only the newest
        is.
        """
        from .kv import Cache
        return Cache._open(self, name, layers=layers, kv_heads=kv_heads, head_dim=head_dim,
                           head_dim_v=head_dim_v, dtype=dtype, page_tokens=page_tokens,
                           mode=mode, ttl=ttl, max_pages=max_pages, store=store,
                           v_in_k=v_in_k, states=states, checkpoint_tokens=checkpoint_tokens)

    def sequence(self, name: str) -> Sequence:
        """Finds a sequence of this user by its name."""
        from .kv import Sequence
        out = ffi.new("uint64_t *")
        check(lib.fa_sequence_find(self._handle, string(name), out))
        return Sequence(self, out[0], owned=False)


def _check_shapes(q, k, v, out, lse=None):
    """Finds wrong shapes before a request is sent, because the daemon's error would come late."""
    *batch, n_q, heads, dim = q.shape  # no batch: it is ragged
    n_k, kv_heads, dim_v = *k.shape[-3:-1], v.shape[-1]
    wanted = [(k, (*batch, n_k, kv_heads, dim)), (v, (*batch, n_k, kv_heads, dim_v)),
              (out, (*batch, n_q, heads, dim_v))]
    if lse is not None:
        wanted.append((lse, (*batch, heads, n_q)))
    for x, shape in wanted:
        if x.shape != shape:
            raise InvalidArgument(errno.EINVAL, f"{x.name} has shape {x.shape}; expected {shape}, "
                                  f"as q has {q.shape} and k {k.shape}")
    if not kv_heads or heads % kv_heads:
        raise InvalidArgument(errno.EINVAL, f"q has {heads} heads; expected a multiple of those "
                              f"of k, {kv_heads}")


def _kind(causal, window, softcap, sinks, alibi_slopes, lengths=None, chunk_tokens=0,
          prefix_lengths=None, pattern=None):
    """Returns what decides, besides shapes, whether a daemon can compute a request."""
    return (bool(causal), window is not None, bool(softcap), sinks is not None,
            alibi_slopes is not None, lengths is not None, chunk_tokens,
            prefix_lengths is not None, pattern is not None)


def _set_lengths(request, cu_q, cu_k):
    """Makes a request ragged. Returns objects that must outlive the call."""
    kept = [np.ascontiguousarray(x, np.uint32) for x in (cu_q, cu_k)]
    if kept[0].shape != kept[1].shape or kept[0].ndim != 1 or kept[0].size < 2:
        raise ValueError(f"lengths have shapes {kept[0].shape} and {kept[1].shape}; expected as many "
                         "for q and k, and one more than sequences")
    request.batch = kept[0].size - 1
    request.cu_seqlens_q = ffi.cast("uint32_t *", kept[0].ctypes.data)
    request.cu_seqlens_k = ffi.cast("uint32_t *", kept[1].ctypes.data)
    return kept


def _set_prefixes(request, prefix_lengths, sequences):
    """Sets one prefix for each sequence, or item. Returns objects that must outlive the call."""
    if prefix_lengths is None:
        return []
    if is_torch(prefix_lengths):
        prefix_lengths = prefix_lengths.cpu().numpy()
    array = np.asarray(prefix_lengths)
    if array.shape != (sequences,) or array.dtype.kind not in "iu" or \
            (array.size and not 0 <= array.min() <= array.max() < 2**32):
        raise ValueError(f"prefix_lengths are {array.tolist()}; expected {sequences} integers from 0 to "
                         "2^32 - 1, one for each sequence")
    array = np.ascontiguousarray(array, np.uint32)
    request.prefix_lengths = ffi.cast("uint32_t *", array.ctypes.data)
    return [array]


def _heads_vector(values):
    if not is_torch(values):
        return np.ascontiguousarray(values, np.float32)
    if values.device.type == "cpu":
        return np.ascontiguousarray(values.detach().float().numpy())
    version = (values.data_ptr(), values._version)
    found = getattr(values, "_faclient", None)
    if found is None or found[0] != version:
        found = (version, np.ascontiguousarray(values.detach().float().cpu().numpy()))
        values._faclient = found
    return found[1]


def _set_options(request, causal, window, sinks, alibi_slopes, timeout, causal_flag, window_flag):
    """Sets what all attention requests have. Returns objects that must outlive the call."""
    kept = []
    if causal:
        request.flags |= causal_flag
    if window is not None:
        left, right = window
        request.flags |= window_flag
        request.window_left, request.window_right = int(left), int(right)
    for field, values in (("sinks", sinks), ("alibi_slopes", alibi_slopes)):
        if values is not None:
            array = _heads_vector(values)
            kept.append(array)
            setattr(request, field, ffi.cast("float *", array.ctypes.data))
    if timeout is not None:
        request.timeout_ns = max(1, int(timeout * 1e9))
    return kept


_default: Client | None = None
_default_pid = 0
_default_lock = threading.Lock()


def default_client() -> Client:
    """The process's client, made when it is first needed: of the daemon that runs, or of one that
    is started. A forked child gets its own."""
    global _default, _default_pid
    with _default_lock:
        if _default is None or _default_pid != os.getpid() or _default.closed:
            _default, _default_pid = connect(spawn=True), os.getpid()
        return _default
