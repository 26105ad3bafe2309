#!/usr/bin/env python3
"""fad --trace with a real run: every request is in the file, with the times that the status adds up to;
slices of a thread are nested; and a daemon that was killed leaves what it had written.

usage: test-trace.py FACTL METRICS_CLIENT KV_EXAMPLE, with FAD_DAEMON set"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time


class Daemon:
    def __init__(self, folder, *options):
        self.environment = {**os.environ, "FAD_SOCKET": os.path.join(folder, "fad.sock")}
        self.path = os.path.join(folder, "trace.json")
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [os.environ["FAD_DAEMON"], "--socket", self.environment["FAD_SOCKET"], "--trace", self.path, "--ready-fd",
             str(write), *options], pass_fds=[write], stderr=subprocess.PIPE, text=True)
        os.close(write)
        with os.fdopen(read) as ready:
            assert ready.readline() == "READY\n", "the daemon does not come up"

    def run(self, *command):
        return subprocess.run(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True, check=True, timeout=60).stdout

    def stop(self):
        self.process.terminate()
        _, log = self.process.communicate(timeout=60)
        assert self.process.returncode == 0 and "trace" not in log, log


def nanoseconds(event, key="ts"):
    """Written with three decimals, which floats of this size do not all have."""
    whole, _, part = event[key].partition(".")
    assert len(part) == 3, event
    return int(whole) * 1000 + int(part)


def read(path, complete=True):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        events = json.loads(text if complete else text + "]", parse_float=str)
    except ValueError:
        if complete:
            raise
        events = json.loads(text[:text.rfind(",\n")] + "]", parse_float=str) if text.count("\n") > 2 else []
    assert all(event["ph"] in "MXbe" for event in events)
    return events


def requests(events, complete=True):
    """{id: {name: (begin, end)}}, of the tracks of requests and of the device; without requests that are not whole."""
    found = {}
    for category in ("request", "device"):
        open_spans = {}
        for event in events:
            if event.get("cat") != category:
                continue
            key = event["id"], event["name"]
            if event["ph"] == "b":
                assert key not in open_spans, event
                open_spans[key] = event
                continue
            begin = open_spans.pop(key)
            span = nanoseconds(begin), nanoseconds(event)
            assert span[0] <= span[1], (begin, event)
            name = event["name"] if event["name"] in ("wait", "run") else category
            found.setdefault(event["id"], {})[name] = span
            if category == "request" and name == "request":
                found[event["id"]]["begin"] = begin
        assert not open_spans or not complete, open_spans
    return {key: spans for key, spans in found.items() if "request" in spans}


def check_spans(found):
    for spans in found.values():
        whole = spans["request"]
        if "run" not in spans:
            assert set(spans) == {"request", "begin"}, spans
            continue
        assert whole[0] == spans["wait"][0] and spans["wait"][1] == spans["run"][0], spans
        assert spans["run"][1] <= whole[1] and spans["device"] == spans["run"], spans


def check_threads(events, pid):
    """Slices of one thread are apart, or one is inside the other. The loop's thread is the process's first."""
    names = {event["tid"]: event["args"]["name"] for event in events
             if event["ph"] == "M" and event["name"] == "thread_name"}
    threads = {}
    for event in events:
        if event["ph"] == "X":
            begin = nanoseconds(event)
            threads.setdefault(event["tid"], []).append((begin, begin + nanoseconds(event, "dur")))
    assert set(threads) == set(names) and names[pid] == "fad", (set(threads), names)
    for slices in threads.values():
        ends = []
        for begin, end in sorted(slices, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or end <= ends[-1], (begin, end, ends)
            ends.append(end)


def count(events, kind, name):
    return sum(1 for event in events if event["ph"] == kind and event["name"] == name)


def check_run(folder, factl, client, example):
    daemon = Daemon(folder)
    try:
        daemon.run(client, "load", "50", "2", "3")
        status = json.loads(daemon.run(factl, "status", "--json"))
        if example:
            daemon.run(example)
    finally:
        daemon.stop()
    events = read(daemon.path)
    found = requests(events)
    check_spans(found)
    check_threads(events, daemon.process.pid)
    mine = [spans for spans in found.values() if spans["begin"]["args"]["session"] == 1]
    by_name = {}
    for spans in mine:
        by_name.setdefault(spans["begin"]["name"], []).append(spans["begin"]["args"]["status"])
    assert sorted(map(len, by_name.values())) == [3, 52] and set(by_name) == {"Attention", "Marker"}, by_name
    assert sum(result < 0 for result in by_name["Attention"]) == 2 and not any(by_name["Marker"]), by_name
    # The status says the same, to the nanosecond.
    ran = [spans for spans in mine if "run" in spans]
    assert len(ran) == sum(status["requests"]["ran"]) == 50
    for key, name in (("ran_ns", "run"), ("waited_ns", "wait")):
        assert sum(spans[name][1] - spans[name][0] for spans in ran) == status["requests"][key], key
    assert count(events, "X", "Attention") == 52 and count(events, "X", "Marker") == 3
    assert count(events, "X", "launch") >= 50 and count(events, "X", "Hello") >= 2
    assert count(events, "X", "Status") == 1 and count(events, "M", "dropped") == 1
    if example:
        names = {spans["begin"]["name"] for spans in found.values()}
        assert {"StepAttend", "StepEnd"} <= names, names
    # Another daemon makes the file anew.
    daemon = Daemon(folder)
    daemon.stop()
    assert not requests(read(daemon.path))


def check_killed(folder, client):
    daemon = Daemon(folder)
    try:
        daemon.run(client, "load", "20", "0", "0")
        end = time.monotonic() + 30
        while len(requests(read(daemon.path, complete=False), complete=False)) < 20:
            assert time.monotonic() < end, "the file is not written meanwhile"
            time.sleep(0.02)
    finally:
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.communicate(timeout=60)
    check_spans(requests(read(daemon.path, complete=False), complete=False))


def check_wrong(folder):
    done = subprocess.run([os.environ["FAD_DAEMON"], "--socket", os.path.join(folder, "x.sock"), "--trace",
                           "/no/such/folder/trace"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "/no/such/folder/trace cannot be made" in done.stderr, done
    assert not os.path.exists(os.path.join(folder, "x.sock"))


def main():
    factl, client, *example = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check_run(folder, factl, client, example[0] if example else None)
        check_killed(folder, client)
        check_wrong(folder)


if __name__ == "__main__":
    main()
