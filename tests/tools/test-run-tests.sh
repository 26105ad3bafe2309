#!/bin/sh
# packaging/run-tests counts passed, failed, skipped and hanging tests, and runs the named ones;
# with fake tests.
#   test-run-tests.sh RUN-TESTS
set -eu

folder=$(mktemp -d "${TMPDIR:-/tmp}/fad-test.XXXXXX")
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/tests"
cp "$1" "$folder/run-tests"

script() {
	printf '#!/bin/sh\n%s\n' "$2" >"$folder/tests/$1"
	chmod +x "$folder/tests/$1"
}
script test-attention 'echo "a GPU"; exit ${NO_GPU:-0}'
script good 'test "$1" = x && test "${FAD_DAEMON##*/}" = fad'
script backend 'test "$FAD_TEST_BACKEND" = cuda && test $# -eq 0'
script bad 'echo "what went wrong"; exit 3'
script skips 'echo "not here"; exit 77'
script hangs 'sleep 60'
cat >"$folder/tests/list" <<'EOF'
one-good 10 good x
one-bad 10 bad
two-good 10 good x
skips 10 skips
hangs 1 hangs
backend 10 backend FAD_TEST_BACKEND=cuda
EOF

# expect STATUS LAST-LINE PART ARGUMENT...
expect() {
	want=$1 last=$2 part=$3
	shift 3
	status=0
	"$folder/run-tests" "$@" >"$folder/out" 2>&1 || status=$?
	if [ "$status" -ne "$want" ] || [ "$(tail -n 1 "$folder/out")" != "$last" ] ||
		! grep -q -- "$part" "$folder/out"; then
		echo "run-tests $*: status $status, not $want, or not what was expected:"
		cat "$folder/out"
		exit 1
	fi
}

expect 1 '3 passed, 2 failed, 1 skipped' 'failed: one-bad hangs'
expect 1 '3 passed, 2 failed, 1 skipped' 'what went wrong'
expect 1 '3 passed, 2 failed, 1 skipped' 'did not end'
expect 0 '1 passed, 0 failed, 0 skipped' 'ok       backend' backend
expect 0 '2 passed, 0 failed, 0 skipped' 'ok       two-good' '*-good'
expect 0 '0 passed, 0 failed, 1 skipped' 'not here' skips
expect 1 '1 passed, 1 failed, 0 skipped' 'one-bad' 'one-*'
expect 1 '0 passed, 1 failed, 0 skipped' 'no test matches' nothing
expect 0 'two-good' 'one-good' --list '*-good'
expect 2 '  -h, --help' 'unknown option' --nonsense
expect 0 '2 passed, 0 failed, 0 skipped' 'a GPU' --logs "$folder/logs" '*-good'
test -f "$folder/logs/two-good.log"
NO_GPU=77
export NO_GPU
expect 0 '0 passed, 0 failed, 6 skipped' 'skipped  one-bad: a GPU'
NO_GPU=1
expect 1 '0 passed, 1 failed, 0 skipped' 'cannot be used'
