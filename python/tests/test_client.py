"""Connections, memory and attention."""
import copy
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

import faclient
from conftest import run_python


def reference(q, k, v, causal=False, scale=None):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, 2), np.repeat(v, group, 2)
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * (scale or q.shape[3] ** -0.5)
    if causal:
        n_q, n_k = s.shape[2:]
        s = np.where(np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)


def tensors(dtype=np.float32, batch=2, n_q=7, n_k=19, heads=4, kv_heads=2, dim=32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((batch, n, h, dim)).astype(dtype)
            for n, h in ((n_q, heads), (n_k, kv_heads), (n_k, kv_heads))]


@pytest.mark.parametrize("dtype,limit", [(np.float32, 1e-5), (np.float16, 4e-3)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(client, dtype, limit, causal):
    q, k, v = tensors(dtype)
    out = client.attention(q, k, v, causal=causal)
    assert out.dtype == dtype
    assert np.abs(out - reference(q, k, v, causal)).max() < limit


def test_in_place_and_views(client):
    q, k, v = tensors()
    expected = client.attention(q, k, v)
    shared = client.empty((3, *q.shape))
    shared[0, ..., :] = q
    out = client.attention(shared[0], k, v, out=shared[1])
    assert out.base is not None and np.array_equal(shared[1], expected)
    # Views with strides of their own, in a buffer and elsewhere.
    packed = client.empty((2, 19, 4, 32))
    packed[:, :, :2], packed[:, :, 2:] = k, v
    assert np.array_equal(client.attention(q, packed[:, :, :2], packed[:, :, 2:]), expected)
    backwards = np.ascontiguousarray(k[:, ::-1])[:, ::-1]
    assert backwards.strides[1] < 0
    assert np.array_equal(client.attention(q, backwards, v), expected)


class Foreign:
    """An array of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack(client):
    q, k, v = tensors()
    expected = client.attention(q, k, v)
    assert np.array_equal(client.attention(Foreign(q), Foreign(k), Foreign(v)), expected)
    shared = client.empty(q.shape)
    view = np.from_dlpack(shared)
    (view if view.flags.writeable else shared)[:] = q  # numpy before 2.1 makes it read-only
    assert np.array_equal(view, q)
    assert np.array_equal(client.attention(Foreign(shared), k, v), expected)
    frozen = np.empty_like(q)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        client.attention(q, k, v, out=frozen)


def test_lse_and_window(client):
    q, k, v = tensors(n_q=19)
    lse = np.zeros((2, 4, 19), np.float32)
    client.attention(q, k, v, causal=True, window=(0, 0), lse=lse)
    own = np.einsum("bqhd,bqhd->bhq", q, np.repeat(k, 2, 2)) / np.sqrt(32)
    assert np.abs(lse - own).max() < 1e-4


def test_empty_tensors(client):
    q, k, v = tensors(batch=0)
    assert client.attention(q, k, v).shape == q.shape
    assert client.empty((0, 3)).shape == (0, 3)


@pytest.mark.parametrize("change,error", [
    (lambda q, k, v: (q, k[:1], v), faclient.InvalidArgument),
    (lambda q, k, v: (q[..., :12], k[..., :12], v), faclient.Error),
    (lambda q, k, v: (q[0], k, v), ValueError),
    (lambda q, k, v: (q.astype(np.int32), k, v), TypeError),
    (lambda q, k, v: (q, k.astype(np.float16), v), faclient.NotSupported),
    (lambda q, k, v: (q.tolist(), k, v), TypeError),
])
def test_bad_arguments(client, change, error):
    with pytest.raises(error) as caught:
        client.attention(*change(*tensors()))
    assert len(str(caught.value)) > 10
    client.ping()


def test_closed():
    connected = faclient.connect(private=True)
    array = connected.empty((4, 4))
    array[:] = 3
    connected.close()
    connected.close()
    assert connected.closed and array.sum() == 48
    with pytest.raises(faclient.InvalidArgument, match="freed"):
        connected.ping()
    with pytest.raises(faclient.Error):
        connected.empty((2, 2))


def test_garbage_is_freed(client):
    def buffers():
        return [s for s in client.status()["sessions"]
                if s["session"] == client.info()["session"]][0]["buffers"]
    gc.collect()
    before = buffers()
    arrays = [client.empty((100, 100)) for _ in range(50)]
    assert buffers() == before + 50
    view = arrays[7][3:5]
    del arrays
    gc.collect()
    assert buffers() == before + 1
    assert view.sum() == 0
    del view
    gc.collect()
    assert buffers() == before


def test_no_daemon(tmp_path):
    with pytest.raises(faclient.NotFound) as caught:
        faclient.connect(str(tmp_path / "none.sock"))
    assert "none.sock" in str(caught.value)
    with pytest.raises(faclient.Error):
        faclient.connect(private=True, daemon=str(tmp_path / "no-fad"))


def test_info_and_status(client):
    info = client.info()
    assert info["backend"] in ("cpu", "cuda") and info["origin"] == 4 and info["pid"] > 0
    assert client.status()["pid"] == info["pid"]
    assert os.path.exists(client.socket)


def test_threads(client):
    q, k, v = tensors()
    expected = client.attention(q, k, v)
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(client.attention(q, k, v), expected):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def in_child(client, connection):
    try:
        client.ping()
        connection.send("pinged")
    except faclient.Forked as error:
        connection.send(str(error))
    with faclient.connect(private=True) as own:
        q, k, v = tensors()
        connection.send(own.attention(q, k, v).sum())


def test_fork(client):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=in_child, args=(client, there))
    child.start()
    assert here.poll(60) and "fork" in here.recv()
    assert here.poll(60)
    q, k, v = tensors()
    assert np.isclose(here.recv(), client.attention(q, k, v).sum())
    child.join(60)
    assert child.exitcode == 0
    client.ping()


def spawned(socket, connection):
    with faclient.connect(socket) as own:
        connection.send(own.attention(*tensors()).sum())


def test_spawn(client):
    """A program started anew opens its own connection, and gets none by pickling."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with pytest.raises(TypeError, match="belongs to this process's connection"):
        context.Process(target=in_child, args=(client, there)).start()
    child = context.Process(target=spawned, args=(client.socket, there))
    child.start()
    assert here.poll(60)
    assert np.isclose(here.recv(), client.attention(*tensors()).sum())
    child.join(60)
    assert child.exitcode == 0


def test_copies(client):
    """A copy would use what the original frees."""
    cache = client.cache(layers=1, kv_heads=1, head_dim=16, dtype="float32")
    sequence = cache.sequence()
    with cache.step({sequence: 1}) as step:
        for x in (client, cache, sequence, step):
            for act in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="neither copied nor pickled"):
                    act(x)
        step.attend(0, None, np.zeros((1, 1, 16), np.float32), np.zeros((1, 1, 16), np.float32))


@pytest.fixture
def interruptible():
    """SIGINT raises KeyboardInterrupt, also where a shell that runs this in the background has made
    it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupt(client, interruptible):
    """KeyboardInterrupt leaves a long request at once, and its memory can be used again."""
    q, k, v = tensors(batch=1, n_q=4096, n_k=32768, heads=8, kv_heads=8, dim=64)
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    begin = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while time.monotonic() - begin < 60:
            client.attention(q, k, v)
    assert time.monotonic() - begin < 20
    q, k, v = tensors()
    assert np.abs(client.attention(q, k, v) - reference(q, k, v)).max() < 1e-5


def test_exit_in_flight():
    """A program ends with threads in calls and objects alive."""
    done = run_python("""
import faclient, numpy as np, threading
client = faclient.connect(private=True)
array = client.empty((1, 2048, 8, 64))
cache = client.cache(layers=1, kv_heads=1, head_dim=16, dtype="float32")
sequence = cache.sequence()
step = cache.step({sequence: 3})
threading.Thread(target=lambda: client.attention(array, array, array), daemon=True).start()
print("end")
""")
    assert done.stdout == "end\n" and "Traceback" not in done.stderr


def test_doctor(tmp_path):
    code = "import sys, faclient._doctor; sys.exit(faclient._doctor.main())"
    done = run_python(code)
    assert "\n0 faults, " in done.stdout and "computes on" in done.stdout
    os.environ["FAD_DAEMON"] = str(tmp_path / "none")
    try:
        done = run_python(code, check=False)
    finally:
        del os.environ["FAD_DAEMON"]
    assert done.returncode == 1 and "\nfault     " in done.stdout and "FAD_DAEMON" in done.stdout


def test_main():
    done = run_python("import runpy, sys; sys.argv[1:] = ['status', '--help'];"
                      "runpy.run_module('faclient', run_name='__main__')")
    assert "status" in done.stdout
