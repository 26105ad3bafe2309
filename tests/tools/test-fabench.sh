#!/usr/bin/env bash
#
# fabench's usage; each benchmark runs, and results.py reads its results. Speed is not tested.
# Run as: test-fabench.sh FABENCH FABENCH-POOL
set -euo pipefail

fabench=$1
fabench_pool=$2
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

usage_status=0
"$fabench" 2>/dev/null || usage_status=$?
[ "$usage_status" -eq 2 ]
usage_status=0
"$fabench" nonsense 2>/dev/null || usage_status=$?
[ "$usage_status" -eq 2 ]
usage_status=0
"$fabench" --seconds 0 crowd 2>/dev/null || usage_status=$?
[ "$usage_status" -eq 2 ]
"$fabench" --help >"$temporary/help"
grep -q '^Usage: fabench' "$temporary/help"

"$fabench" --quick --json all >"$temporary/all.json"
python3 - "$temporary/all.json" <<'EOF'
import json, os, sys

results = json.load(open(sys.argv[1]))["results"]
seen = set()
for result in results:
    assert set(result) >= {"name", "value", "unit", "commit", "device"}, result
    assert ("peer" in result) == ("ratio" in result), result
    key = (result["name"], result.get("peer"))
    assert key not in seen, key
    seen.add(key)
    if result["name"].endswith(("/lost", "/out-of-order")):
        assert result["value"] == 0, result
areas = {name.split("/")[0] for name, _ in seen}
expected = {"rtt", "throughput", "crowd", "idle", "cpu", "wire", "restart"}
if os.geteuid() == 0:
    expected.add("fair")
assert areas >= expected, areas
EOF

# Plain text.
"$fabench" --quick rtt >"$temporary/rtt"
grep -qE '^rtt/socket/ping .* of bare$' "$temporary/rtt"

"$fabench_pool" --quick >"$temporary/pool"
grep -qE '^pool/fork/p64/100k ' "$temporary/pool"
