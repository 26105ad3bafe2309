#!/usr/bin/env python3
"""
factl metrics and status against a real daemon, after known work of two clients of which one has
gone. The OpenMetrics text is parsed strictly; names are escaped exactly. The older text format has
the same samples, each with its type; prometheus_client reads it, too, where that is installed.

    test-metrics.py FACTL METRICS_CLIENT METRICS_TEXT FACTL_MAN_PAGE, with FAD_DAEMON set
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9]+(?:\.[0-9]+)?)")
SUFFIXES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
UNESCAPED = {"\\n": "\n", "\\\\": "\\", '\\"': '"'}


def wrong(line, what):
    raise ValueError(f"{what}: {line!r}")


class Family:
    def __init__(self, name):
        self.name = name
        self.type = self.unit = self.help = None
        self.samples = {}  # values by (suffix, labels in their order)

    def check_head(self, line):
        if not self.type or self.help is None:
            wrong(line, "samples without TYPE and HELP")
        if self.unit and not self.name.endswith("_" + self.unit):
            wrong(line, f"the name does not end in its unit, {self.unit}")
        for unit in ("seconds", "bytes"):
            if self.name.endswith("_" + unit) and self.unit != unit:
                wrong(line, f"no UNIT {unit}")


def read_sample(family, line):
    match = SAMPLE.fullmatch(line)
    if not match:
        wrong(line, "no sample")
    labels = tuple((name, re.sub(r"\\.", lambda m: UNESCAPED[m[0]], value))
                   for name, value in re.findall(LABEL, match[2] or ""))
    if len(dict(labels)) != len(labels):
        wrong(line, "a label comes twice")
    suffix = match[1].removeprefix(family.name)
    if not match[1].startswith(family.name) or suffix not in SUFFIXES[family.type]:
        wrong(line, f"no sample of {family.name}, a {family.type}")
    number = float(match[match.lastindex])
    if family.type != "gauge" and number < 0:
        wrong(line, "less than 0")
    if (suffix, labels) in family.samples:
        wrong(line, "the sample comes twice")
    family.samples[suffix, labels] = number


def check_histogram(family):
    """For each set of labels: buckets are cumulative and end with the count."""
    sets = {}
    for (suffix, labels), number in family.samples.items():
        key = tuple(label for label in labels if label[0] != "le")
        sets.setdefault(key, {"_bucket": []})
        if suffix == "_bucket":
            sets[key]["_bucket"].append((float(dict(labels)["le"]), number))
        else:
            sets[key][suffix] = number
    for key, found in sets.items():
        bounds = [bound for bound, _ in found["_bucket"]]
        counts = [count for _, count in found["_bucket"]]
        assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf"), (key, bounds)
        assert counts == sorted(counts) and counts[-1] == found["_count"], (key, found)
        assert found["_sum"] >= 0, (key, found)


def parse(text):
    """Families by name. As strict as OpenMetrics 1.0 is, and a bit more."""
    families, family = {}, None
    lines = text.split("\n")
    if lines[-2:] != ["# EOF", ""]:
        raise ValueError("it does not end in # EOF")
    for line in lines[:-2]:
        if not line or line == "# EOF":
            wrong(line, "an empty line, or an end in the middle")
        if not line.startswith("#"):
            if not family:
                wrong(line, "a sample before all")
            family.check_head(line)
            read_sample(family, line)
            continue
        match = re.fullmatch(rf"# (TYPE|UNIT|HELP) ({NAME}) (.+)", line)
        if not match:
            wrong(line, "neither TYPE, UNIT nor HELP")
        what, name, rest = match.groups()
        if not family or name != family.name:
            # Families are contiguous, and no family has the name of another's sample.
            if name in families or what != "TYPE":
                wrong(line, "the family was there before, or has no TYPE at first")
            family = families[name] = Family(name)
        if family.samples or getattr(family, what.lower()) is not None:
            wrong(line, "too late, or twice")
        if what == "TYPE" and rest not in SUFFIXES:
            wrong(line, "no such type")
        if name.endswith("_total"):
            wrong(line, "_total is no part of a family's name")
        if what == "HELP" and re.search(r"\\[^n\\\"]", rest):
            wrong(line, "a wrong escape")
        setattr(family, what.lower(), rest)
    for name, found in families.items():
        for suffix in ("_total", "_bucket", "_count", "_sum"):
            if name + suffix in families:
                raise ValueError(f"{name + suffix} is a family and a sample")
        if found.type == "histogram":
            check_histogram(found)
    return families


def to_openmetrics(text):
    """Strict conversion of Prometheus' text format 0.0.4: names of counters lose their _total."""
    lines, counters, name = [], set(), None
    for line in text.splitlines():
        match = re.fullmatch(rf"# (TYPE|HELP) ({NAME}) (.+)", line)
        if line.startswith("#"):
            if not match:
                wrong(line, "neither TYPE nor HELP")
            name = match[2]
            if line == f"# TYPE {name} counter":
                counters.add(name)
            family = name.removesuffix("_total") if name in counters else name
            if name in counters and family == name:
                wrong(line, "a counter without _total")
            line = f"# {match[1]} {family} {match[3]}"
            lines.append(line)
            for unit in ("seconds", "bytes"):
                if match[1] == "TYPE" and family.endswith("_" + unit):
                    lines.append(f"# UNIT {family} {unit}")
        else:
            lines.append(line)
    if not text.endswith("\n"):
        raise ValueError("the last line has no end")
    return "\n".join(lines + ["# EOF", ""])


