"""
FlashMLA as a contestant of bench/decode.py --mla, from the package sgl-flash-mla (README.md): its
dense decode for compute capability 9.0. The schedule is computed beforehand, by its first call.
"""
from flash_mla import get_mla_metadata, flash_mla_with_kvcache


def paged(cell):
    if cell.store != "bf16" or cell.dim != 576:
        return {}
    schedule, _ = get_mla_metadata()

    def launch(_):
        return flash_mla_with_kvcache(cell.q, cell.k, cell.table, cell.lengths, cell.dim_v, schedule,
                                      softmax_scale=cell.scale, causal=cell.n_new > 1,
                                      use_legacy=True)[0]
    return {"flashmla/planned": launch}
