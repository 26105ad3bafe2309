"""Attention over a program's own pages, with numpy."""
import numpy as np
import pytest

import faclient

PAGES, PAGE, HEADS, KV_HEADS, DIM = 12, 4, 4, 2, 16


def problem(client, seen=True, dtype=np.float32):
    """Three sequences, with NaN in all that must not be read."""
    rng = np.random.default_rng(0)
    make = client.empty if seen else np.empty
    k, v = (make((PAGES, PAGE, KV_HEADS, DIM), np.dtype(dtype).name) for _ in range(2))
    k[...] = v[...] = np.nan
    lengths, counts = np.array([1, 9, 14], np.int32), [1, 2, 5]
    table = np.full((3, 5), 2**31 - 1, np.int32)
    numbers = iter(rng.permutation(PAGES - 1))
    for b, n in enumerate(lengths):
        for j in range(n):
            if j % PAGE == 0:
                table[b, j // PAGE] = next(numbers)
            for x in (k, v):
                x[table[b, j // PAGE], j % PAGE] = rng.standard_normal((KV_HEADS, DIM))
    cu_q = np.cumsum([0, *counts], dtype=np.int32)
    q = rng.standard_normal((cu_q[-1], HEADS, DIM)).astype(dtype)
    return q, k, v, table, lengths, cu_q


def reference(q, k, v, table, lengths, cu_q):
    out = np.zeros(q.shape)
    for b, n in enumerate(lengths):
        keys, values = (np.stack([x[table[b, j // PAGE], j % PAGE] for j in range(n)])
                        .astype(np.float64).repeat(HEADS // KV_HEADS, 1) for x in (k, v))
        rows = q[cu_q[b]:cu_q[b + 1]].astype(np.float64)
        scores = np.einsum("ihd,jhd->hij", rows, keys) / np.sqrt(DIM)
        last = np.arange(len(rows))[:, None] + n - len(rows)
        scores[:, np.arange(n)[None] > last] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out[cu_q[b]:cu_q[b + 1]] = np.einsum("hij,jhd->ihd", weights, values)
    return out


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attend(client, seen, dtype):
    q, k, v, table, lengths, cu_q = problem(client, seen, dtype)
    lse = np.empty((HEADS, len(q)), np.float32)
    out = client.pages_attend(q, k, v, table, lengths, cu_q=cu_q, max_q=5, max_k=14, causal=True,
                              lse=lse)
    expected = reference(q, k, v, table, lengths, cu_q)
    assert np.abs(out - expected).max() < (1e-5 if dtype == np.float32 else 4e-3)
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("seen", [True, False])
def test_append(client, seen):
    q, k, v, table, lengths, cu_q = problem(client, seen)
    expected = reference(q, k, v, table, lengths, cu_q)
    wanted = k.copy(), v.copy()
    at = [(table[b, (n - 1) // PAGE], (n - 1) % PAGE) for b, n in enumerate(lengths)]
    new = [np.stack([x[place] for place in at] + [np.ones((KV_HEADS, DIM), np.float32)])
           for x in (k, v)]
    for x in (k, v):
        for place in at:
            x[place] = np.nan
    slots = np.array([page * PAGE + token for page, token in at] + [-1], np.int64)
    out = client.pages_attend(q, k, v, table, lengths, cu_q=cu_q, max_q=5, k_new=new[0],
                              v_new=new[1], slots=slots, causal=True)
    assert np.abs(out - expected).max() < 1e-5
    assert np.array_equal(k, wanted[0], equal_nan=True)
    assert np.array_equal(v, wanted[1], equal_nan=True)


def test_bad_input(client):
    q, k, v, table, lengths, cu_q = problem(client)
    good = {"cu_q": cu_q, "max_q": 5}
    with pytest.raises(TypeError, match="table has dtype int64; expected int32"):
        client.pages_attend(q, k, v, table.astype(np.int64), lengths, **good)
    with pytest.raises(faclient.InvalidArgument, match="lengths.shape"):
        client.pages_attend(q, k, v, table, lengths[:2], **good)
    with pytest.raises(faclient.InvalidArgument, match="max_k is 21; expected at most 20"):
        client.pages_attend(q, k, v, table, lengths, max_k=21, **good)
    with pytest.raises(faclient.InvalidArgument, match="slots"):
        client.pages_attend(q, k, v, table, lengths, k_new=q[:1, :2], v_new=q[:1, :2], **good)
    with pytest.raises(faclient.InvalidArgument, match="k overlaps v"):
        client.pages_attend(q, k, k, table, lengths, k_new=q[:1, :2], v_new=q[:1, :2],
                            slots=np.zeros(1, np.int64), **good)
    with pytest.raises(faclient.InvalidArgument, match="k.dtype"):
        client.pages_attend(q, k.astype(np.float16), v, table, lengths, **good)
    q.setflags(write=False)
    client.pages_attend(q, k, v, table, lengths, **good)
    with pytest.raises(ValueError, match="out is read-only"):
        client.pages_attend(q, k, v, table, lengths, out=q, **good)
