#!/usr/bin/env bash
#
# fabench's GPU benchmarks run and give results on the tests' CUDA driver; speed is not tested.
# Run as: test-cuda-fabench.sh FABENCH FABENCH-LAUNCH, with FAD_DAEMON.
set -euo pipefail

# Use the daemon that reads FAD_TUNE_*.
export FAD_TUNABLE_DAEMON="$FAD_DAEMON"
fabench=$1
fabench_launch=$2
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

"$fabench" --quick --json gpu request step yield >"$temporary/results.json"
python3 - "$temporary/results.json" <<'EOF'
import json, sys

results = json.load(open(sys.argv[1]))["results"]
names = {(result["name"], result.get("peer")) for result in results}
assert len(names) == len(results)
for name, peer in (
    ("gpu/bf16/h8-d64-s128/socket", "inproc"),
    ("request/noop/ring", "socket"),
    ("request/decode-b1-c1024/inproc", None),
    ("request/decode-b1-c1024/socket", "inproc"),
    ("request/decode-b1-c1024/ring-p99", "inproc"),
    ("request/decode-b1-c1024/ring-arrival", None),
    ("request/decode-b1-c1024/ring-dispatch", None),
    ("request/decode-b1-c1024/doorbell", "eventfd-and-inproc"),
    ("request/decode-b1-c1024-append/ring", "inproc"),
    ("step/decode-b1-c1024-l32/attend/ring", "inproc"),
    ("step/decode-b1-c1024-l32/layers/ring", "inproc"),
    ("step/decode-b1-c1024-l32/layers-submit", None),
    ("pair/decode-b1-c1024/cpu/ring", "inproc"),
    ("pair/decode-b1-c1024/timeline/ring", "inproc"),
    ("pair/decode-b1-c1024/layers/ring", "inproc"),
    ("pair/tiny/cpu/ring", "inproc"),
    ("step/decode-b4-c128-l4/kernels", None),
    ("step/decode-b4-c128-l4/layers", "kernels"),
    ("step/decode-b4-c128-l4/whole", "kernels"),
    ("step/decode-b4-c128-l4/busy", None),
    ("yield/prefill-128/idle", None),
    ("yield/prefill-128/decode", "idle"),
    ("yield/prefill-128/decode-p99", "idle"),
    ("yield/prefill-256/decode-off", "idle"),
    ("yield/prefill-256/off", None),
    ("yield/prefill-256/alone", "off"),
    ("yield/prefill-256/beside", "alone"),
    ("pair/tiny/timeline/ring", "inproc"),
    ("pair/tiny/layers/ring", "inproc"),
):
    assert (name, peer) in names, (name, sorted(names))
EOF

# fabench-launch.
"$fabench_launch" --quick --json >"$temporary/launch.json"
"$fabench_launch" --prepare --json >"$temporary/prepare.json"
python3 - "$temporary/launch.json" "$temporary/prepare.json" <<'EOF'
import json, sys

launch, prepare = ({result["name"]: result.get("peer") for result in json.load(open(path))["results"]}
                   for path in sys.argv[1:])
for variant in ("", "-append"):
    for part in ("tables", "first-prepare", "first-launch", "first", "next-prepare", "next-launch", "next"):
        assert f"launch/decode-b64-c64{variant}/{part}" in launch, launch
        assert f"launch/decode-b1-c64{variant}/{part}" in launch, launch
        assert f"launch/decode-b64-c128-s64{variant}/{part}" in launch, launch
    for shape in ("b64-c4096", "b64-c9216", "b64-c9216-s8192", "b1-c1024"):
        assert f"launch/decode-{shape}{variant}/next-prepare" in prepare, prepare
        peer = prepare[f"launch/decode-{shape}{variant}/first-prepare"]
        assert peer == ("unshared" if "-s" in shape else None), prepare
assert not any(name.endswith("launch") for name in prepare), prepare
EOF

# A benchmark with --mps fails without nvidia-cuda-mps-control.
status=0
PATH=$temporary/none "$fabench" --quick --mps request 2>"$temporary/errors" || status=$?
[ "$status" -eq 1 ]
grep -q 'MPS does not start' "$temporary/errors"

# A private MPS is stopped, and leaves nothing behind.
mkdir "$temporary/bin"
cat >"$temporary/bin/nvidia-cuda-mps-control" <<EOF
#!/bin/sh
if [ "\$1" = -d ]; then
	echo "\$CUDA_MPS_PIPE_DIRECTORY" >"$temporary/directory"
	touch "\$CUDA_MPS_PIPE_DIRECTORY/control"
else
	cat >"$temporary/said"
fi
EOF
chmod +x "$temporary/bin/nvidia-cuda-mps-control"
PATH=$temporary/bin:$PATH "$fabench" --quick --mps wire >"$temporary/wire"
grep -q '^wire/encode' "$temporary/wire"
[ "$(cat "$temporary/said")" = quit ]
[ ! -e "$(cat "$temporary/directory")" ]
