"""Tensors of a GPU: their memory as buffers, and requests ordered with CUDA streams.

A request of tensors on a GPU waits for the current stream of PyTorch and makes that stream wait for
it; this process's CPU waits for neither. So a tensor's memory may be reused by later work of that
stream, as after any kernel, and no tensor is recorded with another stream. Memory of another
stream's pool is the caller's to order, as with kernels.
"""
from __future__ import annotations

import bisect
import collections
import ctypes
import errno
import threading
import time
import weakref

from . import errors
from ._lib import check, ffi, lib, new, sentence

#: Attributes of cuPointerGetAttribute().
_BUFFER_ID, _LEGACY_IPC = 7, 10
#: Number of calls after which allocations that PyTorch has freed are looked for.
_CALLS_PER_SWEEP = 64
_MAX_ALLOCATIONS = 128
#: Forms of requests that a lane remembers.
_MAX_KNOWN = 64
_FOREVER = 2**64 - 1
_WAIT_NS = 100_000_000
#: How long streams may take to be released after a daemon was lost.
_RELEASE_S = 10.0

_driver = None


def _cuda():
    global _driver
    if _driver is None:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuPointerGetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
        # The same function: CFFI calls it faster.
        driver.attribute = ffi.cast(
            "int (*)(uint64_t *, int, uint64_t)",
            ctypes.cast(driver.cuPointerGetAttribute, ctypes.c_void_p).value)
        # Drivers have two; the one without the suffix is of 32-bit programs.
        driver.range = getattr(driver, "cuMemGetAddressRange_v2", None) or \
            driver.cuMemGetAddressRange
        driver.range.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
        _driver = driver
    return _driver


def _buffer_id(address: int) -> int:
    """Returns the driver's number of the allocation at an address, which is never used again; 0:
    there is no allocation."""
    value = ffi.new("uint64_t *")
    return 0 if _cuda().attribute(value, _BUFFER_ID, address) else value[0]


def _allocation(address: int):
    """Base and size of an allocation that keeps both until it is freed; None: it has several
    parts (expandable segments), which are mapped and unmapped one by one."""
    legacy = ctypes.c_int()
    if _cuda().cuPointerGetAttribute(ctypes.byref(legacy), _LEGACY_IPC, address) or \
            not legacy.value:
        return None
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    if _cuda().range(ctypes.byref(base), ctypes.byref(size), address):
        return None
    return base.value, size.value


class Range:
    """Memory of a GPU that the daemon has opened."""

    def __init__(self, client, address: int, nbytes: int, number: int = 0):
        self.address, self.nbytes, self.number = address, nbytes, number
        self.end = address + nbytes
        out = ffi.new("struct fa_buffer **")
        check(lib.fa_buffer_import_cuda(client._handle, address, nbytes, 0, out))
        self._handle = out[0]
        self._finalizer = weakref.finalize(self, lib.fa_buffer_free, self._handle)
        self._finalizer.atexit = False


class Ranges:
    """The imported allocations of a client. An address may belong to another allocation than
    before: the driver's number tells."""

    def __init__(self, client):
        self._client = weakref.ref(client)
        self._lock = threading.Lock()
        self._addresses: list[int] = []
        self._ranges: list[Range] = []
        self._calls = 0

    def find(self, address: int, nbytes: int) -> Range:
        """Returns the range that holds these bytes; imports it if it is new. PyTorch does not free
        the allocation while the caller has the tensor."""
        with self._lock:
            self._calls += 1
            if self._calls % _CALLS_PER_SWEEP == 0:
                self._sweep()
            i = bisect.bisect_right(self._addresses, address) - 1
            if i >= 0:
                found = self._ranges[i]
                if address + nbytes <= found.end and \
                        _buffer_id(found.address) == found.number:
                    return found
            self._sweep()
            whole = _allocation(address)
            number = whole and _buffer_id(whole[0])
            if not number or address + nbytes > whole[0] + whole[1]:
                return Range(self._client(), address, nbytes)
            found = Range(self._client(), *whole, number)
            i = bisect.bisect_left(self._addresses, whole[0])
            # An older entry at this address was freed memory, or is too short.
            if i < len(self._addresses) and self._addresses[i] == whole[0]:
                self._ranges[i] = found
            else:
                self._addresses.insert(i, whole[0])
                self._ranges.insert(i, found)
            return found

    def _sweep(self):
        """Closes freed allocations. Their memory returns to the GPU only then."""
        if len(self._ranges) > _MAX_ALLOCATIONS:
            kept = []
        else:
            kept = [x for x in self._ranges if _buffer_id(x.address) == x.number]
        if len(kept) != len(self._ranges):
            self._ranges = kept
            self._addresses = [x.address for x in kept]

    def clear(self):
        with self._lock:
            self._ranges, self._addresses = [], []


