#!/usr/bin/env python3
"""Transformers models with fad on a GPU against PyTorch's attention.

    bench/transformers.py --fad PATH [--part PART[:MODEL],...] [--model 1b|8b] [--mps] [--quick]
                          [--seconds N] [--only PATTERN]... [--json FILE --commit COMMIT]

Models have the shape of Llama 3's, random weights and bf16. Prints a line of JSON a row; ratio is
better above 1. --json writes the input of bench/results/results.py keep, anew after each row.
--seconds: no row is begun later than that. Needs PyTorch, Transformers and the package faclient.
The daemon is started here.

decode     tokens/s of greedy decoding in one process, at several batch sizes
ttft       time to the first token of a prompt in one process
shared     time to the first token in a second process, of a prompt that the first published
processes  tokens/s of four processes together, on one prompt
"""
import argparse
import contextlib
import datetime
import fnmatch
import gc
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

# This folder has a file with the name of a package that it imports.
sys.path = [x for x in sys.path if os.path.abspath(x) != os.path.dirname(os.path.abspath(__file__))]

SHAPES = {
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
             "vocab_size": 1000},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
           "vocab_size": 128256},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
           "vocab_size": 128256},
}
PARTS = ("decode", "ttft", "shared", "processes")
PROCESSES = 4


def load(name):
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    import faclient.transformers
    faclient.transformers.register()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[name], max_position_embeddings=65536, tie_word_embeddings=True,
                         dtype=torch.bfloat16)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa",
                                                 dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def tokens(model, batch, n, seed=1):
    import torch
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 900, (batch, n), generator=generator).to(model.device)


def synchronize(model):
    import torch
    if model.device.type == "cuda":
        torch.cuda.synchronize()


class Runner:
    """A model, with a cache for the attention that is named."""

    def __init__(self, model, client):
        self.model, self.client = model, client
        self.spare = None

    def cache(self, attention, name=None):
        from transformers import DynamicCache

        import faclient.transformers as fad
        self.model.set_attn_implementation(attention)
        if attention != "fad":
            return DynamicCache(config=self.model.config)
        if name is None and self.spare is not None:
            self.spare.reset()  # making one reads all weights
            return self.spare
        cache = fad.FadCache(self.model, self.client, name=name)
        if name is None:
            self.spare = cache
        return cache

    def first(self, ids, cache):
        """Computes a prompt; returns the next tokens."""
        past = cache.get_seq_length()
        out = self.model(ids[:, past:], past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1:].argmax(-1)

    def decode(self, token, cache, n):
        """n more tokens, each read by the CPU as generate() does. Returns seconds."""
        synchronize(self.model)
        start = time.perf_counter()
        for _ in range(n):
            out = self.model(token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            token.tolist()
        return time.perf_counter() - start


def attentions():
    """PyTorch's, FlashAttention's where Transformers finds them, and fad."""
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available
    found = {"flash_attention_2": is_flash_attn_2_available(),
             "flash_attention_3": is_flash_attn_3_available()}
    return ["sdpa", *(name for name, there in found.items() if there), "fad"]


def turns(i):
    """The attentions in the order of run @i: none is always the first."""
    return attentions()[::-1 if i % 2 else 1]


def spread(seconds):
    """How far apart the runs of each attention are, of their median."""
    return {name: round((max(x) - min(x)) / statistics.median(x), 3)
            for name, x in seconds.items()}


UNITS = {"tokens_s": "tokens/s", "ms": "ms"}


def row(options, part, shape, values, unit, **more):
    """A result: @values has fad's and those of its peers, in a unit of UNITS. @shape: which cell
    of the part it is."""
    ratios = {name: values["fad"] / value if unit == "tokens_s" else value / values["fad"]
              for name, value in values.items() if name != "fad"}
    shown = {f"{name}_{unit}": round(value, 4) for name, value in values.items()}
    more = {"model": options.model, **more, "mps": options.mps_state}
    print(json.dumps({"part": part, "shape": shape, **more, **shown,
                      "ratio": round(ratios["sdpa"], 3)}), flush=True)
    suffix = "/mps" if options.mps_state == "on" else ""
    for name, ratio in ratios.items():
        options.results.append({
            "name": f"transformers/{part}/{options.model}-{shape}{suffix}",
            "value": round(values["fad"], 2), "unit": UNITS[unit], "peer": name,
            "ratio": round(ratio, 3), "commit": options.commit, "device": options.device, **more})
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"command": shlex.join(["bench/transformers.py", *sys.argv[1:]]),
                       "machine": options.machine, "date": datetime.date.today().isoformat(),
                       "results": options.results}, file, indent=1)


