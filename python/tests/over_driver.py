"""Drives faclient's code for GPUs over the tests' CUDA driver (tests/cuda-driver), which keeps the
memory of GPUs in the host's: PyTorch's tensors of the CPU lie there and say that they are a GPU's.

Run by test_cuda_driver.py, with LD_LIBRARY_PATH naming the driver and FAD_DAEMON its daemon.
"""
import ctypes
import time

import torch

import faclient
import faclient._cuda
import faclient.torch
from conftest import Supervised

cuda = ctypes.CDLL("libcuda.so.1")


def call(function, *arguments):
    assert function(*arguments) == 0, function.__name__


class Fake(torch.Tensor):
    device = torch.device("cuda", 0)
    is_cuda = True


moved = []  #: addresses of what Moved tensors lie in


class Moved(Fake):
    """A tensor in the driver's memory, as everything is that is computed from it."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        call(cuda.cuStreamSynchronize, stream)
        made = super().__torch_function__(function, types, arguments, options)
        if type(made) is cls:
            with torch._C.DisableTorchFunctionSubclass():
                if made.numel() and not is_allocated(made.data_ptr()):
                    return on_gpu(made)
        return made


def is_allocated(address):
    base = ctypes.c_uint64()
    return cuda.cuMemGetAddressRange(ctypes.byref(base), None, ctypes.c_uint64(address)) == 0


def on_gpu(x):
    """A copy in the driver's memory, with the same strides."""
    with torch._C.DisableTorchFunctionSubclass():
        x = x.as_subclass(torch.Tensor)
        span = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride()))
        base = allocate(span * x.itemsize)
        copy = tensor(base, (span,), x.dtype).as_strided(x.shape, x.stride()).copy_(x)
        copy = copy.as_subclass(Moved)
        moved.append(base)
        return copy


def in_memory(x):
    """A tensor that is the CPU's again."""
    call(cuda.cuStreamSynchronize, stream)
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(torch.Tensor).clone()


def set_up():
    """PyTorch's functions for CUDA, as far as faclient uses them."""
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    call(cuda.cuInit, 0)
    call(cuda.cuDevicePrimaryCtxRetain, ctypes.byref(context), 0)
    call(cuda.cuCtxSetCurrent, context)
    call(cuda.cuStreamCreateWithPriority, ctypes.byref(stream), 1, 0)
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.set_device = lambda device: call(cuda.cuCtxSetCurrent, context)
    torch.cuda.current_device = lambda: 0
    torch._C._cuda_getCurrentRawStream = lambda device: stream.value

    class ExternalStream:
        def __init__(self, handle):
            self.handle = ctypes.c_void_p(handle)

        def query(self):
            return cuda.cuStreamQuery(self.handle) == 0
    torch.cuda.ExternalStream = ExternalStream
    return stream


def allocate(nbytes):
    address = ctypes.c_uint64()
    call(cuda.cuMemAlloc, ctypes.byref(address), ctypes.c_size_t(nbytes))
    return address.value


def free(address):
    call(cuda.cuMemFree, ctypes.c_uint64(address))


def tensor(address, shape, dtype=torch.bfloat16):
    n = dtype.itemsize
    for m in shape:
        n *= m
    return torch.frombuffer((ctypes.c_char * n).from_address(address), dtype=dtype).view(shape)


