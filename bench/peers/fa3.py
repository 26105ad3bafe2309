"""
FlashAttention-3 as a contestant of bench/race.py and bench/traffic.py, from the package
tokenspeed-fa3 (pip install --no-deps --target DIR tokenspeed-fa3; PYTHONPATH=DIR). Its number of
splits and the packing of heads that share keys are tried for each cell, and the two fastest
settings take part.
"""
import torch
from flash_attn_interface import flash_attn_func

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


def seconds(launch):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    launch(0)
    torch.cuda.synchronize()
    torch.cuda._sleep(5_000_000)  # So that the host is ahead.
    start.record()
    for i in range(4):
        launch(i % 2)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def contestants(cell):
    if cell.dtype == "f32" or cell.alibi is not None:
        return {}
    packings = (False, True) if cell.heads > cell.kv_heads else (None,)
    found = []
    for splits in SPLITS:
        for pack in packings:
            launch = launcher(cell, splits, pack)
            try:
                found.append((seconds(launch), f"fa3-s{splits}{'-packed' if pack else ''}",
                              launch))
            except RuntimeError as error:
                print(f"{cell.name}: fa3 with {splits} splits: {error}", flush=True)
    found.sort(key=lambda entry: entry[0])
    return {name: launch for _, name, launch in found[:KEPT]}
