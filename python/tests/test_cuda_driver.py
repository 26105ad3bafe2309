"""The code for GPUs, over the CUDA driver of fad's own tests. FAD_TEST_CUDA_DRIVER names the folder
of a build: BUILD/tests/cuda-driver."""
import os
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
DRIVER = os.environ.get("FAD_TEST_CUDA_DRIVER")


@pytest.mark.skipif(not DRIVER, reason="FAD_TEST_CUDA_DRIVER names no CUDA driver for tests")
def test_over_driver():
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {**os.environ, "LD_LIBRARY_PATH": DRIVER, "OMP_NUM_THREADS": "1",
                   "FAD_DAEMON": os.path.join(DRIVER, "fad-cuda-test")}
    done = subprocess.run([sys.executable, os.path.join(here, "over_driver.py")], text=True,
                          capture_output=True, timeout=240, env=environment)
    assert done.stdout.endswith("well\n"), done.stderr[-3000:]
