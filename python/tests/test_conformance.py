"""The cases of tests/conformance/cases.json, which clients in all languages run."""
import contextlib
import json
import math
import os

import numpy as np
import pytest

import faclient

PATH = os.environ.get("FACLIENT_CONFORMANCE") or os.path.join(
    os.path.dirname(__file__), "..", "..", "tests", "conformance", "cases.json")
with open(PATH, encoding="utf-8") as file:
    FILE = json.load(file)
OPTIONS = ("causal", "scale", "softcap", "sinks", "alibi_slopes", "chunk_tokens",
           "pattern")
NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def element(seed, index):
    z = ((seed << 32) + index + 1) * 0x9e3779b97f4a7c15 % 2**64
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 % 2**64
    z = (z ^ z >> 27) * 0x94d049bb133111eb % 2**64
    return (((z ^ z >> 31) >> 56) - 128) / 128


def stored(values, dtype):
    """An array of the case's dtype; bfloat16 as uint16. The numbers are exact in each."""
    values = np.asarray(values, np.float32)
    if dtype == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(NAMES[dtype])


def floats(array):
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


class Run:
    """A case that runs."""

    def __init__(self, case, clients):
        self.case, self.clients = case, clients
        self.tolerance = FILE["tolerance"][case["dtype"]]
        self.wrong = 0
        self.sequences, self.steps, self.pages = {}, {}, {}
        self.cache = self.create_cache(clients[0], case["cache"]) if "cache" in case else None

    def random(self, tensor):
        if tensor is None:
            return None
        values = [element(tensor["seed"], i) for i in range(math.prod(tensor["shape"]))]
        return stored(values, self.case["dtype"]).reshape(tensor["shape"])

    def compare(self, found, expected):
        found = floats(found).ravel()
        assert found.size == len(expected)
        for i, (a, b) in enumerate(zip(found, expected)):
            b = -math.inf if b is None else b
            if not (a == b or abs(a - b) <= self.tolerance):
                if not self.wrong and not self.case.get("wrong"):
                    print(f"number {i} is {a}; expected {b}")
                self.wrong += 1

    def options(self, operation):
        options = {name: operation[name] for name in OPTIONS if name in operation}
        options.setdefault("causal", False)
        if "window" in operation:
            options["window"] = tuple(operation["window"])
        return options

    def masks(self, operation):
        found = {name: np.array(operation[name]["values"], np.int32).reshape(operation[name]["shape"])
                 for name in ("block_offsets", "block_columns", "mask") if name in operation}
        if "block_rows" in operation:
            found["blocks"] = faclient.Blocks(found.pop("block_offsets"), found.pop("block_columns"),
                                              operation["block_rows"], operation["block_keys"])
        return found

    def attention(self, client, operation):
        out = np.zeros(operation["out_shape"], stored([], self.case["dtype"]).dtype)
        options = self.options(operation)
        if "prefix_lengths" in operation:
            options["prefix_lengths"] = operation["prefix_lengths"]
        options.update(self.masks(operation))
        if "lse" in operation:
            options["lse"] = np.zeros(operation["lse_shape"], np.float32)
        if "cu_seqlens_q" in operation:
            options["lengths"] = operation["cu_seqlens_q"], operation["cu_seqlens_k"]
        client.attention(*(self.random(operation[name]) for name in "qkv"), out=out, **options)
        self.compare(out, operation["out"])
        if "lse" in operation:
            self.compare(options["lse"], operation["lse"])

    def attend(self, client, operation):
        tensors = [self.random(operation.get(name)) for name in ("q", "k_new", "v_new")]
        options = self.options(operation) if "q" in operation else {}
        if "prefix_lengths" in operation:
            options["prefix_lengths"] = operation["prefix_lengths"]
        out = self.steps[operation["step"]].attend(operation["layer"], *tensors, **options)
        if "q" in operation:
            self.compare(out, operation["out"])

    def create_pages(self, client, operation):
        """k and v of each layer, as pages_attend() takes them."""
        sides = []
        for name in ("k", "v"):
            sides.append([])
            for tensor in operation[name]:
                values = self.random(tensor)
                pages = client.empty(values.shape, NAMES[self.case["dtype"]])
                pages[...] = values
                sides[-1].append(pages.swapaxes(1, 2) if operation["heads_first"] else pages)
        self.pages[operation["pages"]] = sides

    def pages_attend(self, client, operation):
        k, v = (side[operation["layer"]] for side in self.pages[operation["pages"]])
        options = self.options(operation)
        for name, dtype in (("cu_q", np.int32), ("slots", np.int64), ("prefix_lengths", np.int32)):
            if name in operation:
                options[name] = np.array(operation[name], dtype)
        for name in ("k_new", "v_new"):
            if name in operation:
                options[name] = self.random(operation[name])
        if "lse" in operation:
            options["lse"] = np.zeros(operation["lse_shape"], np.float32)
        out = np.zeros(operation["out_shape"], stored([], self.case["dtype"]).dtype)
        table, lengths = (np.array(operation[name], np.int32) for name in ("table", "lengths"))
        client.pages_attend(self.random(operation["q"]), k, v, table, lengths, out=out,
                            max_q=operation.get("max_q", 0), max_k=operation["max_k"], **options)
        self.compare(out, operation["out"])
        if "lse" in operation:
            self.compare(options["lse"], operation["lse"])

    def copy_pages(self, operation, sequence):
        k, v = self.pages[operation["pages"]]
        how = operation["first"], operation["tokens"], k, v, operation["numbers"]
        offset = operation["page_offset"]
        if operation["op"] == "write_pages":
            self.steps[operation["step"]].write_pages(sequence, *how, page_offset=offset)
            return
        sequence.read_pages(*how, page_offset=offset)
        for side, name in ((k, "k"), (v, "v")):
            for layer, expected in zip(side, operation[name]):
                self.compare(layer, expected)

    def create_cache(self, client, shape):
        return client.cache(**shape, dtype=NAMES[self.case["dtype"]])

    def cache_of(self, client):
        """The case's cache, as this client finds it: cache() finds what exists."""
        shape = self.case["cache"]
        return self.create_cache(client, shape) if "name" in shape else self.cache

    def operate(self, operation):
        client = self.clients[operation.get("client", 0)]
        sequence = self.sequences.get(operation.get("sequence"))
        tokens, expect = operation.get("tokens"), operation.get("expect")
        op = operation["op"]
        if op == "attention":
            self.attention(client, operation)
        elif op == "pages":
            self.create_pages(client, operation)
        elif op == "pages_attend":
            self.pages_attend(client, operation)
        elif op in ("read_pages", "write_pages"):
            self.copy_pages(operation, sequence)
        elif op == "cache":
            self.create_cache(client, operation["cache"])
        elif op == "create":
            self.sequences[operation["sequence"]] = self.cache_of(client).sequence()
        elif op == "begin":
            items = [(self.sequences[name], n) for name, n in operation["items"]]
            self.steps[operation["step"]] = self.cache_of(client).step(items)
        elif op == "attend":
            self.attend(client, operation)
        elif op == "commit":
            self.steps[operation["step"]].commit()
        elif op == "abort":
            self.steps[operation["step"]].close()
        elif op == "length":
            info = sequence.info()
            assert (info["length"], info["first"]) == (expect, operation["first"])
        elif op == "fork":
            self.sequences[operation["to"]] = sequence.fork(tokens)
        elif op == "truncate":
            sequence.truncate(tokens)
        elif op == "drop":
            assert sequence.drop_before(operation["before"]) == expect
        elif op == "remove":
            sequence.remove()
        elif op == "name":
            sequence.set_name(operation["name"])
        elif op == "sequence":
            self.sequences[operation["sequence"]] = client.sequence(operation["name"])
        elif op == "publish":
            assert sequence.publish(tokens) == expect
        elif op == "attach":
            assert sequence.attach(tokens) == expect
        elif op == "find":
            assert self.cache_of(client).find(tokens) == expect
        else:
            raise AssertionError(f"unknown operation {op}")


def run_operation(run, operation):
    if "error" not in operation:
        run.operate(operation)
        return
    if operation["op"] == "cache" and "cache" not in operation:
        return  # Client.cache() finds a cache that exists
    with pytest.raises(faclient.Error) as raised:
        run.operate(operation)
    assert raised.value.errno == FILE["errno"][operation["error"]], raised.value
    assert " " in raised.value.strerror


@pytest.fixture(scope="module")
def clients(client):
    with faclient.connect(client.socket, name="other") as other:
        yield client, other


@pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: case["name"])
def test_case(case, clients):
    run = Run(case, clients)
    try:
        for operation in case["operations"]:
            run_operation(run, operation)
    finally:
        for step in run.steps.values():
            step.close()
        if run.cache is not None:
            with contextlib.suppress(faclient.Error):
                run.cache.remove()
    assert (run.wrong > 0) == case.get("wrong", False)


def test_all_cases_are_there():
    assert FILE["version"] == 1 and len(FILE["cases"]) >= 50