def is_wanted(options, part, shape):
    """Returns false if a row is not asked for, or says that there is no time for it."""
    cell = f"{part}/{options.model}-{shape}"
    if not any(fnmatch.fnmatch(cell, pattern) for pattern in options.only):
        return False
    if time.monotonic() < options.end:
        return True
    print(f"{cell}: left out, there is no time", file=sys.stderr, flush=True)
    return False


def part_decode(options, runner):
    n, context, runs = (48, 1024, 5) if options.quick else (128, 1024, 9)
    if options.model == "tiny":
        n, context, runs = 8, 64, 1
    for batch in (1, 8, 32):
        shape = f"b{batch}-c{context}"
        if not is_wanted(options, "decode", shape):
            continue
        ids = tokens(runner.model, batch, context)
        seconds = {}
        for i in range(runs + 1):
            for name in turns(i):
                cache = runner.cache(name)
                took = runner.decode(runner.first(ids, cache), cache, n if i else 4)
                if i:
                    seconds.setdefault(name, []).append(took)
                del cache
        speed = {name: batch * n / statistics.median(x) for name, x in seconds.items()}
        row(options, "decode", shape, speed, "tokens_s", tokens=n, runs=runs,
            spread=spread(seconds))


def part_ttft(options, runner):
    lengths = (1024, 8192, 32768)
    if options.model == "tiny":
        lengths = (100, 500)
    for length in lengths:
        if not is_wanted(options, "ttft", f"s{length}"):
            continue
        ids = tokens(runner.model, 1, length)
        seconds = {}
        for i in range(6):
            for name in turns(i):
                cache = runner.cache(name)
                synchronize(runner.model)
                start = time.perf_counter()
                runner.first(ids, cache).tolist()
                if i:
                    seconds.setdefault(name, []).append(time.perf_counter() - start)
                del cache
        best = {name: statistics.median(x) * 1e3 for name, x in seconds.items()}
        row(options, "ttft", f"s{length}", best, "ms", runs=5, spread=spread(seconds))


