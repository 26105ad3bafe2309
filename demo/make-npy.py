#!/usr/bin/env python3
"""Makes the .npy files that the demo's fourth client reads.

make-npy.py DIRECTORY

Query, key and value of 2,050 tokens in fp16, as numpy.save() writes them: two query heads of dim 64
share one key/value head. Needs nothing but Python, and gives the same bytes on every machine."""

import os
import struct
import sys

TOKENS = 2050
SHAPES = {"query": (TOKENS, 2, 64), "key": (TOKENS, 1, 64), "value": (TOKENS, 1, 64)}


def numbers(seed):
    """The sum of four uniform numbers, of variance 1."""
    state = seed
    while True:
        total = 0
        for _ in range(4):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            total += state >> 40
        yield (total / 2**24 - 2) * 3**0.5


def npy(shape, values):
    header = "{'descr': '<f2', 'fortran_order': False, 'shape': %r, }" % (shape,)
    length = 10 + len(header) + 1
    header += " " * (-length % 64) + "\n"
    return (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", len(header))
        + header.encode("ascii")
        + struct.pack(f"<{len(values)}e", *values)
    )


def main(directory):
    for seed, (name, shape) in enumerate(SHAPES.items(), 1):
        stream = numbers(seed)
        count = shape[0] * shape[1] * shape[2]
        with open(os.path.join(directory, name + ".npy"), "wb") as file:
            file.write(npy(shape, [next(stream) for _ in range(count)]))


if __name__ == "__main__":
    main(sys.argv[1])
