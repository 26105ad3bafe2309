#!/usr/bin/env bash
#
# factl against a real daemon. Run as: test-factl.sh FACTL, with FAD_DAEMON set.
set -euo pipefail

factl=$1
temporary=$(mktemp -d)
daemon=
clean_up() {
	if [ -n "$daemon" ]; then
		kill -KILL "$daemon" 2>/dev/null || true
		wait "$daemon" 2>/dev/null || true
	fi
	rm -rf "$temporary"
}
trap clean_up EXIT
export FAD_SOCKET=$temporary/fad.sock
failed=0

# expect STATUS PATTERN ARGUMENT...: factl exits with STATUS and its output matches PATTERN.
expect() {
	local want=$1 pattern=$2 status=0

	shift 2
	timeout 60 "$factl" "$@" >"$temporary/out" 2>&1 || status=$?
	if [ "$status" -ne "$want" ] || ! grep -qE -- "$pattern" "$temporary/out"; then
		echo "FAILED: 'factl $*' gave $status, not $want, or did not say '$pattern'; it said:"
		sed 's/^/    /' "$temporary/out"
		failed=1
	fi
}

start_daemon() {
	mkfifo "$temporary/ready"
	exec {ready}<>"$temporary/ready"
	"$FAD_DAEMON" --socket "$FAD_SOCKET" --ready-fd "$ready" 2>"$temporary/log" &
	daemon=$!
	read -r -t 60 -u "$ready" answer
	exec {ready}>&-
	rm "$temporary/ready"
	[ "$answer" = READY ]
}

# Usage, and no daemon.
expect 0 '^Usage: factl' --help
expect 0 '^factl [0-9]+\.[0-9]+\.[0-9]+$' --version
expect 2 'a command is missing'
expect 2 'no command nonsense' nonsense
expect 2 'one command' ping ping
expect 2 'unknown option' --nonsense
expect 2 'number from 1' ping -c 0
expect 2 'number from 1' ping -c 5x
expect 2 'an argument is missing after rm' rm
expect 2 'an argument is missing after rm' rm cache
expect 2 'rm removes a cache or a sequence' rm stream x
for command in status metrics ping version drain; do
	expect 3 'no connection to fad: .+' "$command"
	expect 3 'no connection to fad: .+' -s "$temporary/none.sock" "$command"
done

start_daemon
expect 0 '^answer from .*fad.sock: [0-9.]+ us$' ping
expect 0 '^3 answers: min' ping -c 3
expect 1 "no cache named 'x'" rm cache x
expect 1 "no sequence named 'x'" rm sequence x
expect 0 '^# EOF$' metrics
expect 0 '^fad_build_info\{version="[0-9.]+",backend="cpu",device="' metrics
expect 0 '^pool +0 of [0-9]+ chunks' status
expect 0 '^fad +[0-9]+\.[0-9]+\.[0-9]+ .*backend cpu' version
expect 0 "^fad .*process $daemon" status
expect 0 '^ +[0-9]+ .* factl$' status # its own session
expect 0 "\"pid\": ?$daemon" status --json
socket=$FAD_SOCKET
FAD_SOCKET=$temporary/none.sock expect 0 '^answer' --socket "$socket" ping
timeout 60 "$factl" status --json | python3 -c '
import json, sys
status = json.load(sys.stdin)
for key in ("version", "pid", "generation", "uptime_ns", "draining", "backend", "device", "threads",
            "connections", "requests", "sessions", "tenants"):
    status[key]
for key in ("finished", "failed", "cancelled", "busy_ns", "took_ns"):
    assert status["sessions"][0][key] == status["tenants"][0][key] == 0, key
for key in ("submitted", "finished", "failed", "cancelled", "busy_ns"):
    assert type(status["requests"][key]) is int, key
(session,) = status["sessions"]
assert session["name"] == "factl" and session["requests"] == 0, session
(tenant,) = status["tenants"]
assert tenant["sessions"] == 1 and tenant["buffer_bytes"] == 0, tenant
' || { echo "FAILED: status --json lacks something" && failed=1; }

expect 0 '^The daemon has finished' drain
status=0
wait "$daemon" || status=$?
daemon=
if [ "$status" -ne 0 ]; then
	echo "FAILED: after drain the daemon exited with $status"
	cat "$temporary/log"
	failed=1
fi
expect 3 'no connection' ping

exit $failed
