"""Caches, sequences and steps."""
import gc

import numpy as np
import pytest

import faclient
from conftest import eventually, run_python
from test_client import reference

SHAPE = {"layers": 2, "kv_heads": 2, "head_dim": 16, "dtype": "float32"}


def rows(n, seed, heads=2):
    return np.random.default_rng(seed).standard_normal((n, heads, 16)).astype(np.float32)


def append(cache, sequence, n, seed=0):
    with cache.step({sequence: n}) as step:
        for layer in range(2):
            step.attend(layer, None, rows(n, seed + layer), rows(n, seed + layer + 100))


def read(cache, sequence, seed=5):
    """One query's attention over all tokens, of a step that is given up."""
    step = cache.step({sequence: 1})
    out = step.attend(1, rows(1, seed, 4), rows(1, seed + 1), rows(1, seed + 2))
    step.close()
    return out


def test_step(client):
    cache = client.cache(**SHAPE)
    sequence = cache.sequence()
    keys, values = [], []
    for n in (5, 1, 30):
        q, k, v = rows(n, n, 4), rows(n, n + 50), rows(n, n + 90)
        keys.append(k)
        values.append(v)
        with cache.step({sequence: n}) as step:
            for layer in range(2):
                out = step.attend(layer, q, k, v)
        expected = reference(q[None], np.concatenate(keys)[None], np.concatenate(values)[None],
                             causal=True)[0]
        assert np.abs(out - expected).max() < 1e-5
    assert sequence.length == 36


@pytest.mark.parametrize("store", ["plain", "e4m3", "int8"])
def test_values_in_keys(client, store):
    """As DeepSeek's latents: one KV head of 576, whose first 512 elements are values."""
    cache = client.cache(layers=1, kv_heads=1, head_dim=576, head_dim_v=512, dtype="float32",
                         store=store, v_in_k=True)
    sequence, random = cache.sequence(), np.random.default_rng(3)
    given = []
    for n in (20, 1, 2):
        q, k = (random.standard_normal((n, heads, 576)).astype(np.float32) for heads in (16, 1))
        given.append(k)
        with cache.step({sequence: n}) as step:
            out = step.attend(0, q, k, None)
        kept = np.empty((1, sequence.length, 1, 576), np.float32)
        sequence.read(0, kept)
        expected = reference(q[None], kept, kept[..., :512], causal=True)[0]
        assert np.abs(out - expected).max() < 1e-5
    error = np.abs(kept[0] - np.concatenate(given)).max()
    assert error == 0 if store == "plain" else 0 < error < 0.2
    with pytest.raises(ValueError, match="store is 'fp8'"):
        client.cache(layers=1, kv_heads=1, head_dim=64, store="fp8")


def test_several_sequences(client):
    cache = client.cache(**SHAPE)
    a, b = cache.sequence(), cache.sequence()
    append(cache, a, 10)
    q, k, v = rows(5, 1, 4), rows(5, 2), rows(5, 3)
    with cache.step([(a, 2), (b, 3)]) as step:
        for layer in range(2):
            out = step.attend(layer, q, k, v)
    expected = reference(q[None, 2:], k[None, 2:], v[None, 2:], causal=True)[0]
    assert np.abs(out[2:] - expected).max() < 1e-5
    assert (a.length, b.length) == (12, 3)


def test_exception_aborts(client):
    cache = client.cache(**SHAPE)
    sequence = cache.sequence()
    append(cache, sequence, 4)
    with pytest.raises(ZeroDivisionError):
        with cache.step({sequence: 3}) as step:
            step.attend(0, None, rows(3, 0), rows(3, 1))
            1 / 0  # noqa: B018
    assert sequence.length == 4
    append(cache, sequence, 3)
    assert sequence.length == 7


