"""Tensors of a GPU: attention, steps and models, in the order of CUDA streams. Skipped without a
GPU that PyTorch and the daemon can use."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import faclient  # noqa: E402
import faclient.torch as fad  # noqa: E402
from conftest import Supervised, eventually  # noqa: E402
from faclient.torch.flash_attn import flash_attn_with_kvcache  # noqa: E402
from test_flash_attn import reference as exact  # noqa: E402
from test_flash_attn import rotated  # noqa: E402

LIMITS = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(scope="module")
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    daemon = Supervised(pool="4G")
    try:
        with faclient.connect(daemon.socket, name="test") as connected:
            if connected.info()["backend"] != "cuda":
                pytest.skip("the daemon computes on the CPU")
            fad.use(connected)
            yield connected
            fad.use(None)
    finally:
        daemon.stop()


def tensors(batch=2, heads=8, kv_heads=2, n_q=33, n_k=70, dim=128, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(batch, h, n, dim, device="cuda", dtype=torch.float32,
                        generator=generator).to(dtype)
            for h, n in ((heads, n_q), (kv_heads, n_k), (kv_heads, n_k))]


def reference(q, k, v, causal=False):
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    s = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    if causal:
        n_q, n_k = s.shape[2:]
        hidden = torch.ones(n_q, n_k, dtype=torch.bool, device=s.device).triu(n_k - n_q + 1)
        s = s.masked_fill(hidden, float("-inf"))
    return torch.softmax(s, -1) @ v


def off(out, expected):
    return float((out.double() - expected).abs().max())


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(gpu, dtype, causal):
    q, k, v = tensors(dtype=dtype)
    for _ in range(3):  # the call waits for the first request alone
        out = fad.attention(q, k, v, is_causal=causal)
        assert out.is_cuda and off(out, reference(q, k, v, causal)) < LIMITS[dtype]
    fad.synchronize()


def test_views(gpu):
    q, k, v = tensors()
    expected = reference(q, k, v)
    for change in (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
                   lambda x: torch.cat([x, x], 3)[..., :128],
                   lambda x: x.transpose(2, 3).contiguous().transpose(2, 3)):
        assert off(fad.attention(change(q), change(k), change(v)), expected) < 3e-2
    out = torch.empty(128, 2, 33, 8, device="cuda", dtype=q.dtype).permute(1, 2, 3, 0)
    given = gpu.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), out=out)
    assert given is out and off(out.transpose(1, 2), expected) < 3e-2
    broadcast = k[:, :1].expand(-1, 2, -1, -1)
    assert off(fad.attention(q, broadcast, v), reference(q, broadcast, v)) < 3e-2
    lse = torch.empty(2, 8, 33, device="cuda")
    gpu.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), lse=lse)
    s = q.double() @ k.repeat_interleave(4, 1).double().transpose(2, 3) / 128 ** 0.5
    assert off(lse, torch.logsumexp(s, -1)) < 1e-3


def test_order(gpu):
    """The request sees what kernels before it write, and kernels after it see its output."""
    q, k, v = tensors(n_q=64, n_k=512)
    fad.attention(q, k, v)
    expected = reference(q * 2, k, v)
    big = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        for _ in range(5):
            big = torch.tanh(big @ big)
        twice = q * 2
        out = fad.attention(twice, k, v)
        twice.zero_()
        total = out.clone()
        out.zero_()
        assert off(total, expected) < 3e-2


def test_streams(gpu):
    inputs = [tensors(seed=i) for i in range(4)]
    expected = [reference(*x) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    outs = [[] for _ in inputs]
    for _ in range(10):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                outs[i].append(fad.attention(*inputs[i]).clone())
    torch.cuda.synchronize()
    for i, row in enumerate(outs):
        assert all(off(out, expected[i]) < 3e-2 for out in row)


def test_memory_is_reused(gpu):
    """PyTorch frees and allocates: addresses come back as other memory."""
    rng = np.random.default_rng(0)
    kept = []
    for i in range(200):
        n = int(rng.integers(1, 1500))
        q, k, v = tensors(batch=int(rng.integers(1, 4)), n_q=min(n, 64), n_k=n, seed=i)
        out = fad.attention(q, k, v)
        assert off(out, reference(q, k, v)) < 3e-2, i
        kept.append((q, k, v))
        del q, k, v, out
        if len(kept) > int(rng.integers(0, 6)):
            kept.clear()
        if i % 7 == 0:
            torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    x = torch.empty(1 << 28, device="cuda", dtype=torch.bfloat16).view(1, 1, -1, 128)
    fad.attention(x[:, :, :16], x[:, :, :16], x[:, :, :16])
    del x
    kept.clear()
    torch.cuda.empty_cache()
    gpu.synchronize()
    gpu.trim()
    # The daemon closes memory a moment later.
    eventually(lambda: torch.cuda.mem_get_info()[0] > free - (128 << 20))


def test_compile(gpu):
    @torch.compile(fullgraph=True)
    def block(q, k, v):
        return fad.attention(torch.nn.functional.silu(q), k, v, is_causal=True) * 2
    with torch.no_grad():
        q, k, v = tensors()
        for _ in range(3):
            expected = reference(torch.nn.functional.silu(q), k, v, True) * 2
            assert off(block(q, k, v), expected) < 6e-2


def cuda_cache(generator, lengths, page, dtype, tokens=96):
    """NaN but for sequences of these lengths, which also come as they are, on the CPU."""
    rows = [[torch.randn(n, 2, 128, generator=generator).to(dtype) for n in lengths] for _ in "kv"]
    columns = -(-tokens // (page or tokens))
    table = torch.randperm(len(lengths) * columns, generator=generator).int().view(-1, columns)
    if page is None:
        table = table.sort(0)[0]
    caches = [torch.full((table.numel(), page or tokens, 2, 128), torch.nan) for _ in "kv"]
    for cache, of in zip(caches, rows):
        for b, x in enumerate(of):
            for j, row in enumerate(x):
                cache[table[b, j // (page or tokens)], j % (page or tokens)] = row
    if page is None:
        table = None
    else:
        table = table.cuda()
    return *(x.to(dtype).cuda() for x in caches), table, rows


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("page", [None, 16])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("leftpad", [False, True])
def test_cache_rotary(gpu, dtype, page, ragged, leftpad):
    """flash_attn_with_kvcache with all that is done before the request, in the stream's order."""
    generator = torch.Generator().manual_seed(11)
    lengths = (0, 5, 77, 30)
    k_cache, v_cache, table, rows = cuda_cache(generator, lengths, page, dtype)
    counts = (3, 0, 5, 1) if ragged else (3, 3, 3, 3)
    cu = torch.tensor([0, *counts]).cumsum(0).int()
    pads = (0, 1, 20, 5) if leftpad else (0, 0, 0, 0)
    angles = torch.rand(100, 32, generator=generator) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    q, new_k, new_v = (torch.randn(sum(counts), heads, 128, generator=generator).to(dtype)
                       for heads in (8, 2, 2))
    expected = []
    for b, n in enumerate(lengths):
        new = slice(cu[b], cu[b + 1])
        k = torch.cat([rows[0][b].double(),
                       rotated(new_k[new], cos, sin, n, False).to(dtype).double()])
        v = torch.cat([rows[1][b], new_v[new]])
        mine = rotated(q[new], cos, sin, n, False).to(dtype)
        expected.append(exact(mine, k[pads[b]:], v[pads[b]:], causal=True)[0])
    options = {"cache_seqlens": torch.tensor(lengths, dtype=torch.int32).cuda(),
               "page_table": table, "rotary_cos": cos.cuda(), "rotary_sin": sin.cuda(),
               "rotary_interleaved": False, "causal": True}
    if leftpad:
        options["cache_leftpad"] = torch.tensor(pads, dtype=torch.int32).cuda()
    given = [x.cuda() for x in (q, new_k, new_v)]
    if ragged:
        options.update(cu_seqlens_q=cu.cuda(), cu_seqlens_k_new=cu.cuda(), max_seqlen_q=5)
    else:
        given = [x.unflatten(0, (4, 3)) for x in given]
    for _ in range(3):  # repeats write the same rows to the same slots
        out = flash_attn_with_kvcache(given[0], k_cache, v_cache, *given[1:], **options)
        assert off(out.reshape(-1, 8, 128).cpu(), torch.cat(expected)) < 2 * LIMITS[dtype]
    fad.synchronize()


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_cache_float8(gpu, same, ragged):
    """Queries, keys and values in float8, with scales for each sequence and head."""
    generator = torch.Generator().manual_seed(12)
    lengths, code = (0, 5, 77, 30), torch.float8_e4m3fn
    k_cache, v_cache, table, rows = cuda_cache(generator, lengths, 16, torch.float32)
    k_cache, v_cache = k_cache.to(code), v_cache.to(code)
    counts = (3, 0, 5, 1) if ragged else (3, 3, 3, 3)
    cu = torch.tensor([0, *counts]).cumsum(0).int()
    q, new_k, new_v = (torch.randn(sum(counts), heads, 128, generator=generator).to(code)
                       for heads in (8, 2, 2))
    descales = [(torch.rand(1 if same else 4, 2, generator=generator) + 0.5).expand(4, 2)
                for _ in range(3)]
    expected = []
    for b in range(4):
        new = slice(cu[b], cu[b + 1])
        k, v = (torch.cat([x[b].to(code).float(), y[new].float()]) * scale[b][:, None]
                for x, y, scale in zip(rows, (new_k, new_v), descales[1:]))
        mine = q[new].float() * descales[0][b].repeat_interleave(4)[:, None]
        expected.append(exact(mine, k, v, causal=True)[0])
    options = {"cache_seqlens": torch.tensor(lengths, dtype=torch.int32).cuda(),
               "page_table": table, "causal": True}
    descales = [x[:1].cuda().expand(4, 2) if same else x.cuda() for x in descales]
    given = [x.cuda() for x in (q, new_k, new_v)]
    if ragged:
        options.update(cu_seqlens_q=cu.cuda(), cu_seqlens_k_new=cu.cuda(), max_seqlen_q=5)
    else:
        given = [x.unflatten(0, (4, 3)) for x in given]
    out = flash_attn_with_kvcache(given[0], k_cache, v_cache, *given[1:], q_descale=descales[0],
                                  k_descale=descales[1], v_descale=descales[2], **options)
    assert out.dtype == torch.bfloat16
    assert off(out.reshape(-1, 8, 128).cpu(), torch.cat(expected)) < 6e-2
    fad.synchronize()


