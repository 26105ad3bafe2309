#!/usr/bin/env python3
"""
Runs all GPU benchmarks of bench/results/RESULTS.md in the GPU bundle, as bench/all.py, one part
after another. A part that fails, hangs or has no time left is reported, and the others go on.

    bench/all.py --output DIR                all parts
    bench/all.py --output DIR kv 'prefill-*' the parts with these names (shell patterns)
    bench/all.py --list                      list the parts and their time limits

DIR/PART.json is the input of results.py keep-all PREFIX DIR COMMIT (bench/results); DIR/log has
the output of all commands. The last lines sum up; exits 0 if all parts gave results.
"""
import argparse
import datetime
import fnmatch
import json
import os
import shlex
import signal
import subprocess
import sys
import time

BUNDLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
FABENCH = ["bin/fabench", "--json"]
TIME_PAGED = ["bench/time-paged", "--json"]
DECODE = [*TIME_PAGED, "--only", "decode", "--samples", "12"]
# Parts without peers.
CODES = [*TIME_PAGED, "--only", "codes", "--samples", "12"]
SHARED = [*TIME_PAGED, "--only", "shared", "--samples", "20"]
DETERMINISTIC = [*TIME_PAGED, "--only", "deterministic", "--samples", "12"]
PREFILL = [*TIME_PAGED, "--only", "prefill", "--samples", "10"]
RACE = [sys.executable, "bench/race.py", "--library", "lib/libfagpu.so", "--samples", "12"]
TRAFFIC = [sys.executable, "bench/traffic.py", "--library", "lib/libfagpu.so", "--samples", "12"]
TRAFFIC_F16 = [*TRAFFIC, "--dtype", "f16", "--parts", "prompt,extend,ragged", "--cells",
               "h32.8-d128-q512-k512,h32.8-d128-q2048-k2048,h8.8-d128-q1024-k1024,"
               "h32.8-d64-q2048-k2048,h32.8-d128-q64-k32768,h32.8-d128-q512-k8192,"
               "h32.8-d128-q2048-k32768,h4.1-d128-q128-k32768,h32.8-d128-lognormal1,"
               "h32.8-d128-contexts1"]
OTHER_DATA = [sys.executable, "bench/data.py", "--library", "lib/libfagpu.so"]
EXTEND = [*TIME_PAGED, "--only", "extend", "--samples", "12"]
FP16 = [*RACE, "--dtypes", "f16", "--dims", "64,128", "--seqlens", "4096"]
GQA = [*RACE, "--dims", "128", "--heads", "32", "--kv-heads", "8", "--seqlens", "1024,4096,16384"]
# PyTorch has no kernels for these.
DATA = [*RACE, "--seqlens", "4096", "--data",
        "gain4,gain8,sink30,sink100,sink300,peak100,peak300,ascending100,ascending300,"
        "descending100,descending300"]
WINDOW = [*RACE, "--masks", "window1024", "--seqlens", "16384"]
FEATURES = [*RACE, "--masks", "full-alibi,causal-alibi,causal-softcap", "--seqlens", "4096"]

