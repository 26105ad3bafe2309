"""vLLM with fad's attention backend, on the CPU: the engine itself, over its own KV blocks."""
import ast
import contextlib
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import faclient
from conftest import FULL, Supervised
from vllm_engine import BLOCK, LONG, PROMPTS, engine, generate, make_model, same

import vllm
from transformers import (BloomConfig, BloomForCausalLM, Gemma2Config, Gemma2ForCausalLM,
                          GptOssConfig, GptOssForCausalLM, MistralConfig, MistralForCausalLM)

import torch
from vllm_connectors import kill_daemon


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model):
    """What vLLM alone computes."""
    with engine(model) as llm:
        return generate(llm)


@pytest.fixture(scope="module")
def daemon():
    with faclient.connect(private=True, name="test") as client:
        yield client


@pytest.fixture
def counted(monkeypatch):
    """Counts the requests, and runs `before` each of them."""
    class Count:
        requests = 0
        before = staticmethod(lambda n: None)

    original = faclient.Client.pages_attend

    def pages_attend(self, *arguments, **options):
        Count.requests += 1
        Count.before(Count.requests)
        return original(self, *arguments, **options)

    monkeypatch.setattr(faclient.Client, "pages_attend", pages_attend)
    return Count


def fad(socket, **options):
    return {"attention_backend": "FAD", "additional_config": {"fad": {"socket": socket, **options}}}


def test_same_tokens(model, expected, daemon, counted):
    """Prefill, decode, and a prefix from vLLM's own cache; two layers' requests are as many as passes
    of the model."""
    with engine(model, **fad(daemon.socket)) as llm:
        assert counted.requests == 1  # the tiny request with which the backend tries the daemon
        same(generate(llm), expected, [0, 192, 0])
        assert counted.requests == 1 + 3 * 40 * 3  # prompts, passes, layers
        same(generate(llm), expected, [288, 224, 64])


def test_tokens_depend_on_attention(model, expected, daemon, monkeypatch):
    """If it fails, the comparisons of this file prove nothing."""
    original = faclient.Client.pages_attend

    def wrong(self, q, k, v, table, *arguments, **options):
        return original(self, q, k, v, table.flip(1) if table.shape[1] > 1 else table, *arguments,
                        **options)

    monkeypatch.setattr(faclient.Client, "pages_attend", wrong)
    with engine(model, **fad(daemon.socket)) as llm:
        [result] = generate(llm, [LONG])
    assert result[0] != expected[0][0]


@pytest.mark.parametrize("block", [16, 64, 128, 256] if FULL else [16, 256])
def test_block_sizes(model, expected, daemon, block):
    with engine(model, **fad(daemon.socket), block_size=block) as llm:
        same(generate(llm), expected)


def test_batches(model, expected, daemon):
    """Requests that run together, in chunks, and with too few blocks for all of them, so that some
    are preempted."""
    options = {"max_num_batched_tokens": 64, "num_gpu_blocks_override": 24, "max_model_len": 512}
    parameters = vllm.SamplingParams(max_tokens=40, temperature=0, ignore_eos=True,
                                     detokenize=False)
    with engine(model, **fad(daemon.socket), **options) as llm:
        outs = llm.generate([{"prompt_token_ids": x} for x in PROMPTS * 2], parameters,
                            use_tqdm=False)
    for out, (wanted, _, _) in zip(outs, expected * 2):
        assert list(out.outputs[0].token_ids) == wanted


def test_same_prefix_in_one_step(model, expected, daemon):
    """vLLM lets a request use blocks that another one of the same step fills."""
    parameters = vllm.SamplingParams(max_tokens=40, temperature=0, ignore_eos=True,
                                     detokenize=False)
    with engine(model, **fad(daemon.socket)) as llm:
        outs = llm.generate([{"prompt_token_ids": LONG} for _ in range(4)], parameters,
                            use_tqdm=False)
    assert any(out.num_cached_tokens for out in outs)
    for out in outs:
        assert list(out.outputs[0].token_ids) == expected[0][0]


def mistral(directory):
    config = MistralConfig(vocab_size=512, hidden_size=128, intermediate_size=256,
                           num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                           initializer_range=0.3, max_position_embeddings=2048, bos_token_id=1,
                           eos_token_id=2, sliding_window=48, head_dim=32)
    MistralForCausalLM(config).save_pretrained(directory)


