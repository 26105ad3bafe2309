#!/usr/bin/env python3
"""factl doctor where all is well, where each thing is wrong that can be made wrong here, and with a GPU
that the tests' CUDA driver plays.

usage: test-doctor.py FACTL NVML WRONG_EXP [CUDA_DRIVER FAD_CUDA_TEST], with FAD_DAEMON set"""
import json
import os
import signal
import subprocess
import sys
import tempfile

NOBODY = 65534
COLUMNS = 80


class Daemon:
    def __init__(self, folder, config="", program=None, **environment):
        self.socket = os.path.join(folder, "fad.sock")
        path = os.path.join(folder, "fad.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [program or os.environ["FAD_DAEMON"], "--config", path, "--socket", self.socket, "--ready-fd", str(write)],
            pass_fds=[write], env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
        os.close(write)
        with os.fdopen(read) as ready:
            assert ready.readline() == "READY\n", "the daemon does not come up"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(timeout=60)


def doctor(factl, socket, status, uid=None, **environment):
    """Returns {(check, level): (text, advice)}, after a look at the lines for people."""
    def become():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

    def run(*options):
        done = subprocess.run([factl, "-s", socket, "doctor", *options], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **environment}, preexec_fn=become if uid else None)
        assert done.returncode == status, (status, done)
        assert not done.stderr, done.stderr
        return done.stdout

    text, report = run(), json.loads(run("--json"))
    for line in text.splitlines():
        assert len(line) <= COLUMNS and line == line.rstrip(), line
    found = {}
    for check in report["checks"]:
        assert (check["level"] == "ok") == ("advice" not in check), check
        assert f"\n{check['level']:10}{check['check']}: " in "\n" + text, (check, text)
        found[check["check"], check["level"]] = check["text"], check.get("advice")
    levels = [check["level"] for check in report["checks"]]
    assert report["faults"] == levels.count("fault") and report["warnings"] == levels.count("warning")
    assert bool(report["faults"]) == (status != 0)
    assert text.endswith(f"\n{report['faults']} fault{'s' if report['faults'] != 1 else ''}, "
                         f"{report['warnings']} warning{'s' if report['warnings'] != 1 else ''}\n"), text
    return found


def expect(found, check, level, text="", advice=""):
    assert (check, level) in found, (check, level, found)
    assert text in found[check, level][0], (text, found[check, level])
    assert advice in (found[check, level][1] or ""), (advice, found[check, level])


def check_cpu(factl, folder, wrong_exp):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    socket = os.path.join(folder, "fad.sock")
    expect(doctor(factl, socket, 3), "socket", "fault", "no such socket", "systemctl enable --now fad")
    with Daemon(folder, "[daemon]\nbackend = cpu\n") as daemon:
        found = doctor(factl, socket, 0)
        for check in ("socket", "access", "daemon", "process", "backend", "kernels", "KV pool", "limits", "attention",
                      "KV cache", "cgroup", "limits of fad", "limits of programs"):
            expect(found, check, "ok")
        expect(found, "process", "ok", str(daemon.process.pid))
        expect(found, "attention", "ok", "off by")
        # Some builds with AddressSanitizer want to be loaded first.
        sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        found = doctor(factl, socket, 1, LD_PRELOAD=wrong_exp, ASAN_OPTIONS=sanitizer)
        for check in ("attention", "KV cache"):
            expect(found, check, "fault", "wrong numbers", "report it")
        if os.geteuid() == 0:
            os.chmod(folder, 0o755)
            os.chmod(socket, 0o660)
            found = doctor(factl, socket, 1, uid=NOBODY)
            expect(found, "access", "fault", "mode 0660 and group root", "usermod -aG root nobody")
            os.chmod(folder, 0o700)
            expect(doctor(factl, socket, 1, uid=NOBODY), "access", "fault", "Permission denied", "folder above it")
        daemon.process.send_signal(signal.SIGSTOP)
        expect(doctor(factl, socket, 1), "socket", "fault", "does not answer", "hangs")
    with Daemon(folder, "[daemon]\nbackend = cpu\n[limits]\nbuffers = 0\n"):
        expect(doctor(factl, socket, 1), "attention", "fault", "limit buffers")
    with Daemon(folder, "[daemon]\nbackend = cpu\n[limits]\ncaches = 0\n"
                f"[pool]\nbytes = {2 * memory >> 30}G\nchunk_bytes = 1G\n"):
        found = doctor(factl, socket, 1)
        expect(found, "attention", "ok")
        expect(found, "KV cache", "fault", "caches")
        expect(found, "KV pool", "warning", "more than the memory", "Lower bytes")
    with Daemon(folder, "[daemon]\nbackend = cpu\n[pool]\nbytes = 0\n[limits]\nconnections = 1\n"):
        found = doctor(factl, socket, 0)
        expect(found, "limits", "warning", "of at most 1", "Raise connections")
        expect(found, "KV pool", "warning", "there is none", "set bytes")