def test_capture_is_refused(gpu):
    q, k, v = tensors()
    fad.attention(q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(Exception, match="captured"), torch.cuda.graph(graph):
        fad.attention(q, k, v)
    torch.cuda.synchronize()
    assert off(fad.attention(q, k, v), reference(q, k, v)) < 3e-2


def test_other_libraries(gpu):
    cupy = pytest.importorskip("cupy")
    q, k, v = (x.transpose(1, 2).contiguous() for x in tensors(dtype=torch.float16))
    arrays = [cupy.from_dlpack(x) for x in (q, k, v)]
    out = cupy.empty((2, 33, 8, 128), cupy.float16)
    gpu.attention(*arrays, out=out)
    expected = reference(*(x.transpose(1, 2) for x in (q, k, v)))
    assert off(torch.from_dlpack(out).transpose(1, 2), expected) < 4e-3


def test_errors(gpu):
    q, k, v = tensors()
    with pytest.raises(ValueError, match="k is on the CPU"):
        fad.attention(q, k.cpu(), v)
    with pytest.raises(TypeError, match="dtype"):
        gpu.attention(q.double(), k, v)
    with pytest.raises(faclient.Error):
        fad.attention(q[..., :100], k[..., :100], v)
    with pytest.raises(faclient.Error):
        fad.attention(q, k[:1], v)
    assert off(fad.attention(q, k, v), reference(q, k, v)) < 3e-2
    if torch.cuda.device_count() > 1:
        with pytest.raises(faclient.NotSupported, match="daemon's is GPU-"):
            fad.attention(*(x.to("cuda:1") for x in (q, k, v)))


def test_late_error(gpu):
    """A request that fails after its call has returned is told of by synchronize()."""
    q, k, v = tensors()
    fad.attention(q, k, v)
    big = torch.randn(8192, 8192, device="cuda")
    for _ in range(40):
        big = torch.tanh(big @ big)  # about 60 ms
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    gpu.attention(q, k, v, timeout=1e-3)
    with pytest.raises(faclient.TimedOut, match="earlier request"):
        gpu.synchronize()
    gpu.synchronize()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steps(gpu, dtype):
    cache = gpu.cache(layers=2, kv_heads=2, head_dim=128, dtype=dtype)
    sequence = cache.sequence()
    keys = []
    for n in (50, 1, 1, 17):
        q, k, v = (x[0].transpose(0, 1) for x in tensors(1, n_q=n, n_k=n, dtype=dtype, seed=n))
        keys.append((k, v))
        with cache.step({sequence: n}) as step:
            outs = [step.attend(i, q, k, v) for i in range(2)]
        past = [torch.cat(x).transpose(0, 1)[None] for x in zip(*keys)]
        expected = reference(q.transpose(0, 1)[None], *past, causal=True)[0].transpose(0, 1)
        assert all(off(out, expected) < LIMITS[dtype] for out in outs)
    assert sequence.length == 69


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "qwen3"])
def test_models(gpu, family):
    transformers = pytest.importorskip("faclient.transformers")
    import families
    transformers.register()
    model = families.model(family).to("cuda", torch.float16)
    ids = torch.randint(2, 512, (2, 40), generator=torch.Generator().manual_seed(1)).cuda()
    mask = torch.ones_like(ids)
    mask[0, :13] = 0

    def logits(cache=None):
        """The logits of a pass over the prompts and of 12 single tokens after it."""
        rows, seen = [], mask
        with torch.no_grad():
            out = model(ids, attention_mask=seen, past_key_values=cache, use_cache=True,
                        position_ids=(mask.cumsum(1) - 1).clamp(min=0))
            rows.append(out.logits[:, -1])
            for i in range(12):
                seen = torch.cat([seen, seen.new_ones(2, 1)], 1)
                position = (seen.sum(1) - 1)[:, None]
                token = torch.full((2, 1), 3 + 7 * i, device="cuda")
                out = model(token, attention_mask=seen, past_key_values=out.past_key_values,
                            use_cache=True, position_ids=position)
                rows.append(out.logits[:, -1])
        return torch.stack(rows).double()
    expected = logits()
    model.set_attn_implementation("fad")
    cache = transformers.FadCache(model, gpu)
    got = logits(cache)
    spread = float(expected.max() - expected.min())
    assert off(got, expected) < 0.02 * spread
    assert cache.tokens == 52
    text = model.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False,
                          pad_token_id=0, past_key_values=transformers.FadCache(model, gpu))
    assert text.shape == (2, 60)


