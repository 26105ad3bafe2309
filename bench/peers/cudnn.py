"""
cuDNN's attention over pages as a contestant of bench/decode.py, from the package
nvidia-cudnn-frontend (README.md) over PyTorch's cuDNN.
"""
import functools

import cudnn
import torch


@functools.cache
def handle():
    made = cudnn.create_handle()
    cudnn.set_stream(made, torch.cuda.current_stream().cuda_stream)
    return made


def launcher(cell, k, v):
    """@k, @v: [pages, KV heads, page, dim], of any strides."""
    q, out = (x.transpose(1, 2) for x in (cell.q, cell.out))
    table = cell.table[:, None, :, None]
    lengths = cell.lengths[:, None, None, None]
    new = torch.full_like(lengths, cell.n_new)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16,
                          intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle())
    inputs = [(graph.tensor_like(x), x) for x in (q, k, v, new, lengths, table, table)]
    of_q, of_k, of_v, of_new, of_lengths, of_k_table, of_v_table = (x for x, _ in inputs)
    mask = {"use_causal_mask_bottom_right": True} if cell.n_new > 1 else {}
    result, _ = graph.sdpa(q=of_q, k=of_k, v=of_v, generate_stats=False, attn_scale=cell.scale,
                           use_padding_mask=True, seq_len_q=of_new, seq_len_kv=of_lengths,
                           paged_attention_k_table=of_k_table, paged_attention_v_table=of_v_table,
                           paged_attention_max_seq_len_kv=cell.context, **mask)
    result.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=torch.uint8)
    pack = {**dict(inputs), result: out}

    def launch(_):
        graph.execute(pack, workspace, handle=handle())
        return cell.out
    return launch


def paged(cell):
    if cell.store != "bf16":
        return {}
    found = {}
    for name, (k, v) in {"nhd": [x.transpose(1, 2) for x in (cell.k, cell.v)],
                         "hnd": cell.hnd()}.items():
        try:
            found[f"cudnn/{name}"] = launcher(cell, k, v)
        except (RuntimeError, TypeError, ValueError, cudnn.cudnnGraphNotSupportedError) as error:
            print(f"{cell.shape}: cudnn/{name}: {str(error)[:300]}", flush=True)
    return found
