#!/usr/bin/env python3
"""
Tests bench/race.py and bench/decode.py without PyTorch and a GPU: their structs match C, race.py
takes the options that bench/all.py passes, names and flops of cells match the targets, and decode.py
gives each peer's fastest setting.
    test-race.py RACE.PY ALL.PY TARGETS.JSON DECODE.PY RACE_LAYOUT
"""
import ctypes
import fnmatch
import importlib.util
import json
import subprocess
import sys
from unittest import mock

# Name, arguments of the cell, and the peer for which there must be a target, if any.
CELLS = (
    ("prefill/bf16/d128-s4096/causal", ("bf16", 128, 4096, "causal"), "fa3"),
    ("prefill/f16/d64-s4096/full", ("f16", 64, 4096, "full"), "cudnn"),
    ("prefill/bf16/h32.8-d128-s4096/causal", ("bf16", 128, 4096, "causal", 32, 8), "fa2"),
    ("prefill/bf16/d256-s16384/window1024", ("bf16", 256, 16384, "window1024"), "full"),
    ("prefill/bf16/d64-s512/window1024", ("bf16", 64, 512, "window1024"), None),
    ("prefill/bf16/d128-s4096/causal-alibi", ("bf16", 128, 4096, "causal-alibi"), "plain"),
    ("prefill/bf16/d128-s4096/full-softcap", ("bf16", 128, 4096, "full-softcap"), None),
)


class Parsed(Exception):
    pass


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_layout(race, decode, program):
    for line in subprocess.run([program], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines():
        struct, field, value = line.split()
        if struct == "Values":
            assert getattr(decode, field) == int(value), field
            continue
        type_ = getattr(race if hasattr(race, struct) else decode, struct)
        found = ctypes.sizeof(type_) if field == "-" else getattr(type_, field).offset
        assert found == int(value), f"{struct}.{field} is at {found}, in C at {value}"


def parses(race, words):
    with mock.patch.object(sys, "argv", ["race.py", *words]), \
            mock.patch.object(race, "Gpu", side_effect=Parsed):
        try:
            race.main()
        except Parsed:
            return True
        except SystemExit:
            return False
    raise AssertionError("it went on without a GPU")


def check_cell(race, targets, name, what, peer):
    cell = race.Cell(*what)
    assert cell.name == name, cell.name
    params = cell.params[0]
    heads = 2048 // cell.dim if len(what) == 4 else what[4]
    assert (params.heads, params.kv_heads) == (heads, what[5] if len(what) > 5 else heads), name
    assert params.batch * params.seqlen_q == 16384, name
    assert params.causal == ("full" not in name) and (params.softcap > 0) == ("softcap" in name), name
    assert bool(params.alibi_slopes) == ("alibi" in name), name
    # kernels/attention.h defines which keys are visible.
    pairs = 0
    for row in range(cell.seqlen):
        last = row if params.causal else cell.seqlen - 1
        first = max(row - params.window_left, 0) if params.window_left >= 0 else 0
        pairs += last - first + 1
    assert cell.flops == 4 * pairs * cell.dim * heads * params.batch, name
    assert {beside for beside, _ in cell.own_peers()} == {peer} & {"full", "plain"} or not peer, name
    for _, beside in cell.own_peers():
        assert beside.sets is cell.sets and beside.params[0].heads == heads, name
        assert not beside.params[0].alibi_slopes and beside.params[0].window_left == -1, name
    if peer:
        assert any(fnmatch.fnmatchcase(name, target["name"]) and target.get("peer") == peer
                   for target in targets), f"there is no target for {name} and {peer}"


def check_decode(decode, targets):
    samples = {"fad": [2e-6, 4e-6, 4e-6], "bare": [3e-6] * 3, "xqa/NHD": [6e-6] * 3,
               "xqa/HND": [5e-6] * 3, "fa3/hnd-s2": [8e-6] * 3, "bf16": [1e-6] * 3}
    rows = {row["peer"]: row for row in decode.rows_of("n", samples, "GPU", "c")}
    assert rows.keys() == {"bare", "xqa", "fa3", "bf16", "best"}, rows
    assert all(row["value"] == 4 and row["spread"] == 0.5 for row in rows.values()), rows
    assert {peer: (row["ratio"], row["setting"]) for peer, row in rows.items()} == {
        "bare": (0.75, "bare"), "xqa": (1.25, "xqa/HND"), "fa3": (2, "fa3/hnd-s2"),
        "bf16": (0.25, "bf16"), "best": (1.25, "xqa/HND")}, rows
    cells = decode.cells(None, decode.GRID, decode.DIM)
    assert len(cells) == len(set(cells))
    assert len(decode.cells("h8.1-d128-p64", decode.GRID, decode.DIM)) == 3
    for axis, least in enumerate((4, 4, 4, 2, 2, 2)):  # batch, context, heads, KV heads, page, new tokens
        assert len({cell[axis] for cell in cells}) >= least, axis
    for type_, peer in (("bf16", "best"), ("bf16-e4m3", "xqa"), ("bf16-int8-heads", "bf16")):
        assert any(fnmatch.fnmatchcase(f"decode-race/{type_}/b1/us", target["name"]) and
                   target.get("peer") == peer for target in targets), type_


def main():
    race_path, all_path, targets_path, decode_path, layout = sys.argv[1:]
    torch = mock.MagicMock()
    torch.tensor.return_value.data_ptr.return_value = 4096
    modules = {name: torch for name in ("torch", "torch.nn.attention", "torch.nn.functional")}
    with mock.patch.dict(sys.modules, modules):
        race = load("race", race_path)
        with mock.patch.dict(sys.modules, {"race": race}):
            decode = load("decode", decode_path)
    bench = load("all", all_path)
    check_layout(race, decode, layout)

    asked = [command for _, _, commands in bench.PARTS for command in commands if "bench/race.py" in command]
    assert len(asked) > 2, asked
    for command in asked:
        assert parses(race, command[2:]), command
    for wrong in ("--masks window", "--masks causal-sinks", "--heads 6 --kv-heads 4", "--kv-heads 4",
                  "--data sink", "--data random4", "--data peaked100"):
        with mock.patch.object(sys, "stderr"):
            assert not parses(race, ["--library", "x", *wrong.split()]), wrong

    with open(targets_path, encoding="utf-8") as file:
        targets = json.load(file)["targets"]
    check_decode(decode, targets)
    with mock.patch.object(race, "view", lambda tensor: race.Tensor()):
        for cell in CELLS:
            check_cell(race, targets, *cell)


if __name__ == "__main__":
    main()
