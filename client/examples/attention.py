#!/usr/bin/env python3
"""
libfaclient from Python, with ctypes of the standard library: causal attention over bf16 in
memory shared with the daemon; then the same tokens through the KV cache, all but the last as
a prompt, and the last as one decode step. Both are compared with attention in plain Python.

Loads libfaclient.so.0 from the loader's path, or FACLIENT_LIBRARY. Like the examples in C, it
starts a daemon of its own if there is none; FAD_DAEMON is its path. In a build that is not
installed:

    FACLIENT_LIBRARY=build/client/libfaclient.so.0 FAD_DAEMON=build/daemon/fad \\
        client/examples/attention.py
"""
import contextlib
import ctypes
import math
import os
import random
import struct
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_uint32, c_uint64
from ctypes import c_int32, c_void_p

# ---- what faclient.h and faclient_kv.h declare, as far as it is used here

FA_CONNECT_SPAWN = 1 << 0
FA_BF16 = 3
FA_ATTENTION_CAUSAL = 1 << 0
FA_STEP_CAUSAL = 1 << 0


class Sized(ctypes.Structure):
    """A struct that begins with its size. Fields that are not given are 0: the default."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(self), **fields)


class Options(Sized):
    _fields_ = [("size", c_uint32), ("flags", c_uint32), ("socket", c_char_p),
                ("name", c_char_p), ("daemon", c_char_p), ("connect_ns", c_uint64),
                ("reconnect_ns", c_uint64), ("spin_ns", c_uint64), ("reply_ns", c_uint64),
                ("config", c_char_p)]


class Tensor(ctypes.Structure):
    _fields_ = [("buffer", c_void_p), ("offset", c_uint64), ("dtype", c_uint32),
                ("rank", c_uint32), ("shape", c_int64 * 4), ("strides", c_int64 * 4)]


class BlockPattern(ctypes.Structure):
    _fields_ = [("block_tokens", c_uint32), ("local_blocks", c_uint32), ("vert_stride", c_uint32),
                ("head_step", c_int32), ("first_head", c_uint32), ("reserved", c_uint32)]


class Attention(Sized):
    _fields_ = [("size", c_uint32), ("flags", c_uint32), ("stream", c_uint32),
                ("batch", c_uint32), ("q", Tensor), ("k", Tensor), ("v", Tensor),
                ("out", Tensor), ("lse", Tensor), ("scale", c_float), ("softcap", c_float),
                ("window_left", c_int64), ("window_right", c_int64),
                ("cu_seqlens_q", POINTER(c_uint32)), ("cu_seqlens_k", POINTER(c_uint32)),
                ("alibi_slopes", POINTER(c_float)), ("sinks", POINTER(c_float)),
                ("timeout_ns", c_uint64), ("gates", c_void_p), ("chunk_tokens", c_uint64),
                ("prefix_lengths", POINTER(c_uint32)), ("block_rows", c_uint32),
                ("block_keys", c_uint32), ("block_offsets", Tensor), ("block_columns", Tensor),
                ("mask", Tensor), ("pattern", BlockPattern), ("q_scales", Tensor),
                ("k_scales", Tensor), ("v_scales", Tensor)]


class Ticket(ctypes.Structure):
    _fields_ = [("value", c_uint64), ("stream", c_uint32), ("client", c_uint32)]


class CacheOptions(Sized):
    _fields_ = [("size", c_uint32), ("flags", c_uint32), ("name", c_char_p), ("mode", c_uint32),
                ("dtype", c_uint32), ("layers", c_uint32), ("kv_heads", c_uint32),
                ("head_dim", c_uint32), ("head_dim_v", c_uint32), ("page_tokens", c_uint32),
                ("store", c_uint32), ("max_pages", c_uint64), ("ttl_ns", c_uint64),
                ("k_scales", POINTER(c_float)), ("v_scales", POINTER(c_float)),
                ("state_bytes", POINTER(c_uint32)), ("n_states", c_uint32),
                ("checkpoint_tokens", c_uint32)]


class StepItem(ctypes.Structure):
    _fields_ = [("sequence", c_uint64), ("n_new", c_uint32), ("flags", c_uint32)]


class StepOptions(Sized):
    _fields_ = [("size", c_uint32), ("n_items", c_uint32), ("items", POINTER(StepItem)),
                ("tree", POINTER(c_uint32)), ("tree_start", POINTER(c_uint32))]


class StepAttend(Sized):
    _fields_ = [("size", c_uint32), ("flags", c_uint32), ("stream", c_uint32),
                ("layer", c_uint32), ("cache", c_uint64), ("q", Tensor), ("k_new", Tensor),
                ("v_new", Tensor), ("out", Tensor), ("lse", Tensor), ("scale", c_float),
                ("softcap", c_float), ("window_left", c_int64), ("window_right", c_int64),
                ("alibi_slopes", POINTER(c_float)), ("sinks", POINTER(c_float)),
                ("rotary_dim", c_uint32), ("rotary_first", c_uint32), ("rotary_base", c_double),
                ("rotary_scale", c_double), ("cos", Tensor), ("sin", Tensor),
                ("positions", POINTER(c_uint32)), ("timeout_ns", c_uint64), ("gates", c_void_p),
                ("chunk_tokens", c_uint64), ("prefix_lengths", POINTER(c_uint32)),
                ("pattern", BlockPattern)]


# Result and arguments. Clients, buffers and steps are addresses that mean something to the
# library alone: c_void_p; so are structs that this program has no use for.
FUNCTIONS = {
    "fa_version": (c_char_p, []),
    "fa_error": (c_char_p, []),
    "fa_connect": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "fa_disconnect": (c_void_p, [c_void_p]),
    "fa_buffer_new": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(c_void_p)]),
    "fa_buffer_data": (c_void_p, [c_void_p]),
    "fa_buffer_free": (c_void_p, [c_void_p]),
    "fa_tensor_init": (None, [POINTER(Tensor), c_void_p, c_uint64, c_uint32, c_uint32,
                              POINTER(c_int64)]),
    "fa_attention": (c_int, [c_void_p, POINTER(Attention), POINTER(Ticket)]),
    "fa_wait": (c_int, [c_void_p, POINTER(Ticket), c_uint64, c_void_p]),
    "fa_cache_create": (c_int, [c_void_p, POINTER(CacheOptions), POINTER(c_uint64)]),
    "fa_sequence_create": (c_int, [c_void_p, c_uint64, POINTER(c_uint64)]),
    "fa_step_begin": (c_int, [c_void_p, POINTER(StepOptions), POINTER(c_void_p)]),
    "fa_step_attend": (c_int, [c_void_p, POINTER(StepAttend), POINTER(Ticket)]),
    "fa_step_commit": (c_int, [c_void_p, c_void_p, POINTER(Ticket)]),
    "fa_step_free": (c_void_p, [c_void_p]),
}


def load(path):
    """Loads the library; its functions raise OSError for a negative errno."""
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise OSError(f"{error}; FACLIENT_LIBRARY may name libfaclient") from None

    def check(result, function, arguments):
        if result < 0:
            # Valid until this thread's next call.
            sentence = lib.fa_error().decode(errors="replace")
            raise OSError(-result, sentence or os.strerror(-result))
        return result

    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise OSError(f"{path} is not libfaclient, or too old: no {name}()") from None
        function.restype, function.argtypes = result, arguments
        if result is c_int:
            function.errcheck = check
    return lib


@contextlib.contextmanager
def connect(lib):
    client = c_void_p()
    lib.fa_connect(byref(Options(flags=FA_CONNECT_SPAWN)), byref(client))
    try:
        yield client
    finally:
        lib.fa_disconnect(client)  # frees its buffers, and cancels requests in flight


def run(lib, client, request, *arguments):
    """Submits a request and waits, 0.1 s at a time: Python handles Ctrl-C between calls."""
    ticket = Ticket()
    request(*arguments, byref(ticket))
    while True:
        try:
            lib.fa_wait(client, byref(ticket), 100_000_000, None)
            return
        except BlockingIOError:  # -EAGAIN: not finished
            pass


# ---- bf16 is the upper half of float

def to_bf16(numbers):
    return [struct.unpack("=I", struct.pack("=f", number))[0] >> 16 for number in numbers]


def from_bf16(halves):
    return [struct.unpack("=f", struct.pack("=I", half << 16))[0] for half in halves]


# ---- the program

TOKENS, HEADS, KV_HEADS, DIM = 48, 4, 2, 64
HEAD_BYTES = TOKENS * DIM * 2  # of all tokens
TOLERANCE = 2 ** -7  # below 1 rounding to bf16 costs 2^-9; some kernels round weights, too


class Tokens:
    """bf16 [TOKENS, heads, DIM] in a buffer, after tensors with `behind` heads in all."""

    def __init__(self, lib, buffer, behind, heads):
        self.lib, self.buffer, self.heads = lib, buffer, heads
        self.offset = behind * HEAD_BYTES
        # The memory itself, not a copy: invalid once the buffer is freed.
        memory = ctypes.c_uint16 * (TOKENS * heads * DIM)
        self.memory = memory.from_address(lib.fa_buffer_data(buffer) + self.offset)

    def tensor(self, first, n, *batch):
        """Returns the library's view of n tokens, from `first` on."""
        tensor, shape = Tensor(), (*batch, n, self.heads, DIM)
        self.lib.fa_tensor_init(byref(tensor), self.buffer,
                                self.offset + first * self.heads * DIM * 2, FA_BF16,
                                len(shape), (c_int64 * len(shape))(*shape))
        return tensor

    def rows(self):
        """Returns lists of floats: rows()[token][head]."""
        floats = from_bf16(self.memory)
        rows = [floats[i:i + DIM] for i in range(0, len(floats), DIM)]
        return [rows[i:i + self.heads] for i in range(0, len(rows), self.heads)]


