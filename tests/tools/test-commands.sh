#!/usr/bin/env bash
#
# The scripts a newcomer runs: options, reports of missing packages, and totals of ./check.
# Run as: test-commands.sh SOURCE_DIRECTORY
set -euo pipefail
cd "$1"

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
failed=0

# expect STATUS PATTERN COMMAND...: COMMAND exits with STATUS and its output matches PATTERN.
expect() {
	local want=$1 pattern=$2 status=0

	shift 2
	"$@" >"$temporary/out" 2>&1 || status=$?
	if [ "$status" -ne "$want" ] || ! grep -qE -- "$pattern" "$temporary/out"; then
		echo "FAILED: '$*' gave $status, not $want, or did not say '$pattern'; it said:"
		sed 's/^/    /' "$temporary/out"
		failed=1
	fi
}

for script in ./quickstart ./check; do
	expect 0 '--no-install' "$script" --help
	expect 2 "unknown argument '--nonsense'" "$script" --nonsense
	expect 2 '--jobs needs' "$script" --jobs
done
expect 2 'draw is 1 to 4' ./check --draw 5
expect 1 'is not there' ./quickstart --build-dir "$temporary/empty"

# Every line of the list has packages and a known probe.
if grep -vE '^(#.*|\[[a-z]+\]|)$' packaging/build-deps |
	grep -vE '^[a-z0-9.+-]+( \| [a-z0-9.+-]+)* +((cmd|pc|inc|lib):[^ ]+|-)$'; then
	echo "FAILED: lines of packaging/build-deps that cannot be read"
	failed=1
fi

cat >"$temporary/deps" <<'EOF'
[build]
no-such-package-a | no-such-package-b   cmd:sh   # found by its probe
[check]
no-such-package-c | no-such-package-d   cmd:no-such-command
[optional]
no-such-package-e   pc:no-such-module
EOF
export FAD_BUILD_DEPS=$temporary/deps
expect 0 'All needed' packaging/install-deps --no-install build
expect 1 'no-such-package-c or no-such-package-d' packaging/install-deps --no-install build check
expect 0 'no-such-package-e' packaging/install-deps --no-install build optional
expect 2 'unknown option' packaging/install-deps --nonsense build

# packaging/sum-tests adds up totals.
cat >"$temporary/a.json" <<'EOF'
{"name": "one", "result": "OK", "duration": 0.1, "stdout": "fine"}
{"name": "two", "result": "FAIL", "duration": 0.2, "stdout": "x\ny", "stderr": "the reason"}
{"name": "three", "result": "TIMEOUT", "duration": 0.2, "stdout": ""}
{"name": "four", "result": "SKIP", "duration": 0.2, "stdout": ""}
EOF
echo '{"name": "four", "result": "SKIP", "duration": 0.2, "stdout": ""}' >"$temporary/b.json"
expect 0 '^1 2 1$' packaging/sum-tests "$temporary/a.json"
expect 0 'the reason' packaging/sum-tests "$temporary/a.json"
expect 0 '^1 3 2$' packaging/sum-tests "$temporary/a.json" "$temporary/b.json"
expect 0 'no test was run' packaging/sum-tests "$temporary/b.json"
expect 0 '^0 1 0$' packaging/sum-tests "$temporary/none.json"
cat >"$temporary/draws.json" <<'EOF'
{"name": "fad:a / one", "result": "OK", "duration": 1.4, "stdout": "x\ndraw 2/4: 3 of 12 cases\n"}
{"name": "fad:a / two", "result": "OK", "duration": 0.2}
EOF
expect 0 '^ *one: 3 of 12 cases, 1 s$' packaging/sum-tests --draws "$temporary/draws.json"
expect 0 '^ *two: all, 0 s$' packaging/sum-tests --draws "$temporary/draws.json"

# Progress: every tenth test, and failures at once; the log has every line.
lines() {
	for i in {1..20}; do
		echo "$i/20 fad:a / t$i $([ "$i" = 7 ] && echo FAIL || echo OK) 0.01s"
	done
	echo "the end"
}
lines | packaging/progress "$temporary/log" tests >"$temporary/shown"
if ! cmp -s <(lines) "$temporary/log"; then
	echo "FAILED: packaging/progress has not kept its input"
	failed=1
fi
expect 0 '^11$' wc -l <"$temporary/shown"
expect 0 't7 FAIL' cat "$temporary/shown"
expect 0 ' 20 of 20 tests, ' cat "$temporary/shown"

exit $failed