def parse_prometheus(text):
    """As node_exporter reads it. A sample without a type is a fault."""
    families = parse(to_openmetrics(text))
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        return families
    theirs = {family.name: family for family in text_string_to_metric_families(text)}
    for name, family in families.items():
        if not family.samples:
            continue
        assert theirs[name].type == family.type, (name, theirs[name].type)
        assert theirs[name].documentation == family.help, name
        assert len(theirs[name].samples) == len(family.samples), name
    return families


def same_families(one, other):
    assert list(one) == list(other)
    for name, family in one.items():
        assert vars(family) == vars(other[name]), name


def check_prometheus_parser():
    """The parser refuses wrong texts."""
    good = "# TYPE a_total counter\n# HELP a_total b\na_total 1\n"
    assert value(parse_prometheus(good), "a", "_total") == 1
    for bad in (good + "# EOF\n", good.replace("a_total counter", "a counter"), "a_total 1\n",
                good + "# UNIT a_total seconds\n", good + "b 1\n", good[:-1]):
        try:
            parse_prometheus(bad)
        except (ValueError, AssertionError):
            continue
        raise AssertionError(f"taken for good: {bad!r}")


def check_recipe(page, scene, folder):
    """The man page's command for node_exporter writes a file in the older format."""
    with open(page, encoding="utf-8") as file:
        (recipe,) = re.findall(r"^\.Dl (factl metrics .*)$", file.read(), re.MULTILINE)
    assert recipe.endswith("d/fad.prom"), recipe
    os.mkdir(os.path.join(folder, "d"))
    path = os.path.dirname(os.path.abspath(scene.factl)) + ":" + os.environ["PATH"]
    subprocess.run(["sh", "-c", recipe], cwd=folder, env={**scene.environment, "PATH": path},
                   check=True, timeout=60)
    assert os.listdir(os.path.join(folder, "d")) == ["fad.prom"]
    with open(os.path.join(folder, "d/fad.prom"), encoding="utf-8") as file:
        families = parse_prometheus(file.read())
    assert families["fad_requests_finished"].type == "counter"
    assert families["fad_tenant_request_seconds"].type == "histogram"
    assert list(families) == list(parse(scene.run("metrics")))


def check_parser():
    """The parser itself must be able to fail."""
    good = "# TYPE a gauge\n# HELP a b\na 1\n"
    parse(good + "# EOF\n")
    for bad in (good, good + "# EOF", good + "\n# EOF\n", good + "a 2\n# EOF\n",
                good + "b 1\n# EOF\n", good + good + "# EOF\n", "a 1\n# EOF\n",
                good.replace("gauge", "counter") + "# EOF\n", good.replace("a 1", "a x") + "# EOF\n",
                good.replace("a 1", 'a{b="c"d"} 1') + "# EOF\n",
                good.replace("a 1", 'a{b="c\\d"} 1') + "# EOF\n",
                good.replace("a 1", 'a{b="c",b="d"} 1') + "# EOF\n",
                good.replace("a 1", 'a{b="c",} 1') + "# EOF\n",
                "# TYPE a_bytes gauge\n# HELP a_bytes b\na_bytes 1\n# EOF\n",
                '# TYPE a histogram\n# HELP a b\na_bucket{le="1.0"} 2\na_bucket{le="+Inf"} 1\n'
                "a_count 1\na_sum 1\n# EOF\n"):
        try:
            parse(bad)
        except (ValueError, AssertionError):
            continue
        raise AssertionError(f"taken for good: {bad!r}")


