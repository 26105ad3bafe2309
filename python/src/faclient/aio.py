"""The same for asyncio: requests are awaited, everything else is as in `faclient.Client`.

    async with faclient.aio.connect(spawn=True) as client:
        out = await client.attention(q, k, v)
        async with client.step(cache, {sequence: n}) as step:
            out = await step.attend(layer, q, k, v)

What the daemon answers at once (caches, sequences, the beginning of a step) blocks the loop for
microseconds. A client belongs to the loop in which it was entered.
"""
from __future__ import annotations

import asyncio
import errno
import types
from collections.abc import Iterable, Mapping
from typing import Any

from . import client as _client
from . import kv as _kv
from ._lib import Unique, check, ffi, lib
from ._pages import attend_pages

_FOREVER = 2**64 - 1


class Client(Unique):
    """A connection whose requests are awaited. `sync` is the same connection with blocking calls,
    for caches and sequences."""

    sync: _client.Client

    def __init__(self, sync: _client.Client) -> None:
        self.sync = sync
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        self._waiting: set[asyncio.Future] = set()

    async def __aenter__(self) -> Client:
        self._loop = asyncio.get_running_loop()
        self._fd = check(lib.fa_fd(self.sync._handle))
        self._loop.add_reader(self._fd, self._dispatch)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: types.TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects; what is awaited ends with an error."""
        if self._loop is not None and self._fd >= 0:
            self._loop.remove_reader(self._fd)
        self._fd = -1
        self._wake()
        self.sync.close()

    def _dispatch(self) -> None:
        lib.fa_dispatch(self.sync._handle)
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def _wait(self, ticket) -> None:
        handle = self.sync._handle
        try:
            while True:
                r = lib.fa_wait(handle, ticket, 0, ffi.NULL)
                if r != -errno.EAGAIN:
                    break
                future = self._loop.create_future()
                self._waiting.add(future)
                await future
        except BaseException:
            # The daemon must let go of the memory before its arrays may be freed.
            lib.fa_cancel(handle, ticket)
            lib.fa_wait(handle, ticket, _FOREVER, ffi.NULL)
            raise
        check(r)

    async def _drive(self, work):
        if self._loop is None:
            raise RuntimeError("the client has not been entered: use `async with`")
        try:
            ticket = next(work)
            while True:
                await self._wait(ticket)
                ticket = work.send(None)
        except StopIteration as end:
            return end.value
        finally:
            work.close()

    async def attention(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """As Client.attention()."""
        return await self._drive(self.sync._attention(q, k, v, **options))

    async def pages_attend(self, q: Any, k: Any, v: Any, table: Any, lengths: Any,
                           **options: Any) -> Any:
        """As Client.pages_attend()."""
        return await self._drive(attend_pages(self.sync, q, k, v, table, lengths, **options))

    async def read_pages(self, sequence: _kv.Sequence, first: int, n_tokens: int,
                         k: Iterable[Any] | None, v: Iterable[Any] | None, pages: Any,
                         **options: Any) -> None:
        """As Sequence.read_pages()."""
        await self._drive(sequence._read_pages(first, n_tokens, k, v, pages, **options))

    async def read_state(self, sequence: _kv.Sequence, state: int, data: Any, *,
                         tokens: int = 0) -> None:
        """As Sequence.read_state()."""
        await self._drive(sequence._read_state(state, data, tokens))

    def step(self, cache: _kv.Cache, items: Mapping[_kv.Sequence, int] |
             Iterable[tuple[_kv.Sequence, int]], **options: Any) -> Step:
        """As Cache.step()."""
        return Step(self, cache.step(items, **options))


class Step(Unique):
    """A step whose requests are awaited. Leaving it commits, an exception aborts."""

    client: Client
    sync: _kv.Step

    def __init__(self, client: Client, sync: _kv.Step) -> None:
        self.client, self.sync = client, sync

    async def __aenter__(self) -> Step:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: types.TracebackType | None) -> None:
        if kind is None and self.sync._finalizer.alive:
            await self.commit()
        else:
            self.sync.close()

    async def attend(self, layer: int, q: Any, k_new: Any, v_new: Any, **options: Any) -> Any:
        """As Step.attend()."""
        return await self.client._drive(self.sync._attend(layer, q, k_new, v_new, **options))

    async def write_pages(self, sequence: _kv.Sequence, first: int, n_tokens: int,
                          k: Iterable[Any] | None, v: Iterable[Any] | None, pages: Any,
                          **options: Any) -> None:
        """As Step.write_pages()."""
        await self.client._drive(self.sync._write_pages(sequence, first, n_tokens, k, v, pages,
                                                        **options))

    async def write_state(self, sequence: _kv.Sequence, state: int, data: Any) -> None:
        """As Step.write_state()."""
        await self.client._drive(self.sync._write_state(sequence, state, data))

    async def commit(self) -> None:
        """As Step.commit()."""
        await self.client._drive(self.sync._commit())


def connect(socket: str | None = None, **options: Any) -> Client:
    """As faclient.connect()."""
    return Client(_client.connect(socket, **options))