def attend(lib, client, q, k, v, out):
    """Computes all tokens in one request."""
    attention = Attention(flags=FA_ATTENTION_CAUSAL, q=q.tensor(0, TOKENS, 1),
                          k=k.tensor(0, TOKENS, 1), v=v.tensor(0, TOKENS, 1),
                          out=out.tensor(0, TOKENS, 1))
    run(lib, client, lib.fa_attention, client, byref(attention))


def append(lib, client, sequence, first, n, q, k, v, out):
    """Appends the next n tokens of a sequence in one step. A model has more layers."""
    items = (StepItem * 1)(StepItem(sequence=sequence, n_new=n))
    step = c_void_p()
    lib.fa_step_begin(client, byref(StepOptions(n_items=1, items=items)), byref(step))
    try:
        layer = StepAttend(flags=FA_STEP_CAUSAL, layer=0, q=q.tensor(first, n),
                           k_new=k.tensor(first, n), v_new=v.tensor(first, n),
                           out=out.tensor(first, n))
        run(lib, client, lib.fa_step_attend, step, byref(layer))
        run(lib, client, lib.fa_step_commit, step, None)
    finally:
        lib.fa_step_free(step)  # aborts it, unless it was committed


def decode(lib, client, q, k, v, out):
    """Computes the same tokens through a KV cache, which has no name: freed with the client."""
    options = CacheOptions(dtype=FA_BF16, layers=1, kv_heads=KV_HEADS, head_dim=DIM)
    cache, sequence = c_uint64(), c_uint64()
    lib.fa_cache_create(client, byref(options), byref(cache))
    lib.fa_sequence_create(client, cache, byref(sequence))
    append(lib, client, sequence, 0, TOKENS - 1, q, k, v, out)
    append(lib, client, sequence, TOKENS - 1, 1, q, k, v, out)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def plain(q, k, v):
    """Computes causal attention of rows as returned by Tokens.rows()."""
    out = [[None] * HEADS for _ in range(TOKENS)]
    for token in range(TOKENS):
        for head in range(HEADS):
            kv_head = head * KV_HEADS // HEADS
            weights = [math.exp(dot(q[token][head], k[i][kv_head]) / math.sqrt(DIM))
                       for i in range(token + 1)]
            columns = zip(*(v[i][kv_head] for i in range(token + 1)))
            out[token][head] = [dot(weights, column) / sum(weights) for column in columns]
    return out


