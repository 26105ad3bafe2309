"""The lines of README.md run as they are."""
import os
import re

import numpy as np
import pytest

import faclient

README = os.path.join(os.path.dirname(__file__), "..", "README.md")
HEADS, DIM, NEW, PAGES = 32, 128, 5, 3


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def bf16(*shape):
    """As numpy has it: the upper half of fp32."""
    return (numbers(*shape).view(np.uint32) >> 16).astype(np.uint16)


#: What each part of the example takes as given.
GIVEN = [
    {"q": numbers(1, NEW, HEADS, DIM), "k": numbers(1, 70, 8, DIM), "v": numbers(1, 70, 8, DIM),
     "seen": numbers(NEW, 70) > 0},
    {"tokens": list(range(40)), "n": NEW, "layer": 0, "q": bf16(NEW, HEADS, DIM),
     "k": bf16(NEW, 8, DIM), "v": bf16(NEW, 8, DIM)},
    {"q": numbers(1, HEADS, DIM), "k": numbers(PAGES, 16, 8, DIM), "v": numbers(PAGES, 16, 8, DIM),
     "table": np.arange(PAGES, dtype=np.int32)[None], "lengths": np.array([40], np.int32)},
]


@pytest.mark.skipif(not os.path.exists(README), reason="there is no README.md beside the tests")
def test_example(monkeypatch):
    with open(README, encoding="utf-8") as file:
        code = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
    connect = faclient.connect
    monkeypatch.setattr(faclient, "connect", lambda **options: connect(private=True))
    beginning, *parts = code.split("\n\n")
    assert beginning == "import faclient" and len(parts) == len(GIVEN)
    opening, parts[0] = parts[0].split("\n", 1)
    for part, given in zip(parts, GIVEN):
        names = {"faclient": faclient, **given}
        exec(compile(f"{opening}\n{part}", "README.md", "exec"), names)
        if "out" in names:
            assert names["out"].shape == given["q"].shape
