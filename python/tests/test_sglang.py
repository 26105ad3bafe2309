"""FadStorage behind SGLang's own interface and factory. SGLang itself needs a GPU; its host memory is
stood for by tensors with the three methods that its cache controller uses for a storage."""
import os
import signal
import threading

import pytest

import faclient
from conftest import eventually

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.srt.mem_cache.hicache_storage")
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig  # noqa: E402
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

PAGE, LAYERS, HEADS, DIM = 16, 3, 2, 64


class Pool:
    """[2, layers, tokens, heads, dim], as SGLang's layer_first layout."""

    layout, page_size, dtype = "layer_first", PAGE, torch.bfloat16

    def __init__(self, pages, seed=0):
        random = torch.Generator().manual_seed(seed)
        shape = (2, LAYERS, pages * PAGE, HEADS, DIM)
        self.kv = torch.randint(0, 2**16, shape, generator=random).to(torch.uint16).view(self.dtype)

    def get_data_page(self, index, flat=True):
        return self.kv[:, :, index:index + PAGE].flatten()

    def get_dummy_flat_data_page(self):
        return torch.zeros((2, LAYERS, PAGE, HEADS, DIM), dtype=self.dtype).flatten()

    def set_from_flat_data_page(self, index, page):
        self.kv[:, :, index:index + PAGE] = page.reshape(2, LAYERS, PAGE, HEADS, DIM)


def storage(socket, pool, mla=False, rank=0, size=1, **extra):
    options = {"backend_name": "fad", "module_path": "faclient.sglang",
               "class_name": "FadStorage", "identity": "model", "socket": socket, "retry": 0.05,
               **extra}
    config = HiCacheStorageConfig(
        tp_rank=rank, tp_size=size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=mla, enable_storage_metrics=False, is_page_first_layout=False,
        model_name="m", extra_config={k: v for k, v in options.items() if v is not None})
    found = StorageBackendFactory.create_backend("dynamic", config, pool)
    found.register_mem_pool_host(pool)
    return found


def save(store, pool, keys):
    return store.batch_set(keys, [pool.get_data_page(i * PAGE) for i in range(len(keys))])


def load(store, pool, keys):
    """As SGLang's cache controller does. Returns the pages that were there."""
    pages = store.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
    for i, page in enumerate(pages):
        if page is None:
            return i
        pool.set_from_flat_data_page(i * PAGE, page)
    return len(keys)


def same(a, b):
    return torch.equal(a.kv.view(torch.uint16).int(), b.kv.view(torch.uint16).int())


KEYS = [f"{i:064x}" for i in range(5)]


def test_other_server_finds_pages(client):
    source, target = Pool(5, 1), Pool(5, 2)
    first, second = storage(client.socket, source), storage(client.socket, target)
    assert second.batch_exists(KEYS) == 0 and load(second, target, KEYS) == 0
    assert save(first, source, KEYS[:3]) and save(first, source, KEYS[:3])
    assert second.batch_exists(KEYS) == 3 and second.exists(KEYS[2]) and not second.exists(KEYS[3])
    assert save(first, source, KEYS)
    assert load(second, target, KEYS) == 5 and same(source, target)
    first.clear()
    assert second.batch_exists(KEYS) == 0
    assert save(first, source, KEYS) and load(second, Pool(5, 3), KEYS) == 5
    first.clear()


def test_key(client):
    pool = Pool(5)
    save(storage(client.socket, pool, rank=0, size=2), pool, KEYS)
    assert storage(client.socket, pool, rank=0, size=2).batch_exists(KEYS) == 5
    assert storage(client.socket, pool, rank=1, size=2).batch_exists(KEYS) == 0
    assert storage(client.socket, pool).batch_exists(KEYS) == 0
    assert storage(client.socket, pool, rank=0, size=2, identity="other").batch_exists(KEYS) == 0
    latent = storage(client.socket, pool, mla=True, rank=0, size=2)
    save(latent, pool, KEYS)
    assert storage(client.socket, pool, mla=True, rank=1, size=2).batch_exists(KEYS) == 5
    latent.clear()


def test_daemon_killed(supervised):
    source, target = Pool(5, 1), Pool(5, 2)
    store = storage(supervised.socket, source)
    assert save(store, source, KEYS)
    with faclient.connect(supervised.socket) as client:
        os.kill(client.info()["pid"], signal.SIGKILL)
    # Until its successor answers, SGLang computes what it does not get.
    eventually(lambda: load(store, target, KEYS) == 5)
    assert same(source, target)


def test_no_daemon(tmp_path):
    pool = Pool(5)
    store = storage(str(tmp_path / "nothing"), pool)
    assert store.batch_exists(KEYS) == 0 and load(store, pool, KEYS) == 0
    assert not save(store, pool, KEYS)


def test_threads(client):
    """SGLang saves and loads in threads of their own."""
    pools = [Pool(5, i) for i in range(4)]
    store = storage(client.socket, pools[0])
    failed = []

    def work(n):
        keys = [f"{n}-{key}" for key in KEYS]
        for _ in range(5):
            other = Pool(5, 99)
            if not save(store, pools[n], keys) or load(store, other, keys) != 5 or \
                    not same(other, pools[n]):
                failed.append(n)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    store.clear()


@pytest.mark.parametrize("extra, kind, sentence", [
    ({"identity": None}, ValueError, 'lacks "identity"'),
    ({"sokcet": 1}, ValueError, "has sokcet"),
    ({"interface_v1": 1}, NotImplementedError, "interface_v1"),
])
def test_refused(client, extra, kind, sentence):
    with pytest.raises(kind, match=sentence):
        storage(client.socket, Pool(1), **extra)


def test_bad_page(client):
    pool = Pool(2)
    store = storage(client.socket, pool)
    with pytest.raises(ValueError, match="no flat page"):
        store.set(KEYS[0], pool.get_data_page(0)[1:])
    with pytest.raises(ValueError, match="no flat page"):
        store.get(KEYS[0], None)