def child(options, *arguments):
    command = [sys.executable, os.path.abspath(__file__), "--model", options.model, "--socket",
               options.socket, "--child", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def part_shared(options, runner):
    lengths = (8192, 32768)
    if options.model == "tiny":
        lengths = (500,)
    for length in lengths:
        if not is_wanted(options, "shared", f"s{length}"):
            continue
        ids = tokens(runner.model, 1, length)
        name = f"bench-{length}"
        cache = runner.cache("fad", name)
        runner.first(ids, cache)
        cache.publish(ids)
        free_memory(runner.client)
        process = child(options, "shared", length, name)
        out, _ = process.communicate(timeout=300)
        if process.returncode:
            raise RuntimeError(f"the second process ended with {process.returncode}")
        done = json.loads(out.splitlines()[-1])
        row(options, "shared", f"s{length}", {name: done[name] * 1e3 for name in ("sdpa", "fad")},
            "ms", found=done["found"], identity_ms=round(done["identity"] * 1e3, 1))
        cache.reset()
        cache._cache.remove()


def child_shared(runner, length, name):
    ids = tokens(runner.model, 1, int(length))
    short = tokens(runner.model, 1, 64, seed=2)
    result = {"fad": [], "sdpa": []}
    start = time.perf_counter()
    cache = runner.cache("fad", name)
    result["identity"] = time.perf_counter() - start
    for attention in ("sdpa", "fad"):  # kernels are loaded and memory is there
        other = runner.cache(attention, None)
        runner.decode(runner.first(short, other), other, 2)
        if attention == "sdpa":
            other = runner.cache(attention, None)
            runner.first(ids, other).tolist()
    for _ in range(3):
        runner.model.set_attn_implementation("fad")
        synchronize(runner.model)
        start = time.perf_counter()
        result["found"] = cache.attach(ids)
        runner.first(ids, cache).tolist()
        result["fad"].append(time.perf_counter() - start)
        cache.reset()
        other = runner.cache("sdpa", None)
        synchronize(runner.model)
        start = time.perf_counter()
        runner.first(ids, other).tolist()
        result["sdpa"].append(time.perf_counter() - start)
        del other
    print(json.dumps({key: statistics.median(value) if isinstance(value, list) else value
                      for key, value in result.items()}), flush=True)


def part_processes(options, _):
    n, context = 64 if options.quick else 256, 8192
    if options.model == "tiny":
        n, context = 8, 64
    shape = f"p{PROCESSES}-c{context}"
    if not is_wanted(options, "processes", shape):
        return
    speed, pages = {}, 0
    for name in ("sdpa", "fad"):
        processes = []
        try:
            for count in (1, PROCESSES - 1):  # the first publishes the prompt for the others
                started = [child(options, "decode", name, context, n) for _ in range(count)]
                processes += started
                if any(process.stdout.readline() != "ready\n" for process in started):
                    raise RuntimeError(f"a process with {name} failed")
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
            spans = [json.loads(process.stdout.readline()) for process in processes]
            start, end = min(x[0] for x in spans), max(x[1] for x in spans)
            speed[name] = PROCESSES * n / (end - start)
            if name == "fad":
                pages = max(x[2] for x in spans)
        finally:
            for process in processes:
                process.stdin.close()
                process.wait(60)
    row(options, "processes", shape, speed, "tokens_s", tokens=n, pages=pages)


def child_decode(runner, attention, context, n):
    ids = tokens(runner.model, 1, int(context))
    if attention == "fad":
        cache = runner.cache("fad", "bench-processes")
        cache.attach(ids)
    else:
        cache = runner.cache(attention)
    token = runner.first(ids, cache)
    if attention == "fad":
        cache.publish(ids)
    runner.decode(token, cache, 4)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.time()
    runner.decode(token, cache, int(n))
    used = cache._cache.info()["used_pages"] if attention == "fad" else 0
    print(json.dumps([start, time.time(), used]), flush=True)
    sys.stdin.readline()


@contextlib.contextmanager
def mps(directory):
    """An MPS server of its own, which this process and its children use."""
    for name in ("pipe", "log"):
        os.mkdir(os.path.join(directory, name))
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.path.join(directory, "pipe")
    os.environ["CUDA_MPS_LOG_DIRECTORY"] = os.path.join(directory, "log")
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=60)
    # A process that starts before the server listens does without MPS.
    deadline = time.monotonic() + 5
    while not os.path.exists(os.path.join(directory, "pipe", "control")):
        if time.monotonic() > deadline:
            raise RuntimeError("the control daemon of MPS does not listen")
        time.sleep(0.01)
    try:
        yield
    finally:
        # It ends once its last client has gone, this process among them.
        subprocess.Popen(["nvidia-cuda-mps-control"], stdin=subprocess.PIPE,
                         stdout=subprocess.DEVNULL, text=True).stdin.write("quit\n")


