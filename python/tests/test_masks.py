"""Block-sparse masks, bit masks and patterns of blocks."""
import numpy as np
import pytest

import faclient


def reference(q, k, v, seen):
    """seen [batch, heads, n_q, n_k]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, 2), np.repeat(v, group, 2)
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[3] ** -0.5
    s = np.where(seen, s, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", p / np.where(total > 0, total, 1), v)


def tensors(rng, batch=2, n_q=150, n_k=200, heads=4, kv_heads=2, dim=32):
    return [rng.standard_normal((batch, n, h, dim)).astype(np.float32)
            for n, h in ((n_q, heads), (n_k, kv_heads), (n_k, kv_heads))]


def causal_mask(n_q, n_k):
    return np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lead", [(), (4,), (1, 4), (2, 1), (2, 4)])
def test_blocks(client, lead, causal):
    rng = np.random.default_rng(len(lead) + causal)
    q, k, v = tensors(rng)
    dense = rng.random((*lead, 3, 2)) < 0.5
    blocks = faclient.Blocks.from_dense(dense, 64, 128)
    assert blocks.offsets.dtype == blocks.columns.dtype == np.int32
    out = client.attention(q, k, v, blocks=blocks, causal=causal)
    seen = np.repeat(np.repeat(dense, 64, -2), 128, -1)[..., :150, :200]
    seen = np.broadcast_to(seen.reshape((1,) * (4 - seen.ndim) + seen.shape), (2, 4, 150, 200))
    if causal:
        seen = seen & causal_mask(150, 200)
    assert np.abs(out - reference(q, k, v, seen)).max() < 1e-5


@pytest.mark.parametrize("lead", [(), (4,), (2, 1)])
def test_bits(client, lead):
    rng = np.random.default_rng(7)
    q, k, v = tensors(rng, n_k=77)
    mask = rng.random((*lead, 150, 77)) < 0.3
    out = client.attention(q, k, v, mask=mask)
    seen = np.broadcast_to(mask.reshape((1,) * (4 - mask.ndim) + mask.shape), (2, 4, 150, 77))
    assert np.abs(out - reference(q, k, v, seen)).max() < 1e-5
    packed = faclient.pack_bits(mask)
    assert packed.shape == (*lead, 150, 3) and packed.dtype == np.int32
    for words in (packed, packed.view(np.uint32)):
        assert np.array_equal(client.attention(q, k, v, mask=words), out)


def test_pattern(client):
    rng = np.random.default_rng(3)
    q, k, v = tensors(rng, n_q=200)
    pattern = faclient.Pattern(block_tokens=32, local_blocks=2, vert_stride=3, head_step=1)
    out = client.attention(q, k, v, causal=True, pattern=pattern)
    row, key = np.arange(200)[:, None] // 32, np.arange(200) // 32
    seen = np.stack([(row - key < 2) | ((key + h + 1) % 3 == 0) for h in range(4)])
    seen = np.broadcast_to(seen & causal_mask(200, 200), (2, 4, 200, 200))
    assert np.abs(out - reference(q, k, v, seen)).max() < 1e-5

    # The same of a step, and of pages of one's own, row by row.
    cache = client.cache(layers=1, kv_heads=2, head_dim=32, dtype="float32")
    sequence = cache.sequence()
    with cache.step({sequence: 200}) as step:
        stepped = step.attend(0, q[0], k[0], v[0], pattern=pattern)
    assert np.abs(stepped - out[0]).max() < 1e-5
    pages = [np.ascontiguousarray(x[0][:192].reshape(12, 16, 2, 32)) for x in (k, v)]
    last = client.pages_attend(q[0, 191:192], *pages, np.arange(12, dtype=np.int32)[None],
                               np.array([192], np.int32), causal=True, pattern=pattern)
    assert np.abs(last - out[0, 191:192]).max() < 1e-5


def test_refusals(client):
    q, k, v = tensors(np.random.default_rng(0))
    with pytest.raises(faclient.InvalidArgument, match="multiple of 16"):
        client.attention(q, k, v, pattern=(10, 1, 2))
    with pytest.raises(faclient.InvalidArgument, match=r"mask.shape\[2\] is 3; expected 150"):
        client.attention(q, k, v, mask=np.ones((3, 200), bool))
    with pytest.raises(faclient.InvalidArgument, match=r"block_offsets.shape\[2\] is 5"):
        client.attention(q, k, v, blocks=faclient.Blocks.from_dense(np.ones((4, 4), bool)))
    with pytest.raises(faclient.NotSupported, match="expected 64 or 128"):
        client.attention(q, k, v, blocks=faclient.Blocks.from_dense(np.ones((4, 4), bool), 32, 32))
    with pytest.raises(TypeError, match="block_columns"):
        client.attention(q, k, v, blocks=(np.zeros(4, np.int32), np.zeros(4, np.float32)))
