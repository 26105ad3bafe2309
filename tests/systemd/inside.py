#!/usr/bin/env python3
"""Runs as root in a booted container (boot): fad.service as it is installed is started, and then
restarted, killed, stopped and reloaded, while clients append to sequences and check every committed
token. Exits 1 if anything failed."""
import os
import re
import signal
import socket
import subprocess
import sys
import time

SOCKET = "/run/fad/fad.sock"
TENANTS = ("anna-1", "anna-2", "bert")
failed = False


def check(condition, what):
    global failed
    if not condition:
        print("FAILED:", what, flush=True)
        failed = True


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def wait(what, condition, seconds=60):
    """Waits until condition() holds, and returns what it returned."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise RuntimeError(f"waited {seconds} s for {what}")
        time.sleep(0.005)


def show(unit, name):
    return run("systemctl", "show", "--property", name, "--value", unit).strip()


def main_pid():
    return int(show("fad", "MainPID"))


def drop_in(text):
    os.makedirs("/etc/systemd/system/fad.service.d", exist_ok=True)
    with open("/etc/systemd/system/fad.service.d/test.conf", "w") as file:
        file.write(text)
    run("systemctl", "daemon-reload")


def progress(tenant):
    with open(f"/tmp/{tenant}.log") as file:
        lines = [line for line in file.read().split("\n")[:-1] if line.isdigit()]
    return int(lines[-1]) if lines else 0


def all_work(what):
    """Waits until each tenant has made progress since this call."""
    before = {tenant: progress(tenant) for tenant in TENANTS}
    for tenant in TENANTS:
        wait(f"{tenant} to get on {what}", lambda: progress(tenant) > before[tenant])


def start_tenants():
    for tenant in TENANTS:
        user = tenant.split("-")[0]
        open(f"/tmp/{tenant}.log", "w").close()
        run("systemd-run", "--quiet", f"--unit={tenant}", f"--uid={user}", "--gid=fad",
            f"--property=StandardOutput=append:/tmp/{tenant}.log",
            f"--property=StandardError=append:/tmp/{tenant}.log",
            "/test/systemd-load", SOCKET)


def end_tenants():
    for tenant in TENANTS:
        # No `systemctl stop`: systemd would forget a unit that ended well, and its result.
        pid = int(show(tenant, "MainPID"))
        os.kill(pid, signal.SIGTERM)
    for tenant in TENANTS:
        wait(f"{tenant} to end", lambda: show(tenant, "ActiveState") in ("inactive", "failed"))
        with open(f"/tmp/{tenant}.log") as file:
            said = [line for line in file.read().split("\n") if line and not line.isdigit()]
        print(f"{tenant}: {'; '.join(said)}", flush=True)
        check(show(tenant, "Result") == "success" and len(said) == 2, f"{tenant} failed")


def again(what, act, seconds=60):
    """act() ends the daemon; the next one serves all tenants."""
    pid = main_pid()
    begin = time.monotonic()
    act(pid)
    wait(f"the next daemon after {what}", lambda: main_pid() not in (0, pid), seconds)
    wait("it to be ready", lambda: show("fad", "ActiveState") == "active", seconds)
    ready = time.monotonic() - begin
    all_work(f"after {what}")
    print(f"{what}: ready after {ready * 1000:.0f} ms, "
          f"all tenants worked after {(time.monotonic() - begin) * 1000:.0f} ms", flush=True)


def exposure(unit, most):
    """Checks systemd's own measure of how exposed the running unit is: 0 (safe) to 10."""
    text = run("systemd-analyze", "--no-pager", "security", unit)
    value = float(re.search(rf"exposure level for {unit}: ([0-9.]+)", text)[1])
    print(f"systemd-analyze security {unit}: {value}")
    check(value <= most, f"systemd-analyze security {unit} is above {most}")


def scrape(path=None):
    """The exporter's answer, from its port or from the socket at @path."""
    connection = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    connection.settimeout(20)
    try:
        connection.connect(path or ("127.0.0.1", 9743))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = b""
        while part := connection.recv(65536):
            text += part
        return text.decode()
    except OSError:
        return ""
    finally:
        connection.close()


def check_exporter():
    """The installed exporter sees all tenants, as a user who may not stop the daemon."""
    run("systemctl", "start", "fad-metrics")
    exposure("fad-metrics.service", 1.5)
    wait("the exporter", lambda: "\nfad_up 1\n" in scrape())
    everything = scrape("/run/fad-metrics/metrics.sock")
    for tenant in TENANTS:
        check(f"{tenant}.service" in everything, f"the exporter does not see {tenant}:\n{everything[:2000]}")
        check(f"{tenant}.service" not in scrape(), f"the port shows {tenant}")
    done = subprocess.run(["setpriv", "--reuid=fad-metrics", "--regid=fad", "--clear-groups", "factl", "drain"],
                          capture_output=True, text=True)
    check(done.returncode == 1 and "own user" in done.stderr, f"the observer may stop the daemon: {done}")
    done = subprocess.run(["setpriv", "--reuid=bert", "--regid=bert", "--clear-groups", "python3", "-c",
                           "import socket; s = socket.socket(socket.AF_UNIX); "
                           "s.connect('/run/fad-metrics/metrics.sock'); "
                           "s.sendall(b'GET /metrics HTTP/1.0\\r\\n\\r\\n'); "
                           "print(s.makefile().read())"], capture_output=True, text=True)
    check("fad_up 1" in done.stdout and "anna" not in done.stdout, f"bert sees more than totals: {done}")
    print("fad-metrics: totals at the port, tenants at the path", flush=True)


