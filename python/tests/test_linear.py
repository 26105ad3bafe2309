"""Hybrid models of Transformers: states of linear layers beside keys and values in the daemon. Tokens
are those of eager attention, also where another process goes on."""
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import faclient  # noqa: E402
import faclient.transformers as fad  # noqa: E402
import families  # noqa: E402
from conftest import FULL  # noqa: E402
from test_transformers import agree, cpu_only, generate, prompt, use  # noqa: E402, F401

EACH = 32
QUICK = ("qwen3_next",)


def hybrid(family):
    try:
        return families.model(family)
    except AttributeError:
        pytest.skip(f"this release of Transformers has no {family}")


@pytest.mark.parametrize("family", families.HYBRIDS if FULL else QUICK)
def test_families(client, family):
    model = hybrid(family)
    ids, mask = prompt()
    expected = generate(model, ids, mask)
    model.set_attn_implementation("fad")
    cache = fad.FadCache(model, client, checkpoint_tokens=EACH)
    got = generate(model, ids, mask, cache)
    assert agree(expected, got, 2) <= 1
    info = [row.sequences[0].info() for row in cache._rows]
    # The row without padding passes multiples of EACH; the other one has its own.
    last = [(x["length"]) // EACH * EACH for x in info]
    assert [x["checkpoint"] for x in info] == last
    cache.checkpoint()
    assert all(x.sequences[0].info()["checkpoint"] == x.length for x in cache._rows)
    # Without a checkpoint of theirs, rows do not have the states of others.
    cache.reset()
    got = generate(model, ids.flip(0), mask.flip(0), cache)
    assert agree(generate(hybrid(family), ids.flip(0), mask.flip(0)), got, 2) <= 1


def test_prefix(client):
    model = hybrid("qwen3_next")
    ids, mask = prompt(rows=2, n=100, padding=0)
    expected = generate(model, ids, n=40)
    model.set_attn_implementation("fad")
    first = fad.FadCache(model, client, name="linear", checkpoint_tokens=EACH)
    got = generate(model, ids, None, first, n=40, prefill_chunk_size=EACH)
    assert agree(expected, got, 2) <= 1
    assert first._rows[0].sequences[0].info()["checkpoints"] == 4  # 32, 64, 96, 128
    for row in range(2):
        assert first.publish(got.sequences[row], row) > 0
    second = fad.FadCache(model, client, name="linear", checkpoint_tokens=EACH)
    assert second.attach(ids) == 96
    assert agree(expected, generate(model, ids, None, second, n=40), 2) <= 1
    # All rows end at the same column, at a checkpoint of each.
    assert second.attach(ids[:, :96]) == 64
    other = ids.clone()
    other[1, 40:] = 3
    assert second.attach(other) == 32
    assert [x.length for x in second._rows] == [32, 32]
    expected = generate(hybrid("qwen3_next"), other, n=40)
    assert agree(expected, generate(model, other, None, second, n=40), 2) <= 1
    assert second.attach(ids[:, :32]) == 0
    assert second.attach(torch.full_like(ids, 9)) == 0


def test_beams(client):
    model = hybrid("qwen3_next")
    ids, _ = prompt(rows=1)
    options = {"num_beams": 3, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    model.set_attn_implementation("fad")
    got = model.generate(ids, past_key_values=fad.FadCache(model, client), **options)
    assert torch.equal(expected, got)


def test_refused(client):
    model = hybrid("qwen3_next")
    model.set_attn_implementation("fad")
    cache = fad.FadCache(model, client)
    ids, _ = prompt(rows=1)
    generate(model, ids, None, cache, n=4)
    with pytest.raises(NotImplementedError, match="go back"):
        cache.crop(-1)
    with pytest.raises(NotImplementedError, match="no layer with attention"):
        fad.FadCache(hybrid("mamba"), client)
    with pytest.raises(ValueError, match="checkpoint_tokens"):
        fad.FadCache(model, client, checkpoint_tokens=24).attach(ids)
    model.set_attn_implementation("eager")
    with pytest.raises(RuntimeError, match="did not use fad's attention"):
        generate(model, ids, None, fad.FadCache(model, client), n=4)


@cpu_only
def test_daemon_dies(supervised):
    """kill -9 of the daemon between and in passes changes no token."""
    model = hybrid("qwen3_next")
    ids, mask = prompt()
    expected = generate(model, ids, mask, n=200)
    model.set_attn_implementation("fad")
    with faclient.connect(supervised.socket, reconnect_timeout=30) as client:
        cache = fad.FadCache(model, client, checkpoint_tokens=16)
        done = threading.Event()

        def kill():
            while not done.wait(0.5):
                supervised.kill()
        thread = threading.Thread(target=kill)
        thread.start()
        try:
            got = generate(model, ids, mask, cache, n=200)
        finally:
            done.set()
            thread.join()
        assert agree(expected, got, 2) <= 1
        assert client.info()["reconnects"] >= 1


PROCESS = """
import sys
import torch
import faclient, faclient.transformers as fad
sys.path.insert(0, sys.argv[2])
import families
from test_transformers import generate, prompt
model = families.model("qwen3_next")
model.set_attn_implementation("fad")
client = faclient.connect(sys.argv[1])
ids, _ = prompt(rows=1, n=100, padding=0)
cache = fad.FadCache(model, client, name="linear-processes", checkpoint_tokens=32)
found = cache.attach(ids)
print(found, flush=True)
# Older releases of Transformers compute a prompt in pieces from its first token on, whatever the cache has.
got = generate(model, ids, None, cache, n=40, prefill_chunk_size=None if found else 32)
print(got.sequences.tolist(), flush=True)
cache.publish(got.sequences[0])
print("published", flush=True)
sys.stdin.read()
"""


def test_processes(supervised):
    """A process is killed, and then the daemon: another process goes on from the checkpoint."""
    here = os.path.dirname(__file__)

    def run():
        return subprocess.Popen([sys.executable, "-W", "ignore", "-c", PROCESS, supervised.socket,
                                 here], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    model = hybrid("qwen3_next")
    ids, _ = prompt(rows=1, n=100, padding=0)
    expected = f"{generate(model, ids, n=40).sequences.tolist()}\n"
    for found in ("0\n", "96\n"):
        process = run()
        try:
            lines = [process.stdout.readline() for _ in range(3)]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdin.close()
            process.stdout.close()
        assert lines == [found, expected, "published\n"]
        supervised.kill()
        time.sleep(0.1)
