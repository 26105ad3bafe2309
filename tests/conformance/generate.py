#!/usr/bin/env python3
"""Writes cases.json: what every language's client has to compute, and the errors that it has to get.

    generate.py OUTPUT            writes it
    generate.py --check FILE      fails unless FILE holds the same cases

The expected numbers come from the formulas of faclient.h and faclient_kv.h, row by row, in fp64; this
file shares no code with the kernels. README.md describes the format."""
import errno
import json
import math
import sys
import zlib

MASK = 2**64 - 1
# How far a result may be off, by dtype: inputs lie in [-1, 1), so results do, too.
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}
SHAPE = {"layers": 2, "kv_heads": 2, "head_dim": 16, "head_dim_v": 16, "page_tokens": 16}


def element(seed, index):
    """Element @index of a random tensor: a multiple of 1/128 in [-1, 1), exact in every dtype."""
    z = ((seed << 32) + index + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    z ^= z >> 31
    return ((z >> 56) - 128) / 128


class Random:
    """A random tensor [tokens, heads, dim] or [batch, tokens, heads, dim]."""

    seeds = 0

    @classmethod
    def begin(cls, case):
        """Seeds depend on the case alone: another one changes no other's numbers."""
        cls.seeds = zlib.crc32(case.encode()) >> 8

    def __init__(self, *shape):
        Random.seeds += 1
        self.seed, self.shape = Random.seeds, list(shape)

    def row(self, *at):
        """The innermost row at these indices."""
        index = 0
        for i, n in zip(at, self.shape):
            index = index * n + i
        dim = self.shape[-1]
        return [element(self.seed, index * dim + d) for d in range(dim)]

    def json(self):
        return {"seed": self.seed, "shape": self.shape}


class Numbers:
    """A tensor of 32-bit integers. A dimension of size 1 is shared by all sequences, or heads."""

    def __init__(self, shape, values):
        self.shape, self.values = list(shape), values
        assert len(values) == math.prod(shape)

    def list(self, *at):
        """The innermost row at these indices."""
        index = 0
        for i, n in zip(at, self.shape):
            index = index * n + (0 if n == 1 else i)
        return self.values[index * self.shape[-1]:(index + 1) * self.shape[-1]]

    def json(self):
        return {"shape": self.shape, "values": self.values}


def bits(*shape):
    """Random words, [sequences, heads, rows, words]."""
    seed = Random(*shape).seed
    words = [sum((element(seed, 32 * i + bit) < 0) << bit for bit in range(32))
             for i in range(math.prod(shape))]
    return Numbers(shape, [word - 2**32 if word >= 2**31 else word for word in words])


def blocks(rows, keys, *lists):
    """A block-sparse mask: lists[b][h][r] are the key blocks that row block r sees."""
    starts, columns = [], []
    n = max(sum(map(len, of_head)) for of_batch in lists for of_head in of_batch)
    for of_head in (of_head for of_batch in lists for of_head in of_batch):
        starts += [sum(map(len, of_head[:r])) for r in range(len(of_head) + 1)]
        own = [block for seen in of_head for block in seen]
        columns += own + [0] * (n - len(own))
    shape = len(lists), len(lists[0])
    return {"block_rows": rows, "block_keys": keys,
            "block_offsets": Numbers((*shape, len(lists[0][0]) + 1), starts),
            "block_columns": Numbers((*shape, n), columns)}


def in_blocks(options, sequence, head, row, key, n_keys):
    """Whether the block-sparse mask shows the key. Offsets are bounded, and of a list count as many
    entries as there are key blocks; those that are no key block or do not ascend show nothing."""
    columns = options["block_columns"].list(sequence, head)
    offsets = options["block_offsets"].list(sequence, head)
    r = row // options["block_rows"]
    begin, end = (min(max(x, 0), len(columns)) for x in offsets[r:r + 2])
    there = -(-n_keys // options["block_keys"])
    seen = columns[begin:min(end, begin + there)]
    wanted = key // options["block_keys"]
    return any(block == wanted and all(block > before for before in seen[:i])
               for i, block in enumerate(seen))


def in_pattern(pattern, position, key, head, group):
    block_tokens, local_blocks, vert_stride, head_step, first_head = pattern
    step = (first_head + head) * head_step if head_step >= 0 else \
        (first_head + head) // group * -head_step
    return position // block_tokens - key // block_tokens < local_blocks or \
        (key // block_tokens + step + 1) % vert_stride == 0


def attend(q, keys, values, position, options, head=0, sequence=0, row=0, group=1):
    """One row: its output and LSE. @keys, @values: {number: row} of those that exist; @position: the
    row's own key; @sequence: which of options["prefix_lengths"] is its own, and with @row and @head
    which part of a mask; @group: query heads that share a key head."""
    scale = options.get("scale") or 1 / math.sqrt(len(q))
    softcap = options.get("softcap", 0)
    left, right = options.get("window", (-1, -1))
    chunk = options.get("chunk_tokens", 0)
    prefix = options["prefix_lengths"][sequence] if "prefix_lengths" in options else 0
    scores = {}
    for j, key in keys.items():
        if options.get("causal") and j > position and j >= prefix:
            continue
        if chunk and j // chunk != position // chunk:
            continue
        if left >= 0 and j < position - left or right >= 0 and j > position + right:
            continue
        if "mask" in options:
            words = options["mask"].list(sequence, head, row)
            if j // 32 >= len(words) or not words[j // 32] >> j % 32 & 1:
                continue
        if "block_rows" in options and not in_blocks(options, sequence, head, row, j, len(keys)):
            continue
        if "pattern" in options and not in_pattern(options["pattern"], position, j, head, group):
            continue
        score = scale * sum(a * b for a, b in zip(q, key))
        if softcap:
            score = softcap * math.tanh(score / softcap)
        if "alibi_slopes" in options:
            score -= options["alibi_slopes"][head] * abs(j - position)
        scores[j] = score
    weights = {j: math.exp(score) for j, score in scores.items()}
    total = sum(weights.values())
    if "sinks" in options:
        total += math.exp(options["sinks"][head])
    if not total:
        return [0.0] * len(next(iter(values.values()))), None
    dim_v = len(next(iter(values.values())))
    out = [sum(w * values[j][d] for j, w in weights.items()) / total for d in range(dim_v)]
    return out, math.log(total)


# ---- attention

def attention(name, dtype="f32", batch=1, n_q=5, n_k=5, heads=2, kv_heads=None, dim=16, dim_v=None,
              lse=False, **options):
    Random.begin(name)
    kv_heads, dim_v = kv_heads or heads, dim_v or dim
    q = Random(batch, n_q, heads, dim)
    k, v = Random(batch, n_k, kv_heads, dim), Random(batch, n_k, kv_heads, dim_v)
    outs, sums = [], []
    for b in range(batch):
        of_batch = [[None] * n_q for _ in range(heads)]
        for i in range(n_q):
            for h in range(heads):
                g = h * kv_heads // heads
                out, of_batch[h][i] = attend(
                    q.row(b, i, h), {j: k.row(b, j, g) for j in range(n_k)},
                    {j: v.row(b, j, g) for j in range(n_k)}, i + n_k - n_q, options, h, b, i,
                    heads // kv_heads)
                outs += out
        sums += [x for of_head in of_batch for x in of_head]
    do = {"op": "attention", "q": q.json(), "k": k.json(), "v": v.json(),
          "out_shape": [batch, n_q, heads, dim_v], **options, "out": outs}
    if lse:
        do.update(lse_shape=[batch, heads, n_q], lse=sums)
    return {"name": name, "dtype": dtype, "operations": [do]}


def ragged(name, lengths, dtype="f32", heads=2, kv_heads=2, dim=16, **options):
    Random.begin(name)
    cu_q, cu_k = [0], [0]
    for n_q, n_k in lengths:
        cu_q.append(cu_q[-1] + n_q)
        cu_k.append(cu_k[-1] + n_k)
    q = Random(cu_q[-1], heads, dim)
    k, v = Random(cu_k[-1], kv_heads, dim), Random(cu_k[-1], kv_heads, dim)
    outs = []
    for b, (n_q, n_k) in enumerate(lengths):
        for i in range(n_q):
            for h in range(heads):
                g = h * kv_heads // heads
                outs += attend(q.row(cu_q[b] + i, h),
                               {j: k.row(cu_k[b] + j, g) for j in range(n_k)},
                               {j: v.row(cu_k[b] + j, g) for j in range(n_k)},
                               i + n_k - n_q, options, h, b, i, heads // kv_heads)[0]
    return {"name": name, "dtype": dtype, "operations": [
        {"op": "attention", "q": q.json(), "k": k.json(), "v": v.json(),
         "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "out_shape": [cu_q[-1], heads, dim],
         **options, "out": outs}]}


def refused(name, error, q=(1, 4, 2, 16), k=(1, 4, 2, 16), v=(1, 4, 2, 16), out=(1, 4, 2, 16),
            **options):
    Random.begin(name)
    return {"name": name, "dtype": "f32", "operations": [
        {"op": "attention", "q": Random(*q).json(), "k": Random(*k).json(), "v": Random(*v).json(),
         "out_shape": list(out), **options, "error": error}]}


def masked(case):
    """A case with a mask that GPUs may lack."""
    return {**case, "gpu": False}


def mask_cases():
    """Masks of blocks, bits, and local and strided blocks."""
    yield attention("blocks", batch=2, n_q=66, n_k=200, heads=2, kv_heads=1, dim=8, lse=True,
                    **blocks(64, 64, [[[0, 2], [1, 3]]], [[[], [0, 1, 2, 3]]]))
    yield attention("blocks of each head, causal", n_q=66, n_k=150, heads=2, kv_heads=1, dim=8,
                    causal=True, lse=True, **blocks(64, 128, [[[0], [1]], [[0, 1], []]]))
    yield attention("blocks, bf16", "bf16", n_q=130, n_k=300, heads=1, dim=16,
                    **blocks(128, 128, [[[0, 2], [1]]]))
    # Blocks that are none, or do not ascend, are skipped; offsets are bounded.
    yield attention("blocks, numbers out of bounds", n_q=66, n_k=150, heads=2, dim=8, lse=True,
                    block_rows=64, block_keys=64,
                    block_offsets=Numbers((1, 2, 3), [-7, 3, 2000000000, 4, 2, 5]),
                    block_columns=Numbers((1, 2, 5), [-1, 1, 2, 0, 1000000, 1, 2, 1, 2, 2]))
    yield ragged("blocks, ragged batch", [(70, 90), (3, 130), (0, 4)], heads=2, kv_heads=1, dim=8,
                 **blocks(64, 64, [[[1], [0]]], [[[0, 2], []]], [[[0], [0]]]))
    yield attention("bits", batch=2, n_q=5, n_k=70, lse=True, mask=bits_of("bits", 2, 1, 5, 3))
    yield attention("bits of each head, with fewer words", n_q=4, n_k=70, heads=4, kv_heads=2,
                    mask=bits_of("bits of each head", 1, 4, 4, 2), lse=True)
    yield attention("bits, rows without a key", n_q=3, n_k=40, lse=True,
                    mask=Numbers((1, 1, 3, 2), [0, 0, 0, 1, -2**31, -1]))
    yield attention("bits, bf16, causal, window", "bf16", n_q=6, n_k=50, causal=True,
                    window=[40, -1], mask=bits_of("bits, bf16", 1, 2, 6, 2))
    yield ragged("bits, ragged batch", [(2, 40), (4, 33), (1, 5)], causal=True,
                 mask=bits_of("bits, ragged batch", 3, 1, 4, 2))
    yield attention("pattern", n_q=6, n_k=100, heads=4, kv_heads=2, causal=True, lse=True,
                    pattern=[16, 2, 3, 1, 0])
    yield attention("pattern by key heads", n_q=6, n_k=100, heads=4, kv_heads=2, causal=True,
                    pattern=[16, 1, 4, -1, 2])
    yield attention("pattern without local blocks", n_q=3, n_k=40, causal=True, lse=True,
                    pattern=[32, 0, 2, 0, 0])
    yield ragged("pattern, ragged batch", [(2, 70), (5, 33)], causal=True, pattern=[16, 1, 2, 1, 0])
    yield attention("all masks at once", n_q=66, n_k=150, heads=2, dim=8, causal=True, lse=True,
                    window=[90, -1], chunk_tokens=70, prefix_lengths=[40], pattern=[16, 3, 2, 1, 0],
                    mask=bits_of("all masks at once", 1, 1, 66, 5),
                    **blocks(64, 64, [[[0, 1], [1, 2]]]))


def bits_of(name, *shape):
    Random.begin(f"{name}: words")
    return bits(*shape)


def mask_error_cases():
    def words(*shape):
        return Numbers(shape, [0] * math.prod(shape))

    yield refused("bits of fewer rows", "EINVAL", mask=words(1, 1, 3, 1))
    yield refused("bits of other heads", "EINVAL", mask=words(1, 3, 4, 1))
    yield refused("bits of more sequences", "EINVAL", mask=words(2, 1, 4, 1))
    yield refused("blocks of fewer rows", "EINVAL", block_rows=64, block_keys=64,
                  block_offsets=words(1, 1, 1), block_columns=words(1, 1, 1))
    yield refused("blocks of other heads", "EINVAL", block_rows=64, block_keys=64,
                  block_offsets=words(1, 3, 2), block_columns=words(1, 1, 1))
    yield refused("columns of other heads", "EINVAL", block_rows=64, block_keys=64,
                  block_offsets=words(1, 1, 2), block_columns=words(1, 3, 1))
    yield refused("blocks of 32 rows", "ENOTSUP", block_rows=32, block_keys=64,
                  block_offsets=words(1, 1, 2), block_columns=words(1, 1, 1))
    yield refused("a pattern of 10 tokens", "EINVAL", pattern=[10, 1, 2, 0, 0])
    yield refused("a pattern without a stride", "EINVAL", pattern=[16, 1, 0, 0, 0])


def attention_cases():
    yield attention("attention", batch=2, n_q=3, n_k=5, lse=True)
    yield attention("causal", n_q=7, n_k=7, causal=True, lse=True)
    yield attention("causal, more keys than queries", n_q=4, n_k=9, causal=True)
    yield attention("causal, rows without a key", n_q=6, n_k=4, causal=True, lse=True)
    yield attention("window", n_q=8, n_k=8, window=[2, 1])
    yield attention("causal window", n_q=6, n_k=10, causal=True, window=[3, -1])
    yield attention("softcap", n_q=4, n_k=6, scale=2, softcap=1.5)
    yield attention("scale", n_q=3, n_k=6, scale=3)
    yield attention("grouped queries", heads=6, kv_heads=2, n_q=3, n_k=5, causal=True)
    yield attention("value dim", n_q=3, n_k=5, dim=16, dim_v=24)
    yield attention("alibi", n_q=4, n_k=6, causal=True, alibi_slopes=[0.5, 0.125])
    yield attention("sinks", n_q=3, n_k=5, sinks=[0.5, -1], lse=True)
    for chunk in (1, 4):
        yield masked(attention(f"chunks of {chunk}", n_q=6, n_k=11, causal=True, chunk_tokens=chunk,
                               lse=True))
    yield masked(attention("chunks and a window", n_q=9, n_k=7, chunk_tokens=3, window=[1, 1],
                           lse=True))
    yield masked(attention("prefixes", batch=3, n_q=6, n_k=8, causal=True,
                           prefix_lengths=[0, 5, 4294967295], lse=True))
    yield attention("a prefix of all keys", n_q=4, n_k=6, causal=True, prefix_lengths=[6])
    yield masked(attention("prefixes, chunks, window", "bf16", n_q=6, n_k=8, causal=True,
                           prefix_lengths=[7], chunk_tokens=4, window=[2, 1]))
    yield attention("many keys", n_q=2, n_k=300, heads=1, scale=2, causal=True)
    for dtype in ("f16", "bf16"):
        yield attention(f"{dtype}", dtype, batch=2, n_q=3, n_k=5)
        yield attention(f"{dtype}, causal, grouped queries", dtype, n_q=5, n_k=9, heads=4,
                        kv_heads=2, causal=True)
        yield attention(f"{dtype}, window, softcap", dtype, n_q=4, n_k=8, window=[3, 0], softcap=2,
                        scale=1)
    yield attention("head dim 128", dtype="bf16", n_q=1, n_k=20, heads=2, kv_heads=1, dim=128)
    yield ragged("ragged batch", [(3, 5), (0, 2), (5, 5)])
    yield ragged("ragged batch, causal", [(1, 7), (4, 4), (2, 6)], causal=True)
    yield masked(ragged("ragged batch, chunks", [(1, 7), (4, 4), (3, 9)], causal=True, chunk_tokens=4))
    yield masked(ragged("ragged batch, prefixes", [(2, 7), (4, 4), (3, 9)], causal=True,
                        prefix_lengths=[7, 2, 8]))
    yield ragged("ragged batch, bf16, grouped queries", [(2, 3), (3, 6)], "bf16", heads=4,
                 causal=True)


def error_cases():
    yield refused("heads that are no multiple", "EINVAL", q=(1, 4, 3, 16), out=(1, 4, 3, 16))
    yield refused("k of another head dim", "EINVAL", k=(1, 4, 2, 24))
    yield refused("v with fewer tokens", "EINVAL", v=(1, 3, 2, 16))
    yield refused("out of another shape", "EINVAL", out=(1, 4, 2, 8))
    yield refused("another batch", "EINVAL", k=(2, 4, 2, 16), v=(2, 4, 2, 16))
    yield refused("a head dim that no kernel has", "ENOTSUP", q=(1, 4, 2, 12), k=(1, 4, 2, 12),
                  v=(1, 4, 2, 12), out=(1, 4, 2, 12))
    yield refused("a negative softcap", "EINVAL", softcap=-1)
    yield refused("prefixes without causal", "EINVAL", prefix_lengths=[1])
    yield refused("sequences that end before they begin", "EINVAL", q=(4, 2, 16), k=(4, 2, 16),
                  v=(4, 2, 16), out=(4, 2, 16), cu_seqlens_q=[0, 3, 2], cu_seqlens_k=[0, 2, 4])
    yield refused("sequences beyond the tensor", "EINVAL", q=(4, 2, 16), k=(4, 2, 16),
                  v=(4, 2, 16), out=(4, 2, 16), cu_seqlens_q=[0, 5], cu_seqlens_k=[0, 4])


# ---- pages of the client's own

class Own:
    """A case over pages that the client manages. Computes what to expect by doing each operation on
    lists of rows."""

    def __init__(self, name, dtype="f32", pages=6, page_tokens=4, kv_heads=2, dim=16, dim_v=None,
                 heads_first=False, layers=1):
        Random.begin(name)
        self.case = {"name": name, "dtype": dtype, "operations": []}
        self.pages, self.size, self.kv_heads = pages, page_tokens, kv_heads
        self.dim, self.dim_v = dim, dim_v or dim
        self.heads_first = heads_first
        self.layers = [self.layer() for _ in range(layers)]
        self.do("pages", pages="own", heads_first=heads_first,
                k=[k.json() for k, _, _ in self.layers], v=[v.json() for _, v, _ in self.layers])

    def layer(self):
        """Random k and v, and their rows by slot and head."""
        shape = (self.kv_heads, self.size) if self.heads_first else (self.size, self.kv_heads)
        k, v = (Random(self.pages, *shape, dim) for dim in (self.dim, self.dim_v))
        rows = {}
        for slot in range(self.pages * self.size):
            page, token = divmod(slot, self.size)
            for g in range(self.kv_heads):
                at = (page, g, token) if self.heads_first else (page, token, g)
                rows[slot, g] = k.row(*at), v.row(*at)
        return k, v, rows

    def do(self, what, **fields):
        self.case["operations"].append({"op": what, **fields})
        return self

    def attend(self, table, lengths, counts, heads=4, slots=None, layer=0, lse=False, max_k=0,
               ragged=True, **options):
        """Attention of counts[b] new rows to the first lengths[b] tokens of each sequence, after new
        keys and values went to the slots."""
        rows = self.layers[layer][2]
        fields = {}
        if slots is not None:
            k, v = (Random(len(slots), self.kv_heads, dim) for dim in (self.dim, self.dim_v))
            for i, slot in enumerate(slots):
                if 0 <= slot < self.pages * self.size:
                    for g in range(self.kv_heads):
                        rows[slot, g] = k.row(i, g), v.row(i, g)
            fields.update(k_new=k.json(), v_new=v.json(), slots=slots)
        cu_q = [sum(counts[:b]) for b in range(len(counts) + 1)]
        q = Random(cu_q[-1], heads, self.dim)
        outs, sums = [], [[None] * cu_q[-1] for _ in range(heads)]
        for b, n_q in enumerate(counts):
            longest = min(len(table[b]) * self.size, max_k or 1 << 24)
            n_k = max(0, min(lengths[b], longest))
            own = [min(table[b][j // self.size], self.pages - 1) * self.size + j % self.size
                   for j in range(n_k)]
            for i in range(n_q):
                for h in range(heads):
                    if not own:
                        outs += [0.0] * self.dim_v
                        continue
                    g = h * self.kv_heads // heads
                    out, sums[h][cu_q[b] + i] = attend(
                        q.row(cu_q[b] + i, h), {j: rows[slot, g][0] for j, slot in enumerate(own)},
                        {j: rows[slot, g][1] for j, slot in enumerate(own)}, i + n_k - n_q, options,
                        h, b, i, heads // self.kv_heads)
                    outs += out
        if ragged:
            fields.update(cu_q=cu_q, max_q=max(counts))
        if lse:
            fields.update(lse=[x for of_head in sums for x in of_head], lse_shape=[heads, cu_q[-1]])
        return self.do("pages_attend", pages="own", layer=layer, q=q.json(), table=table,
                       lengths=lengths, max_k=max_k, out_shape=[cu_q[-1], heads, self.dim_v],
                       **fields, **options, out=outs)

    def refused(self, error, table=((0, 1),), lengths=(5,), q=(1, 4, 16), out=(1, 4, 16), **fields):
        return self.do("pages_attend", pages="own", layer=0, q=Random(*q).json(),
                       table=[list(row) for row in table], lengths=list(lengths), max_k=0,
                       out_shape=list(out), **fields, error=error)


def own_cases():
    table = [[4, 1, 0], [2, 5, 3]]
    yield Own("own pages").attend(table, [9, 12], [1, 1], ragged=False, lse=True).case
    yield (Own("own pages, causal, appended").attend(
        table, [3, 7], [3, 5], slots=[16, 17, 18, 10, 11, 20, 21, 22], causal=True, lse=True)
        .attend(table, [4, 8], [1, 1], slots=[19, 23], causal=True).case)
    for dtype in ("f16", "bf16"):
        yield (Own(f"own pages, {dtype}, heads before tokens", dtype, heads_first=True)
               .attend(table, [4, 11], [2, 1], slots=[18, 19, 14], causal=True).case)
    yield (Own("own pages, window, softcap, alibi, sinks").attend(
        table, [9, 12], [2, 3], causal=True, window=[4, 0], softcap=2.0, scale=1.0,
        alibi_slopes=[0.5, 0.25, 0.125, 0.0625], sinks=[0.5, -1.0, 0.0, 1.0], lse=True).case)
    yield masked(Own("own pages, chunks").attend(table, [9, 12], [2, 7], causal=True, chunk_tokens=5,
                                                 lse=True).case)
    yield masked(Own("own pages, prefixes").attend(table, [9, 12], [7, 8], causal=True,
                                                   prefix_lengths=[6, 100]).case)
    yield masked(Own("own pages, pattern", pages=20).attend(
        [[4, 1, 0, 7, 9, 12, 14, 3, 5], [19, 2, 6, 8, 10, 11, 13, 15, 16]], [33, 36], [3, 5],
        causal=True, pattern=[16, 1, 2, 1, 0], lse=True).case)
    yield Own("own pages, value dim, pages of 3", page_tokens=3, dim_v=24).attend(
        [[1, 4], [5, 0]], [6, 2], [1, 1]).case
    yield Own("own pages, one head, no keys", kv_heads=1).attend(
        table, [0, 3], [2, 4], causal=True, lse=True).case
    # Numbers out of bounds: the last page stands for pages beyond it, max_k or the table's room for
    # lengths beyond them.
    yield (Own("own pages, numbers out of bounds").attend([[6, 1000000], [2, 2147483647]], [8, 7],
                                                          [1, 2])
           .attend([[1], [2]], [2000000000, -5], [1, 1], max_k=4)
           .attend([[0, 1]], [6], [1], slots=[-1, 24, 1000000, 5]).case)
    yield (Own("own pages, wrong requests")
           .refused("EINVAL", lengths=(5, 5)).refused("EINVAL", q=(1, 3, 16), out=(1, 3, 16))
           .refused("EINVAL", q=(1, 4, 24)).refused("EINVAL", out=(2, 4, 16))
           .refused("EINVAL", cu_q=[0], max_q=1).refused("EINVAL", softcap=-1)
           .attend(table, [9, 12], [1, 1]).case)


# ---- the KV cache

class Script:
    """A case over a cache. Computes what to expect by doing each step on lists of rows."""

    def __init__(self, name, dtype="f32", shared=False, **shape):
        Random.begin(name)
        self.cache = {**SHAPE, **shape}
        if shared:
            self.cache["name"] = f"conformance {name}"
        self.case = {"name": name, "dtype": dtype, "cache": self.cache, "operations": []}
        self.sequences = {}  # name: (its first token, [rows of each token: {layer: (k, v)}])
        self.step = {}

    def do(self, what, **fields):
        self.case["operations"].append({"op": what, **fields})
        return self

    def create(self, *names, by=0):
        for name in names:
            self.sequences[name] = [0, []]
            self.do("create", sequence=name, **client(by))
        return self

    def begin(self, *items, step="step", by=0):
        self.step[step] = {"items": items, "by": by,
                           "new": {name: [{} for _ in range(n)] for name, n in items}}
        return self.do("begin", step=step, items=[list(item) for item in items], **client(by))

    def attend(self, *layers, step="step", heads=4, query=True, append=True, **options):
        """New keys and values, and the attention of each item's new tokens."""
        state = self.step[step]
        total = sum(n for _, n in state["items"])
        shape = self.cache
        for layer in layers:
            fields = {}
            if append:
                k = Random(total, shape["kv_heads"], shape["head_dim"])
                v = Random(total, shape["kv_heads"], shape["head_dim_v"])
                at = 0
                for name, n in state["items"]:
                    for i in range(n):
                        state["new"][name][i][layer] = [
                            [x.row(at + i, g) for g in range(shape["kv_heads"])] for x in (k, v)]
                    at += n
                fields.update(k_new=k.json(), v_new=v.json())
            if query:
                q = Random(total, heads, shape["head_dim"])
                fields.update(q=q.json(), out_shape=[total, heads, shape["head_dim_v"]],
                              causal=True, **options, out=self.expected(state, q, layer, options))
            self.do("attend", step=step, layer=layer, **client(state["by"]), **fields)
        return self

    def expected(self, state, q, layer, options):
        outs, at = [], 0
        heads, kv_heads = q.shape[1], self.cache["kv_heads"]
        for b, (name, n) in enumerate(state["items"]):
            first, old = self.sequences[name]
            tokens = old + state["new"][name]
            for i in range(n):
                for h in range(heads):
                    g = h * kv_heads // heads
                    seen = range(first, len(tokens))
                    outs += attend(q.row(at + i, h), {j: tokens[j][layer][0][g] for j in seen},
                                   {j: tokens[j][layer][1][g] for j in seen}, len(old) + i,
                                   {"causal": True, **options}, h, b, i, heads // kv_heads)[0]
            at += n
        return outs

    def commit(self, step="step"):
        state = self.step.pop(step)
        for name, tokens in state["new"].items():
            self.sequences[name][1] = self.sequences[name][1] + tokens
        return self.do("commit", step=step, **client(state["by"]))

    def abort(self, step="step"):
        return self.do("abort", step=step, **client(self.step.pop(step)["by"]))

    def append(self, *items, by=0, **options):
        """A whole step."""
        return self.begin(*items, by=by).attend(*range(self.cache["layers"]), **options).commit()

    def fill(self, *items, by=0):
        """A whole step without queries."""
        return self.append(*items, by=by, query=False)

    def length(self, name, by=0):
        first, tokens = self.sequences[name]
        return self.do("length", sequence=name, expect=len(tokens), first=first, **client(by))

    def fork(self, name, to, tokens=None, by=0):
        first, rows = self.sequences[name]
        self.sequences[to] = [first, rows[:tokens]]
        fields = {} if tokens is None else {"tokens": tokens}
        return self.do("fork", sequence=name, to=to, **fields, **client(by))

    def truncate(self, name, tokens):
        self.sequences[name][1] = self.sequences[name][1][:tokens]
        return self.do("truncate", sequence=name, tokens=tokens)

    def drop(self, name, before):
        pages = self.cache["page_tokens"]
        self.sequences[name][0] = before // pages * pages
        return self.do("drop", sequence=name, before=before, expect=self.sequences[name][0])

    def attach(self, name, source, tokens, expect, by=0):
        self.sequences[name] = [0, self.sequences[source][1][:expect]]
        return self.do("attach", sequence=name, tokens=tokens, expect=expect, **client(by))


    # Pages of the client's own, k and v of each layer.

    def own_pages(self, name, pages, size):
        shape = self.cache
        self.own = getattr(self, "own", {})
        self.own[name] = [[Random(pages, size, shape["kv_heads"], shape[dim])
                           for dim in ("head_dim", "head_dim_v")] for _ in range(shape["layers"])]
        return self.do("pages", pages=name, heads_first=False,
                       k=[k.json() for k, _ in self.own[name]],
                       v=[v.json() for _, v in self.own[name]])

    def slot(self, name, numbers, offset, i):
        size = self.own[name][0][0].shape[1]
        return numbers[(offset + i) // size], (offset + i) % size

    def write_pages(self, name, own, numbers, offset, n, step="step"):
        """Fills an item's first new tokens, all layers."""
        for i in range(n):
            at = self.slot(own, numbers, offset, i)
            for layer, sides in enumerate(self.own[own]):
                self.step[step]["new"][name][i][layer] = [
                    [x.row(*at, g) for g in range(self.cache["kv_heads"])] for x in sides]
        return self.do("write_pages", step=step, sequence=name, pages=own, first=0, tokens=n,
                       numbers=numbers, page_offset=offset)

    def read_pages(self, name, own, numbers, offset, first, n):
        """Compares all of the pages, also what stays as it was."""
        written = {self.slot(own, numbers, offset, i): self.sequences[name][1][first + i]
                   for i in range(n)}
        found = []
        for side in range(2):
            found.append([])
            for layer, sides in enumerate(self.own[own]):
                pages, size = sides[side].shape[:2]
                found[-1].append([x for page in range(pages) for token in range(size)
                                  for g in range(self.cache["kv_heads"])
                                  for x in (written[page, token][layer][side][g]
                                            if (page, token) in written
                                            else sides[side].row(page, token, g))])
        return self.do("read_pages", sequence=name, pages=own, first=first, tokens=n,
                       numbers=numbers, page_offset=offset, k=found[0], v=found[1])


def client(by):
    return {"client": by} if by else {}


def kv_cases():
    yield (Script("steps").create("a").append(("a", 5)).append(("a", 1)).append(("a", 30))
           .length("a"))
    for dtype in ("f16", "bf16"):
        yield Script(f"steps, {dtype}", dtype).create("a").append(("a", 20)).append(("a", 1))
    yield (Script("steps, one key head for four", kv_heads=1, head_dim=64, head_dim_v=64, layers=1)
           .create("a").append(("a", 9)).append(("a", 2)))
    yield (Script("steps, window and softcap").create("a").fill(("a", 24))
           .append(("a", 2), window=[6, 0], softcap=2.0, scale=1.0))
    yield (Script("steps, alibi and sinks").create("a").fill(("a", 20))
           .append(("a", 3), alibi_slopes=[0.5, 0.25, 0.125, 0.0625], sinks=[0.5, -1.0, 0.0, 1.0]))
    yield (Script("steps, chunks").create("a", "b").append(("a", 21), chunk_tokens=8)
           .append(("b", 2), ("a", 7), chunk_tokens=8).append(("a", 1), ("b", 1), chunk_tokens=8))
    pattern = Script("steps, pattern").create("a", "b")
    for items in ([("a", 37)], [("b", 2), ("a", 3)], [("a", 1), ("b", 1)]):
        pattern.append(*items, pattern=[16, 1, 2, 1, 0])
    pattern.case["gpu"] = False
    yield pattern
    yield (Script("steps, a prompt that is a prefix").create("a", "b")
           .append(("a", 9), ("b", 4), prefix_lengths=[9, 4])
           .append(("a", 1), ("b", 1), prefix_lengths=[9, 4]))
    prefixed = Script("steps, prefixes").create("a", "b")
    prefixed.append(("a", 9), ("b", 4), prefix_lengths=[6, 0])
    prefixed.append(("b", 5), ("a", 2), prefix_lengths=[7, 20])
    prefixed.case["gpu"] = False
    yield prefixed
    yield (Script("steps, value dim", head_dim_v=24).create("a").append(("a", 18)).append(("a", 1)))
    yield (Script("two sequences in a step").create("a", "b").append(("a", 10))
           .append(("a", 2), ("b", 3)).append(("b", 1), ("a", 1)).length("a").length("b"))
    yield (Script("appending and attending apart").create("a").begin(("a", 4))
           .attend(0, query=False).attend(0, append=False).attend(1).commit().length("a"))
    yield (Script("fork").create("a").fill(("a", 40)).fork("a", "b", 33).fork("a", "c")
           .append(("b", 2)).append(("a", 1), ("c", 2)).length("a").length("b").length("c"))
    yield (Script("truncate").create("a").fill(("a", 40)).truncate("a", 21).append(("a", 2))
           .length("a"))
    yield (Script("drop").create("a").fill(("a", 50)).drop("a", 35).append(("a", 2)).length("a"))
    yield (Script("abort").create("a").fill(("a", 20)).begin(("a", 3)).attend(0).abort().length("a")
           .append(("a", 2)).length("a"))
    tokens = list(range(1000, 1040))
    yield (Script("publish and attach", shared=True).create("a").fill(("a", 40))
           .do("publish", sequence="a", tokens=tokens, expect=2)
           .do("publish", sequence="a", tokens=tokens, expect=0)
           .do("find", tokens=tokens, expect=32, client=1)
           .do("find", tokens=[*tokens[:31], 7, 8], expect=16, client=1)
           .do("find", tokens=[7] * 40, expect=0, client=1)
           .create("b", by=1).attach("b", "a", tokens, 32, by=1).length("b", by=1)
           .append(("b", 3), by=1).append(("a", 1)).length("b", by=1).length("a"))
    named = Script("a sequence by its name", shared=True).create("a").fill(("a", 20))
    named.do("name", sequence="a", name="conformance prompt")
    named.do("sequence", name="conformance prompt", sequence="found", client=1)
    named.sequences["found"] = named.sequences["a"]
    yield (named.length("found", by=1).fork("found", "b", 18, by=1).append(("b", 2), by=1)
           .length("b", by=1).length("a"))


    for dtype in ("f32", "bf16"):
        yield (Script(f"copies of own pages, {dtype}", dtype, kv_heads=1, head_dim=8, head_dim_v=8)
               .create("a").own_pages("from", 5, 4).own_pages("to", 4, 3)
               .begin(("a", 14)).write_pages("a", "from", [3, 0, 4, 2], 2, 14).commit()
               .append(("a", 2), heads=2)
               .read_pages("a", "to", [2, 0, 3], 1, 5, 7))


def kv_error_cases():
    wrong = Script("copies of own pages that are wrong", kv_heads=1, head_dim=8, head_dim_v=8)
    wrong.create("a").fill(("a", 20)).own_pages("to", 4, 3)
    for fields in ({"numbers": [0, 0]}, {"numbers": [0, 4]}, {"numbers": [0]},
                   {"numbers": [0, 1], "first": 16}, {"numbers": [0, 1], "page_offset": 3}):
        wrong.do("read_pages", **{"sequence": "a", "pages": "to", "first": 0, "tokens": 6,
                                  "page_offset": 0, **fields}, error="EINVAL")
    yield wrong.length("a")
    yield (Script("what is longer than the sequence").create("a").fill(("a", 20))
           .do("fork", sequence="a", to="b", tokens=21, error="EINVAL")
           .do("truncate", sequence="a", tokens=21, error="EINVAL")
           .do("publish", sequence="a", tokens=list(range(21)), error="EINVAL")
           .do("attach", sequence="a", tokens=list(range(20)), error="EINVAL").length("a"))
    yield (Script("a sequence that another client removed", shared=True).create("a").fill(("a", 3))
           .do("name", sequence="a", name="conformance removed")
           .do("sequence", name="conformance removed", sequence="found", client=1)
           .do("remove", sequence="found", client=1)
           .do("length", sequence="a", error="ESTALE")
           .do("fork", sequence="a", to="b", error="ESTALE"))
    yield (Script("names", shared=True).create("a", "b")
           .do("name", sequence="a", name="conformance name")
           .do("name", sequence="b", name="conformance name", error="EEXIST")
           .do("sequence", name="no such name", sequence="c", error="ENOENT")
           .do("cache", error="EEXIST"))
    busy = Script("a sequence that another client extends", shared=True).create("a").fill(("a", 3))
    busy.do("name", sequence="a", name="conformance busy")
    busy.do("sequence", name="conformance busy", sequence="found", client=1)
    busy.begin(("a", 2)).do("begin", step="other", items=[["found", 1]], client=1, error="EBUSY")
    yield busy.attend(0, 1).commit().length("a")
    yield (Script("steps that are wrong").create("a")
           .do("begin", step="twice", items=[["a", 1], ["a", 1]], error="EINVAL")
           .begin(("a", 2))
           .do("attend", step="step", layer=2, k_new=Random(2, 2, 16).json(),
               v_new=Random(2, 2, 16).json(), error="EINVAL")
           .abort())
    yield (Script("tensors of a wrong shape").create("a").begin(("a", 2))
           .do("attend", step="step", layer=0, k_new=Random(2, 3, 16).json(),
               v_new=Random(2, 3, 16).json(), error="EINVAL")
           .do("commit", step="step", error="ECANCELED").length("a"))
    for name, error, shape in (("a cache without layers", "EINVAL", {"layers": 0}),
                               ("a cache of an odd head dim", "EINVAL",
                                {"head_dim": 12, "head_dim_v": 12}),
                               ("a cache of odd pages", "EINVAL", {"page_tokens": 17})):
        script = Script(name, **shape)
        del script.case["cache"]
        yield script.do("cache", cache=script.cache, error=error)


def cases():
    found = [*attention_cases(), *map(masked, mask_cases()), *error_cases(),
             *map(masked, mask_error_cases()), *own_cases()]
    found += [script.case for script in (*kv_cases(), *kv_error_cases())]
    # A runner that compares nothing would pass this case, and must not.
    wrong = attention("a wrong number is noticed", heads=1, n_q=2, n_k=3)
    wrong["operations"][0]["out"][-1] += 0.01
    wrong["wrong"] = True
    return [*found, wrong]


# ---- the file

def text(value):
    """JSON with short numbers: of the expected results, the digits that are compared."""
    if isinstance(value, Numbers):
        return text(value.json())
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, list):
        return f"[{', '.join(text(item) for item in value)}]"
    if isinstance(value, dict):
        return "{%s}" % ", ".join(f"{json.dumps(key)}: {text(item)}" for key, item in value.items())
    return json.dumps(value)


def document(made):
    numbers = sorted({step["error"] for case in made for step in case["operations"] if "error" in step})
    lines = ['{"version": 1,', f' "tolerance": {text(TOLERANCE)},',
             f' "errno": {text({name: getattr(errno, name) for name in numbers})},', ' "cases": [']
    for case in made:
        head = {key: value for key, value in case.items() if key != "operations"}
        lines.append(f'  {text(head)[:-1]}, "operations": [')
        lines.append(",\n".join(f"   {text(step)}" for step in case["operations"]))
        lines.append("  ]}," if case is not made[-1] else "  ]}")
    return "\n".join([*lines, "]}", ""])


def same(a, b):
    """True if only digits differ that another C library may compute otherwise."""
    if isinstance(a, float) or isinstance(b, float):
        return abs(a - b) <= 1e-6
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--check":
        with open(arguments[1], encoding="utf-8") as file:
            if not same(json.load(file), json.loads(document(cases()))):
                sys.exit(f"{arguments[1]} is not what generate.py makes: run it again")
    elif len(arguments) == 1:
        with open(arguments[0], "w", encoding="utf-8") as file:
            file.write(document(cases()))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