def gemma(directory):
    """A soft cap, and windows in every other layer, so that there are two groups of KV caches."""
    config = Gemma2Config(vocab_size=512, hidden_size=128, intermediate_size=256,
                          num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                          initializer_range=0.3, max_position_embeddings=2048, bos_token_id=1,
                          eos_token_id=2, sliding_window=64, head_dim=32,
                          attn_logit_softcapping=3.0, query_pre_attn_scalar=16)
    Gemma2ForCausalLM(config).save_pretrained(directory)


def bloom(directory):
    """ALiBi."""
    config = BloomConfig(vocab_size=512, hidden_size=128, n_layer=2, n_head=4,
                         initializer_range=0.3, bos_token_id=1, eos_token_id=2)
    BloomForCausalLM(config).save_pretrained(directory)


def gpt_oss(directory):
    """Sinks, and windows in every other layer."""
    config = GptOssConfig(vocab_size=512, hidden_size=128, intermediate_size=128,
                          num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                          head_dim=32, num_local_experts=4, num_experts_per_tok=2,
                          initializer_range=0.3, max_position_embeddings=2048, sliding_window=64,
                          layer_types=["sliding_attention", "full_attention"], bos_token_id=1,
                          eos_token_id=2, pad_token_id=0)
    model = GptOssForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    model.save_pretrained(directory)


@pytest.mark.parametrize("make", [mistral, gemma, bloom, gpt_oss])
def test_models(make, daemon, tmp_path):
    torch.manual_seed(3)
    make(tmp_path)
    with engine(str(tmp_path)) as llm:
        expected, likely = generate(llm), chances(llm, [LONG])
    assert likely.std() > 0.1  # a model that tells tokens apart
    with engine(str(tmp_path), **fad(daemon.socket)) as llm:
        same(generate(llm), expected)
        assert np.abs(chances(llm, [LONG]) - likely).max() < 1e-2


@pytest.mark.skipif(not FULL, reason="takes minutes")
def test_compiled(model, expected, daemon, counted):
    """vLLM compiles the rest of the model; attention stays out of it."""
    with engine(model, enforce_eager=False, **fad(daemon.socket)) as llm:
        same(generate(llm), expected)
        assert counted.requests >= 3 * 40 * 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half(model, daemon, dtype):
    """As close to float32 as vLLM's own attention is."""
    tokens = [LONG[:150]]
    with engine(model) as llm:
        exact = chances(llm, tokens)
    with engine(model, dtype=dtype) as llm:
        own = np.abs(chances(llm, tokens) - exact).mean()
    with engine(model, dtype=dtype, **fad(daemon.socket)) as llm:
        assert np.abs(chances(llm, tokens) - exact).mean() < 1.5 * own + 1e-3


def chances(llm, prompts):
    """The log probability of each of the prompts' tokens."""
    parameters = vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    outs = llm.generate([{"prompt_token_ids": x} for x in prompts], parameters, use_tqdm=False)
    return np.array([x[token].logprob for out, prompt in zip(outs, prompts)
                     for x, token in zip(out.prompt_logprobs[1:], prompt[1:])])


def test_fp8(model, daemon):
    """Keys and values of 8 bits: as close as vLLM's own are, which takes AVX-512."""
    tokens = [LONG[:150]]
    with engine(model) as llm:
        exact = chances(llm, tokens)
    with engine(model, kv_cache_dtype="fp8", **fad(daemon.socket)) as llm:
        difference = np.abs(chances(llm, tokens) - exact).mean()
    assert difference > 1e-3  # they were stored as such
    if not torch.cpu._is_avx512_supported():
        pytest.skip("vLLM's own takes AVX-512")
    with engine(model, kv_cache_dtype="fp8") as llm:
        assert difference < 1.5 * np.abs(chances(llm, tokens) - exact).mean()