def check_gpu(factl, folder, nvml, driver, program):
    socket = os.path.join(folder, "fad.sock")
    libraries = os.path.join(folder, "lib")
    os.mkdir(libraries)
    os.symlink(os.path.abspath(nvml), os.path.join(libraries, "libnvidia-ml.so.1"))
    cuda = {"LD_LIBRARY_PATH": os.path.dirname(os.path.abspath(driver)) + ":" + os.environ.get("LD_LIBRARY_PATH", "")}
    both = {"LD_LIBRARY_PATH": libraries + ":" + cuda["LD_LIBRARY_PATH"]}
    with Daemon(folder, "[daemon]\nbackend = cuda\n", program, **cuda):
        found = doctor(factl, socket, 0, **both)
        for check in ("driver", "backend", "kernels", "MPS", "attention", "KV cache"):
            expect(found, check, "ok")
        expect(found, "backend", "ok", "cuda: ")
        expect(found, "clock of the GPU", "ok", "345 of 1980 MHz at 44 C; driver 555.55")
        if os.geteuid() == 0 and not os.path.exists("/run/fad-mps"):
            os.mkdir("/run/fad-mps")
            try:
                open("/run/fad-mps/control", "w").close()
                expect(doctor(factl, socket, 0, **both), "MPS", "warning", "does not use it", "drop-in")
            finally:
                os.unlink("/run/fad-mps/control")
                os.rmdir("/run/fad-mps")
        if not os.path.exists("/dev/nvidiactl"):
            expect(found, "device files", "warning", "/dev/nvidia", "nvidia-modprobe")
        found = doctor(factl, socket, 0, **both, DOCTOR_SLOWDOWN="0x64")
        expect(found, "clock of the GPU", "warning", "held down by heat", "Cool it")
        found = doctor(factl, socket, 0, **both, DOCTOR_SLOWDOWN="0x5")  # an idle GPU and the power cap are no faults
        expect(found, "clock of the GPU", "ok")
        expect(doctor(factl, socket, 1, **both, DOCTOR_ECC="3"), "memory of the GPU", "fault", "3 errors")
        found = doctor(factl, socket, 0, **cuda)
        assert ("clock of the GPU", "ok") in found or "unknown" in found["clock of the GPU", "warning"][0], found


def main():
    factl, nvml, wrong_exp, *cuda = sys.argv[1:]
    factl, wrong_exp = os.path.abspath(factl), os.path.abspath(wrong_exp)
    # meson adds the folders of all libraries that are arguments: the driver is for check_gpu() alone.
    drivers = {os.path.dirname(os.path.abspath(path)) for path in cuda[:1]}
    os.environ["LD_LIBRARY_PATH"] = ":".join(
        folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder not in drivers)
    with tempfile.TemporaryDirectory() as folder:
        check_cpu(factl, folder, wrong_exp)
    if cuda:
        with tempfile.TemporaryDirectory() as folder:
            check_gpu(factl, folder, nvml, *cuda)


if __name__ == "__main__":
    main()
