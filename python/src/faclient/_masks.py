"""Masks of attention besides causal and windows: blocks, patterns of blocks, and bits."""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ._memory import Operand, as_operand, is_torch


class Blocks(NamedTuple):
    """A block-sparse mask in compressed rows, as struct fa_attention of faclient.h describes it.

    offsets [batch or 1, heads or 1, row blocks + 1] and columns [batch or 1, heads or 1, n], int32;
    dimensions of size 1 may be left out. rows, keys: tokens of a block, 64 or 128.
    """
    offsets: Any
    columns: Any
    rows: int = 128
    keys: int = 128

    @classmethod
    def from_dense(cls, seen: Any, rows: int = 128, keys: int = 128) -> Blocks:
        """From booleans of blocks, [.., row blocks, key blocks]."""
        if is_torch(seen):
            import torch
            made = cls.from_dense(seen.detach().cpu().numpy(), rows, keys)
            return cls(*(torch.from_numpy(x).to(seen.device) for x in made[:2]), rows, keys)
        seen = np.asarray(seen, bool)
        if not 2 <= seen.ndim <= 4:
            raise ValueError(f"the blocks have {seen.ndim} dimensions; expected 2 to 4")
        seen = seen.reshape((1,) * (4 - seen.ndim) + seen.shape)
        counts = seen.sum(-1)
        offsets = np.zeros((*seen.shape[:2], seen.shape[2] + 1), np.int32)
        np.cumsum(counts, -1, out=offsets[..., 1:])
        columns = np.zeros((*seen.shape[:2], int(offsets.max(initial=0))), np.int32)
        for index in np.ndindex(seen.shape[:2]):
            found = np.nonzero(seen[index])[1]
            columns[index][:found.size] = found
        return cls(offsets, columns, rows, keys)


class Pattern(NamedTuple):
    """Local and strided blocks by numbers, as struct fa_block_pattern of faclient.h."""
    block_tokens: int
    local_blocks: int
    vert_stride: int
    head_step: int = 0
    first_head: int = 0


def _ranked(x, name, rank):
    """x with leading dimensions of size 1."""
    x = as_operand(x, name)
    if not is_torch(x):
        x = np.asarray(x)
        x = x.view(np.int32) if x.dtype == np.uint32 else x
    if len(x.shape) > rank:
        raise ValueError(f"{name} has {len(x.shape)} dimensions; expected at most {rank}")
    return x.reshape((1,) * (rank - len(x.shape)) + tuple(x.shape))


def pack_bits(mask: Any) -> Any:
    """Booleans [.., n_q, n_k] as int32 [.., n_q, words]: key j is bit j % 32 of word j // 32."""
    if is_torch(mask):
        import torch
        if mask.device.type == "cpu":
            return torch.from_numpy(pack_bits(mask.detach().numpy()))
        words = -(-mask.shape[-1] // 32)
        padded = torch.nn.functional.pad(mask, (0, 32 * words - mask.shape[-1]))
        bits = padded.view(*mask.shape[:-1], words, 32).to(torch.int64)
        sums = (bits << torch.arange(32, device=mask.device)).sum(-1)
        return torch.where(sums >= 2**31, sums - 2**32, sums).to(torch.int32)
    mask = np.asarray(mask, bool)
    words = -(-mask.shape[-1] // 32)
    packed = np.zeros((*mask.shape[:-1], 4 * words), np.uint8)
    packed[..., :-(-mask.shape[-1] // 8)] = np.packbits(mask, -1, bitorder="little")
    return packed.view("<i4").astype(np.int32, copy=False)


def set_pattern(request, pattern) -> None:
    if pattern is None:
        return
    pattern = Pattern(*pattern)
    for field, value in pattern._asdict().items():
        setattr(request.pattern, field, int(value))


def mask_operands(request, blocks, mask) -> tuple[list[Operand], list[str]]:
    """Sets the numbers of blocks. Returns the operands of both masks, and their fields."""
    given = {}
    if blocks is not None:
        blocks = Blocks(*blocks)
        request.block_rows, request.block_keys = int(blocks.rows), int(blocks.keys)
        given["block_offsets"] = _ranked(blocks.offsets, "blocks.offsets", 3)
        given["block_columns"] = _ranked(blocks.columns, "blocks.columns", 3)
    if mask is not None:
        mask = as_operand(mask, "mask")
        kind = str(getattr(mask, "dtype", "")).removeprefix("torch.")
        if not is_torch(mask) and kind not in ("int32", "uint32") or kind == "bool":
            mask = pack_bits(mask)
        given["mask"] = _ranked(mask, "mask", 4)
    return [Operand(x, field, only=("int32",)) for field, x in given.items()], list(given)
