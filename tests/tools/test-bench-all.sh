#!/bin/sh
# bench/all.py runs all parts, whatever happens to each, and results.py records what it wrote, for
# RESULTS.md and README.md: with fake programs that succeed, fail, hang, or print nothing.
#   test-bench-all.sh ALL.PY RESULTS.PY
set -eu

folder=$(mktemp -d "${TMPDIR:-/tmp}/fad-test.XXXXXX")
trap 'rm -rf "$folder"' EXIT
kept=$folder/bench/results
mkdir -p "$folder/bench" "$folder/bin" "$kept"
cp "$1" "$folder/bench/all.py"
cp "$2" "$(dirname "$2")/targets.json" "$kept"
out=$folder/results

cat >"$folder/bin/fabench" <<'EOF'
#!/bin/sh
for part; do :; done
say() {
	echo "{\"results\": [{\"name\": \"$part/$1\", \"value\": 2, \"unit\": \"us\", \"peer\": \"bare\"," \
		"\"ratio\": 0.5, \"commit\": \"abc\", \"device\": \"GPU\"}]}"
}
case $part in
rtt) say one ;;
request) echo "$*" | grep -q -- --mps && say mps || say plain ;;
step) echo "a sentence" >&2; exit 1 ;;
throughput) say lost; exit 3 ;;
crowd) sleep 60 & echo $! >"$FOLDER/child"; sleep 60 ;;
gpu) echo "not JSON" ;;
esac
EOF
cat >"$folder/bench/kv.py" <<'EOF'
import sys
assert sys.argv[1] == "--json" and sys.argv[3:] == ["--peer", "/x.so:a"], sys.argv
with open(sys.argv[2], "w") as file:
    file.write('{"command": "kv", "machine": "M", "results": '
               '[{"name": "kv/a", "value": 1, "unit": "us", "commit": "", "device": "D"}]}')
EOF
# A peer that prints a row for each shape and does not support one of them.
cat >"$folder/bench/time-paged" <<'EOF'
#!/bin/sh
shape=$(echo "$*" | tr -d ' -')
case $* in
*"--kv-heads 32"*) exit 1 ;;
esac
echo "{\"device\": \"D\", \"results\": [{\"name\": \"$shape\", \"value\": 1, \"unit\": \"us\"}]}"
EOF
chmod +x "$folder/bin/fabench" "$folder/bench/time-paged"
export FOLDER="$folder"

# expect STATUS PART ARGUMENT...
expect() {
	want=$1 part=$2
	shift 2
	status=0
	"$folder/bench/all.py" "$@" >"$folder/out" 2>&1 || status=$?
	if [ "$status" -ne "$want" ] || ! grep -qE -- "$part" "$folder/out"; then
		echo "all.py $*: status $status, not $want, or did not say '$part':"
		cat "$folder/out"
		exit 1
	fi
}

expect 0 '^crowd +300 s' --list
expect 2 'no part nonsense' --output "$out" nonsense
expect 2 '--output DIR is missing' rtt
expect 0 '^ok       request-mps: 1 results' --output "$out" rtt 'request*'
grep -q '"name": "request/mps"' "$out/request-mps.json"
grep -q '"name": "request/plain"' "$out/request.json"

# Parts that fail, hang or print nothing do not stop the others.
expect 1 'run again: bench/all.py --output .* step throughput crowd gpu decode-shapes' --output "$out" \
	--part-limit 10 --commit fff --peer /x.so:a rtt step throughput crowd gpu kv decode-shapes
for line in 'ok       rtt: 1 ' 'FAILED   step: status 1; 0 ' 'FAILED   throughput: status 3; 1 ' \
	'FAILED   crowd: did not end in 10 s; 0' 'FAILED   gpu: no results; 0' 'ok       kv: 1 ' \
	'FAILED   decode-shapes: status 1; 7 '; do
	grep -q "^$line" "$folder/out" || { echo "it did not say '$line'"; cat "$folder/out"; exit 1; }
done
grep -q 'a sentence' "$out/log"
# The hanging child is gone, or a zombie.
nothing_left() {
	for _ in $(seq 100); do
		state=$(cut -d ' ' -f 3 "/proc/$(cat "$folder/child")/stat" 2>/dev/null || true)
		[ "${state:-Z}" != Z ] || return 0
		sleep 0.1
	done
	return 1
}
nothing_left
[ "$(cd "$out" && echo *)" = 'decode-shapes.json kv.json log request-mps.json request.json rtt.json throughput.json' ]

# Children also end when all.py itself is stopped.
rm "$folder/child"
"$folder/bench/all.py" --output "$folder/stopped" crowd >/dev/null 2>&1 &
all=$!
for _ in $(seq 300); do
	[ ! -s "$folder/child" ] || break
	sleep 0.1
done
kill "$all"
if wait "$all"; then
	echo "all.py was stopped and says that all is well"
	exit 1
fi
nothing_left

# Peers only take part in decode of plain pages.
expect 0 '^ok       decode-deterministic: 1 results' --output "$folder/peers" --peer /x.so:a \
	decode-codes decode-shared decode-deterministic
if grep peer "$folder/peers"/*.json; then
	echo "a peer takes part where there is none"
	exit 1
fi
grep -q 'peer/x.so:a' "$out/decode-shapes.json"

# The last part has no time left.
expect 1 '^NOT RUN  kv: no time was left' --output "$out" --limit 2 crowd kv

# All results are recorded, and shown in README.md.
echo '{"shortfalls": []}' >"$kept/shortfalls.json"
echo '{"costs": [["", "here"], ["one", "{gpu-rtt:rtt/one} of it"]]}' >"$kept/tables.json"
printf 'before\n<!-- costs: x -->\n<!-- end of costs -->\nbehind\n' >"$folder/README.md"
python3 "$kept/results.py" keep-all gpu "$out" 1234567
grep -q '^## gpu-decode-shapes$' "$kept/RESULTS.md"
grep -q '^| rtt/one | 2 | us | bare | 0.5 |' "$kept/RESULTS.md"
grep -q 'bench/all.py rtt: bin/fabench rtt`, .*, GPU, commit 1234567$' "$kept/RESULTS.md"
[ "$(grep -v '^<!--' "$folder/README.md")" = "before
| | here |
|---|---|
| one | 2.0 µs of it |
behind" ]
python3 "$kept/results.py" check

# broken FILE PATTERN: `check` fails if PATTERN is changed in FILE.
broken() {
	cp "$1" "$folder/good"
	sed -i "s/$2/3/" "$1"
	if python3 "$kept/results.py" check 2>"$folder/out"; then
		echo "a wrong $1 passed for right"
		exit 1
	fi
	cp "$folder/good" "$1"
}
broken "$folder/README.md" 2.0
broken "$folder/README.md" 'end of'
broken "$kept/RESULTS.md" 0.5
broken "$kept/tables.json" rtt.one
broken "$kept/gpu-rtt.json" '"value": 2'
python3 "$kept/results.py" check
