#!/usr/bin/env python3
"""Tests bench/profiles.py over a fake ncu: it matches profiled launches with cells, and writes
what bench/results/results.py expects.
    test-profiles.py PROFILES.PY
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

NCU = """#!/usr/bin/env python3
import os, subprocess, sys
words = sys.argv[1:]
log = words[words.index("--log-file") + 1]
command = words[words.index("--log-file") + 2:]
metrics = words[words.index("--metrics") + 1].split(",")
status = subprocess.run(command).returncode
stalls = ["smsp__average_warps_issue_stalled_%s_per_issue_active.ratio" % name
          for name in ("long_scoreboard", "wait", "imc_miss", "selected")]
stalls.append("smsp__average_warps_issue_stalled_wait_not_issued_per_issue_active.ratio")
if os.environ["ASKED"] == "nothing":
    stalls = []
if os.environ["ASKED"] == "less":
    metrics.pop()
with open(log, "w") as file:
    print("==PROF== Connected", file=file)
    print(",".join('"%s"' % word for word in ["ID", *metrics, *stalls]), file=file)
    print(",".join('"%s"' % word for word in ["", *["unit"] * len(metrics + stalls)]), file=file)
    for i in range(int(os.environ["LAUNCHES"])):
        values = ["20,000", "40000000", "50.5", "2", "n/a" if os.environ["ASKED"] == "none" else "17"][:len(metrics)]
        print(",".join('"%s"' % word for word in [i, *values, *["6", "3", "0.1", "0.9", "77"][:len(stalls)]]), file=file)
print("==PROF== Disconnected")
sys.exit(status)
"""
TIME_PAGED = """#!/bin/sh
printf '{"device": "D", "results": [\\n{"name": "decode/a/us"},\\n{"name": "decode/b/us"}\\n]}\\n'
case $ASKED in fails) exit 3 ;; esac
"""
RACE = """import json, sys
assert "--profile" in sys.argv
with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
    json.dump({"machine": "D, torch", "results": [{"name": "prefill/x", "device": "D"},
                                                  {"name": "decode/b/us", "device": "D"}]}, file)
"""


def put(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, stat.S_IRWXU)


def main():
    folder = tempfile.mkdtemp(prefix="fad-test.")
    try:
        bench = os.path.join(folder, "bench")
        os.makedirs(bench)
        script = shutil.copy(sys.argv[1], bench)
        ncu, kept = os.path.join(folder, "ncu"), os.path.join(folder, "kept.json")
        put(ncu, NCU)
        put(os.path.join(bench, "time-paged"), TIME_PAGED)
        put(os.path.join(bench, "race.py"), RACE)

        def run(asked, launches, only, error=None):
            done = subprocess.run([sys.executable, script, "--ncu", ncu, "--json", kept, "--only", only],
                                  env={**os.environ, "ASKED": asked, "LAUNCHES": str(launches)},
                                  capture_output=True, text=True, check=False)
            if error is None:
                assert done.returncode == 0, done.stderr
                with open(kept, encoding="utf-8") as file:
                    return json.load(file)
            assert done.returncode != 0 and error in done.stderr, (error, done)
            return None

        said = run("all", 2, "*")
        # Each cell occurs once.
        assert [result["name"] for result in said["results"]] == ["decode/a/us", "decode/b/us", "prefill/x"], said
        assert said["machine"] == "D" and said["command"] == "bench/profiles.py", said
        for result in said["results"]:
            assert (result["value"], result["unit"]) == (20, "us"), result
            assert result["profile"] == {"GB/s": 2000, "memory": 0.505, "tensor": 0.02, "issue": 0.17, "stalls": {
                "long scoreboard": 0.6, "wait": 0.3, "selected": 0.09}}, result
        said = run("all", 2, "*--only codes")
        assert said["command"] == "bench/profiles.py --only '*--only codes'", said
        run("all", 3, "*--only codes", "3 launches for 2 cells")
        run("less", 2, "*--only codes", "decode/a/us: ncu did not report smsp__issue_active")
        run("none", 2, "*--only codes", "decode/a/us: ncu did not report smsp__issue_active")
        run("nothing", 2, "*--only codes", "decode/a/us: ncu did not report any smsp__average_warps")
        run("fails", 2, "*--only codes", "status 3")
        run("all", 2, "nothing", "no command matches nothing")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
