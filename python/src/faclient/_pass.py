"""A forward pass of a Transformers model over a FadCache."""
from __future__ import annotations

import torch

from . import errors
from ._rows import Shape
from .kv import Step

#: How often a pass is repeated after the daemon went away.
REPEATS = 100


def is_on_gpu(x) -> bool:
    return x.is_cuda


class Pass:
    """One forward pass: a step of the daemon, repeated if the daemon goes away meanwhile.

    On a GPU nothing is waited for, so what later layers have computed may come from a result that
    was lost: such a pass is not repeated but fails.
    """

    def __init__(self, cache, batch, width):
        self.cache, self.batch, self.width = cache, batch, width
        self.waiting, self.done, self.step = None, 0, None
        self.appended = []  # caches, layers, keys and values so far
        self.places = {}    # caches of the model's layers so far, and their numbers there
        self.valid = None   # which new tokens are no padding; None: all
        self.n_new = None
        self.has_holes = False
        self.indices = None  # on a GPU: where the tokens are in the flattened rows
        self.before = None   # what the cache had before the pass
        self.ticket = None   # of the commit

    def _begin(self):
        cache = self.cache
        items = [(sequence, n) for row, n in zip(cache._rows, self.n_new) if n
                 for sequence in row.sequences]
        checkpoints = [row.sequences[0] for row, flag in zip(cache._rows, self._checkpoints())
                       if flag]
        self.step = Step(cache._cache, items, checkpoints)

    def _checkpoints(self):
        """Returns for which rows the pass writes the states of linear layers."""
        each = self.cache.checkpoint_tokens
        return [bool(each and n and (n > 1 or (length + n) % each == 0))
                for length, n in zip(self.cache._lengths, self.n_new)]

    def _write_states(self):
        flags = self._checkpoints()
        if any(flags):
            self.cache._write_states(self.step, flags)

    def _repeat(self, act):
        for _ in range(REPEATS):
            try:
                if self.step is None:
                    self._begin()
                    for place, layer, k, v in self.appended:
                        self.step.attend(layer, None, k, v, cache=place)
                return act()
            except errors.DaemonLost:
                number = self.step.number if self.step else None
                self.close()
                if act == self._commit and self._is_committed(number):
                    return None
        raise errors.DaemonLost(104, f"the daemon went away {REPEATS} times in one pass")

    def _is_committed(self, number):
        for row, n in zip(self.cache._rows, self.n_new):
            if n:
                return row.info()["step"] == number
        return True

    def attend(self, index, query, key, value, mask, options):
        """key None: the layer's keys and values were appended before."""
        if key is None and query.shape[2] < self.width:
            # The model needs its last rows alone. A step computes all.
            rows = query.shape[2]
            query = torch.nn.functional.pad(query, (0, 0, self.width - rows, 0))
            return self.attend(index, query, None, value, mask, options)[:, -rows:]
        cache = self.cache
        batch, heads, width, _ = query.shape
        if key is not None:
            shape = Shape(key.shape[1], key.shape[3], value.shape[3], cache._mla is not None)
            caches = cache._caches or cache._open(shape, key.dtype)
            self.places[index] = caches.place(index, shape)
        place, layer = self.places[index]
        options = {**options, "cache": place}
        if self.n_new is None:
            while len(cache._rows) < batch:
                cache._rows.append(cache._caches.row())
                cache._lengths.append(0)
            if len(cache._rows) != batch:
                raise ValueError(f"the pass has {batch} rows, and the cache {len(cache._rows)}")
            self._find_padding(mask)
        if self.has_holes and (options["window"] or options["chunk_tokens"]):
            raise NotImplementedError("the attention mask hides tokens between others, which fad "
                                      "does not count in a window or a chunk")
        on_gpu = is_on_gpu(query)
        if on_gpu and self.valid is None and batch and width and key is not None and \
                not place.v_in_k:
            out = self._submit(True, lambda: self.step._attend_batch(layer, query, key, value,
                                                                     **options))
            self.done += 1
            return out
        q, k, v = (None if key is None and x is not query else self._flatten(x)
                   for x in (query, key, value))
        out = q.new_empty((q.shape[0], heads, value.shape[3]))
        if place.v_in_k:
            v = None
        if q.shape[0]:
            self._submit(on_gpu, lambda: self.step.attend(layer, q, k, v, out=out, **options))
        if not on_gpu and key is not None:
            self.appended.append((place, layer, k, v))
        self.done += 1
        if self.valid is None:
            return out.view(batch, width, heads, -1)
        if self.indices is not None:
            padded = out.new_zeros((batch * width, heads, out.shape[2]))
            return padded.index_copy_(0, self.indices, out).view(batch, width, heads, -1)
        padded = out.new_zeros((batch, width, heads, out.shape[2]))
        padded[self.valid] = out
        return padded

    def _submit(self, on_gpu, act):
        if not on_gpu or (self.step is None and self.done == 0):
            return self._repeat(act)
        try:
            return act()
        except errors.DaemonLost as error:
            raise errors.DaemonLost(
                error.errno, "the daemon went away during a pass on the GPU, whose results so far "
                "may be wrong; the cache has the tokens of the passes before it, so that the call "
                f"can be made again: {error.strerror}") from error

    def _find_padding(self, mask):
        if mask is None:
            self.n_new = [self.width] * self.batch
            return
        if mask.dim() != 2:
            raise NotImplementedError(f"an attention mask has {mask.dim()} dimensions; a FadCache takes "
                                      "causal masks, windows, chunks and padding only. Without a "
                                      "FadCache fad computes masks of each row and key")
        device, mask = mask.device, mask.bool().cpu()  # one wait for the GPU, not several
        past, valid = mask[:, :-self.width], mask[:, -self.width:]
        for row, (n, length) in enumerate(zip(past.sum(1).tolist(), self.cache._lengths)):
            if n != length:
                raise ValueError(
                    f"the attention mask shows {n} earlier tokens of row {row}, and the cache has "
                    f"{length}; generate() hides tokens that equal the padding's unless it is "
                    "given an attention_mask, and with prefill_chunk_size older releases of "
                    "Transformers (5.17) begin at the first token again")
        first = mask.int().argmax(1)
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        self.has_holes = bool((mask.sum(1) < last - first + 1).any())
        self.n_new = valid.sum(1).tolist()
        if not valid.all():
            self.valid = valid
            if device.type != "cpu":
                self.indices = valid.reshape(-1).nonzero()[:, 0].to(device)

    def _flatten(self, x):
        """[batch, heads, width, dim] to [tokens, heads, dim], without padding."""
        x = x.transpose(1, 2)
        if self.indices is not None:
            return x.reshape(-1, *x.shape[2:]).index_select(0, self.indices)
        if self.valid is not None:
            return x[self.valid]
        return x.reshape(-1, *x.shape[2:])

    def _commit(self):
        self._write_states()
        self.step.commit()

    def commit(self):
        if not any(self.n_new):
            return
        if self.appended:
            self._repeat(self._commit)
            return
        cache = self.cache
        self._write_states()
        self.before = (cache.tokens, cache._lengths, cache._valid)
        self.ticket = self.step._submit_commit()

    def settle(self):
        """Waits for the commit that commit() did not wait for."""
        step, self.step = self.step, None
        if step is None:
            return
        try:
            self.cache.client._wait(self.ticket)
        except errors.DaemonLost as error:
            if not self._is_committed(step.number):
                raise errors.DaemonLost(
                    error.errno, "the daemon went away, and the tokens of the last pass with it, "
                    "whose results may be wrong; the cache has those before it, so that the call "
                    "can be made again") from error
        finally:
            step.close()

    def close(self):
        if self.step is not None:
            self.step.close()
        self.step = None