def distance(a, b):
    """Returns the largest difference, or infinity if there is a NaN."""
    differences = [abs(x - y) for token_a, token_b in zip(a, b)
                   for row_a, row_b in zip(token_a, token_b) for x, y in zip(row_a, row_b)]
    return math.inf if any(map(math.isnan, differences)) else max(differences)


def main():
    random.seed(1)
    lib = load(os.environ.get("FACLIENT_LIBRARY") or "libfaclient.so.0")
    with connect(lib) as client:
        # One buffer for all tensors, as each costs a descriptor; two outs to compare.
        buffer = c_void_p()
        heads = (HEADS, KV_HEADS, KV_HEADS, HEADS, HEADS)
        lib.fa_buffer_new(client, sum(heads) * HEAD_BYTES, 0, byref(buffer))
        q, k, v, out, out_kv = (Tokens(lib, buffer, sum(heads[:i]), heads[i])
                                for i in range(len(heads)))
        for tokens in (q, k, v):
            tokens.memory[:] = to_bf16(random.uniform(-1, 1) for _ in tokens.memory)

        attend(lib, client, q, k, v, out)
        decode(lib, client, q, k, v, out_kv)
        expected = plain(q.rows(), k.rows(), v.rows())
        found, found_kv = distance(out.rows(), expected), distance(out_kv.rows(), expected)
        lib.fa_buffer_free(buffer)
    print(f"libfaclient {lib.fa_version().decode()}: {TOKENS} tokens at once differ from plain "
          f"Python by {found:.5f} at most, {TOKENS - 1} and one in the KV cache by {found_kv:.5f}")
    if max(found, found_kv) > TOLERANCE:
        sys.exit(f"{sys.argv[0]}: that is more than {TOLERANCE}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: {error.strerror or error}")
