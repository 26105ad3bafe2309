"""vLLM itself, with a tiny model, on the CPU."""
import contextlib
import gc
import os

import numpy as np
import pytest

if os.environ.get("FAD_TEST_VLLM") != "1":
    pytest.skip("vLLM's tests have an environment of their own: python/check DIRECTORY --vllm",
                allow_module_level=True)

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # test_restarted_engine wants 1
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1",
                  VLLM_LOGGING_LEVEL="ERROR", TOKENIZERS_PARALLELISM="false")
# The models are tiny: threads that wait for each other take longer, most of all on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ["PYTHONPATH"] = os.path.dirname(__file__)  # of vllm_connectors, for vLLM's processes
import vllm
from transformers import LlamaConfig, LlamaForCausalLM

from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

import torch

BLOCK = 32
RANDOM = np.random.default_rng(7)
LONG = [int(x) for x in RANDOM.integers(3, 500, 300)]
PROMPTS = [LONG, LONG[:200] + [7] * 30, [int(x) for x in RANDOM.integers(3, 500, 70)]]


def make_model(directory, seed=0):
    """A model whose attention is far from uniform, so that its tokens depend on all of its KV."""
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
                         max_position_embeddings=2048, bos_token_id=1, eos_token_id=2)
    LlamaForCausalLM(config).save_pretrained(directory)
    return str(directory)


@contextlib.contextmanager
def engine(model, kv_transfer_config=None, **options):
    options = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 4, "block_size": BLOCK,
               "enforce_eager": True, "skip_tokenizer_init": True, **options}
    llm = None
    try:
        llm = vllm.LLM(model=model, kv_transfer_config=kv_transfer_config, **options)
        yield llm
    finally:
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
            del llm
        ensure_kv_transfer_shutdown()  # also after an engine that did not start
        gc.collect()


def generate(llm, prompts=PROMPTS, n=40, **options):
    """For each prompt: tokens, their log probabilities, and how many tokens were not computed."""
    parameters = vllm.SamplingParams(max_tokens=n, temperature=0, ignore_eos=True,
                                     detokenize=False, logprobs=0, **options)
    results = []
    for prompt in prompts:
        if not isinstance(prompt, dict):
            prompt = {"prompt_token_ids": prompt}
        [out] = llm.generate([prompt], parameters, use_tqdm=False)
        [text] = out.outputs
        chances = [next(iter(x.values())).logprob for x in text.logprobs]
        results.append((list(text.token_ids), chances, out.num_cached_tokens))
    return results


def same(results, expected, cached=None):
    for (tokens, chances, found), (wanted, wanted_chances, _) in zip(results, expected):
        assert tokens == wanted
        assert np.abs(np.subtract(chances, wanted_chances)).max() < 1e-3
    if cached is not None:
        assert [found for _, _, found in results] == cached
