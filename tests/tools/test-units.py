#!/usr/bin/env python3
"""fad.service: systemd accepts the unit, its fd store settings match fad, and a daemon run as it
says hands its state to the next one, as in `systemctl restart` and after a crash. This script
keeps the descriptors, as systemd would.

usage: test-units.py FAD_SERVICE SYSTEMD_DIRECTORY FACTL FAD_TEMPLATE_SERVICE, with FAD_DAEMON in the environment"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

failed = False


def check(condition, what):
    global failed
    if not condition:
        print("FAILED:", what)
        failed = True


def settings(path):
    """The values of each setting: as in systemd, the last line counts except for lists."""
    found = {}
    with open(path) as file:
        for line in file:
            line = line.strip()
            if line and line[0] not in "#;[":
                key, value = line.split("=", 1)
                found.setdefault(key, []).append(value)
    return found


def verify(paths):
    """systemd's own check; programs that it names must be there."""
    tool = shutil.which("systemd-analyze")
    if not tool:
        print("no systemd-analyze: only read here")
        return
    for path in paths:
        done = subprocess.run([tool, "verify", "--man=no", path], capture_output=True, text=True)
        check(done.returncode == 0 and not done.stderr.strip(),
              f"systemd-analyze verify {path}: {done.stdout}{done.stderr}")


def exposure(path, most):
    """systemd's own measure of what the unit may do, from 0 to 10; from version 250 on."""
    tool = shutil.which("systemd-analyze")
    if not tool or int(re.search(r"systemd (\d+)", subprocess.run(
            [tool, "--version"], capture_output=True, text=True).stdout)[1]) < 250:
        print("no systemd-analyze of version 250: exposure is not measured")
        return
    done = subprocess.run([tool, "security", "--offline=true", "--no-pager",
                           f"--threshold={most * 10:.0f}", path], capture_output=True, text=True)
    line = done.stdout.strip().split("\n")[-1]
    print(line)
    check(done.returncode == 0 and "exposure" in line,
          f"systemd-analyze security {path}: {line}{done.stderr}; expected at most {most}")


class Manager:
    """Plays systemd for a Type=notify service with an fd store and a watchdog."""

    watchdog_s = 0

    def __init__(self, directory, command, environment, most):
        self.command, self.most, self.kept, self.fed = command, most, {}, 0
        self.path = os.path.join(directory, "notify")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(self.path)
        self.notify.settimeout(60)
        self.environment = {**os.environ, **environment, "NOTIFY_SOCKET": self.path}

    def receive(self):
        """Reads one message; True if it says READY=1."""
        message, fds, _, _ = socket.recv_fds(self.notify, 4096, 16)
        self.fed += message == b"WATCHDOG=1"
        words = dict(line.split("=", 1) for line in message.decode().splitlines())
        name = words.get("FDNAME", "stored")
        if "FDSTORE" in words:
            self.kept.setdefault(name, []).extend(fds)
        if "FDSTOREREMOVE" in words:
            for fd in self.kept.pop(name, []):
                os.close(fd)
        check(sum(map(len, self.kept.values())) <= self.most, "more is stored than there is room")
        return words.get("READY") == "1"

    def start(self):
        names = [name for name, fds in self.kept.items() for _ in fds]
        fds = [fd for name, fds in self.kept.items() for fd in fds]
        pid = os.fork()
        if not pid:
            try:
                high = [os.dup(fd) for fd in fds]
                high = [fd if fd > 3 + len(fds) else os.dup2(fd, 1000 + i)
                        for i, fd in enumerate(high)]
                for i, fd in enumerate(high):
                    os.dup2(fd, 3 + i)
                os.closerange(3 + len(fds), 2000)
                if self.watchdog_s:
                    self.environment.update(WATCHDOG_USEC=str(int(self.watchdog_s * 1e6)),
                                            WATCHDOG_PID=str(os.getpid()))
                if fds:
                    self.environment.update(LISTEN_FDS=str(len(fds)), LISTEN_PID=str(os.getpid()),
                                            LISTEN_FDNAMES=":".join(names))
                os.execve(self.command[0], self.command, self.environment)
            finally:
                os._exit(127)
        self.pid = pid
        while not self.receive():
            pass

    def watch(self, watchdog_s):
        """Starts fad with a watchdog; it must report progress in time three times."""
        self.watchdog_s, self.fed = watchdog_s, 0
        self.start()
        self.notify.settimeout(watchdog_s)
        try:
            while self.fed < 3:
                self.receive()
        except TimeoutError:
            check(False, f"nothing is heard for {watchdog_s} s, after {self.fed} times")
        self.notify.settimeout(60)
        self.watchdog_s = 0

    def end(self, number):
        os.kill(self.pid, number)
        _, status = os.waitpid(self.pid, 0)
        self.notify.settimeout(0)
        try:
            while True:
                self.receive()
        except BlockingIOError:
            self.notify.settimeout(60)
        return status


