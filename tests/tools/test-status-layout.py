#!/usr/bin/env python3
"""`factl status` for people: no line is wider than 80 columns, whatever the numbers and names; no
name is cut; the man page explains every table, heading and line.

usage: test-status-layout.py FACTL STATUS_TEXT MAN_PAGE, with FAD_DAEMON set"""
import json
import os
import re
import subprocess
import sys
import tempfile

COLUMNS = 80
TIB = 1 << 40
NAME = "a-client-whose-name-is-as-long-as-names-may-be-which-is-64-bytes"
CGROUP = "/kubepods.slice/kubepods-burstable.slice/" + "pod0123456789abcdef-" * 20 + "container.scope"
SECOND = 10**9


def usage(factor):
    return {"finished": factor * 10**6, "failed": factor * 1000, "busy_ns": factor * 100 * SECOND}


def status(factor, name, cgroup):
    """All that a daemon can report; the numbers grow with the factor."""
    session = {"session": factor * 1000, "pid": 4194304, "uid": 4294967294, "requests": 16 * factor,
               "buffers": 4 * factor, "buffer_bytes": factor * TIB, "streams": 64, "gpu_buffers": 1,
               "ring_bytes": 4096, "ring_asleep": True, "ring_requests": factor * 10**6,
               "ring_doorbells": factor * 10**5, "name": name, **usage(factor)}
    used = {"sessions": 2 * factor, "buffers": 8 * factor, "buffer_bytes": 1023 * TIB, "device_bytes": 17 * TIB,
            "fds": 70 * factor, "requests": 160 * factor, "step_bytes": 31 << 20, "gates": 60 * factor}
    tenant = {"uid": 4294967294, "cgroup": cgroup, **used, **usage(factor),
              "limits": {key: 2**62 for key in used}}
    cache = {"cache": 2**63 - 1, "uid": 4294967294, "session": factor * 1000, "layers": 128,
             "sequences": 32768 * factor, "page_bytes": 4 << 20, "used_pages": factor * 10**6,
             "idle_pages": factor * 10**6, "name": name}
    sequence = {"sequence": 2**63 - 1, "cache": 2**63 - 1, "uid": 4294967294, "session": factor * 1000,
                "length": factor * 10**6, "planned": factor * 10**6, "steps": 64, "checkpoints": 1024,
                "name": name}
    return {"version": "10.20.30", "pid": 4194304, "uptime_ns": factor * 1000 * SECOND, "draining": True,
            "backend": "cuda", "device": "NVIDIA H200 " + "with a long name " * 8, "threads": 1024,
            "gpu_unused": "a reason without end, " * 10, "mps": "off", "memory_bytes": 24 * TIB,
            "connections": 4096 * factor, "sessions_total": 100 * factor, "tenants_total": 100 * factor,
            "limits": {"all_buffer_bytes": 20 * TIB, "pool_bytes": 2**63 - 1, "caches": 32, "sequences": 2**24},
            "requests": {"submitted": 2 * factor * 10**6, "cancelled": factor, **usage(2 * factor),
                         "waited": [0] * 4 + [factor * 98 + 1, factor], "ran": [0] * 24 + [factor + 1],
                         "prefix_lookups": 4 * factor + 1, "prefix_hits": 3 * factor,
                         "prefix_tokens": 1000 * factor + 1, "prefix_matched": 500 * factor},
            "pool": {"chunk_bytes": 4 << 30, "chunks_max": 10**6, "chunks": 10**6, "chunks_free": 10**5,
                     "chunks_unkept": 12345, "shared_pages": factor, "evicted_pages": factor * 10**6, "used_bytes": 900 * TIB, "idle_bytes": 900 * TIB, "caches": 1024,
                     "sequences": 2**24, "steps": 4096,
                     "tenants": [{"uid": 4294967294, "cgroup": cgroup, "used_bytes": 900 * TIB,
                                  "idle_bytes": 1000 * TIB, "caches": 1024, "sequences": 2**24}] * 2},
            "caches": [cache] * 2, "sequences": [sequence] * 2,
            "sessions": [session, {**session, "ring_asleep": False}], "tenants": [tenant] * 2}


def check_width(text):
    for line in text.splitlines():
        assert len(line) <= COLUMNS, f"{len(line)} columns: {line}"
        assert line == line.rstrip(), f"spaces at the end: {line!r}"