class Pending:
    """Requests that were not waited for, and what must live until they end."""

    def __init__(self, client):
        self._client = weakref.ref(client)
        self._items: collections.deque = collections.deque()
        self._lock = threading.Lock()

    def __len__(self):
        return len(self._items)

    def add(self, ticket, kept):
        self._items.append((ticket, kept))

    def collect(self, wait: bool = False) -> None:
        """Forgets requests that have ended; raises the error of the first that failed. wait: all
        end before it returns."""
        failed = None
        client = self._client()
        with self._lock:
            while self._items:
                r = lib.fa_wait(client._handle, self._items[0][0], _WAIT_NS if wait else 0,
                                ffi.NULL)
                if r == -errno.EAGAIN:
                    if wait:
                        continue
                    break
                self._items.popleft()
                # A result that is no longer stored belongs to a request that ended long ago.
                if r < 0 and r != -errno.ESTALE and failed is None:
                    failed = errors.from_errno(
                        r, "an earlier request on the GPU failed, and its output is undefined: "
                           f"{sentence()}")
        if failed is not None:
            raise failed

    def wait_oldest(self):
        """Waits for one request. Its error is kept for the next call to raise."""
        try:
            ticket = self._items[0][0]
        except IndexError:
            return
        lib.fa_wait(self._client()._handle, ticket, _FOREVER, ffi.NULL)


class Known:
    """A request that was sent, as a template of others: what differs is the layer and where the
    tensors lie. Belongs to a lane."""

    def __init__(self, device: int, request, fields, sizes: list[int], out_shape):
        self.device, self.request, self.out_shape = device, request, out_shape
        self.tensors = [getattr(request, field) for field in fields]
        self.sizes = sizes  # bytes from each tensor's first element to the end of its last

    def place(self, ranges: Ranges, addresses) -> list[Range]:
        """Sets where the tensors lie. Returns the memory that holds them."""
        found: list[Range] = []
        for tensor, nbytes, address in zip(self.tensors, self.sizes, addresses):
            for x in found:
                if x.address <= address and address + nbytes <= x.end:
                    break
            else:
                x = ranges.find(address, nbytes)
                found.append(x)
            tensor.buffer = x._handle
            tensor.offset = address - x.address
        return found


class _Lane:
    """A CUDA stream with a slot of the timeline in each direction and a stream of the daemon."""

    def __init__(self, slot, stream):
        self.slot, self.stream = slot, stream
        self.cuda_stream = ffi.NULL
        self.known: dict[tuple, Known] = {}  # by form
        self.lock = threading.Lock()
        self.value = 0
        self.last = None  # ticket of the last request
        self.wait, self.signal = ffi.new("struct fa_gate *"), ffi.new("struct fa_gate *")
        self.wait.slot = self.signal.slot = slot
        self.gates = new("fa_gates", n_waits=1, waits=self.wait, n_signals=1, signals=self.signal)