def test_prefix(gpu):
    transformers = pytest.importorskip("faclient.transformers")
    import families
    transformers.register()
    model = families.model("llama").to("cuda", torch.bfloat16)
    model.set_attn_implementation("fad")
    ids = torch.randint(2, 512, (1, 100), generator=torch.Generator().manual_seed(1)).cuda()
    one = transformers.FadCache(model, gpu, name="gpu-prefix")
    first = model.generate(ids, past_key_values=one, max_new_tokens=8, do_sample=False,
                           pad_token_id=0)
    assert one.publish(ids[0]) == 6
    two = transformers.FadCache(model, gpu, name="gpu-prefix")
    assert two.attach(ids) == 96
    again = model.generate(ids, past_key_values=two, max_new_tokens=8, do_sample=False,
                           pad_token_id=0)
    assert first.shape == again.shape
    one._cache.remove()


def test_lost_daemon():
    """A pass that the daemon's death interrupts fails; the same call then goes on."""
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    daemon = Supervised(pool="1G")
    try:
        with faclient.connect(daemon.socket, name="test", reconnect_timeout=30) as client:
            if client.info()["backend"] != "cuda":
                pytest.skip("the daemon computes on the CPU")
            q, k, v = (x.transpose(1, 2) for x in tensors())
            client.attention(q, k, v)
            client.synchronize()
            daemon.kill()
            for _ in range(20):
                try:
                    out = client.attention(q, k, v)
                    client.synchronize()
                    break
                except faclient.DaemonLost:
                    torch.cuda.synchronize()
            expected = reference(*(x.transpose(1, 2) for x in (q, k, v)))
            assert off(out.transpose(1, 2), expected) < 3e-2
    finally:
        daemon.stop()


class Fake(torch.Tensor):
    """A tensor that says it is on a GPU."""
    device = torch.device("cuda", 0)


def test_daemon_of_the_cpu(client):
    """Needs no GPU."""
    if client.info()["backend"] != "cpu":
        pytest.skip("the daemon has a GPU")
    q = torch.randn(1, 8, 2, 64)
    with pytest.raises(faclient.NotSupported, match="backend is cpu"):
        client.attention(*(q.as_subclass(Fake) for _ in range(3)), out=q.as_subclass(Fake))
    with pytest.raises(ValueError, match="k is on the CPU, and q on cuda:0"):
        client.attention(q.as_subclass(Fake), q, q, out=q)
    with pytest.raises(faclient.NotSupported, match="meta"):
        client.attention(q.to("meta"), q, q)
    client.synchronize()
    client.trim()


class OnGpu:
    """An array of another library."""
    __cuda_array_interface__ = {"shape": (1, 8, 2, 64), "typestr": "<f4", "data": (1 << 40, False),
                                "version": 3, "strides": None}


def test_foreign_arrays_without_gpu(client):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(faclient.NotSupported, match="q: "):
        client.attention(OnGpu(), OnGpu(), OnGpu())
