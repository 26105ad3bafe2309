"""Memory that the daemon sees, and tensors in it."""
from __future__ import annotations

import bisect
import contextlib
import fcntl
import math
import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np

from . import errors
from ._lib import check, ffi, lib

_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 2
_ALIGNMENT = 256

#: The library's number of each dtype, and the bytes of an element.
DTYPES = {"float32": (1, 4), "float16": (2, 2), "bfloat16": (3, 2)}
#: The same for what only pages_attend() takes: 8-bit floats (in numpy as uint8), and numbers.
PAGES_DTYPES = {**DTYPES, "float8_e4m3fn": (4, 1), "int32": (5, 4), "int64": (6, 8)}
_NUMPY = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8}
_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "f32": "float32",
          "f16": "float16"}


def dtype_name(dtype, among=None) -> str:
    """Returns the name of a dtype, which is given as a name, a numpy dtype or a torch dtype."""
    among = among or DTYPES
    name = str(dtype).removeprefix("torch.")
    name = _NAMES.get(name, name)
    if name not in among:
        with contextlib.suppress(TypeError):
            name = np.dtype(dtype).name
    if name not in among:
        raise TypeError(f"dtype {dtype} is not supported; expected one of {', '.join(among)}")
    return name


class Buffer:
    """Host memory of this process that the daemon maps, too. `memory` may be used as long as
    anything refers to it, also after the client is closed. The daemon's mapping ends with the
    buffer object."""

    def __init__(self, client, nbytes: int):
        if nbytes <= 0:
            raise ValueError(f"a buffer has {nbytes} bytes; expected at least 1")
        self.client = client
        self.nbytes = nbytes
        fd = os.memfd_create("faclient", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK)
            self.memory = mmap.mmap(fd, nbytes)
            out = ffi.new("struct fa_buffer **")
            check(lib.fa_buffer_import_fd(client._handle, fd, 0, nbytes, 0, out))
        finally:
            os.close(fd)
        self._handle = out[0]
        self._finalizer = weakref.finalize(self, lib.fa_buffer_free, self._handle)
        self._finalizer.atexit = False  # threads may still be in calls
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data

    def array(self, offset: int, shape, dtype) -> np.ndarray:
        """A numpy array in the buffer. bfloat16 is shown as uint16."""
        name = dtype_name(dtype)
        return self._view(offset, shape, name)

    def _view(self, offset: int, shape, name: str) -> np.ndarray:
        return np.asarray(_View(self, offset, tuple(shape), np.dtype(_NUMPY.get(name, name))))


class _View:
    """A numpy array of a buffer refers to this object, so that the buffer lives as long."""

    def __init__(self, buffer, offset, shape, dtype):
        self.buffer = buffer
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str,
                                    "data": (buffer.address + offset, False)}


class Buffers:
    """The buffers of a client: those that hold tensors, by address, and spare ones for copies."""

    def __init__(self, client):
        self._client = weakref.ref(client)
        self._lock = threading.Lock()
        self._addresses: list[int] = []
        self._by_address: dict[int, weakref.ref] = {}
        self._spare: dict[int, list[Buffer]] = {}

    def new(self, nbytes: int) -> Buffer:
        buffer = Buffer(self._client(), nbytes)
        with self._lock:
            bisect.insort(self._addresses, buffer.address)
            self._by_address[buffer.address] = weakref.ref(buffer, self._forget(buffer.address))
        return buffer

    def _forget(self, address):
        registry = weakref.ref(self)

        def gone(reference):
            buffers = registry()
            # The garbage collector may call this anywhere, also while this thread has the lock.
            if buffers and buffers._by_address.get(address) is reference:
                buffers._by_address.pop(address, None)
        return gone

    def find(self, address: int, nbytes: int) -> Buffer | None:
        """Returns the buffer that holds these bytes, or None."""
        with self._lock:
            i = bisect.bisect_right(self._addresses, address)
            while i:
                start = self._addresses[i - 1]
                buffer = self._by_address.get(start, lambda: None)()
                if buffer is None:
                    del self._addresses[i - 1]
                    i -= 1
                    continue
                return buffer if address + nbytes <= start + buffer.nbytes else None
        return None

    @contextlib.contextmanager
    def staging(self, nbytes: int):
        """A buffer for one call."""
        size = max(1 << 16, 1 << (max(nbytes, 1) - 1).bit_length())
        with self._lock:
            spare = self._spare.get(size)
            buffer = spare.pop() if spare else None
        buffer = buffer or Buffer(self._client(), size)
        try:
            yield buffer
        finally:
            with self._lock:
                self._spare.setdefault(size, []).append(buffer)

    def clear(self):
        with self._lock:
            self._spare.clear()


