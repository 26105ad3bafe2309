"""
PyTorch's flex_attention as a contestant of bench/race.py and bench/traffic.py. It is compiled for each cell, with the
fastest of the configurations that its compiler knows, which takes up to a minute. It is the only
peer over tensors with head dims above 256, and the only one but fad for windows, ALiBi and soft caps.
"""
import functools

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

# Where a configuration does not fit the chip's shared memory, the compiler says so and leaves it out.
MODES = {"flex": "max-autotune-no-cudagraphs", "flex-default": None}


@functools.cache
def compiled(mode):
    return torch.compile(flex_attention, dynamic=False, fullgraph=True, mode=mode)


@functools.cache
def block_mask(causal, window, n_q, n_k, device):
    """@window: (keys to the left, keys to the right) of a row's own, or None."""
    if not causal and not window:
        return None

    def sees(_batch, _head, row, key):
        own = row + n_k - n_q
        if not window:
            return key <= own
        return (key <= own + window[1]) & (key >= own - window[0])
    return create_block_mask(sees, None, None, n_q, n_k, device=device)


def score_mod(cell, before):
    """@before: the keys before the first row's own."""
    alibi, softcap = cell.alibi, cell.softcap
    if alibi is None and not softcap:
        return None

    def changed(score, _batch, head, row, key):
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        if alibi is not None:
            score = score - alibi[head] * (row + before - key).abs()
        return score
    return changed


def contestants(cell):
    if hasattr(cell, "cu_q"):  # ragged
        return {}
    q, k, _ = cell.sets[0]
    n_q, n_k = q.shape[2], k.shape[2]
    mask = block_mask(cell.causal, cell.window, n_q, n_k, q.device)
    change = score_mod(cell, n_k - n_q)
    found = {}
    for name, mode in MODES.items():
        def launch(i, attend=compiled(mode)):
            return attend(*cell.sets[i], score_mod=change, block_mask=mask, scale=cell.scale,
                          enable_gqa=cell.heads != cell.kv_heads)
        try:
            launch(0)
            found[name] = launch
        except Exception as error:  # the compiler's errors have no common class
            print(f"{cell.name}: {name}: {str(error)[:150]}", flush=True)
    return found
