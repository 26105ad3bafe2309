#!/usr/bin/env python3
"""A client of a fad that is upgraded: appends tokens to a sequence, one step after another, and
compares attention over all of them with NumPy's, until SIGTERM.

    load.py

Prints the steps done so far, one line for each 100 ms, and at the end a sentence. Exits with 1 and a
sentence if a committed token is lost or a result is wrong."""
import signal
import sys
import time

import numpy as np

import faclient

HEADS, KV_HEADS, DIM, LAYERS = 4, 2, 16, 2
TOKENS_MAX = 3000
ends = False


def end(*_):
    global ends
    ends = True


def rows(random, n, heads):
    return random.standard_normal((n, heads, DIM)).astype(np.float32)


def attention(q, keys, values):
    """Of new tokens that are the last of keys and values, in double precision."""
    n, total = len(q), len(keys)
    k, v = (np.repeat(x.astype(np.float64), HEADS // KV_HEADS, axis=1) for x in (keys, values))
    scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), k) / np.sqrt(DIM)
    hidden = np.arange(total)[None, :] > np.arange(n)[:, None] + total - n
    scores[:, hidden] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("hij,jhd->ihd", weights, v)


class Load:
    def __init__(self, client):
        self.random = np.random.default_rng(0)
        self.cache = client.cache(layers=LAYERS, kv_heads=KV_HEADS, head_dim=DIM, dtype="float32")
        self.steps = self.losses = self.tokens = 0
        self.start()

    def start(self):
        self.sequence = self.cache.sequence()
        self.keys = self.values = np.empty((LAYERS, 0, KV_HEADS, DIM), np.float32)

    def step(self):
        """One step, whatever becomes of it; afterwards the sequence is as this object has it."""
        n = int(self.random.integers(1, 8))
        q = [rows(self.random, n, HEADS) for _ in range(LAYERS)]
        k, v = (np.stack([rows(self.random, n, KV_HEADS) for _ in range(LAYERS)]) for _ in range(2))
        keys = np.concatenate([self.keys, k], axis=1)
        values = np.concatenate([self.values, v], axis=1)
        try:
            with self.cache.step({self.sequence: n}) as step:
                for layer in range(LAYERS):
                    out = step.attend(layer, q[layer], k[layer], v[layer])
                    expected = attention(q[layer], keys[layer], values[layer])
                    if np.abs(out - expected).max() > 1e-4:
                        sys.exit(f"wrong attention over {keys.shape[1]} tokens")
        except (faclient.DaemonLost, faclient.Unreachable, faclient.Cancelled):
            self.losses += 1
        self.tokens_known(keys, values)
        self.steps += 1
        if self.keys.shape[1] > TOKENS_MAX:
            self.start()

    def tokens_known(self, keys, values):
        """A commit whose answer is lost may have happened."""
        for _ in range(100):
            try:
                length = self.sequence.length
                break
            except (faclient.DaemonLost, faclient.Unreachable):
                time.sleep(0.1)
        else:
            sys.exit("no daemon for 10 s")
        if length == keys.shape[1]:
            self.keys, self.values = keys, values
        elif length != self.keys.shape[1]:
            sys.exit(f"the sequence has {length} tokens; expected {self.keys.shape[1]} or "
                     f"{keys.shape[1]}")


def main():
    signal.signal(signal.SIGTERM, end)
    with faclient.connect(name="load", reconnect_timeout=20) as client:
        load = Load(client)
        last = said = time.monotonic()
        longest = 0.0
        while not ends:
            load.step()
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            if now - said > 0.1:
                print(load.steps, flush=True)
                said = now
        info = client.info()
        if info["reconnects"] != info["resumed"]:
            sys.exit(f"{info['reconnects']} reconnects, only {info['resumed']} with all sequences")
        print(f"{load.steps} steps, {load.losses} of them during {info['reconnects']} restarts, at "
              f"most {longest * 1000:.0f} ms for one; every committed token was there", flush=True)


if __name__ == "__main__":
    main()