# Name, time limit in seconds, commands. A command prints its JSON, or writes it to {json}.
PARTS = (
    ("rtt", 180, [[*FABENCH, "rtt"]]),
    ("request", 240, [[*FABENCH, "request"]]),
    ("request-mps", 300, [[*FABENCH, "--mps", "request"]]),
    ("step", 180, [[*FABENCH, "step"]]),
    ("yield", 150, [[*FABENCH, "yield"]]),
    ("launch", 120, [["bin/fabench-launch", "--json"]]),
    ("prepare", 60, [["bin/fabench-launch", "--prepare", "--json"]]),
    ("throughput", 240, [[*FABENCH, "throughput"]]),
    ("crowd", 300, [[*FABENCH, "crowd"]]),
    ("fair", 240, [[*FABENCH, "fair"]]),
    ("gpu", 120, [[*FABENCH, "gpu"]]),
    ("kv", 480, [[sys.executable, "bench/kv.py", "--json", "{json}"]]),
    ("decode-shapes", 480, [
        [*DECODE, *shape.split()] for shape in (
            "--heads 64 --kv-heads 8", "--heads 32 --kv-heads 32", "--heads 8 --kv-heads 1",
            "--heads 40 --kv-heads 8", "--new 4", "--dim 64", "--dim 256", "--page 16")]),
    ("decode-codes", 240, [CODES, [*CODES, "--heads", "8", "--kv-heads", "1"]]),
    ("decode-shared", 120, [SHARED]),
    ("decode-deterministic", 120, [DETERMINISTIC]),
    ("paged-prefill", 240, [
        [*PREFILL, *shape.split()] for shape in (
            "--page 16", "--page 256", "--dim 64", "--dim 256 --heads 16 --kv-heads 4")]),
    ("prefill-boost", 480, [[*RACE, "--json", "{json}"]]),
    ("prefill-sustained", 900, [[*RACE, "--state", "sustained", "--json", "{json}"]]),
    ("prefill-f16", 120, [[*FP16, "--json", "{json}"]]),
    ("prefill-f16-sustained", 120, [[*FP16, "--state", "sustained", "--json", "{json}"]]),
    ("traffic", 240, [[*TRAFFIC, "--json", "{json}"]]),
    ("traffic-f16", 120, [[*TRAFFIC_F16, "--json", "{json}"]]),
    ("data", 120, [[*OTHER_DATA, "--json", "{json}"]]),
    ("extend-codes", 120, [[*EXTEND, "--store", store] for store in ("e4m3-heads", "int8")]),
    ("paged-extend", 240, [EXTEND, [*EXTEND, "--heads", "4", "--kv-heads", "1"]]),
    ("prefill-gqa", 120, [[*GQA, "--json", "{json}"]]),
    ("prefill-window", 120, [[*WINDOW, "--json", "{json}"]]),
    ("prefill-features", 120, [[*FEATURES, "--json", "{json}"]]),
    ("masks", 60, [["bench/time-masks", "--json"]]),
    ("prefill-data", 480, [[*DATA, "--json", "{json}"]]),
    ("prefill-alone", 300, [[*FABENCH, "prefill"]]),
)


def with_peers(command, args):
    """Adds the peers to a command that can compare with them."""
    if "bench/race.py" in command or "bench/traffic.py" in command:
        return command + (["--peers", args.race_peers] if args.race_peers else [])
    if command[0] == TIME_PAGED[0] and "decode" in command or "bench/kv.py" in command:
        return command + [word for peer in args.peer for word in ("--peer", peer)]
    return command


class Stop:
    """SIGTERM ends this program and its child. While a child is being started, the signal is
    deferred until its pid is known."""
    starting = asked = False

    @classmethod
    def come(cls, *_):
        cls.asked = True
        cls.go()

    @classmethod
    def go(cls):
        if cls.asked and not cls.starting:
            sys.exit("stopped")


def run(command, seconds, log, output):
    """Runs @command for at most @seconds, and kills all its children. Returns what went wrong, or
    None, and its output."""
    log.write(f"$ {shlex.join(command)}\n")
    log.flush()
    start = time.monotonic()
    try:
        with open(output, "w+", encoding="utf-8") as printed:
            Stop.starting = True
            process = subprocess.Popen(command, cwd=BUNDLE, stdin=subprocess.DEVNULL,
                                       stdout=printed, stderr=log, start_new_session=True)
            try:
                Stop.starting = False
                Stop.go()
                status = process.wait(timeout=max(seconds, 1))
                wrong = f"status {status}" if status else None
            except subprocess.TimeoutExpired:
                wrong = f"did not end in {seconds:.0f} s"
            finally:
                # Ends child processes that it left behind.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            printed.seek(0)
            text = printed.read()
    except OSError as error:
        wrong, text = str(error), ""
    Stop.starting = False
    Stop.go()
    log.write(f"{text}\n[{wrong or 'ok'}, {time.monotonic() - start:.0f} s]\n\n")
    log.flush()
    return wrong, text


def load(text, path):
    """Loads the JSON from the file or the output; None if there is none."""
    try:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        return json.loads(text)
    except ValueError:
        return None


def show(result):
    peer = f"{result['ratio']:.3f} of {result['peer']}" if result.get("peer") else ""
    print(f"    {result['name']:<52} {result['value']:10.4g} {result['unit']:<8} {peer}", flush=True)


