#!/usr/bin/env python3
"""factl top: exact numbers from two statuses; one frame for scripts from a real daemon; and the program on
a terminal, with keys, a new size, a daemon that goes and comes back, and signals.

usage: test-top.py FACTL TOP_FRAME METRICS_CLIENT MAN_PAGE, with FAD_DAEMON set"""
import fcntl
import importlib.util
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

spec = importlib.util.spec_from_file_location(
    "test_metrics", os.path.join(os.path.dirname(os.path.abspath(__file__)), "test-metrics.py"))
metrics = importlib.util.module_from_spec(spec)
spec.loader.exec_module(metrics)

SECOND = 10**9
COLUMNS = 80


def waited(*counts):
    """Counts by powers of two: (exponent, number)."""
    entries = [0] * 25
    for exponent, number in counts:
        entries[exponent - 10] = number
    return entries


def usage(finished, failed=0, busy=0, times=(), tokens=0, matched=0):
    return {"finished": finished, "failed": failed, "busy_ns": busy, "waited": waited(*times), "ran": waited(*times),
            "prefix_lookups": tokens // 10, "prefix_tokens": tokens, "prefix_matched": matched}


def session(number, name, pid=1000, memory=0, requests=0, **counters):
    return {"session": number, "name": name, "pid": pid, "uid": 7, "requests": requests, "buffer_bytes": memory,
            **usage(**counters)}


def tenant(uid, cgroup, **counters):
    return {"uid": uid, "cgroup": cgroup, "sessions": 1, "requests": 0, **usage(**counters)}


def status(seconds, sessions, tenants, generation=5, pool_tenants=(), **requests):
    return {"version": "1.2.3", "generation": generation, "uptime_ns": seconds * SECOND, "connections": len(sessions),
            "backend": "cpu", "device": "a processor", "draining": False, "sessions": sessions, "tenants": tenants,
            "sessions_total": len(sessions), "tenants_total": len(tenants),
            "requests": {"submitted": requests["finished"] + 3, **usage(**requests)},
            "pool": {"chunk_bytes": 1 << 30, "chunks_max": 10, "used_bytes": 3 << 30, "idle_bytes": 1 << 29,
                     "used_pages": 1200, "shared_pages": 300, "evicted_pages": 10 * seconds,
                     "tenants": list(pool_tenants)}}


def check_width(text):
    for line in text.splitlines():
        assert len(line) <= COLUMNS and line == line.rstrip(), f"{len(line)}: {line!r}"


def check_frames(program):
    def frame(before, after, by="client", sort="rate", find="", rows=100):
        done = subprocess.run([program, by, sort, find, str(rows)], input=json.dumps([before, after]),
                              stdout=subprocess.PIPE, text=True, check=True, timeout=60)
        check_width(done.stdout)
        return done.stdout

    before = status(10, [session(1, "steady", finished=100, busy=SECOND, times=[(14, 100)]),
                         session(2, "idle", finished=50)],
                    [tenant(7, "/a", finished=150, busy=SECOND)], finished=150, busy=SECOND)
    after = status(12, [session(1, "steady", 1234, 1 << 20, 2, finished=300, failed=4, busy=2 * SECOND,
                                times=[(14, 200), (20, 100)]),
                        session(2, "idle", 99, 5 << 20, finished=50),
                        session(3, "new", 77, finished=20, busy=SECOND // 2, times=[(11, 20)])],
                   [tenant(7, "/a", finished=370, busy=2 * SECOND, tokens=1000, matched=750),
                    tenant(8, "/b" * 60 + "/the-end", finished=1)],
                   pool_tenants=[{"uid": 7, "cgroup": "/a", "used_bytes": 1 << 20, "idle_bytes": 1 << 20}],
                   finished=370, failed=4, busy=5 * SECOND // 2, times=[(14, 120), (20, 100)], tokens=1000, matched=750)
    text = frame(before, after)
    lines = text.splitlines()
    assert lines[0] == "fad 1.2.3 up 12.0 s, 3 clients; cpu: a processor", lines[0]
    assert lines[1] == "requests  110/s finished, 2.0/s failed, 3 in flight; device busy 75.0%", lines[1]
    # Of 220 requests 120 waited 8 to 16 us, 100 half a millisecond to a whole.
    assert lines[2] == "times     waited 15.7 us (p50), 1.04 ms (p99); ran 15.7 us (p50), 1.04 ms (p99)", lines[2]
    assert lines[3] == "pool      3.00 GiB used, 512 MiB idle, of 10.0 GiB; 1200 pages used, 300 of them shared"[:80], lines[3]
    assert lines[4] == "prefixes  50.0 lookups/s found 75.0% of their tokens; 10.0 pages/s evicted", lines[4]
    rows = [line.split() for line in lines[7:]]
    assert [row[0] for row in rows] == ["1", "3", "2"], rows
    assert rows[0] == ["1", "1234", "100", "2.0", "1.04", "ms", "50.0%", "2", "1.00", "MiB", "steady"], rows
    assert rows[1][2:4] == ["10.0", "0"] and rows[1][-1] == "new" and "25.0%" in rows[1], rows
    assert rows[2] == ["2", "99", "0", "0", "-", "0.0%", "0", "5.00", "MiB", "idle"], rows

    def order(*arguments, **options):
        return [line.split()[0] for line in frame(before, after, *arguments, **options).splitlines()[7:]]

    assert order(sort="wait") == ["1", "3", "2"] and order(sort="share") == ["1", "3", "2"]
    assert order(sort="memory") == ["2", "1", "3"] and order(sort="name") == ["2", "3", "1"]
    assert order(find="new") == ["3"] and order(find="1234") == ["1"] and order(find="nobody") == []
    assert order(rows=1) == ["1", "and"] and "and 2 more" in frame(before, after, rows=1)
    text = frame(before, after, "tenant")
    assert " 750" not in text and re.search(r"^ +7 +110 +0 .* 50\.0% +2\.00 MiB +75\.0%  /a$", text, re.MULTILINE), text
    assert re.search(r"^ +8 +0\.5 +0 +- +0\.0% +0 B +-  \.\..*/the-end$", text, re.MULTILINE), text
    # Without an earlier status of the same daemon, rates are those since its start.
    for first in (None, {**before, "generation": 4}):
        assert "requests  30.8/s finished" in frame(first, after), frame(first, after)
    # Large numbers, long names, and names in other letters stay within 80 columns.
    huge = status(10**7, [session(10**9, name, 4194304, 1 << 60, 10**9, finished=10**15, failed=10**12, busy=10**18,
                                  times=[(34, 10**9)]) for name in ("x" * 64, "é" * 64, "字" * 21, "")],
                  [tenant(2**32 - 2, "/" + "字" * 400, finished=10**15, tokens=10**12, matched=1)], finished=10**15,
                  busy=10**18, times=[(34, 10**9)], tokens=10**12, matched=10**12)
    for by in ("client", "tenant"):
        for sort in ("rate", "wait", "share", "memory", "name"):
            frame(None, huge, by, sort)
            frame(huge, {**huge, "uptime_ns": huge["uptime_ns"] + SECOND}, by, sort)
    for nonsense in ({}, {"requests": {}}, {**after, "sessions": 1}):
        done = subprocess.run([program, "client", "rate", "", "9"], input=json.dumps([None, nonsense]),
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and not done.stdout, done


def check_once(scene):
    text = scene.run("top", "--once", "--interval", "0")
    check_width(text)
    assert re.search(r"^ +[0-9]+ +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ [um]?s .*  stays$", text, re.MULTILINE), text
    assert "  factl\n" in text
    text = scene.run("top", "--once", "--by", "tenant", "--interval", "50", "--sort", "name")
    assert re.search(rf"^ +{os.geteuid()} +0 +0 ", text, re.MULTILINE), text
    assert "  factl\n" not in scene.run("top", "--once", "--interval", "0", "--filter", "stays")
    for wrong in (["--sort", "x"], ["--by", "x"], ["--interval", "x"], ["--filter", "x" * 64]):
        done = subprocess.run([scene.factl, "top", "--once", *wrong], env=scene.environment, capture_output=True,
                              timeout=60)
        assert done.returncode == 2, (wrong, done)
    done = subprocess.run([scene.factl, "top"], env=scene.environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 1 and "--once" in done.stderr, done


class Terminal:
    def __init__(self, scene, *options):
        pid, self.fd = pty.fork()
        if not pid:
            os.environ.update(scene.environment)
            os.execv(scene.factl, [scene.factl, "top", "--interval", "100", *options])
        self.pid, self.output, self.read = pid, "", 0
        self.modes = termios.tcgetattr(self.fd)
        self.resize(24)

    def resize(self, rows):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))

    def press(self, keys):
        self.read = len(self.output)
        os.write(self.fd, keys.encode())

    def see(self, pattern, seconds=30):
        """Waits for output after the last key that matches."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.output[self.read:]):
            assert time.monotonic() < end, f"no {pattern!r} in {self.output[self.read:]!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:  # it has ended
                    assert re.search(pattern, self.output[self.read:]), self.output[self.read:]

    def end(self):
        """Returns the exit status; the terminal must be as it was."""
        self.see(re.escape("\033[?25h\033[?1049l"))
        _, status = os.waitpid(self.pid, 0)
        assert termios.tcgetattr(self.fd) == self.modes, "the terminal's modes are not restored"
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def check_terminal(scene, folder, client):
    terminal = Terminal(scene)
    terminal.see(r"\033\[\?1049h")
    terminal.see(r"q: quit  t: tenants  s: order \(rate\)")
    terminal.see(r"  stays\033\[K")
    for line in re.sub(r"\033\[[?0-9]*[A-Za-z]", "", terminal.output).split("\r\n"):
        assert len(line) <= COLUMNS, line
    terminal.press("t")
    terminal.see(r"t: clients.*\n(.*\n)*.*cgroup")
    terminal.press("ts")
    terminal.see(r"order \(wait\)")
    terminal.press("/fact")
    terminal.see(r"filter: fact_")
    terminal.press("l\x7f\x7f\x7f\x7f\x7fstays\n")
    terminal.see(r"/: filter stays\033")
    terminal.press("s")
    terminal.see(r"order \(share\).*\n(.*\n)*.*  stays\033\[K")
    assert "  factl\033" not in terminal.output[terminal.read:]
    terminal.press("/\033")
    terminal.see(r"/: filter\033")
    # top says that the daemon is gone, and finds the next one.
    terminal.press("s")
    scene.stop()
    terminal.see(r"The daemon does not answer: ")
    terminal.press("s")
    scene.__init__(folder, scene.factl, client)
    terminal.see(r"up [0-9.]+ m?s, 1 clients")
    terminal.press("q")
    assert terminal.end() == 0
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        terminal = Terminal(scene, "--by", "tenant")
        terminal.see("cgroup")
        os.kill(terminal.pid, signal_number)
        assert terminal.end() == 0
    # Control-C sends SIGINT, and the end of a terminal SIGHUP.
    terminal = Terminal(scene)
    terminal.see("quit")
    terminal.press("\x03")
    assert terminal.end() == 0
    # Few lines: the rest is counted.
    clients = [scene.start_client(f"client{i}", 1, 0, 0) for i in range(12)]
    terminal = Terminal(scene)
    terminal.see("client11")
    terminal.read = len(terminal.output)
    terminal.resize(14)
    os.kill(terminal.pid, signal.SIGWINCH)
    terminal.see(r"and 9 more\033\[K\033\[J")
    terminal.press("q")
    assert terminal.end() == 0
    for started in clients:
        started.communicate(timeout=60)


def check_man(factl, page):
    """The man page explains each column."""
    with open(page, encoding="utf-8") as file:
        section = file.read().split(".Sh TOP\n")[1].split("\n.Sh ")[0]
    known = {word for item in re.findall(r"^\.It Li (.*)$", section, re.MULTILINE)
             for word in item.replace('"', "").split(" , ")}
    for title in ("session", "pid", "req/s", "fail/s", "wait p99", "share", "flying", "buffers",
                  "name", "uid", "pages", "hits", "cgroup", "requests", "times", "pool", "prefixes"):
        assert title in known, f"factl.1 does not explain {title}"


def main():
    factl, program, client, page = map(os.path.abspath, sys.argv[1:])
    check_frames(program)
    check_man(factl, page)
    with tempfile.TemporaryDirectory() as folder:
        scene = metrics.Scene(folder, factl, client)
        try:
            stays = scene.start_client("stays", 7, 2, 3)
            check_once(scene)
            check_terminal(scene, folder, client)
            stays.communicate(timeout=60)
        finally:
            scene.stop()


if __name__ == "__main__":
    main()
