"""FlashAttention's functions: against fp64, and against FlashAttention where it is installed."""
import inspect

import pytest

torch = pytest.importorskip("torch")

import faclient  # noqa: E402
import faclient.torch as fad  # noqa: E402
from faclient.torch.flash_attn import flash_attn_func, flash_attn_varlen_func  # noqa: E402

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
    "hints": {"num_splits": 3, "pack_gqa": True, "deterministic": True, "sm_margin": 8},
}


@pytest.fixture(autouse=True)
def use(client):
    fad.use(client)
    yield
    fad.use(None)


def reference(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, softmax_scale=None,
              **hints):
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


@pytest.mark.parametrize("name", ["qv", "q_descale", "k_descale", "v_descale", "attention_chunk"])
def test_unsupported(name):
    q, k, v = tensors((2, 4, 4), (2, 9, 2), torch.float32)
    value = 16 if name == "attention_chunk" else torch.ones(2)
    with pytest.raises(NotImplementedError, match=f"^{name}: "):
        flash_attn_func(q, k, v, **{name: value})
    cu = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=f"^{name}: "):
        flash_attn_varlen_func(q[0], k[0], v[0], cu, cu, 4, 4, **{name: value})


@pytest.mark.parametrize("name", ["seqused_q", "seqused_k"])
def test_unsupported_lengths(name):
    q, k, v = tensors((4, 4), (4, 2), torch.float32)
    cu = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=f"^{name}: "):
        flash_attn_varlen_func(q, k, v, cu, cu, 4, 4, **{name: torch.tensor([3])})


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
                      ("flash_attn_varlen_func", flash_attn_varlen_func)):
        theirs = list(inspect.signature(getattr(flash, name)).parameters)
        assert theirs == list(inspect.signature(own).parameters)
    q, k, v = (x.cuda() for x in tensors((2, 40, 4), (2, 70, 2), torch.bfloat16))
    wanted = flash.flash_attn_func(q, k, v, **OPTIONS[options])
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    assert (flash_attn_func(q, k, v, **OPTIONS[options]) - wanted).abs().max() < 3e-2