def reference(q, k, v):
    q, k, v = (x.transpose(1, 2).double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    return (torch.softmax(s, -1) @ v).transpose(1, 2)


def operands(base, n):
    shapes = [(1, n, heads, 128) for heads in (8, 2, 2, 8)]
    made = []
    for shape in shapes:
        made.append(tensor(base, shape))
        base += made[-1].nbytes
    for x in made[:3]:
        x.normal_()
    return made


def attend(client, base, n):
    made = operands(base, n)
    q, k, v, out = (x.as_subclass(Fake) for x in made)
    client.attention(q, k, v, out=out)
    call(cuda.cuStreamSynchronize, stream)
    client.synchronize()  # the output of a lost request is undefined
    worst = float((made[3].double() - reference(*made[:3])).abs().max())
    assert worst < 0.03, worst


def raises(error, act):
    try:
        act()
    except error as caught:
        return str(caught)
    raise AssertionError(f"no {error.__name__}")


def memory(client):
    """An address that comes back as another allocation is not taken for the earlier one."""
    base = allocate(8 << 20)
    for i in range(40):
        attend(client, base, 20 + i)
        if i % 3 == 0:
            free(base)
            base = allocate((4 + i % 5) << 20)
    assert len(client._ranges._ranges) == 1
    client.synchronize()
    client.trim()
    return base


def late_error(client, base):
    word = allocate(4096)
    tensor(word, (8,), torch.int32).zero_()
    call(cuda.cuStreamWaitValue64, stream, ctypes.c_uint64(word), ctypes.c_uint64(1), 0)
    q, k, v, out = (x.as_subclass(Fake) for x in operands(base, 20))
    client.attention(q, k, v, out=out, timeout=0.01)
    time.sleep(0.2)
    tensor(word, (8,), torch.int32)[0] = 1
    assert "earlier request" in raises(faclient.TimedOut, client.synchronize)
    client.synchronize()
    for wrong in (k[:, :3], k[..., :64]):
        assert "expected" in raises(faclient.InvalidArgument, lambda x=wrong: client.attention(
            q, x.as_subclass(Fake), v, out=out))


def steps(client, base):
    cache = client.cache(layers=2, kv_heads=2, head_dim=128, dtype="bfloat16")
    sequence = cache.sequence()
    q, k, v, out = operands(base, 16)
    fakes = [x[0].as_subclass(Fake) for x in (q, k, v, out)]
    with cache.step({sequence: 16}) as step:
        for layer in range(2):
            step.attend(layer, *fakes[:3], out=fakes[3], causal=False)
    assert float((out.double() - reference(q, k, v)).abs().max()) < 0.03
    assert sequence.length == 16
    step = cache.step({sequence: 16})

    def wrong_layer():
        step.attend(7, *fakes[:3], out=fakes[3])
        step.commit()
    assert "layer is 7" in raises(faclient.Error, wrong_layer)
    step.close()
    assert sequence.length == 16


def count_repeated():
    """Calls of attend_again(), by which layers like earlier ones are sent."""
    calls, real = [], faclient._cuda.Gate.attend_again

    def attend_again(*arguments):
        calls.append(1)
        return real(*arguments)
    faclient._cuda.Gate.attend_again = attend_again
    return calls


def repeated(client):
    """Layers like earlier ones are checked less, and still for what may differ."""
    cache = client.cache(layers=3, kv_heads=2, head_dim=128, dtype="bfloat16")
    sequence = cache.sequence()
    keys, calls = [], count_repeated()
    for i in range(30):
        base = allocate((1 + i % 3) << 20)  # often where the last one was
        q, k, v, out = operands(base, 1)
        keys.append((k.clone(), v.clone()))
        fakes = [x[0].as_subclass(Fake) for x in (q, k, v, out)]
        with cache.step({sequence: 1}) as step:
            for layer in range(3):
                out.zero_()
                step.attend(layer, *fakes[:3], out=fakes[3])
                call(cuda.cuStreamSynchronize, stream)
                past = [torch.cat(x, 1) for x in zip(*keys)]
                assert float((out.double() - reference(q, *past)).abs().max()) < 0.03
        if i % 4:
            free(base)
    # The first two calls make the form known.
    assert len(calls) >= 30 * 3 - 2, len(calls)
    q, k, v, out = (x[0].as_subclass(Fake) for x in operands(allocate(1 << 20), 1))
    step = cache.step({sequence: 1})

    def attend(q=q, k=k, v=v, **options):
        step.attend(0, q, k, v, **{"out": out, **options})
    assert "dtype" in raises(TypeError, lambda: attend(q.double().as_subclass(Fake)))
    assert "CPU" in raises(ValueError, lambda: attend(k=k.as_subclass(torch.Tensor)))
    assert "expected 3" in raises(ValueError, lambda: attend(v=v[None]))
    assert "expected" in raises(faclient.InvalidArgument, lambda: attend(k=k[:, :, :64]))
    assert "gradient" in raises(RuntimeError, lambda: attend(q.detach().requires_grad_()))
    assert "expected a numpy array" in raises(TypeError, lambda: attend("q"))
    del calls[:]
    attend()
    assert len(calls) == 1
    sequence.remove()
    step.close()
    assert "freed" in raises(faclient.InvalidArgument, attend)
    assert len(calls) == 2


def lost_daemon(client, base, daemon):
    daemon.kill()
    for _ in range(20):
        try:
            attend(client, base, 25)
            client.synchronize()
            break
        except faclient.DaemonLost:
            pass
    attend(client, base, 26)


def models(client, daemon):
    """Models whose attention is on the GPU, while everything else is computed on the CPU."""
    import families
    import faclient.transformers as fad
    from test_transformers import agree, generate, prompt
    real = fad.FadCache._attend

    def attend(self, index, query, key, value, mask, options):
        query, key, value = (on_gpu(x) for x in (query, key, value))
        try:
            return in_memory(real(self, index, query, key, value, mask, options))
        finally:
            while moved:
                free(moved.pop())
    fad.FadCache._attend = attend
    calls = count_repeated()
    fad.register()
    faclient.torch.use(client)
    ids, mask = prompt()
    for family in families.QUICK:
        model = families.model(family)
        expected = generate(model, ids, mask, n=30)
        model.set_attn_implementation("fad")
        cache = fad.FadCache(model, client)
        assert agree(expected, generate(model, ids, mask, cache, n=30), 2) == 0
        assert cache.tokens == 69
    assert len(calls) > 200, len(calls)
    model = families.model("llama")
    ids = prompt(1, 100)[0]
    expected = generate(model, ids, n=30)
    model.set_attn_implementation("fad")
    cache = fad.FadCache(model, client)
    passes = []

    def kill(*_):
        passes.append(1)
        if len(passes) == 6:
            daemon.kill()
            time.sleep(1)
    hook = model.model.layers[1].register_forward_pre_hook(kill)
    message = raises(faclient.DaemonLost, lambda: generate(model, ids, cache=cache, n=30))
    hook.remove()
    assert "made again" in message and cache.tokens == 104
    known = expected.sequences[:, :105]
    got = generate(model, known, cache=cache, n=25)
    assert torch.equal(got.sequences, expected.sequences)


if __name__ == "__main__":
    stream = set_up()
    supervised = Supervised()
    try:
        with faclient.connect(supervised.socket, reconnect_timeout=30) as connected:
            assert connected.info()["backend"] == "cuda"
            place = memory(connected)
            late_error(connected, place)
            steps(connected, place)
            repeated(connected)
            lost_daemon(connected, place, supervised)
            models(connected, supervised)
    finally:
        supervised.stop()
    print("well")
