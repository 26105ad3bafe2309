"""faclient: attention and KV caches of fad, a daemon that several processes share.

    import faclient

    with faclient.connect(spawn=True) as client:
        out = client.attention(q, k, v, causal=True)

See `Client`, `Cache`, `Sequence` and `Step`; `faclient.torch` and `faclient.transformers` for
PyTorch and Transformers.
"""
from ._lib import ffi as _ffi
from ._lib import lib as _lib
from ._masks import Blocks, Pattern, pack_bits
from .client import Client, connect, default_client
from .errors import (Cancelled, DaemonLost, Error, Exists, Forked, InvalidArgument, NotAllowed,
                     NotFound, NotSupported, OutOfMemory, QuotaExceeded, Stale, TimedOut,
                     Unreachable)
from .kv import Cache, Sequence, Step

__version__ = _ffi.string(_lib.fa_version()).decode()

__all__ = ["Blocks", "Cache", "Cancelled", "Client", "DaemonLost", "Error", "Exists", "Forked",
           "InvalidArgument", "NotAllowed", "NotFound", "NotSupported", "OutOfMemory",
           "QuotaExceeded", "Pattern", "Sequence", "Stale", "Step", "TimedOut", "Unreachable", "connect",
           "default_client", "pack_bits"]
