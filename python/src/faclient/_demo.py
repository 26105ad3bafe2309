"""python -m faclient demo: two programs, one prompt, one KV cache, and kill -9.

A small model with random weights is made on the spot; its "text" is syllables. Needs PyTorch and
Transformers, no GPU.
"""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

from .client import _bundled_daemon, connect

PROMPT_TOKENS = 600
NEW_TOKENS = 60
KILLS = 3
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "or")]


def _model(attention: str):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(vocab_size=len(_SYLLABLES), hidden_size=128, intermediate_size=256,
                         num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=2048, bos_token_id=0, eos_token_id=None,
                         pad_token_id=0)
    config._attn_implementation = attention
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(4)
    return model


def _prompt():
    import torch
    return torch.randint(len(_SYLLABLES), (1, PROMPT_TOKENS),
                         generator=torch.Generator().manual_seed(1))


def _generate(model, cache=None):
    ids = _prompt()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the name of an argument will change
        return model.generate(ids, attention_mask=ids.new_ones(ids.shape), past_key_values=cache,
                              max_new_tokens=NEW_TOKENS, do_sample=False, no_repeat_ngram_size=4,
                              pad_token_id=0)[0, PROMPT_TOKENS:].tolist()


def _text(tokens) -> str:
    return " ".join(_SYLLABLES[token] for token in tokens)


def worker(socket: str, name: str) -> int:
    """One of the programs. Waits for a line before it generates and after it has published."""
    import torch

    from . import transformers as fad

    fad.register()
    model = _model("fad")
    with connect(socket, name=name, reconnect_timeout=30) as client:
        cache = fad.FadCache(model, client, name="demo")
        print(cache.attach(_prompt()), flush=True)
        sys.stdin.readline()
        begin = time.monotonic()
        first = []
        model.register_forward_hook(lambda *_: first.append(time.monotonic() - begin))
        # Slow enough to be killed in between.
        model.register_forward_pre_hook(lambda *_: time.sleep(0.03))
        tokens = _generate(model, cache)
        cache.publish(torch.cat([_prompt()[0], torch.tensor(tokens)]))
        print(f"{first[0] * 1e3:.0f}", *tokens, flush=True)
        sys.stdin.readline()
    return 0


class _Daemon:
    def __init__(self, directory: str):
        self.socket = os.path.join(directory, "fad.sock")
        program = os.environ.get("FAD_DAEMON") or _bundled_daemon() or "fad"
        ready, wanted = os.pipe()
        self.process = subprocess.Popen(
            [program, "--supervise", "--socket", self.socket, "--config", os.devnull,
             "--ready-fd", str(wanted), "--log", "stderr", "--log-level", "error"],
            pass_fds=[wanted], stderr=subprocess.DEVNULL)
        os.close(wanted)
        if not os.read(ready, 6):
            raise RuntimeError(f"{program} did not start")
        os.close(ready)

    def kill(self) -> int:
        with connect(self.socket, timeout=20) as client:
            pid = client.info()["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


class _Table(threading.Thread):
    """Prints who holds which pages, whenever that changes."""

    def __init__(self, socket: str):
        super().__init__(daemon=True)
        self.socket, self.ends, self.last = socket, threading.Event(), None
        self.lock = threading.Lock()

    def say(self, text: str) -> None:
        with self.lock:
            print(text, flush=True)

    def look(self) -> None:
        with connect(self.socket, name="table", timeout=20) as client:
            status = client.status()
        names = {s["session"]: s["name"] for s in status["sessions"]}
        for cache in status["caches"]:
            held = [f"{names.get(s['session'], '-')} has {s['length']} tokens"
                    for s in status["sequences"] if s["cache"] == cache["cache"]]
            state = (cache["used_pages"], cache["idle_pages"])
            if state != self.last:
                self.last = state
                self.say(f"    | {cache['used_pages']:3} pages in use, {cache['idle_pages']:3} "
                         f"published only | {'; '.join(held) or 'no program'}")

    def run(self) -> None:
        while not self.ends.wait(0.15):
            with contextlib.suppress(OSError):
                self.look()


def main() -> int:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"faclient: the demo needs PyTorch and Transformers: {error.name} is missing",
              file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="faclient-demo-") as directory, \
            contextlib.ExitStack() as stack:
        daemon = _Daemon(directory)
        stack.callback(daemon.stop)
        print(f"fad runs, and listens on {daemon.socket}. Two programs with one model: "
              f"{PROMPT_TOKENS} tokens of prompt, {NEW_TOKENS} new ones.")
        table = _Table(daemon.socket)
        table.start()
        stack.callback(table.ends.set)

        def start(name):
            process = subprocess.Popen([sys.executable, "-m", "faclient", "demo", "--worker",
                                        daemon.socket, name], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
            stack.callback(process.kill)
            return process, int(process.stdout.readline())

        def go(process):
            process.stdin.write("\n")
            process.stdin.flush()

        def read(process):
            first, *tokens = process.stdout.readline().split()
            return int(first), [int(token) for token in tokens]
        alice, found = start("alice")
        table.say(f"\nalice: {found} of {PROMPT_TOKENS} tokens are there; she computes the prompt.")
        go(alice)
        ms, tokens = read(alice)
        table.say(f"alice: first token after {ms} ms: {_text(tokens[:12])} ...")
        table.say("alice is killed with -9; what she published stays.")
        alice.kill()
        alice.wait()

        bob, found = start("bob")
        table.say(f"\nbob: {found} of {PROMPT_TOKENS} tokens are there. Meanwhile the daemon is "
                  "killed with -9:")
        go(bob)
        for _ in range(KILLS):
            time.sleep(0.5)
            table.say(f"    kill -9 {daemon.kill()}")
        ms, continued = read(bob)
        table.say(f"bob: first token after {ms} ms: {_text(continued[:12])} ...")
        bob.kill()
        bob.wait()
        expected = _generate(_model("eager"))
        same = expected == tokens == continued
        print(f"\nThe text of alice, of bob, and of eager attention without fad: "
              f"{'identical' if same else 'DIFFERENT'}.")
        return 0 if same else 1
