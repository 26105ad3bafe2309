"""Daemons for the tests. FAD_TEST_FULL=1 runs all cases. FAD_TEST_SOCKET names the socket of a daemon that serves
several test runs: under MPS a GPU has room for three daemons. FAD_TEST_DEVICE=cuda: a daemon that computes on the CPU
is a failure."""
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import faclient

FULL = os.environ.get("FAD_TEST_FULL") == "1"
BIN = os.path.join(os.path.dirname(faclient.__file__), "bin")


def check_backend(client):
    """A daemon that got no GPU computes on the CPU with a warning: its tests would prove nothing of the GPU."""
    wanted = os.environ.get("FAD_TEST_DEVICE", "cpu")
    backend = client.info()["backend"]
    assert wanted == "cpu" or backend == wanted, \
        f"FAD_TEST_DEVICE is {wanted}, and the daemon computes on {backend}"


@pytest.fixture(scope="session")
def client():
    socket = os.environ.get("FAD_TEST_SOCKET")
    options = {"socket": socket} if socket else {"private": True}
    with faclient.connect(**options, name="test") as connected:
        check_backend(connected)
        yield connected


class Supervised:
    """A daemon whose pool outlives it."""

    def __init__(self, pool="256M"):
        self.directory = tempfile.mkdtemp(prefix="faclient-test-")
        self.socket = os.path.join(self.directory, "fad.sock")
        config = os.path.join(self.directory, "fad.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"[pool]\nbytes = {pool}\n")
        ready, wanted = os.pipe()
        self.process = subprocess.Popen(
            [os.environ.get("FAD_DAEMON") or os.path.join(BIN, "fad"), "--supervise", "--socket",
             self.socket, "--config", config, "--ready-fd", str(wanted), "--log-level", "error"],
            pass_fds=[wanted])
        os.close(wanted)
        assert os.read(ready, 6), "the daemon did not start"
        os.close(ready)
        with faclient.connect(self.socket) as connected:
            check_backend(connected)

    def kill(self):
        """Kills the daemon, which its supervisor replaces."""
        with faclient.connect(self.socket, timeout=20) as connected:
            pid = connected.info()["pid"]
        os.kill(pid, signal.SIGKILL)

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        subprocess.run(["rm", "-rf", self.directory], check=True)


@pytest.fixture
def supervised():
    daemon = Supervised()
    yield daemon
    daemon.stop()


def run_python(code, *arguments, timeout=120, check=True):
    """Runs a program in a process of its own, and returns what it prints."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], timeout=timeout,
                          capture_output=True, text=True)
    if check and done.returncode != 0:
        raise AssertionError(f"status {done.returncode}: {done.stderr[-2000:]}")
    return done


def eventually(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
