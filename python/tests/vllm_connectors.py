"""Connectors that test_vllm.py loads by their module path, as vLLM loads those of others."""
import os
import signal
import time

import faclient
from faclient.vllm import FadConnector


def kill_daemon(socket):
    """Kills the daemon with SIGKILL. Its supervisor, if it has one, starts another."""
    with faclient.connect(socket, timeout=20) as client:
        pid = client.info()["pid"]
    os.kill(pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}") and "\nState:\tZ" not in _status(pid):
        time.sleep(0.001)


def _status(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return "\nState:\tZ"


class KillsAtLoad(FadConnector):
    """The daemon dies between the scheduler's promise and the worker's first load."""

    kills = 0

    def start_load_kv(self, forward_context, **kwargs):
        if self._connector_metadata.loads and type(self).kills:
            type(self).kills -= 1
            kill_daemon(self._options["socket"])
        super().start_load_kv(forward_context, **kwargs)


class KillsAtSave(FadConnector):
    """The daemon dies before a worker saves."""

    kills = 0

    def wait_for_save(self):
        if self._connector_metadata.saves and type(self).kills:
            type(self).kills -= 1
            kill_daemon(self._options["socket"])
        super().wait_for_save()


class LoadsZeros(FadConnector):
    """What a wrong copy would do: proves that the tests' tokens depend on the loaded blocks."""

    def start_load_kv(self, forward_context, **kwargs):
        super().start_load_kv(forward_context, **kwargs)
        for load in self._connector_metadata.loads:
            for tensor in self._store._tensors:
                tensor[load.blocks] = 0
