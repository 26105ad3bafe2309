"""Copies between sequences and pages of the program's own."""
from __future__ import annotations

import numpy as np

from ._lib import check, ffi, lib, new
from ._memory import Operand, as_operand, device_of


def _operands(client, tensors, name, dtype, reads):
    """The tensors of K or V, an Operand a layer. None of them is staged: they are whole caches."""
    ops = []
    for i, x in enumerate(tensors):
        op = Operand(as_operand(x, f"{name}[{i}]"), f"{name}[{i}]", dtype, copies_back=reads)
        if len(op.shape) != 4:
            raise ValueError(f"{op.name} has {len(op.shape)} dimensions; expected 4: pages, tokens "
                             "of a page, heads, dim")
        fits = op.strides[-1] == 1 and all(s > 0 or n <= 1
                                           for s, n in zip(op.strides, op.shape))
        if not fits:
            raise ValueError(f"{op.name} has strides {op.strides}; expected positive ones, the last "
                             "of them 1")
        if op.device is None and not op.find(client._buffers):
            raise ValueError(f"{op.name} is not in memory that the daemon sees; expected that of "
                             "Client.empty(), or of a tensor of its GPU")
        ops.append(op)
    return ops


def _tensors(ops):
    array = ffi.new("struct fa_tensor[]", len(ops))
    for i, op in enumerate(ops):
        op.fill(array[i])
    return array


def copy_pages(client, call, sequence, first, n_tokens, k, v, pages, *, layer, page_offset,
               timeout, reads, pending):
    """One request for all layers. Yields its ticket, unless the tensors are on a GPU: then it
    returns the lane that the request was sent in."""
    dtype = sequence._cache.dtype if sequence._cache is not None else None
    sides = {name: _operands(client, tensors, name, dtype, reads)
             for name, tensors in (("k", k), ("v", v)) if tensors is not None}
    ops = [op for side in sides.values() for op in side]
    if not ops:
        raise ValueError("k and v are both None: there is nothing to copy")
    if len({len(side) for side in sides.values()}) != 1:
        raise ValueError(f"v has {len(sides['v'])} layers, and k {len(sides['k'])}")
    numbers = np.ascontiguousarray(pages, np.uint32)
    request = new("fa_sequence_pages", sequence=sequence.number, first=first, n_tokens=n_tokens,
                  layer=layer, n_layers=len(ops) // len(sides), n_pages=len(numbers),
                  page_offset=page_offset)
    if timeout is not None:
        request.timeout_ns = max(1, int(timeout * 1e9))
    kept = [numbers]
    if len(numbers):
        request.pages = ffi.from_buffer("uint32_t[]", numbers)
    device = device_of(ops)
    seen: list = []
    if device is not None:
        gate = client._cuda_gate()
        for op in ops:
            op.find_cuda(client._ranges, seen)
    for name, side in sides.items():
        kept.append(_tensors(side))
        setattr(request, name, kept[-1])
    if device is not None:
        op = ops[0]
        if pending is None:
            pending = gate.pending
            pending.collect()
        return gate.submit(device, call, client._handle, request, pending, (kept, ops, seen),
                           ("pages", reads, op.dtype, op.shape[2:]))
    ticket = ffi.new("struct fa_ticket *")
    check(call(client._handle, request, ticket))
    yield ticket
    del kept


def read_pages(client, sequence, *arguments, **options):
    return copy_pages(client, lib.fa_sequence_read_pages, sequence, *arguments, reads=True,
                      pending=None, **options)