@contextlib.contextmanager
def daemon(program, directory, pool, settings):
    """A daemon whose timeline and pool outlive it. Yields its socket."""
    socket, config = (os.path.join(directory, name) for name in ("fad.sock", "fad.conf"))
    with open(config, "w", encoding="utf-8") as file:
        file.write("\n".join([f"[pool]\nbytes = {pool}\n[daemon]", *settings, ""]))
    ready, wanted = os.pipe()
    process = subprocess.Popen([program, "--supervise", "--socket", socket, "--config", config,
                                "--ready-fd", str(wanted)], pass_fds=[wanted])
    os.close(wanted)
    try:
        if not os.read(ready, 6):
            raise RuntimeError("the daemon did not start")
        os.close(ready)
        yield socket
    finally:
        process.terminate()
        process.wait(60)


def free_memory(client):
    """Gives the GPU's memory of tensors that are gone to other processes."""
    import torch
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        client.trim()


def run(options):
    import torch
    import transformers

    import faclient
    import faclient.torch
    parts = dict(zip(PARTS, (part_decode, part_ttft, part_shared, part_processes)))
    with faclient.connect(options.socket, name="bench") as client, torch.no_grad():
        faclient.torch.use(client)
        status = client.status()
        options.mps_state, options.device = status.get("mps", "none"), status["device"]
        options.machine = (f"{options.device}, torch {torch.__version__}, Transformers "
                           f"{transformers.__version__}")
        print(json.dumps({"part": "setup", "machine": options.machine,
                          "mps": options.mps_state}), flush=True)
        runner, loaded = None, None
        for name, options.model in options.parts:
            start = time.perf_counter()
            if name == "processes" or loaded != options.model:
                runner = loaded = None  # its memory is needed
                free_memory(client)
            try:
                if name != "processes" and runner is None and time.monotonic() < options.end:
                    runner, loaded = Runner(load(options.model), client), options.model
                parts[name](options, runner)
            except Exception as error:  # the other parts may work
                options.failed = True
                print(json.dumps({"part": name, "model": options.model,
                                  "error": f"{type(error).__name__}: {error}"}), flush=True)
                traceback.print_exc()
            print(f"{name} {options.model}: {time.perf_counter() - start:.0f} s",
                  file=sys.stderr, flush=True)


def run_child(options):
    import torch

    import faclient
    torch.set_num_threads(1)
    with faclient.connect(options.socket, name="bench-child") as client, torch.no_grad():
        runner = Runner(load(options.model), client)
        {"shared": child_shared, "decode": child_decode}[options.child[0]](runner,
                                                                         *options.child[1:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fad", default=os.environ.get("FAD_DAEMON", "fad"))
    parser.add_argument("--part", default=",".join(PARTS), help="each may end in :MODEL")
    parser.add_argument("--model", choices=SHAPES, default="1b")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and runs")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--commit", default="?", help="commit of the daemon")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", action="append", metavar="PATTERN",
                        help="rows whose PART/MODEL-SHAPE matches, as decode/*-b1-*")
    parser.add_argument("--setting", action="append", default=[], metavar="'NAME = VALUE'",
                        help="of the daemon, as in fad.conf")
    parser.add_argument("--pool", default=None, help="bytes of the KV pool, as in fad.conf")
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.failed, options.results = False, []
    options.only = options.only or ["*"]
    options.end = time.monotonic() + options.seconds
    options.parts = []
    for part in options.part.split(","):
        name, _, model = part.partition(":")
        if name not in PARTS or (model and model not in SHAPES):
            parser.error(f"there is no part {part}")
        options.parts.append((name, model or options.model))
    if options.child:
        run_child(options)
        return 0
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="fad-bench-"))
        if options.mps:
            stack.enter_context(mps(directory))
        tiny = all(model == "tiny" for _, model in options.parts)
        pool = options.pool or ("256M" if tiny else "16G")
        options.socket = stack.enter_context(daemon(options.fad, directory, pool,
                                                    options.setting))
        run(options)
    return 1 if options.failed else 0


sys.exit(main())
