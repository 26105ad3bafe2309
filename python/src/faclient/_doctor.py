"""python -m faclient doctor: what works for Python here, what does not, and what to do about it. The lines
are like those of factl doctor, which looks at the daemon that runs."""
from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys

import numpy as np

from . import __version__, errors
from .client import _bundled_daemon, connect


class _Report:
    def __init__(self):
        self.faults = self.warnings = 0

    def ok(self, text):
        print(f"ok        {text}")

    def warning(self, text, advice):
        self.warnings += 1
        print(f"warning   {text}\n          {advice}")

    def fault(self, text, advice):
        self.faults += 1
        print(f"fault     {text}\n          {advice}")


def _program(report):
    path = os.environ.get("FAD_DAEMON") or _bundled_daemon() or "fad"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except OSError as error:
        report.fault(f"the daemon {path}: {error.strerror}",
                       "Reinstall the package, or let FAD_DAEMON name a fad.")
        return False
    if done.returncode:
        report.fault(f"the daemon {path} does not run: {done.stderr.strip()[-200:]}",
                       "A library may be missing: reinstall the package on this system.")
        return False
    report.ok(f"daemon: {path}, {done.stdout.strip()}")
    return True


def _examine(report, socket):
    """What factl doctor finds wrong with the daemon that runs."""
    path = os.path.join(os.path.dirname(__file__), "bin", "factl")
    try:
        done = subprocess.run([path, "-s", socket, "doctor", "--json"], capture_output=True, text=True, timeout=60)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        report.warning(f"{path} doctor: {error}", "Reinstall the package.")
        return
    for check in found["checks"]:
        if check["level"] != "ok":
            getattr(report, check["level"])(f"{check['check']}: {check['text']}", check["advice"])


def _running(report):
    try:
        with connect(name="doctor") as client:
            info = client.info()
            report.ok(f"a daemon runs: {client.socket}, version {info['daemon_version']}, "
                      f"{info['backend']}, {info['device_name']}")
            if info["daemon_version"] != __version__:
                report.ok(f"the package has version {__version__}; they work together")
            socket = client.socket
        _examine(report, socket)
    except errors.NotAllowed as error:
        report.fault(f"a daemon runs that this user may not use: {error.strerror}",
                       "Ask for membership in its group, then log in anew.")
    except errors.Error as error:
        report.ok(f"no daemon runs: {error.strerror}; connect(spawn=True) starts one")


def _computes(report):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 8, 2, 64)).astype(np.float32) for _ in range(3))
    try:
        with connect(private=True, name="doctor") as client:
            info = client.info()
            out = client.attention(q, k, v)
            cache = client.cache(layers=1, kv_heads=2, head_dim=64, dtype="float32")
            sequence = cache.sequence()
            with cache.step({sequence: 8}) as step:
                cached = step.attend(0, q[0], k[0], v[0], causal=False)
    except errors.Error as error:
        report.fault(f"a private daemon does not work: {error.strerror}",
                       "Start it by hand to see more: the program above with --log stderr.")
        return
    s = np.einsum("bqhd,bkhd->bhqk", q, k) / 8
    p = np.exp(s - s.max(-1, keepdims=True))
    wanted = np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)
    worst = max(np.abs(out - wanted).max(), np.abs(cached - wanted[0]).max())
    if worst > 1e-3:
        report.fault(f"a private daemon computes wrong numbers: off by {worst:.2g}",
                       "Please report this, with the output of this program.")
        return
    report.ok(f"a private daemon computes on {info['backend']} ({info['device_name']}), "
              f"with a KV cache; off by {worst:.1g}")
    if info["backend"] == "cpu" and os.path.exists("/dev/nvidiactl"):
        report.warning("there is an NVIDIA GPU, which it does not use",
                       "`factl doctor` tells why of a daemon that runs; this package may be built "
                       "without GPU kernels.")


def _packages(report):
    for name, least, purpose in (("torch", "2.4", "faclient.torch"),
                                 ("transformers", "5.16", "faclient.transformers")):
        try:
            version = importlib.import_module(name).__version__
        except ImportError:
            report.ok(f"{name} is not installed; {purpose} needs it, at least {least}")
            continue
        parts = [[int(n) for n in text.split("+")[0].split(".")[:2]] for text in (version, least)]
        if parts[0] < parts[1]:
            report.fault(f"{name} {version} is too old for {purpose}",
                           f"pip install '{name} >= {least}'")
        else:
            report.ok(f"{name} {version}")


def main() -> int:
    report = _Report()
    report.ok(f"faclient {__version__}, Python {platform.python_version()}, {platform.system()} "
              f"{platform.release()} {platform.machine()}")
    if sys.platform != "linux":
        report.fault(f"{sys.platform} is not supported", "fad runs on Linux.")
    works = _program(report)
    _running(report)
    if works:
        _computes(report)
    _packages(report)
    print(f"\n{report.faults} fault{'s' if report.faults != 1 else ''}, "
          f"{report.warnings} warning{'s' if report.warnings != 1 else ''}")
    return 1 if report.faults else 0