def test_fork_truncate_drop(client):
    cache = client.cache(**SHAPE)
    parent = cache.sequence()
    append(cache, parent, 40)
    child = parent.fork(33)
    assert (parent.length, child.length) == (40, 33)
    short = parent.fork()
    short.truncate(33)
    assert np.array_equal(read(cache, child), read(cache, short))
    assert child.drop_before(20) == 16 and child.info()["first"] == 16
    parent.remove()
    assert short.length == 33
    with pytest.raises(faclient.Stale):
        parent.fork()
    with pytest.raises(faclient.InvalidArgument):
        short.truncate(34)


def test_garbage_returns_pages(client):
    cache = client.cache(**SHAPE)
    for _ in range(5):
        sequences = [cache.sequence() for _ in range(20)]
        for sequence in sequences:
            append(cache, sequence, 20)
        assert cache.info()["used_pages"] == 40
        del sequences, sequence
        gc.collect()
        eventually(lambda: cache.info()["used_pages"] == 0)


def test_prefixes_of_another_process(client):
    code = """
import faclient, sys
sys.path.insert(0, sys.argv[2])
import test_kv
client = faclient.connect(sys.argv[1])
cache = client.cache("python-prefix", **test_kv.SHAPE)
sequence = cache.sequence()
test_kv.append(cache, sequence, 50)
print(sequence.publish(range(1000, 1050)), test_kv.read(cache, sequence.fork(48)).tobytes().hex())
"""
    import os
    done = run_python(code, client.socket, os.path.dirname(__file__)).stdout.split()
    assert done[0] == "3"
    cache = client.cache("python-prefix", **SHAPE)
    sequence = cache.attach(list(range(1000, 1060)))
    assert sequence.length == 48
    assert read(cache, sequence).tobytes().hex() == done[1]
    assert cache.find(range(1000, 1060)) == 48 and cache.find(range(1000, 1030)) == 16
    assert cache.find(range(1000, 1060), extra=b"other model") == cache.find([]) == 0
    assert cache.attach(range(1000, 1048), extra=b"other model").length == 0
    assert cache.attach([7] * 100).length == 0
    assert cache.attach([]).length == 0
    cache.remove()


