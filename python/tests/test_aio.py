"""asyncio: many requests at once, cancellation, steps."""
import asyncio

import numpy as np
import pytest

import faclient.aio
from test_client import reference, tensors
from test_kv import SHAPE, rows
from test_pages import PAGE
from test_pages import problem as pages_problem
from test_pages import reference as pages_reference


def test_many_at_once():
    async def main():
        async with faclient.aio.connect(private=True) as client:
            inputs = [tensors(seed=i) for i in range(40)]
            outs = await asyncio.gather(*(client.attention(*x, causal=True) for x in inputs))
            for out, x in zip(outs, inputs):
                assert np.abs(out - reference(*x, causal=True)).max() < 1e-5
    asyncio.run(main())


def test_loop_goes_on_and_cancel():
    async def main():
        async with faclient.aio.connect(private=True) as client:
            long = tensors(batch=1, n_q=4096, n_k=16384, heads=8, kv_heads=8, dim=64)
            task = asyncio.create_task(client.attention(*long))
            turns = 0
            while turns < 20:
                await asyncio.sleep(0.001)
                turns += 1
            if not task.done():
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            x = tensors()
            assert np.abs(await client.attention(*x) - reference(*x)).max() < 1e-5
    asyncio.run(main())


def test_steps():
    async def main():
        async with faclient.aio.connect(private=True) as client:
            cache = client.sync.cache(**SHAPE)
            sequence = cache.sequence()
            q, k, v = rows(20, 1, 4), rows(20, 2), rows(20, 3)
            async with client.step(cache, {sequence: 20}) as step:
                outs = await asyncio.gather(*(step.attend(i, q, k, v) for i in range(2)))
            expected = reference(q[None], k[None], v[None], causal=True)[0]
            assert np.abs(outs[1] - expected).max() < 1e-5 and sequence.length == 20
            with pytest.raises(KeyError):
                async with client.step(cache, {sequence: 1}):
                    raise KeyError
            assert sequence.length == 20
            with pytest.raises(faclient.InvalidArgument):
                async with client.step(cache, {sequence: 1}) as step:
                    await step.attend(5, None, k[:1], v[:1])
    asyncio.run(main())


def test_own_pages():
    """Many requests over one cache, of which each appends to a sequence of its own."""
    async def main():
        async with faclient.aio.connect(private=True) as client:
            q, k, v, table, lengths, cu_q = pages_problem(client.sync)
            expected = pages_reference(q, k, v, table, lengths, cu_q)
            news = []
            for b in range(3):
                at = int(lengths[b]) - 1
                place = table[b, at // PAGE], at % PAGE
                slot = np.array([place[0] * PAGE + place[1]], np.int64)
                news.append((slot, k[place].copy()[None], v[place].copy()[None]))
                k[place] = v[place] = np.nan
            outs = await asyncio.gather(*(client.pages_attend(
                q[cu_q[b]:cu_q[b + 1]], k, v, table[b:b + 1], lengths[b:b + 1], causal=True,
                k_new=k_new, v_new=v_new, slots=slot) for b, (slot, k_new, v_new) in enumerate(news)))
            assert np.abs(np.concatenate(outs) - expected).max() < 1e-5
            with pytest.raises(faclient.InvalidArgument, match="table.rank"):
                await client.pages_attend(q, k, v, table[0], lengths)
    asyncio.run(main())


def test_page_copies():
    async def main():
        async with faclient.aio.connect(private=True) as client:
            cache = client.sync.cache(**SHAPE)
            sequence = cache.sequence()
            shape = (4, 16, 2, 16)
            mine = [[client.sync.empty(shape) for _ in range(2)] for _ in range(4)]
            for x in mine[0] + mine[1]:
                x[:] = np.random.default_rng(5).standard_normal(shape)
            async with client.step(cache, {sequence: 30}) as step:
                await step.write_pages(sequence, 0, 30, *mine[:2], [2, 0], page_offset=2)
            await client.read_pages(sequence, 0, 30, *mine[2:], [1, 3], page_offset=2)
            for x, y in zip(mine[0] + mine[1], mine[2] + mine[3]):
                wanted = x[[2, 0]].reshape(32, 2, 16)[2:]
                assert (y[[1, 3]].reshape(32, 2, 16)[2:] == wanted).all() and not y[[0, 2]].any()
            with pytest.raises(faclient.InvalidArgument, match="expected each page once"):
                await client.read_pages(sequence, 0, 30, *mine[2:], [1, 1])
            with pytest.raises(faclient.InvalidArgument, match="expected some that a step"):
                async with client.step(cache, {sequence: 1}) as step:
                    await step.write_pages(sequence, 0, 30, *mine[:2], [2, 0])
    asyncio.run(main())


def test_lost_daemon():
    """A daemon's death ends what is awaited."""
    import os
    import signal

    async def main():
        async with faclient.aio.connect(private=True) as client:
            long = tensors(batch=1, n_q=4096, n_k=16384, heads=8, kv_heads=8, dim=64)
            task = asyncio.create_task(client.attention(*long))
            await asyncio.sleep(0.05)
            if not task.done():
                os.kill(client.sync.info()["pid"], signal.SIGKILL)
                with pytest.raises(faclient.DaemonLost):
                    await task
    asyncio.run(main())


def test_not_entered():
    client = faclient.aio.connect(private=True)
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(client.attention(*tensors()))
    client.sync.close()