def tables(text):
    """{caption: headings}: an empty line comes before each caption. The heading of names may stand below."""
    return {caption: re.split(r"\s{2,}", titles.strip())
            for caption, titles in re.findall(r"\n\n(.+)\n(.+(?:\n {10}(?:name|cgroup)$)?)", text, re.MULTILINE)}


def explained(page):
    """{caption: items} of the man page's section about the status; the lines above the tables are
    explained before the first caption."""
    with open(page, encoding="utf-8") as file:
        section = file.read().split(".Sh STATUS\n")[1].split("\n.Sh ")[0]
    parts = re.split(r"^\.Ss ", section, flags=re.MULTILINE)
    found = {part.split("\n")[0]: part for part in ["\n" + parts[0], *parts[1:]]}
    return {caption: {title for item in re.findall(r"^\.It Li (.*)$", part, re.MULTILINE)
                      for title in item.replace('"', "").split(" , ")}
            for caption, part in found.items()}


def check_man(text, page):
    known, shown = explained(page), tables(text)
    assert set(shown) == set(known) - {""}, f"tables {sorted(shown)}, explained {sorted(known)}"
    for caption, headings in shown.items():
        assert set(headings) == known[caption], f"{caption}: {headings}, explained {sorted(known[caption])}"
    labels = set(re.findall(r"^([a-zA-Z]+) {2,}\S", text.split("\n\n")[0], re.MULTILINE))
    assert labels == known[""], f"lines {sorted(labels)}, explained {sorted(known[''])}"


def check_live(factl, daemon):
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FAD_SOCKET": os.path.join(folder, "fad.sock")}
        read, write = os.pipe()
        process = subprocess.Popen([daemon, "--socket", environment["FAD_SOCKET"], "--ready-fd", str(write)],
                                   pass_fds=[write])
        os.close(write)
        try:
            with os.fdopen(read) as ready:
                assert ready.readline() == "READY\n", "the daemon does not come up"
            text = subprocess.run([factl, "status"], env=environment, check=True, stdout=subprocess.PIPE,
                                  text=True, timeout=60).stdout
        finally:
            process.terminate()
            process.wait(timeout=60)
    check_width(text)
    assert {"Clients", "Tenants", "Resources of tenants"} <= set(tables(text)), text


def main():
    factl, program, page = sys.argv[1:]

    def text_of(*arguments):
        return subprocess.run([program], input=json.dumps(status(*arguments)), stdout=subprocess.PIPE, text=True,
                              check=True, timeout=60).stdout

    # Short and long, and letters of several bytes, which must not be torn.
    for factor in (0, 1, 1000, 10**6):
        for name, cgroup in (("x", "/a"), ("", ""), (NAME, CGROUP), ("é" * 64, "/" + "字" * 400)):
            text = text_of(factor, name, cgroup)
            check_width(text)
            for number, n in (("4294967294", 10), ("4194304", 3)):
                assert len(re.findall(rf"\b{number}\b", text)) == n, f"not {n} of {number} in {text}"
            assert factor < 10**6 or text.count("\n1000000000 ") == 4, f"no sessions in {text}"
            whole = re.sub(r"\n *", "", text)
            assert whole.count(name) >= 6 and whole.count(cgroup) >= 4, f"a name is cut: {text}"
            check_man(text, page)
    text = text_of(1, "x", "/a")
    for expected in ("times     half waited at most 12.3 us, 99% 16.4 us;\n          half ran at most ",
                     "prefixes  3 of 5 lookups found one; 50.0% of their tokens\n",
                     " 1 of 0 used pages are shared; 1000000 were evicted\n", "busy      3 min 20 s ", " 1 min 40 s  50.0%  x\n", " 1000000 ", "1.00 TiB", " 1023 TiB ",
                     "and 98 more sessions\n"):
        assert expected in text, f"no {expected!r} in {text}"
    check_live(factl, os.environ["FAD_DAEMON"])
    # The checks can fail.
    for broken in (lambda: check_width("x" * (COLUMNS + 1)), lambda: check_man(text.replace("in flight", "flying"), page),
                   lambda: check_man(text.replace("busy   ", "idle   ", 1), page)):
        try:
            broken()
        except AssertionError:
            continue
        sys.exit("the check itself is broken")


if __name__ == "__main__":
    main()
