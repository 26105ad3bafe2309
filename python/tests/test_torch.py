"""PyTorch: the operator, and a drop-in for its own attention."""
import pytest

torch = pytest.importorskip("torch")

import faclient  # noqa: E402
import faclient.torch as fad  # noqa: E402


@pytest.fixture(autouse=True)
def use(client):
    fad.use(client)
    yield
    fad.use(None)


def tensors(dtype=torch.float32, n_q=9, n_k=9, kv_heads=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, n, 32, generator=generator).to(dtype)
            for heads, n in ((4, n_q), (kv_heads, n_k), (kv_heads, n_k))]


@pytest.mark.parametrize("dtype,limit", [(torch.float32, 1e-5), (torch.float16, 4e-3),
                                         (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_drop_in(dtype, limit, is_causal):
    q, k, v = tensors(dtype)
    out = fad.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=is_causal, enable_gqa=True)
    assert out.dtype == dtype and out.shape == expected.shape
    assert (out - expected).abs().max() < limit


def test_tensors_of_buffers():
    q, k, v = tensors()
    expected = fad.attention(q, k, v)
    own = [fad.empty(x.shape).copy_(x) for x in (q, k, v)]
    assert torch.equal(fad.attention(*own), expected)
    # As models make them: heads and tokens transposed.
    turned = fad.empty(2, 9, 4, 32).copy_(q.transpose(1, 2)).transpose(1, 2)
    assert torch.equal(fad.attention(turned, *own[1:]), expected)


def test_compile():
    q, k, v = tensors()

    def function(q, k, v):
        return fad.attention(q * 2, k, v, is_causal=True).sin()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(q, k, v), function(q, k, v))


def test_operator():
    q, k, v = tensors()
    torch.library.opcheck(torch.ops.faclient.attention, (q, k, v, True, 0.0, -1, -1, 0.0),
                          test_utils=("test_schema", "test_faketensor"))


def test_masks():
    q, k, v = tensors(n_q=100, n_k=150)
    mask = torch.rand(1, 4, 100, 150, generator=torch.Generator().manual_seed(1)) < 0.4
    blocks = faclient.Blocks.from_dense(torch.tensor([[True, False, True], [False, True, False]]), 64, 64)
    assert blocks.offsets.dtype == torch.int32
    shown = torch.tensor([[1, 0, 1], [0, 1, 0]]).bool().repeat_interleave(64, 0).repeat_interleave(64, 1)
    row, key = torch.arange(100)[:, None] + 50, torch.arange(150)
    pattern = (row // 16 - key // 16 < 2) | ((key // 16 + 1) % 3 == 0)
    for options, seen in (({"mask": mask}, mask), ({"mask": faclient.pack_bits(mask)}, mask),
                          ({"blocks": blocks}, shown[:100, :150]),
                          ({"blocks": blocks, "mask": mask}, shown[:100, :150] & mask),
                          ({"pattern": faclient.Pattern(16, 2, 3)}, pattern)):
        out = fad.attention(q, k, v, **options)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), attn_mask=seen, enable_gqa=True)
        assert (out - expected.nan_to_num()).abs().max() < 1e-5
    compiled = torch.compile(lambda q, k, v: fad.attention(q, k, v, mask=mask), backend="eager",
                             fullgraph=True)
    assert torch.equal(compiled(q, k, v), fad.attention(q, k, v, mask=mask))


@pytest.mark.parametrize("shape", [(9, 20), (1, 20), (4, 9, 20), (2, 1, 1, 20), (2, 4, 9, 20)])
def test_drop_in_with_mask(shape):
    q, k, v = tensors(n_k=20)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.6
    out = fad.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=mask, enable_gqa=True)
    assert (out - expected.nan_to_num()).abs().max() < 1e-5
    with pytest.raises(ValueError, match="expected one of them"):
        fad.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=True, enable_gqa=True)


def test_gradients_are_refused():
    q, k, v = tensors()
    q.requires_grad_()
    with pytest.raises(RuntimeError, match="gradient"):
        fad.attention(q, k, v)
    with torch.no_grad():
        fad.attention(q, k, v)


@pytest.mark.parametrize("options", [{"dropout_p": 0.1}, {"attn_mask": torch.ones(9, 9)}])
def test_not_computed(options):
    with pytest.raises(NotImplementedError):
        fad.scaled_dot_product_attention(*tensors(kv_heads=4), **options)


def test_not_like_torch():
    with pytest.raises(NotImplementedError, match="aligns"):
        fad.scaled_dot_product_attention(*tensors(n_q=3, kv_heads=4), is_causal=True)
    with pytest.raises(ValueError, match="enable_gqa"):
        fad.scaled_dot_product_attention(*tensors())
    with pytest.raises(NotImplementedError, match="meta"):
        fad.client().attention(*(x.to("meta").transpose(1, 2) for x in tensors()))