def check_confinement():
    """The settings that the kernel shows hold for the daemon, and for the process that it starts."""
    pid = main_pid()
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    check(int(status["CapBnd"], 16) == 0, f"capabilities are left: {status['CapBnd']}")
    check(status["NoNewPrivs"] == "1", "it may gain privileges")
    check(status["Seccomp"] == "2", "its system calls are not filtered")
    check(status["Uid"].split()[0] != "0", "it runs as root")
    with open(f"/proc/{pid}/mounts") as file:
        mounts = {line.split()[1]: line.split()[3].split(",") for line in file}
    check("ro" in mounts["/"], "it may write to the system's files")


def check_instances():
    """fad@0 and fad@1 have sockets, pools and fates of their own. Without GPUs here, they use the CPU."""
    os.makedirs("/etc/systemd/system/fad@.service.d", exist_ok=True)
    with open("/etc/systemd/system/fad@.service.d/test.conf", "w") as file:
        file.write("[Service]\nExecStart=\nExecStart=/usr/local/bin/fad --backend cpu --socket /run/fad-%i/fad.sock\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "start", "fad@0", "fad@1", "fad-metrics@0")

    def pid_of(instance):
        text = subprocess.run(["factl", "-i", instance, "status", "--json"], capture_output=True, text=True).stdout
        match = re.search(r'"pid":(\d+)', text)
        return match and int(match[1])

    pids = {instance: pid_of(instance) for instance in "01"}
    for instance, pid in pids.items():
        check(pid == int(show(f"fad@{instance}", "MainPID")), f"fad@{instance} is not where it should be: {pids}")
    done = subprocess.run(["factl", "version"], env={**os.environ, "FAD_INSTANCE": "1"}, capture_output=True, text=True)
    check(done.returncode == 0, f"FAD_INSTANCE=1: {done.stderr}")
    check(subprocess.run(["factl", "-i", "2", "ping"], capture_output=True).returncode == 3, "there is a fad@2")
    wait("the exporter of fad@0", lambda: "\nfad_up 1\n" in scrape("/run/fad-metrics-0/metrics.sock"))
    os.kill(pids["0"], signal.SIGKILL)
    wait("the next fad@0", lambda: pid_of("0") not in (None, pids["0"]))
    check(pid_of("1") == pids["1"], "fad@1 was restarted, too")
    run("systemctl", "start", "fad")
    for instance in "01":
        check(show(f"fad@{instance}", "ActiveState") != "active", f"fad@{instance} runs beside fad")
    print("fad@0 and fad@1: two daemons, and fad instead of them", flush=True)


def status():
    return run("factl", "status")


def main():
    run("systemd-sysusers", "/usr/local/lib/sysusers.d/fad.conf")
    for user in ("anna", "bert"):
        with open(f"/etc/sysusers.d-{user}.conf", "w") as file:
            file.write(f"u {user} -\nm {user} fad\n")
        run("systemd-sysusers", f"/etc/sysusers.d-{user}.conf")
    run("systemctl", "daemon-reload")
    run("systemctl", "start", "fad")
    exposure("fad.service", 2.5)
    check_confinement()
    start_tenants()
    for tenant in TENANTS:
        wait(f"{tenant} to begin", lambda: progress(tenant))
    said = status()
    for tenant in TENANTS:
        # Two groups of processes of one user are two tenants.
        check(f"{tenant}.service" in said, f"{tenant} is no tenant of its own:\n{said}")

    check_exporter()
    done = subprocess.run(["factl", "doctor"], capture_output=True, text=True)
    check(done.returncode == 0 and "\n0 faults, 0 warnings" in done.stdout, f"factl doctor:\n{done.stdout}")
    again("systemctl restart", lambda pid: run("systemctl", "restart", "fad"))
    wait("the exporter to find the next daemon", lambda: "\nfad_up 1\n" in scrape())
    for i in range(5):
        again("SIGKILL", lambda pid: os.kill(pid, signal.SIGKILL))
    again("SIGSEGV", lambda pid: os.kill(pid, signal.SIGSEGV))
    again("SIGABRT", lambda pid: os.kill(pid, signal.SIGABRT))

    print(f"systemd restarted fad {show('fad', 'NRestarts')} times")

    pid = main_pid()
    for i in range(3):
        run("systemctl", "reload", "fad")
        all_work("after a reload")
    check(main_pid() == pid, "a reload started another daemon")
    print("systemctl reload: the same daemon, all tenants worked", flush=True)

    drop_in("[Service]\nWatchdogSec=2s\n")
    again("a new WatchdogSec", lambda pid: run("systemctl", "restart", "fad"))
    again("SIGSTOP (watchdog of 2 s)", lambda pid: os.kill(pid, signal.SIGSTOP))

    end_tenants()
    run("systemctl", "stop", "fad")
    check(show("fad", "Result") == "success", "it did not stop well")
    check(not os.path.exists(SOCKET), "the socket is left")
    check_instances()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        check(False, str(error))
    if failed:
        for tenant in TENANTS:
            with open(f"/tmp/{tenant}.log") as log:
                print(f"{tenant}: ...{log.read()[-500:]}")
        print(subprocess.run(["journalctl", "--no-pager", "-n", "60", "-u", "fad"],
                             capture_output=True, text=True).stdout)
    print("failed" if failed else "passed")
    sys.exit(1 if failed else 0)