def measure(name, seconds, commands, args, log):
    """Runs the commands of a part and writes their results. Returns what went wrong, or None, and
    the number of results."""
    until = time.monotonic() + seconds
    wrongs, results, machine = [], [], ""
    written = os.path.join(args.output, f"{name}.part")
    for command in commands:
        command = with_peers([written if word == "{json}" else word for word in command], args)
        if time.monotonic() >= until:
            wrongs.append(f"no time left for {shlex.join(command)}")
            continue
        wrong, text = run(command, until - time.monotonic(), log, os.path.join(args.output, f"{name}.out"))
        said = load(text, written)
        if os.path.exists(written):
            os.unlink(written)
        os.unlink(os.path.join(args.output, f"{name}.out"))
        if not said or not said.get("results"):
            wrong = wrong or "no results"
        if wrong:
            wrongs.append(wrong)
        for result in (said or {}).get("results", []):
            result["commit"] = result.get("commit", "").strip("?") or args.commit
            result.setdefault("device", (said or {}).get("device", ""))
            machine = machine or (said or {}).get("machine") or result["device"]
            results.append(result)
            show(result)
    if results:
        recorded = {
            "command": f"bench/all.py {name}: " + ", ".join(shlex.join(
                "python3" if word == sys.executable else word
                for word in with_peers(command, args) if word not in ("{json}", "--json"))
                for command in commands),
            "machine": machine,
            "date": datetime.date.today().isoformat(),
            "results": results,
        }
        with open(os.path.join(args.output, f"{name}.json"), "w", encoding="utf-8") as file:
            json.dump(recorded, file, indent=1, ensure_ascii=False)
            file.write("\n")
    return "; ".join(wrongs) or None, len(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", metavar="DIR", help="directory for the results, created if missing")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=3600, help="for all parts together (default: 3600)")
    parser.add_argument("--part-limit", metavar="SECONDS", type=float, default=3600,
                        help="for each part, if less than its own limit")
    parser.add_argument("--peer", metavar="LIBRARY[:NAME]", action="append", default=[],
                        help="other kernels for decode, see bench/kernels/peer.h")
    parser.add_argument("--race-peers", metavar="FILE.py", help="other kernels for prefill, see race.py")
    parser.add_argument("--commit", default="?", help="commit of the bundle, for programs that do not know it")
    parser.add_argument("parts", metavar="PART", nargs="*")
    args = parser.parse_args()

    wanted = [part for part in PARTS
              if not args.parts or any(fnmatch.fnmatchcase(part[0], pattern) for pattern in args.parts)]
    for pattern in args.parts:
        if not any(fnmatch.fnmatchcase(part[0], pattern) for part in PARTS):
            parser.error(f"there is no part {pattern}; see --list")
    if args.list:
        for name, seconds, _ in wanted:
            print(f"{name:<22} {seconds:4} s")
        return 0
    if not args.output:
        parser.error("--output DIR is missing")
    args.output = os.path.abspath(args.output)
    args.peer = [os.path.abspath(peer) for peer in args.peer]
    args.race_peers = args.race_peers and os.path.abspath(args.race_peers)
    os.makedirs(args.output, exist_ok=True)
    signal.signal(signal.SIGTERM, Stop.come)

    until = time.monotonic() + args.limit
    lines, failed = [], []
    with open(os.path.join(args.output, "log"), "a", encoding="utf-8") as log:
        for name, seconds, commands in wanted:
            left = until - time.monotonic()
            if left < 1:
                lines.append(f"NOT RUN  {name}: no time was left")
                failed.append(name)
                continue
            print(f"{name}", flush=True)
            start = time.monotonic()
            wrong, n = measure(name, min(seconds, left, args.part_limit), commands, args, log)
            took = f"{n} results, {time.monotonic() - start:.0f} s"
            lines.append(f"FAILED   {name}: {wrong}; {took}" if wrong else f"ok       {name}: {took}")
            print(lines[-1], flush=True)
            if wrong:
                failed.append(name)
        log.write("".join(f"{line}\n" for line in lines))
    print("\n" + "\n".join(lines))
    if failed:
        print(f"run again: {shlex.join(['bench/all.py', '--output', args.output, *failed])}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