def serves(factl, path, what):
    done = subprocess.run([factl, "-s", path, "ping"], capture_output=True, text=True, timeout=60)
    check(done.returncode == 0, f"{what}: {done.stderr}")


def run(unit, factl, directory):
    environment = dict(value.split("=", 1) for value in unit["Environment"])
    path = environment["FAD_SOCKET"] = os.path.join(directory, "fad.sock")
    config = os.path.join(directory, "fad.conf")
    with open(config, "w") as file:
        file.write("[pool]\nbytes = 16M\nchunk_bytes = 2M\n")
    manager = Manager(directory, [os.environ["FAD_DAEMON"], "--config", config], environment,
                      int(unit["FileDescriptorStoreMax"][-1]))
    manager.start()
    serves(factl, path, "at first")
    socket_of = os.stat(path).st_ino
    kept = sorted(manager.kept)
    for name in ("fad-listen", "fad-pool-state", "fad-sessions"):
        check(name in kept, f"{name} is not stored, but {kept}")
    manager.end(signal.SIGKILL)
    check(sorted(manager.kept) == kept, f"after its death {sorted(manager.kept)} are kept")
    # A client that connects now is served by the next daemon.
    early = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    early.connect(path)
    manager.start()
    serves(factl, path, "after a crash")
    check(os.stat(path).st_ino == socket_of, "the next one made a socket of its own")
    early.close()
    # systemctl restart: the pool stays.
    check(manager.end(signal.SIGTERM) == 0, "it does not end in order")
    check("fad-pool-state" in manager.kept, f"after a stop {sorted(manager.kept)} are kept")
    manager.watch(4)
    serves(factl, path, "after a restart")
    check(manager.end(signal.SIGTERM) == 0, "it does not end in order")


def check_template(template, service, temporary):
    """fad@.service is fad.service with a GPU, a socket and a folder of its own, and both do not run."""
    copy = os.path.join(temporary, "fad@.service")
    with open(template) as file, open(copy, "w") as out:
        out.write(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=" + os.environ["FAD_DAEMON"], file.read()))
    verify([copy])
    exposure(copy, 2.5)
    one, other = settings(template), settings(service)
    changed = {key for key in one | other if one.get(key) != other.get(key)}
    check(changed == {"Description", "ExecStart", "ExecStartPre", "Conflicts", "RuntimeDirectory", "Environment"},
          f"fad@.service differs from fad.service in {sorted(changed)}")
    check(one["Conflicts"] == ["fad.service"], "two daemons would have the first GPU")
    socket_path = dict(value.split("=", 1) for value in one["Environment"])["FAD_SOCKET"]
    check(socket_path == f"/run/{one['RuntimeDirectory'][0]}/fad.sock" == "/run/fad-%i/fad.sock",
          f"its socket is {socket_path}")
    check(one["ExecStart"][0].endswith(f" --device %i --socket {socket_path}"), f"it runs {one['ExecStart']}")


def main():
    service, directory, factl, template = sys.argv[1:]
    unit = settings(service)

    with tempfile.TemporaryDirectory(prefix="fad-units-") as temporary:
        # The program is not installed at the unit's path yet.
        copy = os.path.join(temporary, "fad.service")
        with open(service) as file, open(copy, "w") as out:
            out.write(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=" + os.environ["FAD_DAEMON"],
                             file.read()))
        verify([copy, os.path.join(directory, "fad-mps.service"),
                os.path.join(directory, "fad-devices.service")])
        exposure(copy, 2.5)
        check_template(template, service, temporary)

        most = int(unit["FileDescriptorStoreMax"][-1])
        environment = dict(value.split("=", 1) for value in unit["Environment"])
        check(environment.get("FDSTORE") == str(most), "FDSTORE is not FileDescriptorStoreMax")
        # All names go into one environment variable; the kernel's limit is 128 KiB.
        longest = len("fad-timeline-999999999999:")
        check(most * longest < 128 * 1024 - 32, "the names of so many do not fit one variable")
        check(unit["Type"] == ["notify"], "it does not wait for READY=1")
        check(unit.get("NotifyAccess", ["main"]) != ["none"], "it does not listen to the daemon")
        check("WatchdogSec" in unit, "one that hangs is not started again")
        check(unit["RuntimeDirectoryPreserve"] == ["restart"], "the socket's path goes")
        check(unit["ExecStart"][-1].startswith("/") and unit["ExecStart"][-1].endswith("/fad"),
              "it starts something else, or with --supervise")
        with open(os.path.join(directory, "fad.sysusers.conf")) as file:
            check(f"\nu {unit['User'][-1]} " in file.read(), "nobody makes its user")
        run(unit, factl, temporary)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
