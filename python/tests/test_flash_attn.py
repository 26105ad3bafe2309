"""FlashAttention's functions: against fp64, and against FlashAttention where it is installed."""
import inspect

import pytest

torch = pytest.importorskip("torch")

import faclient  # noqa: E402
import faclient.torch as fad  # noqa: E402
from faclient.torch.flash_attn import (flash_attn_func, flash_attn_varlen_func,  # noqa: E402
                                       flash_attn_with_kvcache)

LIMITS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (5, 3)},
    "left window": {"window_size": (4, -1)},
    "right window": {"window_size": (-7, 2)},
    "causal window": {"causal": True, "window_size": (6, 4)},
    "softcap and scale": {"causal": True, "softcap": 3.0, "softmax_scale": 0.31},
    "empty window": {"window_size": (0, 0)},
    "chunk": {"causal": True, "attention_chunk": 4},
    "chunk and window": {"attention_chunk": 7, "window_size": (5, 3)},
    "hints": {"num_splits": 3, "pack_gqa": True, "deterministic": True, "sm_margin": 8},
}


@pytest.fixture(autouse=True)
def use(client):
    fad.use(client)
    yield
    fad.use(None)


def reference(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, softmax_scale=None,
              attention_chunk=0, **hints):
    """One sequence in fp64: q [n_q, heads, dim]. Returns out, and the logarithms [heads, n_q]."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
    scores = q @ k.transpose(1, 2) * (softmax_scale or q.shape[2] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    n_q, n_k = scores.shape[1:]
    own = torch.arange(n_q)[:, None] + n_k - n_q
    keys = torch.arange(n_k)[None]
    left, right = window_size
    hidden = torch.zeros(n_q, n_k, dtype=torch.bool)
    if left >= 0:
        hidden |= keys < own - left
    if causal:
        right = 0
    if right >= 0:
        hidden |= keys > own + right
    if attention_chunk:
        hidden |= own // attention_chunk != keys // attention_chunk
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(scores, 2)
    weights = torch.exp(scores - lse[..., None].clamp(min=-1e300)).nan_to_num()
    return (weights @ v).transpose(0, 1), lse


def tensors(shape_q, shape_k, dtype, dim_v=32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, dim, generator=generator).to(dtype)
            for shape, dim in ((shape_q, 32), (shape_k, 32), (shape_k, dim_v))]


def compare(out, lse, expected, expected_lse, dtype):
    assert out.dtype == dtype and out.shape == expected.shape and lse.dtype == torch.float32
    assert (out - expected).abs().max() < LIMITS[dtype]
    seen = expected_lse > -torch.inf
    assert (torch.isneginf(lse) == ~seen).all()
    assert (lse - expected_lse)[seen].abs().max() < LIMITS[dtype]


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("n_q,n_k", [(9, 9), (4, 21), (21, 4), (1, 30)])
@pytest.mark.parametrize("options", OPTIONS)
def test_batch(dtype, n_q, n_k, options):
    q, k, v = tensors((2, n_q, 4), (2, n_k, 2), dtype, 64)
    out, lse = flash_attn_func(q, k, v, return_attn_probs=True, **OPTIONS[options])
    assert torch.equal(out, flash_attn_func(q, k, v, **OPTIONS[options]))
    found = [reference(*row, **OPTIONS[options]) for row in zip(q, k, v)]
    compare(out, lse, *(torch.stack(x) for x in zip(*found)), dtype)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("options", OPTIONS)
def test_ragged(dtype, options):
    cu_q = torch.tensor([0, 5, 5, 17, 18], dtype=torch.int32)
    cu_k = torch.tensor([0, 9, 12, 24, 60], dtype=torch.int32)
    q, k, v = tensors((18, 4), (60, 2), dtype)
    out, lse = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 12, 36, return_attn_probs=True,
                                      **OPTIONS[options])
    found = [reference(q[a:b], k[c:d], v[c:d], **OPTIONS[options]) for a, b, c, d in
             zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:])]
    compare(out, lse, torch.cat([x for x, _ in found]), torch.cat([x for _, x in found], 1), dtype)


def test_strided():
    """Slices of one tensor, as models make them of a packed projection."""
    packed = torch.randn(2, 12, 8, 32, generator=torch.Generator().manual_seed(1))
    q, k, v = packed.split([4, 2, 2], 2)
    out = flash_attn_func(q, k, v, causal=True)
    assert torch.equal(out, flash_attn_func(*(x.contiguous() for x in (q, k, v)), causal=True))


@pytest.mark.parametrize("name", ["qv", "q_descale", "k_descale", "v_descale"])
def test_unsupported(name):
    q, k, v = tensors((2, 4, 4), (2, 9, 2), torch.float32)
    value = torch.ones(2)
    with pytest.raises(NotImplementedError, match=f"^{name}: "):
        flash_attn_func(q, k, v, **{name: value})
    cu = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=f"^{name}: "):
        flash_attn_varlen_func(q[0], k[0], v[0], cu, cu, 4, 4, **{name: value})


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("options", ["plain", "causal", "window", "softcap and scale"])
def test_used_keys(dtype, options):
    """seqused_k: the rest is not read. More than there are count as all."""
    cu_q = torch.tensor([0, 5, 5, 17, 18], dtype=torch.int32)
    cu_k = torch.tensor([0, 9, 12, 24, 60], dtype=torch.int32)
    used = torch.tensor([9, 2, 0, 99], dtype=torch.int32)
    q, k, v = tensors((18, 4), (60, 2), dtype, 64)
    keys = [(k[a:b][:n], v[a:b][:n]) for a, b, n in zip(cu_k[:-1], cu_k[1:], used)]
    found = [reference(q[a:b], *x, **OPTIONS[options]) for a, b, x in zip(cu_q[:-1], cu_q[1:], keys)]
    k[11], v[11], k[12:24], v[12:24] = (torch.nan,) * 4
    out, lse = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 12, 36, seqused_k=used,
                                      return_attn_probs=True, **OPTIONS[options])
    compare(out, lse, torch.cat([x for x, _ in found]), torch.cat([x for _, x in found], 1), dtype)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_float8(ragged, given):
    if not hasattr(torch, "float8_e4m3fn"):
        pytest.skip("this PyTorch has no float8")
    q, k, v = (x.to(torch.float8_e4m3fn) for x in tensors((3, 6, 4), (3, 11, 2), torch.float32))
    generator = torch.Generator().manual_seed(2)
    descales = [torch.rand(3, 2, generator=generator) + 0.5 for _ in range(3)]
    options = dict(zip(("q_descale", "k_descale", "v_descale"), descales)) if given else {}
    scales = descales if given else [torch.ones(3, 2)] * 3
    expected, expected_lse = zip(*(reference(
        q[b].float() * scales[0][b].repeat_interleave(2)[:, None],
        *(x[b].float() * of[b][:, None] for x, of in zip((k, v), scales[1:])), causal=True)
        for b in range(3)))
    if ragged:
        cu_q, cu_k = (torch.arange(4, dtype=torch.int32) * n for n in (6, 11))
        out, lse = flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), cu_q, cu_k, 6, 11,
                                          causal=True, return_attn_probs=True, **options)
        compare(out, lse, torch.cat(expected), torch.cat(expected_lse, 1), torch.bfloat16)
    else:
        out, lse = flash_attn_func(q, k, v, causal=True, return_attn_probs=True, **options)
        compare(out, lse, torch.stack(expected), torch.stack(expected_lse), torch.bfloat16)


def test_unsupported_lengths():
    q, k, v = tensors((4, 4), (4, 2), torch.float32)
    cu = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="^seqused_q: "):
        flash_attn_varlen_func(q, k, v, cu, cu, 4, 4, seqused_q=torch.tensor([3]))
    with pytest.raises(ValueError, match="^seqused_k has shape"):
        flash_attn_varlen_func(q, k, v, cu, cu, 4, 4, seqused_k=torch.tensor([3, 3]))
    with pytest.raises(ValueError, match="^q_descale: q has dtype"):
        flash_attn_varlen_func(q, k, v, cu, cu, 4, 4, seqused_k=torch.tensor([3]),
                               q_descale=torch.ones(1, 2))
    wild = torch.randint(-2**31, 2**31 - 1, (2,)).int()
    out = flash_attn_varlen_func(q, k, v, cu, wild, 4, 4, seqused_k=torch.tensor([2**30]))
    assert out.shape == q.shape


def test_bad_input():
    q, k, v = tensors((2, 4, 4), (2, 9, 2), torch.float32)
    cu = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match="k has 3 dimensions; expected 4"):
        flash_attn_func(q, k[0], v)
    with pytest.raises(ValueError, match="q has 4 dimensions; expected 3"):
        flash_attn_varlen_func(q, k[0], v[0], cu, cu, 4, 4)
    with pytest.raises(faclient.InvalidArgument):
        flash_attn_varlen_func(q[0], k[0], v[0], cu, cu * 3, 4, 4)  # more keys than there are
    with pytest.raises(ValueError, match="lengths have shapes"):
        flash_attn_varlen_func(q[0], k[0], v[0], cu, cu[:1], 4, 4)
    with pytest.raises(NotImplementedError, match="softmax_scale"):
        flash_attn_func(q, k, v, softmax_scale=0.0)
    with pytest.raises(RuntimeError, match="gradient"):
        flash_attn_func(q.requires_grad_(), k, v)


# ---- caches

LENGTHS = (0, 1, 37, 64)


def make_cache(dtype, page=None, seen=True, dim_v=32, tokens=72, layout="nhd"):
    """Sequences of LENGTHS, with NaN wherever nothing must be read. Returns k_cache, v_cache, what
    belongs to the page table, and the sequences' keys and values."""
    generator = torch.Generator().manual_seed(3)
    make = fad.empty if seen else torch.empty
    sequences = [[torch.randn(n, 2, dim, generator=generator).to(dtype) for n in LENGTHS]
                 for dim in (32, dim_v)]
    if page is None:
        table, shape = None, (4, tokens)
    else:
        columns = -(-tokens // page)
        shape = (4 * columns + 3, page)
        table = torch.randperm(shape[0], generator=generator).int()[:4 * columns].view(4, columns)
    caches = []
    for rows in sequences:
        if layout == "hnd":
            cache = make(shape[0], 2, shape[1], rows[0].shape[-1], dtype=dtype).transpose(1, 2)
        else:
            cache = make(*shape, 2, rows[0].shape[-1], dtype=dtype)
        cache.fill_(torch.nan)
        for b, x in enumerate(rows):
            for j in range(len(x)):
                if page is None:
                    cache[b, j] = x[j]
                else:
                    cache[table[b, j // page], j % page] = x[j]
        caches.append(cache)
    return *caches, table, sequences


def cached_reference(q, sequences, **options):
    found = [reference(x, k, v, **options) for x, k, v in zip(q, *sequences)]
    return torch.stack([x for x, _ in found]), torch.stack([x for _, x in found])


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("page", [None, 1, 3, 16, 72, 256])
@pytest.mark.parametrize("options", ["plain", "causal", "window", "softcap and scale"])
def test_cache(dtype, page, options):
    seen = page in (None, 16)
    k_cache, v_cache, table, sequences = make_cache(dtype, page, seen, 64,
                                                    layout="hnd" if page == 3 else "nhd")
    q = torch.randn(4, 5, 4, 32, generator=torch.Generator().manual_seed(4)).to(dtype)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    out, lse = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths,
                                       page_table=table, return_softmax_lse=True,
                                       **OPTIONS[options])
    compare(out, lse, *cached_reference(q, sequences, **OPTIONS[options]), dtype)


@pytest.mark.parametrize("page", [None, 3, 16])
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("ragged", [True, False])
def test_cache_append(page, seen, ragged):
    """New rows are attended to, and stay in the cache."""
    dtype = torch.bfloat16
    k_cache, v_cache, table, sequences = make_cache(dtype, page, seen)
    generator = torch.Generator().manual_seed(5)
    counts = (3, 0, 5, 1) if ragged else (3, 3, 3, 3)
    cu = torch.tensor([0, *counts]).cumsum(0).int()
    new = [torch.randn(sum(counts), 2, 32, generator=generator).to(dtype) for _ in range(2)]
    after = [[torch.cat([x, rows[cu[b]:cu[b + 1]]]) for b, x in enumerate(old)]
             for old, rows in zip(sequences, new)]
    q = torch.randn(sum(counts), 4, 32, generator=generator).to(dtype)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    if ragged:
        options = {"cu_seqlens_q": cu, "cu_seqlens_k_new": cu, "max_seqlen_q": 5}
        out = flash_attn_with_kvcache(q, k_cache, v_cache, *new, cache_seqlens=lengths,
                                      page_table=table, causal=True, **options)
    else:
        out = flash_attn_with_kvcache(q.view(4, 3, 4, 32), k_cache, v_cache,
                                      *(x.view(4, 3, 2, 32) for x in new),
                                      cache_seqlens=lengths, page_table=table,
                                      causal=True).flatten(0, 1)
    expected = torch.cat([reference(q[cu[b]:cu[b + 1]], k, v, causal=True)[0]
                          for b, (k, v) in enumerate(zip(*after))])
    assert (out - expected).abs().max() < LIMITS[dtype]
    for cache, rows in zip((k_cache, v_cache), after):
        written = 0
        for b, x in enumerate(rows):
            for j in range(len(x)):
                at = (b, j) if page is None else (table[b, j // page], j % page)
                assert torch.equal(cache[at], x[j])
                written += 1
        assert (~cache.isnan()).all(-1).all(-1).sum() == written


def test_cache_whole():
    """Without lengths all of the cache counts; cache_batch_idx chooses sequences."""
    q, k, v = tensors((3, 2, 4), (5, 24, 2), torch.float32)
    chosen = torch.tensor([4, 0, 0])
    out = flash_attn_with_kvcache(q, k, v, cache_batch_idx=chosen, causal=True)
    assert torch.equal(out, flash_attn_func(q, k[chosen], v[chosen], causal=True))
    out = flash_attn_with_kvcache(q, k, v, cache_seqlens=9, causal=True)
    expected = flash_attn_func(q, k[:3, :9], v[:3, :9], causal=True)
    assert (out - expected).abs().max() < 1e-5
    apart = torch.randn(5, 40, 2, 32)[:, 8:32]
    out = flash_attn_with_kvcache(q, apart, apart, cache_seqlens=9)
    assert (out - flash_attn_func(q, apart[:3, :9], apart[:3, :9])).abs().max() < 1e-5


needs_float8 = pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="no float8")


@needs_float8
def test_cache_fp8():
    k_cache, v_cache, table, sequences = make_cache(torch.float32, 16)
    scales = torch.tensor([0.02, 0.05])
    stored = [fad.empty(x.shape, dtype=torch.float8_e4m3fn).copy_(x / scales[:, None])
              for x in (k_cache, v_cache)]
    sequences = [[(x / scales[:, None]).to(torch.float8_e4m3fn).float() * scales[:, None]
                  for x in rows] for rows in sequences]
    q = torch.randn(4, 3, 4, 32)
    options = {"cache_seqlens": torch.tensor(LENGTHS), "page_table": table, "causal": True}
    for descale in (scales, scales.expand(4, 2)):
        out, lse = flash_attn_with_kvcache(q, *stored, k_descale=descale, v_descale=descale,
                                           return_softmax_lse=True, **options)
        compare(out, lse, *cached_reference(q, sequences, causal=True), torch.float32)
    with pytest.raises(ValueError, match="^k_descale has shape"):
        flash_attn_with_kvcache(q, *stored, k_descale=torch.ones(3, 2), **options)
    with pytest.raises(ValueError, match="^q_descale: q has dtype"):
        flash_attn_with_kvcache(q, *stored, q_descale=torch.ones(4, 2), **options)


@needs_float8
@pytest.mark.parametrize("page", [None, 16])
@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("append", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_cache_fp8_queries(page, ragged, append, same):
    """q in float8, and scales for each sequence and head."""
    generator = torch.Generator().manual_seed(6)
    plain_k, plain_v, table, sequences = make_cache(torch.float32, page)
    batch, code = len(LENGTHS), torch.float8_e4m3fn
    k_cache, v_cache = (fad.empty(x.shape, dtype=code).copy_(x) for x in (plain_k, plain_v))
    descales = [(torch.rand(1 if same else batch, 2, generator=generator) + 0.5).expand(batch, 2)
                for _ in range(3)]
    counts = (3, 0, 5, 1) if ragged else (3, 3, 3, 3)
    cu = torch.tensor([0, *counts]).cumsum(0).int()
    q, new_k, new_v = (torch.randn(sum(counts), heads, 32, generator=generator).to(code)
                       for heads in (4, 2, 2))
    expected, expected_lse = [], []
    for b in range(batch):
        rows = slice(cu[b], cu[b + 1])
        k, v = (torch.cat([x[b].to(code).float(), new[rows].float()]) if append
                else x[b].to(code).float() for x, new in zip(sequences, (new_k, new_v)))
        scaled = [x * scale[b][:, None] for x, scale in zip((k, v), descales[1:])]
        out, lse = reference(q[rows].float() * descales[0][b].repeat_interleave(2)[:, None], *scaled,
                             causal=True)
        expected.append(out)
        expected_lse.append(lse)
    options = {"cache_seqlens": torch.tensor(LENGTHS, dtype=torch.int32), "page_table": table,
               "causal": True, "return_softmax_lse": True,
               **dict(zip(("q_descale", "k_descale", "v_descale"), descales))}
    if ragged:
        options.update(cu_seqlens_q=cu, max_seqlen_q=5)
        if append:
            options.update(k=new_k, v=new_v, cu_seqlens_k_new=cu)
    else:
        q = q.view(4, 3, 4, 32)
        if append:
            options.update(k=new_k.view(4, 3, 2, 32), v=new_v.view(4, 3, 2, 32))
    out, lse = flash_attn_with_kvcache(q, k_cache, v_cache, **options)
    assert out.dtype == torch.bfloat16 and out.shape == q.shape
    out, expected = out.reshape(-1, 4, 32), torch.cat(expected)
    lse = lse if ragged else lse.transpose(0, 1).flatten(1)
    expected_lse = torch.cat(expected_lse, 1)
    assert (out - expected).abs().max() < 3e-2
    seen = expected_lse > -torch.inf
    assert (lse - expected_lse)[seen].abs().max() < 3e-2
    if append:  # as they were
        b, j = 2, LENGTHS[2]
        at = (b, j) if page is None else (table[b, j // page], j % page)
        assert torch.equal(k_cache[at].view(torch.uint8), new_k[cu[b]].view(torch.uint8))


@needs_float8
@pytest.mark.parametrize("ragged", [True, False])
def test_cache_fp8_appends(ragged):
    """Rows of q's dtype are quantised by their own sequence's scales."""
    generator = torch.Generator().manual_seed(8)
    k_cache, v_cache, table, _ = make_cache(torch.float32, 16)
    code = torch.float8_e4m3fn
    stored = [fad.empty(x.shape, dtype=code).copy_(x) for x in (k_cache, v_cache)]
    scales = torch.tensor([[0.25, 0.5], [1, 2], [4, 0.125], [8, 1]])
    new = [torch.randn(4, 3, 2, 32, generator=generator).bfloat16() for _ in range(2)]
    q = torch.randn(4, 3, 4, 32, generator=generator).bfloat16()
    options = {"cache_seqlens": torch.tensor(LENGTHS), "page_table": table, "k_descale": scales,
               "v_descale": scales.flip(0)}
    if ragged:
        cu = torch.arange(5, dtype=torch.int32) * 3
        flash_attn_with_kvcache(q.flatten(0, 1), *stored, *(x.flatten(0, 1) for x in new),
                                cu_seqlens_q=cu, cu_seqlens_k_new=cu, **options)
    else:
        flash_attn_with_kvcache(q, *stored, *new, **options)
    for x, cache, of in zip(new, stored, (scales, scales.flip(0))):
        for b, n in enumerate(LENGTHS):
            for i in range(3):
                found = cache[table[b, (n + i) // 16], (n + i) % 16].float() * of[b][:, None]
                assert (found - x[b, i].float()).abs().max() < 0.07 * x[b, i].float().abs().max()


# ---- rotary embedding and leading padding

def rotated(x, cos, sin, first, interleaved, moves=True):
    """x [rows, heads, dim], by the definition, in float64."""
    out = x.double().clone()
    n = cos.shape[1]
    for i in range(len(x)):
        c, s = (t[first + (i if moves else 0)].double() for t in (cos, sin))
        for d in range(n):
            first_dim, second = (2 * d, 2 * d + 1) if interleaved else (d, d + n)
            a, b = x[i, :, first_dim].double(), x[i, :, second].double()
            out[i, :, first_dim], out[i, :, second] = a * c[d] - b * s[d], a * s[d] + b * c[d]
    return out


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("options", ["plain", "causal", "window"])
@pytest.mark.parametrize("page,ragged,leftpad,start,dims", [
    (None, False, False, False, 32), (16, True, False, True, 16), (None, True, True, False, 32),
    (3, False, True, False, 8)])
def test_cache_rotary(dtype, interleaved, options, page, ragged, leftpad, start, dims):
    generator = torch.Generator().manual_seed(9)
    k_cache, v_cache, table, sequences = make_cache(dtype, page)
    counts = (3, 0, 5, 1) if ragged else (3, 3, 3, 3)
    cu = torch.tensor([0, *counts]).cumsum(0).int()
    pads = (0, 1, 20, 5) if leftpad else (0, 0, 0, 0)
    starts = (7, 0, 70, 2) if start else LENGTHS
    angles = torch.rand(80, dims // 2, generator=generator) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    q, new_k, new_v = (torch.randn(sum(counts), heads, 32, generator=generator).to(dtype)
                       for heads in (4, 2, 2))
    moves = options != "plain"
    expected = []
    for b, n in enumerate(LENGTHS):
        rows = slice(cu[b], cu[b + 1])
        k = torch.cat([sequences[0][b].double(),
                       rotated(new_k[rows], cos, sin, starts[b], interleaved).to(dtype).double()])
        v = torch.cat([sequences[1][b], new_v[rows]])
        mine = rotated(q[rows], cos, sin, starts[b], interleaved, moves).to(dtype)
        expected.append(reference(mine, k[pads[b]:], v[pads[b]:], **OPTIONS[options])[0])
    arguments = {"cache_seqlens": torch.tensor(LENGTHS, dtype=torch.int32), "page_table": table,
                 "rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved,
                 **OPTIONS[options]}
    if leftpad:
        arguments["cache_leftpad"] = torch.tensor(pads, dtype=torch.int32)
    if start:
        arguments["rotary_seqlens"] = torch.tensor(starts, dtype=torch.int32)
    if ragged:
        out = flash_attn_with_kvcache(q, k_cache, v_cache, new_k, new_v, cu_seqlens_q=cu,
                                      cu_seqlens_k_new=cu, max_seqlen_q=5, **arguments)
    else:
        shape = (4, 3, -1, 32)
        out = flash_attn_with_kvcache(q.view(shape), k_cache, v_cache, new_k.view(shape),
                                      new_v.view(shape), **arguments).flatten(0, 1)
    assert out.dtype == dtype
    assert (out - torch.cat(expected)).abs().max() < 2 * LIMITS[dtype]
    # The rows that were written are rotated, and those before them as they were.
    for b, n in enumerate(LENGTHS):
        kept = rotated(new_k[cu[b]:cu[b + 1]], cos, sin, starts[b], interleaved)
        for j in range(n + counts[b]):
            at = (b, j) if page is None else (table[b, j // page], j % page)
            if j < n:
                assert torch.equal(k_cache[at], sequences[0][b][j])
            else:
                assert (k_cache[at] - kept[j - n]).abs().max() < LIMITS[dtype]
                assert torch.equal(v_cache[at], new_v[cu[b] + j - n])


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("page", [None, 1, 16])
@pytest.mark.parametrize("options", ["plain", "causal", "window"])
def test_cache_leftpad(page, layout, options):
    """Padding also beyond the sequence's length: nothing is seen then."""
    k_cache, v_cache, table, sequences = make_cache(torch.float32, page, dim_v=64, layout=layout)
    q = torch.randn(4, 2, 4, 32, generator=torch.Generator().manual_seed(4))
    pads = (0, 3, 36, 17)
    seen = [[x[min(p, len(x)):] for x, p in zip(rows, pads)] for rows in sequences]
    out, lse = flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=torch.tensor(LENGTHS, dtype=torch.int32),
        cache_leftpad=torch.tensor(pads, dtype=torch.int32), page_table=table,
        return_softmax_lse=True, **OPTIONS[options])
    compare(out, lse, *cached_reference(q, seen, **OPTIONS[options]), torch.float32)


def test_cache_garbage():
    """Wild tables and lengths give a wrong result, and nothing worse."""
    k_cache, v_cache, table, _ = make_cache(torch.float32, 16)
    before = k_cache.clone()
    q = torch.randn(4, 3, 4, 32)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        wild = torch.randint(-2**31, 2**31 - 1, table.shape, generator=generator).int()
        lengths = torch.randint(-2**31, 2**31 - 1, (4,), generator=generator).int()
        cu = torch.randint(-2**31, 2**31 - 1, (5,), generator=generator).int()
        out = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, page_table=wild)
        assert out.shape == q.shape
        flash_attn_with_kvcache(q.flatten(0, 1), k_cache, v_cache, cache_seqlens=lengths,
                                page_table=wild, cu_seqlens_q=cu, max_seqlen_q=7)
        pads = torch.randint(-2**31, 2**31 - 1, (4,), generator=generator).int()
        flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, page_table=wild,
                                cache_leftpad=pads)
    assert torch.equal(k_cache.nan_to_num(), before.nan_to_num())


def test_cache_garbage_appends():
    """Wild lengths and positions write nothing outside of the cache's pages."""
    memory = fad.empty(40, 16, 2, 32)
    memory.fill_(7)
    k_cache, v_cache = memory[10:20], memory[20:30]
    new = torch.zeros(4, 3, 2, 32)
    angles = torch.rand(5, 16)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        wild, lengths, starts = (torch.randint(-2**31, 2**31 - 1, shape, generator=generator).int()
                                 for shape in ((4, 3), (4,), (4,)))
        if seed % 2:
            lengths = lengths % 40
        out = flash_attn_with_kvcache(torch.randn(4, 3, 4, 32), k_cache, v_cache, new, new,
                                      cache_seqlens=lengths, page_table=wild, rotary_cos=angles,
                                      rotary_sin=angles, rotary_seqlens=starts, causal=True)
        assert out.shape == (4, 3, 4, 32)
    assert (memory[:10] == 7).all() and (memory[30:] == 7).all()


def test_cache_unsupported():
    q, k, v = tensors((2, 4, 4), (2, 9, 2), torch.float32)
    with pytest.raises(NotImplementedError, match="^qv: "):
        flash_attn_with_kvcache(q, k, v, qv=torch.ones(2))


def test_cache_bad_input():
    q, k, v = tensors((2, 4, 4), (2, 9, 2), torch.float32)
    table = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(ValueError, match="k_cache has 3 dimensions; expected 4"):
        flash_attn_with_kvcache(q, k[0], v)
    with pytest.raises(ValueError, match="k came alone"):
        flash_attn_with_kvcache(q, k, v, k[:, :1])
    with pytest.raises(ValueError, match="cache_seqlens is None"):
        flash_attn_with_kvcache(q, k, v, k[:, :1], v[:, :1])
    with pytest.raises(ValueError, match="k_cache has 1 sequences; expected 2"):
        flash_attn_with_kvcache(q, k[:1], v[:1])
    with pytest.raises(ValueError, match="v_cache has other sequences"):
        flash_attn_with_kvcache(q, k, v[:, :8])
    new = {"k": k[:, :1], "v": v[:, :1], "cache_seqlens": 4}
    angles = torch.ones(9, 16)
    for sentence, arguments in (
            ("rotary_cos came alone", {"rotary_cos": angles, **new}),
            ("rotary_sin came alone", {"rotary_sin": angles, **new}),
            ("rotary_cos: there is no k", {"rotary_cos": angles, "rotary_sin": angles}),
            (r"rotary_cos has shape \(9, 16\), and rotary_sin \(9, 8\)",
             {"rotary_cos": angles, "rotary_sin": angles[:, :8], **new}),
            ("rotary_cos has shape", {"rotary_cos": angles[:0], "rotary_sin": angles[:0], **new}),
            ("rotary_cos has 17 columns; expected at most half of the head dim, 16",
             {"rotary_cos": torch.ones(9, 17), "rotary_sin": torch.ones(9, 17), **new}),
            (r"rotary_seqlens has shape \(3,\)", {"rotary_seqlens": torch.ones(3).int()}),
            (r"cache_leftpad has shape \(3,\)", {"cache_leftpad": torch.ones(3).int()})):
        with pytest.raises(ValueError, match=sentence):
            flash_attn_with_kvcache(q, k, v, **arguments)
    with pytest.raises(NotImplementedError, match="cache_batch_idx"):
        flash_attn_with_kvcache(q, k, v, page_table=table, cache_batch_idx=table[:, 0])
    with pytest.raises(NotImplementedError, match="softmax_scale"):
        flash_attn_with_kvcache(q, k, v, softmax_scale=0.0)
    with pytest.raises(faclient.InvalidArgument, match="lengths.shape"):
        flash_attn_with_kvcache(q, k, v, page_table=table, cache_seqlens=table[0])
    with pytest.raises(faclient.InvalidArgument, match="v.shape"):
        flash_attn_with_kvcache(q, k, v[:, :8], page_table=table, cache_seqlens=table[:, 0])
    with pytest.raises(RuntimeError, match="gradient"):
        flash_attn_with_kvcache(q, k.requires_grad_(), v)


def test_compile():
    q, k, v = tensors((2, 4, 4), (2, 9, 2), torch.float32)

    def function(q, k, v):
        return flash_attn_func(q * 2, k, v, causal=True).sin()
    compiled = torch.compile(function, backend="aot_eager")
    assert torch.allclose(compiled(q, k, v), function(q, k, v))


@pytest.mark.parametrize("options", [x for x in OPTIONS if x != "softcap and scale"])
def test_beside_flash_attention(options):
    flash = pytest.importorskip("flash_attn_interface")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    for name, own in (("flash_attn_func", flash_attn_func),
                      ("flash_attn_varlen_func", flash_attn_varlen_func),
                      ("flash_attn_with_kvcache", flash_attn_with_kvcache)):
        theirs = list(inspect.signature(getattr(flash, name)).parameters)
        assert theirs == list(inspect.signature(own).parameters)
    q, k, v = (x.cuda() for x in tensors((2, 40, 4), (2, 70, 2), torch.bfloat16))
    wanted = flash.flash_attn_func(q, k, v, **OPTIONS[options])
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    assert (flash_attn_func(q, k, v, **OPTIONS[options]) - wanted).abs().max() < 3e-2
    table = torch.randperm(30, device="cuda").int().view(2, 15)
    k, v = (torch.randn(30, 16, 2, 32, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    lengths = torch.tensor([200, 77], device="cuda", dtype=torch.int32)
    arguments = {"cache_seqlens": lengths, "page_table": table, **OPTIONS[options]}
    arguments.pop("deterministic", None)
    wanted = flash.flash_attn_with_kvcache(q, k, v, **arguments)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    assert (flash_attn_with_kvcache(q, k, v, **arguments) - wanted).abs().max() < 3e-2