def test_killed_clients_leave_no_page(client):
    """Clients are killed with sequences, forks and a step in flight."""
    import os
    import signal
    import subprocess
    import sys

    from conftest import FULL
    code = """
import faclient, sys
sys.path.insert(0, sys.argv[2])
import test_kv
client = faclient.connect(sys.argv[1])
cache = client.cache("python-killed", ttl=600, **test_kv.SHAPE)
sequences = [cache.sequence() for _ in range(3)]
for sequence in sequences:
    test_kv.append(cache, sequence, 40)
fork = sequences[0].fork(33)
step = cache.step({fork: 20, sequences[1]: 5})
step.attend(0, None, test_kv.rows(25, 0), test_kv.rows(25, 1))
print("ready", flush=True)
sys.stdin.read()
"""
    cache = client.cache("python-killed", ttl=600, **SHAPE)
    for _ in range(25 if FULL else 2):
        processes = [subprocess.Popen([sys.executable, "-c", code, client.socket,
                                       os.path.dirname(__file__)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True) for _ in range(4)]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        assert cache.info()["sequences"] == 16
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdin.close()
            process.stdout.close()
        eventually(lambda: cache.info()["used_pages"] == 0 and cache.info()["sequences"] == 0)
    cache.remove()


def test_names(client):
    cache = client.cache("python-names", ttl=60, **SHAPE)
    sequence = cache.sequence()
    append(cache, sequence, 5)
    sequence.set_name("python-sequence", ttl=60)
    del sequence
    gc.collect()
    assert client.sequence("python-sequence").length == 5
    with pytest.raises(faclient.NotFound):
        client.sequence("python-none")
    with pytest.raises(faclient.InvalidArgument, match="another model"):
        client.cache("python-names", **{**SHAPE, "layers": 3})
    cache.remove()


@pytest.mark.parametrize("tokens", [[-1], [2**32], [[1, 2]], ["a"], [1.5]])
def test_bad_tokens(client, tokens):
    cache = client.cache(**SHAPE)
    with pytest.raises(ValueError):
        cache.attach(tokens)


def test_bad_steps(client):
    cache = client.cache(**SHAPE)
    sequence = cache.sequence()
    with pytest.raises(faclient.InvalidArgument):
        cache.step([(sequence, 1), (sequence, 1)])
    with pytest.raises(OverflowError):
        cache.step({sequence: -1})
    step = cache.step({sequence: 2})
    with pytest.raises(faclient.InvalidArgument):
        step.attend(0, None, rows(3, 0), rows(3, 1))
    with pytest.raises(faclient.InvalidArgument):
        step.attend(2, None, rows(2, 0), rows(2, 1))
    with pytest.raises(ValueError):
        step.attend(0, None, None, None)
    step.close()
    with pytest.raises(faclient.InvalidArgument):
        step.commit()
    with pytest.raises(ValueError, match="dtype|expected"):
        client.cache(**{**SHAPE, "head_dim": 13})


def test_survives_death(supervised):
    with faclient.connect(supervised.socket, reconnect_timeout=20) as client:
        cache = client.cache("python-death", **SHAPE)
        sequence = cache.sequence()
        append(cache, sequence, 30)
        before = read(cache, sequence)
        supervised.kill()

        def again():
            try:
                return sequence.length == 30
            except faclient.DaemonLost:
                return False
        eventually(again)
        assert np.array_equal(read(cache, sequence), before)


def _filled(client, cache, sequence, n, first=0, own=True):
    """Appends n tokens of random bits by Step.write(). own: from the client's memory."""
    shape = (cache.layers, n, cache.kv_heads, cache.head_dim)
    k, v = (client.empty(shape, "bf16") if own else np.empty(shape, np.uint16) for _ in "kv")
    random = np.random.default_rng(first)
    for x in (k, v):
        x[:] = random.integers(0, 2**16, shape, np.uint16)
    with cache.step({sequence: n}) as step:
        step.write(sequence, first, k, v)
    return k, v


@pytest.mark.parametrize("own", [False, True])
def test_write_read(client, own):
    """All bits of all layers return, NaN included, through memory of either kind."""
    cache = client.cache("write-read", layers=7, kv_heads=2, head_dim=16, dtype="bf16")
    sequence = cache.sequence()
    a = _filled(client, cache, sequence, 40, own=own)
    b = _filled(client, cache, sequence, 30, first=40, own=not own)
    assert sequence.length == 70
    out = [client.empty((7, 60, 2, 16), "bf16") if own else np.empty((7, 60, 2, 16), np.uint16)
           for _ in "kv"]
    sequence.read(5, *out)
    for x, first, second in zip(out, a, b):
        assert (x == np.concatenate([first, second], 1)[:, 5:65]).all()
    only = np.empty((2, 10, 2, 16), np.uint16)
    sequence.read(0, None, only, layer=3)
    assert (only == a[1][3:5, :10]).all()
    sequence.set_name("written")
    named = client.sequence("written")
    named.read(0, only, layer=5)
    assert (only == a[0][5:7, :10]).all()
    cache.remove()


def test_read_strided(client):
    cache = client.cache(layers=3, kv_heads=2, head_dim=16, dtype="bf16")
    sequence = cache.sequence()
    k, v = _filled(client, cache, sequence, 20)
    both = client.empty((3, 20, 2, 2, 16), "bf16")
    sequence.read(0, both[:, :, 0], both[:, :, 1])
    assert (both[:, :, 0] == k).all() and (both[:, :, 1] == v).all()


def _pages(client, layers, layout, n_pages=6, size=16, dim=16):
    """Tensors of pages as engines have them: [pages, size, heads, dim] of each layer."""
    if layout == "NHD":
        return [client.empty((n_pages, size, 2, dim), "bf16") for _ in range(layers)]
    return [client.empty((n_pages, 2, size, dim), "bf16").transpose(0, 2, 1, 3)
            for _ in range(layers)]


@pytest.mark.parametrize("layout", ["NHD", "HND", "one tensor"])
def test_pages(client, layout):
    """What goes in by pages comes out by layers, and back to other pages."""
    cache = client.cache(layers=3, kv_heads=2, head_dim=16, dtype="bf16")
    sequence = cache.sequence()
    if layout == "one tensor":
        both = client.empty((3, 6, 2, 16, 2, 16), "bf16")
        k, v = [both[i, :, 0] for i in range(3)], [both[i, :, 1] for i in range(3)]
    else:
        k, v = _pages(client, 3, layout), _pages(client, 3, layout)
    random = np.random.default_rng(3)
    for x in k + v:
        x[:] = random.integers(0, 2**16, x.shape, np.uint16)
    pages = np.array([4, 0, 5], np.int64)
    with cache.step({sequence: 40}) as step:
        step.write_pages(sequence, 0, 40, k, v, pages, page_offset=5)
    dense_k, dense_v = (np.empty((3, 40, 2, 16), np.uint16) for _ in "kv")
    sequence.read(0, dense_k, dense_v)
    for mine, dense in ((k, dense_k), (v, dense_v)):
        for i in range(3):
            assert (mine[i][pages].reshape(48, 2, 16)[5:45] == dense[i]).all()

    other = _pages(client, 2, "NHD", size=7)
    sequence.read_pages(3, 20, None, other, [2, 5, 1, 0], layer=1, page_offset=6)
    for i, x in enumerate(other):
        assert (x[[2, 5, 1, 0]].reshape(28, 2, 16)[6:26] == dense_v[1 + i, 3:23]).all()
        assert not x[[3, 4]].any() and not x[2, :6].any() and not x[0, 5:].any()


def test_pages_bad_input(client):
    cache = client.cache(layers=2, kv_heads=2, head_dim=16, dtype="bf16")
    sequence = cache.sequence()
    _filled(client, cache, sequence, 20)
    k, v = _pages(client, 2, "NHD"), _pages(client, 2, "NHD")
    with pytest.raises(ValueError, match="nothing to copy"):
        sequence.read_pages(0, 20, None, None, [0, 1])
    with pytest.raises(ValueError, match="v has 1 layers, and k 2"):
        sequence.read_pages(0, 20, k, v[:1], [0, 1])
    with pytest.raises(ValueError, match=r"k\[0\] is not in memory that the daemon sees"):
        sequence.read_pages(0, 20, [np.zeros((6, 16, 2, 16), np.uint16)] * 2, v, [0, 1])
    with pytest.raises(ValueError, match="3 dimensions; expected 4"):
        sequence.read_pages(0, 20, [x[0] for x in k], v, [0, 1])
    with pytest.raises(ValueError, match="expected positive ones"):
        sequence.read_pages(0, 20, [x[:, ::-1] for x in k], v, [0, 1])
    with pytest.raises(ValueError, match="not a 32-bit number"):
        sequence.read_pages(0, 20, k, v, [0, -1])
    with pytest.raises(faclient.InvalidArgument, match=r"pages\[1\] is 6; expected less than 6"):
        sequence.read_pages(0, 20, k, v, [0, 6])
    with pytest.raises(faclient.InvalidArgument, match="expected each page once"):
        sequence.read_pages(0, 20, k, v, [1, 1])
    with pytest.raises(faclient.InvalidArgument, match="overlaps"):
        sequence.read_pages(0, 20, k, k, [0, 1])
    with pytest.raises(faclient.InvalidArgument, match="has 0 to 20"):
        sequence.read_pages(0, 21, k, v, [0, 1])
    with pytest.raises(faclient.InvalidArgument, match="expected some that a step in flight"):
        with cache.step({sequence: 1}) as step:
            step.write_pages(sequence, 0, 20, k, v, [0, 1])


def test_copies_wait_for_each_other(tmp_path):
    """A client may have fewer requests in flight than a cache has layers."""
    config = tmp_path / "fad.conf"
    config.write_text("[limits]\nsession_requests = 4\n")
    with faclient.connect(private=True, config=str(config)) as client:
        assert client.info()["max_requests"] == 4
        cache = client.cache(layers=30, kv_heads=1, head_dim=8, dtype="bf16")
        sequence = cache.sequence()
        k, _ = _filled(client, cache, sequence, 3)
        out = np.empty_like(k)
        sequence.read(0, out)
        assert (out == k).all()


def test_copy_bad_input(client):
    cache = client.cache(layers=2, kv_heads=2, head_dim=16, dtype="bf16")
    sequence = cache.sequence()
    _filled(client, cache, sequence, 20)
    k = np.empty((2, 20, 2, 16), np.uint16)
    with pytest.raises(ValueError, match="nothing to copy"):
        sequence.read(0, None)
    with pytest.raises(ValueError, match="3 dimensions; expected 4"):
        sequence.read(0, k[0])
    with pytest.raises(ValueError, match="1 layers of 20 tokens"):
        sequence.read(0, k, k[:1])
    with pytest.raises(faclient.InvalidArgument):
        sequence.read(1, k)          # beyond the end
    with pytest.raises(faclient.InvalidArgument):
        sequence.read(0, k, layer=1)  # there are two layers
    with pytest.raises(faclient.NotSupported, match="dtype"):
        sequence.read(0, k.astype(np.float32))
    with pytest.raises(faclient.InvalidArgument):
        sequence.read(0, np.empty((2, 20, 2, 8), np.uint16))
    with pytest.raises(faclient.Error):
        with cache.step({sequence: 5}) as step:
            step.write(sequence, 18, k[:, :5], k[:, :5])  # committed tokens do not change
    assert sequence.length == 20
    with pytest.raises(ValueError, match="read-only"):
        frozen = k.copy()
        frozen.flags.writeable = False
        sequence.read(0, frozen)


def test_states(client):
    """States of linear layers, in numpy and torch, through a fork and a prefix."""
    cache = client.cache(layers=1, kv_heads=1, head_dim=16, dtype="float32", states=(1000, 24),
                         checkpoint_tokens=32)
    info = cache.info()
    assert (info["states"], info["checkpoint_bytes"], info["checkpoint_tokens"]) == (2, 1024, 32)
    first, small = np.arange(250, dtype=np.float32), np.arange(3, dtype=np.int64)
    sequence = cache.sequence()
    with cache.step({sequence: 32}, checkpoints=[sequence]) as step:
        step.write_state(sequence, 0, first)
        step.write_state(sequence, 1, small)
    with pytest.raises(faclient.InvalidArgument, match="state 1 of the checkpoint"):
        with cache.step({sequence: 5}, checkpoints=[sequence]) as step:
            step.write_state(sequence, 0, first)
    with cache.step({sequence: 8}):
        pass
    assert sequence.info()["checkpoint"] == 32 and sequence.length == 40
    out = client.empty(250)
    fork = sequence.fork()
    assert fork.length == 32
    fork.read_state(0, out)
    assert (out == first).all()
    out = np.zeros(3, np.int64)
    sequence.read_state(1, out, tokens=32)
    assert (out == small).all()
    tokens = np.arange(40)
    sequence.publish(tokens)
    other = cache.attach(tokens)
    assert other.length == 32
    torch = pytest.importorskip("torch")
    got = torch.zeros(250)
    other.read_state(0, got)
    assert (got.numpy() == first).all()
    assert other.truncate(31) == 0
    with pytest.raises(faclient.NotFound):
        other.read_state(0, got)
    with pytest.raises(ValueError, match="gaps"):
        sequence.read_state(0, torch.zeros(500)[::2])
    with pytest.raises(faclient.InvalidArgument, match="1000 bytes"):
        sequence.read_state(0, out)
