"""What connectors of engines are made of: blocks of an engine's tensors as pages of the pool."""
import os
import signal
import time

import numpy as np
import pytest

import faclient
from conftest import eventually

torch = pytest.importorskip("torch")
from faclient import _blocks  # noqa: E402
from faclient._blocks import Geometry, Link, Store  # noqa: E402

BLOCK = 16


def link(client, told=None):
    return Link((told if told is not None else []).append, 0.05, socket=client.socket)


def engine(layers, shape, dtype, blocks=12, permuted=False, seed=0):
    """Tensors of random bits: [blocks, heads, tokens, dim], or the same over tokens first."""
    random = torch.Generator().manual_seed(seed)
    heads, tokens, dim = shape
    size = torch.empty(0, dtype=dtype).element_size()
    found = []
    for _ in range(layers):
        bits = torch.randint(0, 256, (blocks, tokens, heads, dim * size), dtype=torch.uint8,
                             generator=random)
        tensor = bits.view(dtype)
        found.append(tensor.transpose(1, 2) if permuted else
                     tensor.reshape(blocks, heads, tokens, dim))
    return found


def bits(tensor, index):
    return tensor[index].contiguous().view(torch.uint8)


CASES = {
    "fp32": ((2, BLOCK, 64), torch.float32, False, 1),
    "bf16, tokens first": ((2, BLOCK, 128), torch.bfloat16, True, 1),
    "fp8": ((3, BLOCK, 64), torch.uint8, False, 1),
    "latent": ((1, BLOCK, 576), torch.bfloat16, False, 1),
    "blocks of four": ((2, 8, 64), torch.float16, True, 4),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("staging", [64 << 20, 1])
def test_round_trip(client, name, staging, monkeypatch):
    """Another engine gets all bits of all layers, into blocks of its own choice, and no others."""
    monkeypatch.setattr(_blocks, "_STAGING", staging)
    shape, dtype, permuted, each = CASES[name]
    tokens = shape[1] * each
    source, target = (engine(3, shape, dtype, 12 * each, permuted, seed) for seed in (1, 2))
    before = [x.clone() for x in target]
    block_bytes = each * source[0][0].numel() * source[0].element_size()
    geometry = Geometry(f"blocks {name} {staging}", 3, tokens, block_bytes)
    words = np.random.default_rng(3).integers(0, 9999, 5 * tokens).astype(np.uint32)
    first, second = (Store(link(client), geometry, x, each) for x in (source, target))
    assert first.save(words, b"model", [7, 2, 9, 4, 11]) == 5
    assert first.save(words, b"model", [7, 2, 9, 4, 11]) == 0
    assert second.cache().find(words, extra=b"other") == 0
    sequence = second.cache().attach(words[:4 * tokens], extra=b"model")
    assert sequence.length == 4 * tokens
    second.load(sequence, 1, [3, 8, 0])
    pairs = {3: 2, 8: 9, 0: 4}
    for a, b, old in zip(source, target, before):
        for block in range(12):
            for i in range(each):
                wanted = bits(a, pairs[block] * each + i) if block in pairs else \
                    bits(old, block * each + i)
                assert (bits(b, block * each + i) == wanted).all(), block
    first.cache().remove()


def test_only_new_blocks_are_copied(client):
    tensors = engine(2, (2, BLOCK, 64), torch.float32)
    store = Store(link(client), Geometry("blocks new", 2, BLOCK, 2 * BLOCK * 64 * 4), tensors)
    words = np.arange(6 * BLOCK, dtype=np.uint32)
    assert store.save(words[:2 * BLOCK], b"", [0, 1]) == 2
    assert store.save(words, b"", [0, 1, 2, 3, 4, 5]) == 4
    sequence = store.cache().attach(words)
    assert sequence.length == 6 * BLOCK
    other = [torch.zeros_like(x) for x in tensors]
    Store(link(client), store.geometry, other).load(sequence, 0, [0, 1, 2, 3, 4, 5])
    for a, b in zip(tensors, other):
        assert (bits(a, slice(0, 6)) == bits(b, slice(0, 6))).all()
    store.cache().remove()


@pytest.mark.parametrize("arguments, sentence", [
    ((1, 96, 96 * 64), "96 tokens; expected a power of two"),
    ((1, 8, 8 * 64), "8 tokens"),
    ((1, 16, 16 * 24), "24 bytes in a layer; expected a multiple of 32"),
    ((1, 16, 100), "6.25 bytes"),
])
def test_geometry(arguments, sentence):
    with pytest.raises(NotImplementedError, match=sentence):
        Geometry("x", *arguments)


def test_failed_copy_publishes_nothing(client):
    """A step that a failure ends leaves no page, and the store goes on."""
    tensors = engine(2, (2, BLOCK, 64), torch.float32)
    store = Store(link(client), Geometry("blocks bad", 2, BLOCK, 2 * BLOCK * 64 * 4), tensors)
    words = np.arange(3 * BLOCK, dtype=np.uint32)
    with pytest.raises(IndexError):
        store.save(words, b"", [0, 1, 99])
    assert store.cache().find(words) == 0
    assert store.save(words, b"", [0, 1, 2]) == 3
    store.cache().remove()


def test_lost_daemon(supervised):
    """Nobody waits for a daemon that has just not answered; afterwards it is used again."""
    told = []
    connection = Link(told.append, 0.2, socket=supervised.socket, timeout=20,
                      reconnect_timeout=20)
    pid = connection.client().info()["pid"]
    connection.failed(faclient.DaemonLost(104, "gone"), "copying")
    connection.failed(faclient.DaemonLost(104, "gone"), "copying")
    assert told == ["copying: gone"]
    with pytest.raises(faclient.Unreachable, match="a moment ago"):
        connection.client()
    os.kill(pid, signal.SIGKILL)

    def answers():
        try:
            return connection.client().info()["pid"] != pid
        except faclient.Unreachable as error:  # as an engine does that asks all the time
            connection.failed(error, "asking")
            return False
    assert not answers()
    eventually(answers)
    assert told == ["copying: gone", "the daemon answers again"]
    connection.close()


def test_no_daemon(tmp_path):
    told = []
    connection = Link(told.append, 0.05, socket=str(tmp_path / "nothing"), timeout=0.1)
    for _ in range(2):
        with pytest.raises(faclient.Unreachable, match="nothing") as caught:
            connection.client()
        connection.failed(caught.value, "connecting")
        time.sleep(0.05)
    assert len(told) == 1