class Gate:
    """Orders a client's requests with CUDA streams of this process."""

    def __init__(self, client):
        self._client = weakref.ref(client)
        self._lock = threading.Lock()
        self._lanes: dict[int, _Lane] = {}
        self._seen: set = set()
        self._threads = threading.local()
        self.pending = Pending(client)
        info = client.info()
        if info["backend"] != "cuda":
            raise errors.NotSupported(
                errno.ENOTSUP, f"the daemon's backend is {info['backend']}, which takes no tensors "
                "of a GPU; copy them to the CPU, or start fad with --backend cuda")
        out = ffi.new("struct fa_timeline **")
        check(lib.fa_timeline_open(client._handle, out))
        self._timeline = out[0]
        self._info = new("fa_timeline_info")
        check(lib.fa_timeline_info(self._timeline, self._info))
        self._epoch = self._info.epoch
        self._max_lanes = min(lib.FA_TIMELINE_SLOTS, max(info["max_streams"] - 1, 1))

    def _lane(self, stream: int) -> _Lane:
        lane = self._lanes.get(stream)
        if lane is not None:
            return lane
        with self._lock:
            if len(self._lanes) < self._max_lanes:
                out = ffi.new("uint32_t *")
                check(lib.fa_stream_new(self._client()._handle, 0, out))
                lane = _Lane(len(self._lanes), out[0])
            else:
                # The stream whose first use is oldest gives its lane away, once that is idle.
                oldest = next(iter(self._lanes))
                lane = self._lanes.pop(oldest)
                if lane.last is not None:
                    lib.fa_wait(self._client()._handle, lane.last, _FOREVER, ffi.NULL)
            lane.cuda_stream = ffi.cast("void *", stream)
            self._lanes[stream] = lane
            return lane

    def _release(self, torch):
        """Called after a loss: streams must pass what was enqueued before, or the timeline's old
        memory cannot be given up."""
        with self._lock:
            streams = [torch.cuda.ExternalStream(s) for s in self._lanes]
            end = time.monotonic() + _RELEASE_S
            while not all(s.query() for s in streams):
                if time.monotonic() > end:
                    raise errors.DaemonLost(
                        errno.ECONNRESET, "the daemon went away, and CUDA streams wait for it "
                        "forever: nothing keeps its timeline. Use a daemon of the system, or one "
                        "started with fad --supervise")
                time.sleep(0.001)
            self._epoch = self._info.epoch
            self._seen.clear()
            for lane in self._lanes.values():
                lane.known.clear()

    def submit(self, device: int, call, handle, request, pending: Pending, kept, kind) -> _Lane:
        """Sends a request that runs between what was enqueued in the device's current stream and
        what will be.

        call(handle, request, ticket) sends it, a function of the library. kept lives until it ends.
        kind: what decides whether the daemon can compute it; the first request of a kind is waited
        for, so that its error is this call's.
        """
        import torch
        if torch.cuda.is_current_stream_capturing():
            raise errors.NotSupported(errno.ENOTSUP, "a CUDA graph is being captured: requests to "
                                      "a daemon cannot be part of one")
        if getattr(self._threads, "device", None) != device:
            # Makes the device's context current in a thread that has none.
            torch.cuda.set_device(torch.cuda.current_device())
            self._threads.device = device
        if torch.cuda.current_device() != device:
            with torch.cuda.device(device):
                return self.submit(device, call, handle, request, pending, kept, kind)
        lane = self._lane(torch._C._cuda_getCurrentRawStream(device))
        ticket = ffi.new("struct fa_ticket *")
        request.stream, request.gates = lane.stream, lane.gates
        with lane.lock:
            self._send(lane, call, handle, request, ticket, pending)
        if kind is not None and kind not in self._seen:
            self._client()._wait(ticket)
            self._seen.add(kind)
        else:
            pending.add(ticket, kept)
        return lane

    def _send(self, lane, call, handle, request, ticket, pending):
        """Sends a request of a lane, with its lock."""
        value = lane.value = lane.value + 1
        lane.wait.value = lane.signal.value = value
        while True:
            # Sent before the writes are enqueued: the call may reconnect, which replaces the slots.
            r = call(handle, request, ticket)
            if r != -errno.EAGAIN or not (len(pending) or len(self.pending)):
                break
            (pending if len(pending) else self.pending).wait_oldest()
            (pending if len(pending) else self.pending).collect()
        check(r)
        lane.last = ticket
        try:
            check(lib.fa_timeline_info(self._timeline, self._info))
            if self._info.epoch != self._epoch:
                import torch
                self._release(torch)
            check(lib.fa_timeline_enqueue_write(self._timeline, lane.slot, value,
                                                lane.cuda_stream))
            check(lib.fa_timeline_enqueue_wait(self._timeline, lane.slot, value, lane.cuda_stream))
        except BaseException:
            handle = self._client()._handle
            lib.fa_cancel(handle, ticket)
            lib.fa_wait(handle, ticket, _FOREVER, ffi.NULL)
            raise

    # ---- requests like earlier ones

    def remember(self, lane: _Lane, form: tuple, known: Known) -> None:
        """Keeps a request that was sent in this lane for others of its form."""
        with lane.lock:
            if len(lane.known) >= _MAX_KNOWN:
                lane.known.clear()
            lane.known[form] = known

    def find(self, form: tuple) -> tuple[_Lane, Known] | None:
        """A request of this form that was sent in the current stream, and its lane."""
        import torch
        device = torch.cuda.current_device()
        if getattr(self._threads, "device", None) != device:
            return None
        lane = self._lanes.get(torch._C._cuda_getCurrentRawStream(device))
        known = lane.known.get(form) if lane is not None else None
        if known is None or known.device != device or torch.cuda.is_current_stream_capturing():
            return None
        return lane, known

    def attend_again(self, lane: _Lane, known: Known, step, layer: int, addresses, sinks,
                     pending: Pending) -> None:
        """Sends a layer like an earlier one. sinks: an array, or None if that had none."""
        ticket = ffi.new("struct fa_ticket *")
        request = known.request
        with lane.lock:
            memory = known.place(self._client()._ranges, addresses)
            request.layer = layer
            if sinks is not None:
                request.sinks = ffi.cast("float *", sinks.ctypes.data)
            self._send(lane, lib.fa_step_attend, step, request, ticket, pending)
        pending.add(ticket, memory)
