#!/usr/bin/env python3
"""factl metrics --listen against a real daemon: both formats by Accept, totals at the port, tenants at
the path for some users, a bounded number of tenants, a daemon that goes and comes back. promtool
checks the text where it is installed. The alert rules and the dashboard name only metrics that there
are.

usage: test-exporter.py FACTL FAD_METRICS METRICS_CLIENT PACKAGING_DIRECTORY, with FAD_DAEMON set"""
import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
NOBODY = 65534

spec = importlib.util.spec_from_file_location(
    "test_metrics", os.path.join(os.path.dirname(os.path.abspath(__file__)), "test-metrics.py"))
metrics = importlib.util.module_from_spec(spec)
spec.loader.exec_module(metrics)
value = metrics.value


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Exporter:
    def __init__(self, factl, folder, *options):
        self.path = os.path.join(folder, "metrics.sock")
        self.process = subprocess.Popen([factl, "metrics", "--listen", "0", "--listen", self.path, *options],
                                        env={**os.environ, "FAD_SOCKET": os.path.join(folder, "fad.sock")},
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening at http://127\.0\.0\.1:([0-9]+)/metrics\n", line)
        assert match, line
        self.port = int(match[1])
        assert self.process.stdout.readline() == f"listening at unix:{self.path}\n"

    def connect(self, unix):
        return UnixConnection(self.path) if unix else http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, unix=False, path="/metrics", method="GET", accept=None, body=None):
        connection = self.connect(unix)
        connection.request(method, path, body, {"Accept": accept} if accept else {})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, response.getheader("Content-Type"), text

    def fresh(self, **options):
        """Asks after the exporter's last status, which it keeps for half a second, has expired."""
        time.sleep(0.55)
        return self.ask(**options)

    def stop(self):
        self.process.terminate()
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        assert not os.path.exists(self.path), "the socket is left"
        return errors


def promtool(text):
    tool = shutil.which("promtool")
    if tool:
        done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and not done.stderr, done.stderr + done.stdout


