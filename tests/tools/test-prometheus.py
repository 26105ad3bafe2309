#!/usr/bin/env python3
"""A real Prometheus scrapes factl metrics --listen and evaluates the alert rules: it must see the
requests that a client made, in both formats, and an alert must become pending when the daemon is
killed. Skipped (77) where there is no prometheus.

usage: test-prometheus.py FACTL METRICS_CLIENT ALERT_RULES, with FAD_DAEMON set"""
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request


def load(name):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


exporter_test = load("test-exporter")

CONFIG = """
global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: fad
    static_configs: [{{ targets: ["127.0.0.1:{exporter}"] }}]
"""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Prometheus:
    def __init__(self, folder, rules, exporter_port):
        with open(os.path.join(folder, "prometheus.yml"), "w", encoding="utf-8") as file:
            file.write(CONFIG.format(rules=os.path.abspath(rules), exporter=exporter_port))
        self.port = free_port()
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"])

    def ask(self, what, **arguments):
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def value(self, expression):
        """The only value, or None."""
        result = self.ask("query", query=expression)["result"]
        return float(result[0]["value"][1]) if len(result) == 1 else None

    def wait(self, what, condition):
        end = time.monotonic() + 60
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            assert time.monotonic() < end, f"waited for {what}: {self.ask('targets')}"
            time.sleep(0.2)


def main():
    factl, client, rules = sys.argv[1:]
    if not shutil.which("prometheus"):
        print("there is no prometheus")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        scene = exporter_test.metrics.Scene(folder, factl, client)
        exporter = exporter_test.Exporter(factl, folder)
        prometheus = Prometheus(folder, rules, exporter.port)
        try:
            prometheus.wait("the first scrape", lambda: prometheus.value("fad_up") == 1)
            scene.end_client(scene.start_client("load", 30, 3, 4))
            prometheus.wait("the requests", lambda: prometheus.value("fad_requests_finished_total") == 37)
            prometheus.wait("the histogram", lambda: prometheus.value(
                'fad_request_wait_seconds_bucket{le="+Inf"}') == 30)
            assert prometheus.value("fad_requests_failed_total") == 3
            wait = prometheus.value("histogram_quantile(0.99, fad_request_wait_seconds_bucket)")
            assert 0 < wait < 10, wait
            assert prometheus.value("up") == 1
            assert not prometheus.ask("query", query="fad_tenant_sessions")["result"]
            # Prometheus asks for OpenMetrics, whose units it keeps.
            metadata = prometheus.ask("metadata", metric="fad_pool_chunk_bytes")
            assert metadata["fad_pool_chunk_bytes"][0]["unit"] == "bytes", metadata
            (target,) = prometheus.ask("targets")["activeTargets"]
            assert target["health"] == "up" and not target["lastError"], target

            scene.daemon.send_signal(signal.SIGKILL)
            scene.daemon.wait()
            prometheus.wait("the alert", lambda: [alert for alert in prometheus.ask("alerts")["alerts"]
                                                  if alert["labels"]["alertname"] == "FadDown"])
            groups = prometheus.ask("rules")["groups"]
            for rule in groups[0]["rules"]:
                assert rule["health"] == "ok", rule
        finally:
            prometheus.process.terminate()
            prometheus.process.wait(timeout=60)
            exporter.process.kill()
            exporter.process.wait()
            if scene.daemon.poll() is None:
                scene.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
