"""
FlashAttention-3 as a contestant of bench/race.py, bench/traffic.py and bench/decode.py, from the
package tokenspeed-fa3, or fa3-fwd if that is missing (README.md). Its settings are tried for each
cell, and the two fastest ones take part: the number of splits; the packing of heads that share
keys; and for decode the layout of pages, tensors instead of pages, and the schedule computed
beforehand.
"""
import functools
import itertools

import torch

try:
    from flash_attn_interface import (flash_attn_func, flash_attn_varlen_func,
                                      flash_attn_with_kvcache, get_scheduler_metadata)
except ImportError:
    from fa3_fwd_interface import (flash_attn_func, flash_attn_varlen_func,
                                   flash_attn_with_kvcache, get_scheduler_metadata)

SPLITS = (0, 1, 2, 4, 8, 16, 32)  # 0: its own choice
KEPT = 2


def launcher(cell, splits, pack):
    inputs = [[x.transpose(1, 2) for x in tensors] for tensors in cell.sets]
    window = cell.window or (-1, -1)

    def launch(i):
        return flash_attn_func(*inputs[i], softmax_scale=cell.scale, causal=cell.causal,
                               window_size=window, softcap=cell.softcap, num_splits=splits,
                               pack_gqa=pack).transpose(1, 2)
    return launch


def ragged_launcher(cell, splits, pack):
    inputs = [[x[0].transpose(0, 1) for x in tensors] for tensors in cell.sets]

    def launch(i):
        out = flash_attn_varlen_func(*inputs[i], cell.cu_q, cell.cu_k, max(cell.n_q),
                                     max(cell.n_k), softmax_scale=cell.scale, causal=True,
                                     num_splits=splits, pack_gqa=pack)
        return out.transpose(0, 1)[None]
    return launch


def seconds(launch):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    launch(0)
    torch.cuda.synchronize()
    torch.cuda._sleep(5_000_000)  # The GPU sleeps, so that the host is ahead.
    start.record()
    for i in range(4):
        launch(i % 2)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def fastest(title, makers):
    """Returns the fastest launches, by name. @makers: (name, function that returns a launch)."""
    found = []
    for name, make in makers:
        try:
            launch = make()
            found.append((seconds(launch), name, launch))
        except RuntimeError as error:
            print(f"{title}: {name}: {str(error)[:150]}", flush=True)
    found.sort(key=lambda entry: entry[0])
    return {name: launch for _, name, launch in found[:KEPT]}


def contestants(cell):
    if cell.dtype == "f32" or cell.alibi is not None:
        return {}
    packings = (False, True) if cell.heads > cell.kv_heads else (None,)
    make = ragged_launcher if hasattr(cell, "cu_q") else launcher
    return fastest(cell.name, [(f"fa3-s{splits}{'-packed' if pack else ''}",
                                functools.partial(make, cell, splits, pack))
                               for splits in SPLITS for pack in packings])


def paged_launcher(cell, k, v, table, splits, planned):
    metadata = get_scheduler_metadata(
        cell.batch, cell.n_new, cell.context, cell.heads, cell.kv_heads, cell.dim, cell.lengths,
        page_size=None if table is None else cell.page, causal=True,
        headdim_v=cell.dim_v, num_splits=splits) if planned else None

    def launch(_):
        return flash_attn_with_kvcache(cell.q, k, v, cache_seqlens=cell.lengths, page_table=table,
                                       softmax_scale=cell.scale, causal=True, num_splits=splits,
                                       scheduler_metadata=metadata)
    return launch


def paged(cell):
    if cell.store != "bf16":  # FlashAttention-3 would want queries in 8 bits, too
        return {}
    layouts = {"nhd": (cell.k, cell.v, cell.table),
               "hnd": (*(x.transpose(1, 2) for x in cell.hnd()), cell.table),
               "tensors": (cell.dense_k, cell.dense_v, None)}
    return fastest(cell.shape, [
        (f"fa3/{name}-s{splits}{'-planned' if planned else ''}",
         functools.partial(paged_launcher, cell, *layout, splits, planned))
        for (name, layout), splits, planned in itertools.product(layouts.items(), SPLITS,
                                                                (False, True))])