def is_torch(x) -> bool:
    return hasattr(x, "data_ptr")


_DLPACK_CUDA = 2


def _on_gpu(x) -> bool:
    """True for an array of another library that lies on a GPU."""
    if hasattr(x, "__cuda_array_interface__"):
        return True
    return hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] == _DLPACK_CUDA


def as_operand(x, name: str):
    """Arrays of other libraries on a GPU as tensors of PyTorch, in the same memory; others as they
    are."""
    if x is None or is_torch(x) or isinstance(x, np.ndarray) or not _on_gpu(x):
        return x
    try:
        import torch
    except ImportError:
        raise errors.NotSupported(95, f"{name} is on a GPU: that takes PyTorch") from None
    try:
        return torch.from_dlpack(x) if hasattr(x, "__dlpack__") else \
            torch.as_tensor(x, device="cuda")
    except (BufferError, RuntimeError, TypeError) as error:
        raise errors.NotSupported(95, f"{name}: {error}") from error


class Operand:
    """A numpy array, a torch tensor or what has __dlpack__, as an operand of a request.

    dtype        what a numpy array of unsigned integers stands for
    copies_back  the request writes it; reads: and reads it, too
    only         the dtypes that it may have; None: float32, float16, bfloat16
    """

    def __init__(self, x, name: str, dtype: str | None = None, copies_back: bool = False,
                 reads: bool = False, only: tuple[str, ...] | None = None):
        self.x = x
        self.name = name
        self.reads = reads or not copies_back
        self.device: int | None = None  #: index of the GPU
        self.copies_back = copies_back
        if is_torch(x):
            if x.device.type == "cuda":
                self.device = x.device.index
            elif x.device.type != "cpu":
                raise errors.NotSupported(
                    95, f"{name} is on {x.device}; expected a tensor of the CPU or of the "
                        "daemon's GPU")
            if x.requires_grad and grad_enabled():
                raise RuntimeError(f"{name} requires a gradient, and fad computes none: use "
                                   "torch.no_grad() or another attention")
            self.dtype = self._dtype_of(x, only)
            self.shape = tuple(x.shape)
            self.strides = tuple(x.stride())
            self.address = x.data_ptr()
        else:
            if not isinstance(x, np.ndarray) and hasattr(x, "__dlpack__"):
                try:
                    x = self.x = np.from_dlpack(x)
                except (BufferError, RuntimeError, TypeError) as error:
                    raise errors.NotSupported(95, f"{name}: {error}") from error
            if not isinstance(x, np.ndarray):
                raise TypeError(f"{name} is a {type(x).__name__}; expected a numpy array, a torch "
                                "tensor or what has __dlpack__")
            if copies_back and not x.flags.writeable:
                raise ValueError(f"{name} is read-only")
            # numpy has no bfloat16, so unsigned integers stand for it.
            if only and x.dtype == np.uint8 and "float8_e4m3fn" in only:
                self.dtype = "float8_e4m3fn"
            elif x.dtype == np.uint16 and not (only and "bfloat16" not in only):
                self.dtype = dtype or "bfloat16"
            else:
                self.dtype = self._dtype_of(x, only)
            self.shape = x.shape
            self.strides = tuple(s // x.itemsize for s in x.strides)
            self.address = x.ctypes.data
        self.itemsize = PAGES_DTYPES[self.dtype][1]
        self.buffer: Any = None  #: what the memory lies in, as the daemon knows it
        self.offset = 0
        self.copy: Any = None    #: a dense copy of a tensor on the GPU

    def _dtype_of(self, x, only) -> str:
        if only is None:
            return dtype_name(x.dtype)
        name = str(x.dtype).removeprefix("torch.")
        if name not in only:
            raise TypeError(f"{self.name} has dtype {x.dtype}; expected {' or '.join(only)}")
        return name

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        return (sum((n - 1) * s for n, s in zip(self.shape, self.strides)) + 1) * self.itemsize

    def find(self, buffers: Buffers) -> bool:
        """True if the operand lies in a buffer as the library takes it."""
        inner = not self.strides or self.strides[-1] == 1 or self.shape[-1] <= 1
        if not inner or any(s <= 0 and n > 1 for s, n in zip(self.strides, self.shape)):
            return False
        self.buffer = buffers.find(self.address, max(self.span(), 1))
        if self.buffer is None:
            return False
        self.offset = self.address - self.buffer.address
        return True

    def find_cuda(self, ranges, seen) -> None:
        """Finds the operand's memory on the GPU. One that the library does not take as it is gets a
        dense copy, made in the current stream. seen: ranges of this call's operands."""
        span = 1
        fits = not self.strides or self.strides[-1] == 1 or self.shape[-1] <= 1
        for n, stride in zip(self.shape, self.strides):
            fits = fits and (stride > 0 or n <= 1)
            span += (n - 1) * stride
        if not fits and self.reads and self.copies_back:
            raise ValueError(f"{self.name} has strides {self.strides}; expected an inner one of 1, "
                             "and no others of 0, as it is written in place")
        if not fits:
            self.copy = self.x.new_empty(self.shape) if self.copies_back else self.x.contiguous()
            self.strides = tuple(self.copy.stride())
            self.address = self.copy.data_ptr()
            span = math.prod(self.shape)
        if 0 in self.shape:
            return
        nbytes = span * self.itemsize
        for x in seen:
            if x.address <= self.address and self.address + nbytes <= x.address + x.nbytes:
                self.buffer = x
                break
        else:
            self.buffer = ranges.find(self.address, nbytes)
            seen.append(self.buffer)
        self.offset = self.address - self.buffer.address

    def place(self, buffer: Buffer, offset: int):
        self.buffer, self.offset = buffer, offset
        strides, step = [], 1
        for n in reversed(self.shape):
            strides.insert(0, step)
            step *= n
        self.strides = tuple(strides)

    def _staged(self):
        if is_torch(self.x):
            import torch
            return torch.frombuffer(self.buffer.memory, dtype=self.x.dtype,
                                    count=math.prod(self.shape),
                                    offset=self.offset).view(self.shape)
        return self.buffer._view(self.offset, self.shape, self.dtype)

    def copy_in(self):
        if 0 not in self.shape:
            staged = self._staged()
            staged.copy_(self.x) if is_torch(self.x) else np.copyto(staged, self.x)

    def copy_out(self):
        if 0 not in self.shape:
            staged = self._staged()
            self.x.copy_(staged) if is_torch(self.x) else np.copyto(self.x, staged)

    def fill(self, tensor):
        """Fills a struct fa_tensor."""
        tensor.buffer = self.buffer._handle
        tensor.offset = self.offset
        tensor.dtype = PAGES_DTYPES[self.dtype][0]
        tensor.rank = len(self.shape)
        tensor.shape = self.shape
        tensor.strides = self.strides

    def fill_page(self, tensor, i):
        """Fills a struct fa_tensor with the i-th element of the first dimension, as one page."""
        tensor.buffer = self.buffer._handle
        tensor.offset = self.offset + i * self.strides[0] * self.itemsize
        tensor.dtype = DTYPES[self.dtype][0]
        tensor.rank = len(self.shape)
        tensor.shape = (1, *self.shape[1:])
        tensor.strides = self.strides


def grad_enabled() -> bool:
    import torch
    return torch.is_grad_enabled()


def device_of(operands) -> int | None:
    """The GPU of operands; None: the CPU."""
    device = operands[0].device
    for x in operands:
        if x.device != device:
            first, other = (f"cuda:{n}" if n is not None else "the CPU"
                            for n in (device, x.device))
            raise ValueError(f"{x.name} is on {other}, and {operands[0].name} on {first}")
    return device


def run_cuda(client, device, operands, fields, request, call, handle, pending, kept, kind):
    """Submits a request over tensors of a GPU, ordered with its current stream, by
    call(handle, request, ticket), a function of the library. Returns the stream's lane."""
    gate = client._cuda_gate()
    seen = []
    for op in operands:
        op.find_cuda(client._ranges, seen)
    somewhere = next((op.buffer for op in operands if op.buffer is not None), None)
    for op, field in zip(operands, fields):
        if op.buffer is None:  # an empty tensor, which lies nowhere
            op.buffer = somewhere
        op.fill(getattr(request, field))
    shapes = tuple((op.name, op.dtype, op.shape[1:] if len(op.shape) == 3 else op.shape[2:])
                   for op in operands)
    lane = gate.submit(device, call, handle, request, pending, (kept, seen), (kind, shapes))
    for op in operands:
        if op.copies_back and op.copy is not None:
            op.x.copy_(op.copy)
    return lane


@contextlib.contextmanager
def placed(client, inputs, outputs):
    """Puts operands where the daemon sees them: copies inputs that are not, and copies outputs
    back if the body succeeds."""
    staged_in = [x for x in inputs if not x.find(client._buffers)]
    staged_out = [x for x in outputs if not x.find(client._buffers)]
    total, places = 0, []
    for x in staged_in + staged_out:
        places.append((x, total))
        total += -(-max(x.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
    if not places:
        yield
        return
    with client._buffers.staging(total) as buffer:
        for x, offset in places:
            x.place(buffer, offset)
        for x in staged_in + [x for x in staged_out if x.reads]:
            x.copy_in()
        yield
        for x in staged_out:
            x.copy_out()