def check_formats(exporter):
    for unix in (False, True):
        for accept, kind in (
                (None, PROMETHEUS), ("*/*", PROMETHEUS), ("text/plain", PROMETHEUS),
                ("application/openmetrics-text", OPEN_METRICS),
                ("text/html, APPLICATION/OpenMetrics-Text ;version=1.0.0", OPEN_METRICS),
                ("application/openmetrics-text;q=0.4,text/plain;q=0.5", PROMETHEUS),
                ("application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                 OPEN_METRICS),
                ("application/openmetrics-text;q=0", PROMETHEUS), ("", PROMETHEUS), (",;,q=;", PROMETHEUS)):
            status, found, text = exporter.ask(unix, accept=accept)
            assert (status, found) == (200, kind), (accept, status, found)
            assert text.endswith("# EOF\n") == (kind == OPEN_METRICS)
            families = metrics.parse(text) if kind == OPEN_METRICS else metrics.parse_prometheus(text)
            assert value(families, "fad_up") == 1
    promtool(exporter.ask()[2])
    promtool(exporter.ask(unix=True)[2])


def check_http(exporter):
    assert exporter.ask(path="/")[0] == 200
    for path in ("/metricsx", "/metrics/", "/../metrics", "/" + "x" * 5000):
        assert exporter.ask(path=path)[0] == 404, path
    assert exporter.ask(method="POST", body="x" * 100000)[0] == 405
    status, kind, text = exporter.ask(method="HEAD")
    assert (status, kind, text) == (200, PROMETHEUS, "")
    # Nonsense, and many connections that send nothing, delay others but briefly.
    for nonsense in (b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"x" * 100000):
        with socket.create_connection(("127.0.0.1", exporter.port), timeout=60) as connection:
            try:
                connection.sendall(nonsense)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except OSError:
                pass
    idle = [socket.create_connection(("127.0.0.1", exporter.port), timeout=60) for _ in range(20)]
    assert exporter.ask()[0] == 200
    for connection in idle:
        connection.close()


def tenants(families):
    return {dict(labels)["uid"] for _, labels in families["fad_tenant_requests_finished"].samples}


def ask_as(uid, exporter):
    """The answer at the socket to another user."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            with os.fdopen(write, "w") as file:
                file.write(exporter.ask(unix=True)[2])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return metrics.parse_prometheus(text)


def check_views(exporter, status):
    totals = metrics.parse_prometheus(exporter.fresh()[2])
    everything = metrics.parse_prometheus(exporter.ask(unix=True)[2])
    assert not [name for name in totals if "_tenant_" in name and not name.startswith("fad_limit")]
    assert 'cgroup="' not in exporter.ask()[2]
    assert tenants(everything) == {str(os.geteuid())}
    for families in (totals, everything):
        for key, name in (("took", "fad_request_seconds"), ("waited", "fad_request_wait_seconds"),
                          ("ran", "fad_request_run_seconds")):
            assert value(families, name, "_count") == sum(status["requests"][key]) == 12, name
            assert value(families, name, "_sum") == status["requests"][key + "_ns"] / 1e9, name
        assert value(families, "fad_requests_finished", "_total") == status["requests"]["finished"]
        assert abs(value(families, "fad_start_time_seconds") - status["generation"] / 1e9) < 1e-3
        assert abs(time.time() - value(families, "fad_start_time_seconds")) < 600
        assert value(families, "fad_prefix_lookups", "_total") == 0
    assert value(everything, "fad_tenant_request_wait_seconds", "_count") == 12
    if os.geteuid() == 0:
        assert "fad_tenant_requests_finished" not in ask_as(NOBODY, exporter)
        assert value(ask_as(NOBODY, exporter), "fad_request_seconds", "_count") == 12


def run_client(scene, client, name, uid=None):
    environment = dict(scene.environment)

    def become():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

    subprocess.run([client, name, "1", "0", "0"], env=environment, check=True, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, preexec_fn=become if uid else None, timeout=60)


def check_bounded(scene, factl, client, folder):
    """With two slots: two users of five have series, the others are one, and no counter falls."""
    if os.geteuid() != 0:
        print("not root: the number of tenants is not tested")
        return
    exporter = Exporter(factl, os.path.join(folder, "."), "--tenants", "2")
    finished, last = {}, {}
    try:
        for uid in (0, 0, 1001, 1002, 1003, 1001, 1004, 1002):
            run_client(scene, client, "load", uid)
            families = metrics.parse_prometheus(exporter.fresh(unix=True)[2])
            for name, suffix in (("fad_tenant_requests_finished", "_total"),
                                 ("fad_tenant_request_wait_seconds", "_count")):
                samples = {dict(labels)["uid"]: number for (end, labels), number in families[name].samples.items()
                           if end == suffix}
                assert len(samples) <= 3, samples
                for tenant, number in samples.items():
                    assert number >= finished.get((name, tenant), 0), (tenant, number, finished)
                    finished[name, tenant] = number
                last[name] = samples
            total = value(families, "fad_request_seconds", "_count")
            assert sum(last["fad_tenant_request_wait_seconds"].values()) == total, (last, total)
        assert set(last["fad_tenant_requests_finished"]) == {"0", "1001", "other"}, last
        assert last["fad_tenant_requests_finished"]["1001"] == 2
    finally:
        exporter.stop()


def check_restart(scene, exporter, factl, client, folder):
    """fad_up tells of a daemon that is gone; the next one is found."""
    os.kill(scene.daemon.pid, signal.SIGSTOP)
    families = metrics.parse(exporter.fresh(accept="application/openmetrics-text")[2])
    assert list(families) == ["fad_up"] and value(families, "fad_up") == 0
    os.kill(scene.daemon.pid, signal.SIGCONT)
    assert value(metrics.parse_prometheus(exporter.fresh()[2]), "fad_up") == 1
    scene.stop()
    assert exporter.fresh()[2].splitlines()[-1] == "fad_up 0"
    scene.__init__(folder, factl, client)
    families = metrics.parse_prometheus(exporter.fresh()[2])
    assert value(families, "fad_up") == 1 and value(families, "fad_request_seconds", "_count") == 0
    # The exporter does not connect for each scrape.
    accepted = value(metrics.parse_prometheus(exporter.fresh()[2]), "fad_connections_accepted", "_total")
    for _ in range(3):
        families = metrics.parse_prometheus(exporter.fresh()[2])
    assert value(families, "fad_connections_accepted", "_total") == accepted


def check_usage(factl, program, folder):
    def fails(expected, said, *arguments):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
        assert done.returncode == expected and said in done.stderr, (arguments, done)

    for address in ("192.0.2.1:9743", "0.0.0.0:9743", "[::]:1", "example.org:1"):
        fails(2, "loopback", factl, "metrics", "--listen", address)
    for address in ("x", "65536", "-1", "localhost:", "relative/path", ""):
        fails(2, "expected a port", factl, "metrics", "--listen", address)
    fails(2, "too long", factl, "metrics", "--listen", "/" + "x" * 200)
    fails(1, "No such file", factl, "metrics", "--listen", "/no/such/folder/m.sock")
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    fails(1, "in use", factl, "metrics", "--listen", str(taken.getsockname()[1]))
    fails(2, "0 to 128", factl, "metrics", "--listen", "0", "--tenants", "129")
    fails(2, "needs --listen", factl, "metrics", "--tenants", "5")
    fails(2, "another command", factl, "status", "--listen", "0")
    fails(2, "--listen is missing", program)
    # A socket that nobody listens at is replaced, a file is not.
    path = os.path.join(folder, "file")
    open(path, "w").close()
    fails(1, "in use", factl, "metrics", "--listen", path)
    assert os.path.isfile(path)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(os.path.join(folder, "metrics.sock"))
    stale.close()


def check_files(packaging, families):
    """Rules, their tests, and the dashboard name metrics that there are, and promtool takes all."""
    names = {name + suffix for name, family in families.items() for suffix in metrics.SUFFIXES[family.type]}
    with open(os.path.join(packaging, "prometheus/fad-alerts.yml"), encoding="utf-8") as file:
        rules = file.read()
    with open(os.path.join(packaging, "grafana/fad.json"), encoding="utf-8") as file:
        dashboard = json.load(file)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(expressions) > 20
    for text in [*expressions, *re.findall(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", rules, re.DOTALL)]:
        found = re.findall(r"\bfad_[a-z_]+", text)
        assert found and set(found) <= names, (text, set(found) - names)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    with open(os.path.join(packaging, "../docs/operators.md"), encoding="utf-8") as file:
        explained = set(re.findall(r"^- \*\*`(Fad\w+)`\*\*: ", file.read(), re.MULTILINE))
    alerts = set(re.findall(r"alert: (\w+)", rules))
    assert alerts == explained, f"docs/operators.md explains {explained}, and there are {alerts}"
    tool = shutil.which("promtool")
    if not tool:
        print("no promtool: the rules are only read here")
        return
    folder = os.path.join(packaging, "prometheus")
    for command in (["check", "rules", "fad-alerts.yml"], ["test", "rules", "fad-alerts.test.yml"]):
        done = subprocess.run([tool, *command], cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    # The dashboard's expressions, as rules.
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, "rules.yml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"groups": [{"name": "x", "rules": [
                {"record": f"x:{i}", "expr": text.replace("$instance", ".*").replace("$__rate_interval", "1m")}
                for i, text in enumerate(expressions)]}]}, file)
        done = subprocess.run([tool, "check", "rules", path], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    with open(os.path.join(folder, "fad-alerts.test.yml"), encoding="utf-8") as file:
        tests = file.read()
    fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:", tests))
    assert fired == alerts, f"no test makes these fire: {alerts - fired}"


def main():
    factl, program, client, packaging = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        check_usage(factl, program, folder)
        scene = metrics.Scene(folder, factl, client)
        exporter = None
        try:
            os.chmod(os.path.join(folder, "fad.sock"), 0o666)
            exporter = Exporter(factl, folder)
            scene.end_client(scene.start_client("load", 12, 2, 3))
            check_views(exporter, scene.status())
            check_formats(exporter)
            check_http(exporter)
            check_files(packaging, metrics.parse_prometheus(exporter.ask(unix=True)[2]))
            check_restart(scene, exporter, factl, client, folder)
            os.chmod(os.path.join(folder, "fad.sock"), 0o666)
            errors = exporter.stop()
            exporter = None
            assert errors.count("fad-metrics: the daemon does not answer") == 2 and errors.count("answers again") == 2, errors
            check_bounded(scene, factl, client, folder)
        finally:
            if exporter:
                exporter.process.kill()
            scene.daemon.send_signal(signal.SIGCONT)
            scene.stop()


if __name__ == "__main__":
    main()
