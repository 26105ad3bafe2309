"""FadConnector with vLLM itself, on the CPU: python/check DIRECTORY --vllm installs what it needs."""
import ast
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import faclient
from conftest import FULL, Supervised
from vllm_engine import BLOCK, LONG, PROMPTS, engine, generate, make_model, same

import vllm

import faclient.vllm
import vllm_connectors


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def daemon():
    with faclient.connect(private=True, name="test") as client:
        yield client


def transfer(socket, connector="FadConnector", policy="recompute", module=None, role="kv_both",
             **extra):
    config = {"kv_connector": connector, "kv_role": role, "kv_load_failure_policy": policy,
              "kv_connector_extra_config": {"socket": socket, "retry": 0.1, **extra}}
    if module:
        config["kv_connector_module_path"] = module
    return config


@pytest.fixture(scope="module")
def expected(model):
    """What vLLM alone computes."""
    with engine(model) as llm:
        return generate(llm)


def blocks(tokens):
    """Tokens in full blocks of what is found: at least one token is computed."""
    return (tokens - 1) // BLOCK * BLOCK


def test_second_engine(model, expected, daemon):
    """The same tokens, and what the first engine computed the second one does not."""
    config = transfer(daemon.socket)
    with engine(model, config) as llm:
        same(generate(llm), expected, [0, 192, 0])  # vLLM's own prefix cache finds the 192
    with engine(model, config) as llm:
        results = generate(llm)
        same(results, expected, [blocks(300), blocks(230), blocks(70)])
        # The tokens that were generated are saved, too: a conversation goes on with them.
        longer = LONG + results[0][0] + [5, 6, 7]
        [first] = generate(llm, [longer])
    with engine(model, config) as llm:
        [again] = generate(llm, [longer])
        same([again], [first], [320])  # of 300 + 39 that had keys and values
    with engine(model) as llm:
        same(generate(llm, [longer]), [again], [0])


def test_tokens_depend_on_what_is_loaded(model, expected, daemon):
    """If it fails, the comparisons of this file prove nothing."""
    with engine(model, transfer(daemon.socket)) as llm:
        generate(llm)
    with engine(model, transfer(daemon.socket, "LoadsZeros", module="vllm_connectors")) as llm:
        [result] = generate(llm, [LONG])
    assert result[2] == blocks(300) and result[0] != expected[0][0]


ENGINE = """
import sys, time
import test_vllm
if __name__ == "__main__":
    with test_vllm.engine(sys.argv[1], test_vllm.transfer(sys.argv[2])) as llm:
        results = test_vllm.generate(llm)
        time.sleep(1)  # the last request's blocks are saved a step after its end
        print([x[2] for x in results], flush=True)
        time.sleep(600)
"""


def test_restarted_engine(model, expected, daemon, tmp_path):
    """vLLM's own processes, killed; the next engine goes on with what they left."""
    program = tmp_path / "engine.py"
    program.write_text(ENGINE)
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    process = subprocess.Popen([sys.executable, str(program), model, daemon.socket],
                               stdout=subprocess.PIPE, text=True, env=environment,
                               start_new_session=True)
    try:
        lines = iter(process.stdout.readline, "")
        assert any(line.strip() == "[0, 192, 0]" for line in lines)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    longer = [prompt + tokens + [5] for prompt, (tokens, _, _) in zip(PROMPTS, expected)]
    with engine(model, transfer(daemon.socket)) as llm:
        # What was generated is there, too, except for the last token, which nobody computed.
        assert [x[2] for x in generate(llm, longer, 1)] == [blocks(340), blocks(270), blocks(110)]
        llm.reset_prefix_cache()
        same(generate(llm), expected, [blocks(300), blocks(230), blocks(70)])


@pytest.mark.parametrize("supervised", [True, False])
def test_daemon_killed_at_load(model, expected, supervised):
    """Policy recompute: the engine computes what was promised to it, and goes on."""
    with contextlib.ExitStack() as stack:
        if supervised:
            daemon = Supervised()
            stack.callback(daemon.stop)
            socket = daemon.socket
        else:
            socket = stack.enter_context(faclient.connect(private=True)).socket
        with engine(model, transfer(socket)) as llm:
            generate(llm)
        config = transfer(socket, "KillsAtLoad", module="vllm_connectors")
        with engine(model, config) as llm:
            vllm_connectors.KillsAtLoad.kills = 1
            same(generate(llm, PROMPTS[:2]), expected)
            assert vllm_connectors.KillsAtLoad.kills == 0
            time.sleep(0.2)  # the connector leaves a daemon that did not answer alone
            found = generate(llm, PROMPTS[2:])
            same(found, expected[2:], [blocks(70) if supervised else 0])


def test_policy_fail(model, expected, supervised):
    """Policy fail: the request ends with an error, others are served."""
    with engine(model, transfer(supervised.socket)) as llm:
        generate(llm)
    config = transfer(supervised.socket, "KillsAtLoad", "fail", "vllm_connectors")
    with engine(model, config) as llm:
        vllm_connectors.KillsAtLoad.kills = 1
        with pytest.raises(Exception) as caught:
            [out] = llm.generate([{"prompt_token_ids": LONG}], use_tqdm=False)
            assert out.outputs[0].finish_reason == "error", out
            raise RuntimeError("error")
        assert "error" in str(caught.value).lower()
        time.sleep(0.2)
        same(generate(llm), expected)


def test_daemon_killed_at_save(model, expected, supervised):
    config = transfer(supervised.socket, "KillsAtSave", module="vllm_connectors")
    with engine(model, config) as llm:
        vllm_connectors.KillsAtSave.kills = 1
        same(generate(llm), expected)
        assert vllm_connectors.KillsAtSave.kills == 0
        same(generate(llm), expected)
    with engine(model, config) as llm:  # what failed was saved later
        same(generate(llm), expected, [blocks(300), blocks(230), blocks(70)])


