#!/usr/bin/env python3
"""factl dump: JSON with all that it promises, with a daemon and without, and nothing in it that names
people, their programs or their homes.

usage: test-dump.py FACTL METRICS_CLIENT, with FAD_DAEMON set"""
import importlib.util
import json
import os
import pwd
import subprocess
import sys
import tempfile

spec = importlib.util.spec_from_file_location(
    "test_metrics", os.path.join(os.path.dirname(os.path.abspath(__file__)), "test-metrics.py"))
metrics = importlib.util.module_from_spec(spec)
spec.loader.exec_module(metrics)

NOBODY = 65534


def strings(value, key=None):
    """Yields all (key, text) in @value."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for entry in value:
            yield from strings(entry, key)
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from strings(entry, name)


def dump(factl, environment):
    done = subprocess.run([factl, "dump"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done
    return json.loads(done.stdout), done.stdout


def check_parts(report):
    assert set(report) == {"factl", "machine", "environment", "config", "doctor", "status"}, set(report)
    assert report["machine"]["kernel"] == os.uname().release and report["machine"]["processors"] == os.cpu_count()
    assert report["doctor"]["checks"][0]["check"] == "factl"


def main():
    factl, client = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="home-of-") as folder:
        os.chmod(folder, 0o755)
        secret = os.path.basename(folder)
        environment = {**os.environ, "HOME": folder, "USER": "carol-the-user", "FAD_SOCKET": folder + "/fad.sock",
                       "FAD_DAEMON": "/home/carol/work/fad", "FAD_CONFIG": "/home/dave",
                       "XDG_RUNTIME_DIR": "/run/user/12345"}
        report, text = dump(factl, environment)
        check_parts(report)
        assert report["status"] is None
        (fault,) = [check for check in report["doctor"]["checks"] if check["level"] == "fault"]
        assert fault["check"] == "socket" and "~/fad.sock" in fault["text"], fault
        assert report["environment"]["FAD_DAEMON"] == "/home/USER/work/fad", report["environment"]
        assert report["environment"]["FAD_CONFIG"] == "/home/USER", report["environment"]
        assert report["environment"]["XDG_RUNTIME_DIR"] == "/run/user/UID", report["environment"]
        assert report["environment"]["FAD_SOCKET"] == "~/fad.sock", report["environment"]

        scene = metrics.Scene(folder, factl, client)
        clients = []
        try:
            os.chmod(folder + "/fad.sock", 0o666)
            for name in ("secret-project", "x", "secret-project"):
                clients.append(scene.start_client(name, 3, 1, 2))
            if os.geteuid() == 0:
                clients.append(subprocess.Popen(
                    [client, "model-of-nobody", "1", "0", "0"], env=scene.environment, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, text=True, user=NOBODY, group=NOBODY, extra_groups=[]))
                assert clients[-1].stdout.readline() == "done\n"
            status = scene.status()
            report, text = dump(factl, environment)
        finally:
            for started in clients:
                started.communicate(timeout=60)
            scene.stop()
        check_parts(report)
        cgroups = {tenant["cgroup"] for tenant in status["tenants"]} - {"/", ""}
        users = {user.pw_name for user in pwd.getpwall() if 1000 <= user.pw_uid < 60000}
        for word in {"secret-project", "model-of-nobody", secret, "carol", "dave", "12345", *cgroups, *users}:
            assert word not in text, f"{word} is in {text}"
        # Numbers are as they were, and one name has one stand-in.
        sessions = {session["session"]: session for session in report["status"]["sessions"]}
        before = {session["session"]: session for session in status["sessions"]}
        names = {}
        for number, session in before.items():
            if session["name"] == "factl":
                continue
            for key in ("finished", "failed", "took_ns", "buffers", "waited"):
                assert sessions[number][key] == session[key], (key, session, sessions[number])
            names.setdefault(session["name"], set()).add(sessions[number]["name"])
        assert len(names) >= 2 and all(len(found) == 1 for found in names.values()), names
        assert len(set.union(*names.values())) == len(names), names
        if os.geteuid() == 0:
            uids = {session["uid"] for session in sessions.values()}
            assert 0 in uids and len(uids) == 2 and NOBODY not in uids, uids
        assert report["status"]["requests"]["finished"] >= status["requests"]["finished"]
        assert report["doctor"]["faults"] == 0, report["doctor"]
        # The texts are still read by people: nothing but names is replaced.
        assert any("tokens in" in text for _, text in strings(report["doctor"]))


if __name__ == "__main__":
    main()