def value(families, name, suffix="", **labels):
    """The value of the only sample with these labels (and maybe more)."""
    found = [number for (end, all_labels), number in families[name].samples.items()
             if end == suffix and labels.items() <= dict(all_labels).items()]
    assert len(found) == 1, f"{name}{suffix} {labels}: {found}"
    return found[0]


class Scene:
    def __init__(self, folder, factl, client):
        self.factl, self.client = factl, client
        self.environment = {**os.environ, "FAD_SOCKET": os.path.join(folder, "fad.sock")}
        read, write = os.pipe()
        self.daemon = subprocess.Popen(
            [os.environ["FAD_DAEMON"], "--socket", self.environment["FAD_SOCKET"], "--ready-fd",
             str(write)], pass_fds=[write], env=self.environment)
        os.close(write)
        with os.fdopen(read) as ready:
            assert ready.readline() == "READY\n", "the daemon does not come up"

    def run(self, *arguments):
        return subprocess.run([self.factl, *arguments], env=self.environment, check=True,
                              stdout=subprocess.PIPE, text=True, timeout=60).stdout

    def start_client(self, name, *counts):
        """A client that has done its requests and stays connected."""
        client = subprocess.Popen([self.client, name, *map(str, counts)], env=self.environment,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert client.stdout.readline() == "done\n", f"{name} could not do its work"
        return client

    def end_client(self, client):
        client.communicate(timeout=60)
        assert client.returncode == 0
        deadline = time.monotonic() + 60
        while any(session["pid"] == client.pid for session in self.status()["sessions"]):
            assert time.monotonic() < deadline, "its session stays"
            time.sleep(0.01)

    def status(self):
        return json.loads(self.run("status", "--json"))

    def stop(self):
        self.daemon.terminate()
        assert self.daemon.wait(timeout=60) == 0


def check_session(session, attentions, refused, markers):
    assert session["finished"] == attentions + refused + markers, session
    assert session["failed"] == refused and session["cancelled"] == 0, session
    assert sum(session["took"]) == attentions, session
    assert session["took_ns"] >= session["busy_ns"] > 0, session


def check_status_text(text, status, name):
    """The client's line shows its requests and its share; the tenant's lines its use and limits."""
    (session,) = [session for session in status["sessions"] if session["name"] == name]
    share = 100 * session["busy_ns"] / status["requests"]["busy_ns"]
    line = rf"{session['finished']} +{session['failed']} +[0-9.]+ [um]?s +{share:.1f}%  {name}$"
    assert re.search(line, text, re.MULTILINE), f"no '{line}' in {text}"
    tenant = status["tenants"][0]
    limits = tenant["limits"]
    for line in (rf"^ +1 +{tenant['uid']} +0 +{tenant['finished']} +{tenant['failed']} .* +100\.0%",
                 rf"^ limit +{limits['sessions']} +{limits['buffers']} .* {limits['fds']} ",
                 r"^ +1 +[0-9]+ +[0-9]+ +[0-9.]+ [KMG]?i?B "):
        assert re.search(line, text, re.MULTILINE), f"no '{line}' in {text}"


def check_numbers(families, status):
    """They equal the (now constant) status, converted to seconds."""
    (tenant,) = [tenant for tenant in status["tenants"] if tenant["uid"] == os.geteuid()]
    labels = {"uid": str(os.geteuid()), "cgroup": tenant["cgroup"]}
    for what in ("finished", "failed", "cancelled"):
        assert value(families, f"fad_requests_{what}", "_total") == status["requests"][what]
        assert value(families, f"fad_tenant_requests_{what}", "_total", **labels) == tenant[what]
        assert tenant[what] == status["requests"][what], (tenant, status["requests"])
    assert value(families, "fad_busy_seconds", "_total") == status["requests"]["busy_ns"] / 1e9
    assert value(families, "fad_tenant_busy_seconds", "_total", **labels) == tenant["busy_ns"] / 1e9
    took = "fad_tenant_request_seconds"
    assert value(families, took, "_count", **labels) == sum(tenant["took"])
    assert value(families, took, "_sum", **labels) == tenant["took_ns"] / 1e9
    total = 0
    for i, count in enumerate(tenant["took"]):
        total += count
        bounds = [number for (suffix, all_labels), number in families[took].samples.items()
                  if suffix == "_bucket" and float(dict(all_labels)["le"]) == 2 ** (10 + i) / 1e9]
        assert bounds == [total], (i, bounds, total)
    for key, limit in tenant["limits"].items():
        name = {"requests": "requests_in_flight"}.get(key, key)
        assert value(families, f"fad_limit_tenant_{name}") == limit, key
        assert ("", tuple(labels.items())) in families[f"fad_tenant_{name}"].samples, key
    build = dict(next(iter(families["fad_build_info"].samples))[1])
    assert build["version"] == status["version"] and build["backend"] == status["backend"], build
    assert value(families, "fad_connections_refused", "_total") == 0
    assert value(families, "fad_ring_requests", "_total") == status["ring_requests"] > 0
    assert value(families, "fad_rings") == 1
    assert value(families, "fad_sessions_seen") >= 2  # one and factl's, perhaps an earlier one
    pool = status["pool"]
    assert value(families, "fad_pool_chunk_bytes") == pool["chunk_bytes"] > 0
    for state in ("used", "idle"):
        assert value(families, "fad_pool_bytes", state=state) == pool[f"{state}_bytes"]
    for state in ("used", "idle", "free"):
        assert value(families, "fad_pool_pages", state=state) == pool[f"{state}_pages"]


def check_daemon(folder, factl, client, page):
    scene = Scene(folder, factl, client)
    try:
        gone = scene.start_client("gone", 5, 1, 2)
        stays = scene.start_client("stays", 7, 2, 3)
        status = scene.status()
        by_name = {session["name"]: session for session in status["sessions"]}
        check_session(by_name["gone"], 5, 1, 2)
        check_session(by_name["stays"], 7, 2, 3)
        assert by_name["factl"]["finished"] == 0 and by_name["factl"]["took"] == []
        check_status_text(scene.run("status"), status, "stays")
        scene.end_client(gone)
        status = scene.status()
        check_session(status["tenants"][0], 12, 3, 5)
        check_numbers(parse(scene.run("metrics")), status)
        check_numbers(parse_prometheus(scene.run("metrics", "--prometheus")), status)
        check_recipe(page, scene, folder)
        # The metrics keep the tenant after its last client has gone.
        scene.end_client(stays)
        check_session(scene.status()["tenants"][0], 12, 3, 5)
        return status
    finally:
        scene.stop()


def check_text(program, status):
    def text_of(text, *arguments):
        done = subprocess.run([program, *arguments], input=text, stdout=subprocess.PIPE, text=True,
                              timeout=60)
        return done.returncode, done.stdout

    # These client names would need escaping.
    names = ['a"} 1\nfad_draining 1', "back\\slash\\", '\\"', "\\n", "new\nline", "{=,}", "é 字", ""]
    status["tenants"] = [{**status["tenants"][0], "uid": i, "cgroup": name}
                         for i, name in enumerate(names)]
    status["device"] = 'a "GPU" \\ of\n80 GB'
    code, text = text_of(json.dumps(status))
    families = parse(text)
    assert code == 0
    for i, name in enumerate(names):
        assert value(families, "fad_tenant_sessions", uid=str(i), cgroup=name) >= 0
    assert len(families["fad_tenant_sessions"].samples) == len(names)
    assert value(families, "fad_draining") == 0
    assert value(families, "fad_build_info", device=status["device"]) == 1
    assert '"a \\"GPU\\" \\\\ of\\n80 GB"' in text
    same_families(parse_prometheus(text_of(json.dumps(status), "--prometheus")[1]), families)

    # This status lacks fields that other tenants or older daemons do not get or report.
    for key in ("connections_total", "connections_refused", "rings", "buffers", "buffers_max"):
        del status[key]
    for key in ("chunks", "used_pages", "idle_pages", "free_pages"):
        del status["pool"][key]
    families = parse(text_of(json.dumps(status))[1])
    assert "fad_connections_refused" not in families and "fad_pool_pages" not in families
    assert "fad_pool_bytes" not in families and "fad_requests_finished" in families
    for tenant in status["tenants"]:
        for key in ("finished", "failed", "cancelled", "busy_ns", "took_ns", "took", "limits"):
            del tenant[key]
    del status["pool"], status["limits"]
    families = parse(text_of(json.dumps(status))[1])
    assert not families["fad_tenant_request_seconds"].samples
    assert len(families["fad_tenant_sessions"].samples) == len(names)

    for nonsense in ("", "[", "{}", "[1]", '{"requests": {}}', '{"requests": 1, "tenants": []}'):
        assert text_of(nonsense) == text_of(nonsense, "--prometheus") == (1, ""), nonsense


def main():
    factl, client, text, page = sys.argv[1:]
    check_parser()
    check_prometheus_parser()
    with tempfile.TemporaryDirectory() as folder:
        status = check_daemon(folder, factl, client, page)
    check_text(text, status)


if __name__ == "__main__":
    main()