@pytest.mark.parametrize("kill_at", [2, 200])
@pytest.mark.parametrize("in_flight", [True, False])
def test_daemon_killed(model, expected, supervised, counted, kill_at, in_flight):
    """A layer's request is sent again; the daemon's successor goes on with the engine's blocks."""
    killers = []

    def before(n):
        if n != kill_at:
            return
        if not in_flight:
            kill_daemon(supervised.socket)
            return
        with faclient.connect(supervised.socket) as client:
            pid = client.info()["pid"]
        os.kill(pid, signal.SIGSTOP)  # the request is sent, and not answered
        killers.append(threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)))
        killers[0].start()

    with engine(model, **fad(supervised.socket)) as llm:
        counted.requests, counted.before = 0, before
        same(generate(llm), expected, [0, 192, 0])
        for killer in killers:
            killer.join()
        assert counted.requests >= 3 * 40 * 3 + in_flight
        same(generate(llm), expected, [288, 224, 64])


def test_daemon_killed_meanwhile(model, expected, supervised):
    """The daemon is killed again and again while the engine generates."""
    kills = 0
    with engine(model, **fad(supervised.socket)) as llm:
        stop = threading.Event()

        def kill():
            nonlocal kills
            while not stop.wait(0.3):
                with contextlib.suppress(faclient.Error):
                    kill_daemon(supervised.socket)
                    kills += 1

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for _ in range(3 if FULL else 2):
                same(generate(llm), expected)
                llm.reset_prefix_cache()
        finally:
            stop.set()
            killer.join()
    assert kills


def test_daemon_gone(model, expected):
    """Nobody starts another one: the engine ends with a sentence."""
    daemon = Supervised()
    try:
        with engine(model, **fad(daemon.socket, timeout=0.5)) as llm:
            same(generate(llm, PROMPTS[2:]), expected[2:])
            daemon.stop()
            with pytest.raises(Exception) as caught:
                generate(llm, [LONG])
            assert "the daemon is gone" in everything(caught.value)
    finally:
        if os.path.exists(daemon.directory):
            daemon.stop()


def everything(error):
    """The texts of an exception and of what led to it."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def test_with_connector(model, expected, daemon):
    """The backend's blocks are saved and loaded like vLLM's own; another backend finds nothing."""
    transfer = {"kv_connector": "FadConnector", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"socket": daemon.socket, "name": "backend"}}
    for cached in ([0, 192, 0], [288, 224, 64]):
        with engine(model, transfer, **fad(daemon.socket)) as llm:
            same(generate(llm), expected, cached)
            generate(llm, [[5, 6, 7]], 1)  # vLLM frees a request's blocks a step after its end
    with engine(model, transfer) as llm:
        same(generate(llm), expected, [0, 192, 0])


def test_refused(model, daemon, tmp_path):
    def fails(sentence, path=model, **options):
        with pytest.raises(Exception) as caught:
            with engine(path, **{**fad(daemon.socket), **options}):
                pass
        assert sentence in everything(caught.value), everything(caught.value)

    fails("block_size not supported", block_size=512)
    fails("kv_cache_dtype not supported", kv_cache_dtype="fp8_e5m2")
    fails('"fad" in additional_config has sokcet', **fad(daemon.socket, sokcet=1))
    fails("cannot connect to fad", **fad(str(tmp_path / "nothing")))
    fails("max_num_seqs is 5000", max_num_seqs=5000, max_num_batched_tokens=5000)


PROCESSES = """
import sys
import test_vllm_attention as test
if __name__ == "__main__":
    with test.engine(sys.argv[1], tensor_parallel_size=int(sys.argv[3]),
                     **test.fad(sys.argv[2])) as llm:
        print("results", [x[0] for x in test.generate(llm)])
"""


@pytest.mark.parametrize("workers", [1, 2] if FULL else [1])
def test_processes(model, expected, daemon, tmp_path, workers):
    """vLLM's own processes, which it spawns; workers are a client each."""
    program = tmp_path / "parallel.py"
    program.write_text(PROCESSES)
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "1",
                   "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    done = subprocess.run([sys.executable, str(program), model, daemon.socket, str(workers)],
                          text=True, capture_output=True, env=environment, timeout=900)
    lines = [x for x in done.stdout.splitlines() if x.startswith("results ")]
    assert lines, done.stderr[-3000:]
    assert ast.literal_eval(lines[0].removeprefix("results ")) == [x[0] for x in expected]


def test_default(model, counted):
    """Without the option vLLM's own attention computes."""
    with engine(model) as llm:
        generate(llm, [LONG], 2)
    assert not counted.requests