def test_daemon_killed_meanwhile(model, expected, supervised):
    """The daemon is killed again and again while the engine generates."""
    with engine(model, transfer(supervised.socket, save_tokens=BLOCK)) as llm:
        stop = threading.Event()

        def kill():
            while not stop.wait(0.4):
                with contextlib.suppress(faclient.Error):
                    vllm_connectors.kill_daemon(supervised.socket)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for _ in range(3):
                same(generate(llm), expected)
                llm.reset_prefix_cache()
        finally:
            stop.set()
            killer.join()


def test_no_daemon(model, expected, tmp_path):
    with engine(model, transfer(str(tmp_path / "nothing"))) as llm:
        same(generate(llm), expected)


def test_batches(model, expected, daemon):
    """Requests that run together, in chunks, and with too few blocks for all of them."""
    options = {"max_num_batched_tokens": 64, "num_gpu_blocks_override": 24, "max_model_len": 512}
    parameters = vllm.SamplingParams(max_tokens=40, temperature=0, ignore_eos=True,
                                     detokenize=False)
    for _ in range(2):
        with engine(model, transfer(daemon.socket, save_tokens=BLOCK), **options) as llm:
            outs = llm.generate([{"prompt_token_ids": x} for x in PROMPTS * 2], parameters,
                                use_tqdm=False)
        for out, (wanted, _, _) in zip(outs, expected * 2):
            assert list(out.outputs[0].token_ids) == wanted
    assert outs[0].num_cached_tokens == blocks(300)


def test_key(model, daemon, tmp_path):
    """Other weights, another salt, and other tensor parallelism find nothing."""
    config = transfer(daemon.socket)
    with engine(model, config) as llm:
        generate(llm, [LONG])
        salted = {"prompt_token_ids": LONG, "cache_salt": "mine"}
        assert generate(llm, [salted])[0][2] == 0
    with engine(model, config) as llm:
        assert generate(llm, [salted])[0][2] == blocks(300)
    with engine(make_model(tmp_path / "other", 1), config) as llm:
        assert generate(llm, [LONG])[0][2] == 0
    with engine(model, transfer(daemon.socket, identity="named")) as llm:
        assert generate(llm, [LONG])[0][2] == 0
        assert generate(llm, [LONG], 1)[0][2] == blocks(300)
        generate(llm, [[5, 6, 7]], 1)  # vLLM frees a request's blocks a step after its end
        assert llm.reset_prefix_cache(reset_connector=True)  # the weights may be others now
        assert generate(llm, [LONG])[0][2] == 0
    with engine(model, config, dtype="bfloat16") as llm:
        assert generate(llm, [LONG])[0][2] == 0


PARALLEL = """
import sys, time
import test_vllm
if __name__ == "__main__":
    with test_vllm.engine(sys.argv[1], test_vllm.transfer(sys.argv[2]),
                          tensor_parallel_size=2) as llm:
        results = test_vllm.generate(llm)
        time.sleep(1)
        print("results", [(x[0], x[2]) for x in results])
"""


@pytest.mark.skipif(not FULL, reason="takes minutes")
def test_tensor_parallel(model, expected, daemon, tmp_path):
    """Two workers keep a cache each, and find nothing of an engine with one."""
    program = tmp_path / "parallel.py"
    program.write_text(PARALLEL)
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "1",
                   "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with engine(model, transfer(daemon.socket)) as llm:
        generate(llm)
    for cached in ([0, 192, 0], [blocks(300), blocks(230), blocks(70)]):
        done = subprocess.run([sys.executable, str(program), model, daemon.socket], text=True,
                              capture_output=True, env=environment, timeout=900)
        lines = [x for x in done.stdout.splitlines() if x.startswith("results ")]
        assert lines, done.stderr[-3000:]
        found = ast.literal_eval(lines[0].removeprefix("results "))
        assert [x[1] for x in found] == cached
        assert [x[0] for x in found] == [x[0] for x in expected]
    names = {x["name"] for x in daemon.status()["caches"]}
    assert {x.rpartition("-")[2] for x in names} == {"0of1", "0of2", "1of2"}


def test_checksums(tmp_path):
    """Files that the Hugging Face cache names by their checksum are not read; others are."""
    name = "ab" * 32
    (tmp_path / name).write_bytes(b"weights")
    (tmp_path / "model.safetensors").symlink_to(name)
    assert faclient.vllm._checksum(str(tmp_path / "model.safetensors")) == name
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "plain")
    (tmp_path / "plain").write_bytes(b"weights")
    assert faclient.vllm._checksum(str(tmp_path / "link.safetensors")) == \
        hashlib.sha256(b"weights").hexdigest()


def test_roles(model, daemon):
    with engine(model, transfer(daemon.socket, role="kv_consumer")) as llm:
        generate(llm, [LONG])
    with engine(model, transfer(daemon.socket, role="kv_producer")) as llm:
        assert generate(llm, [LONG])[0][2] == 0
    with engine(model, transfer(daemon.socket, role="kv_producer")) as llm:
        assert generate(llm, [LONG])[0][2] == 0
    with engine(model, transfer(daemon.socket, role="kv_consumer")) as llm:
        assert generate(llm, [LONG])[0][2] == blocks(300)


def test_refused(model, daemon):
    def fails(sentence, config=None, **options):
        with pytest.raises(Exception, match=sentence):
            with engine(model, config or transfer(daemon.socket), **options):
                pass

    fails("kv_connector_extra_config has sokcet", transfer(daemon.socket, sokcet=1))
    fails("expected a power of two", block_size=96)
    fails("weights are random", load_format="dummy")
