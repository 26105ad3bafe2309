#!/bin/sh
# The second demo of ./quickstart on a daemon with a GPU: two processes continue the sequence of
# a third, and the daemon is killed under each.
#   test-demo-kv.sh DEMO-KV
# FAD_DAEMON is the daemon.
set -eu

folder=$(mktemp -d "${TMPDIR:-/tmp}/fad-test.XXXXXX")
daemon=
clean_up() {
	[ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
	rm -rf "$folder"
}
trap clean_up EXIT

FAD_SOCKET=$folder/fad.sock
export FAD_SOCKET
mkfifo "$folder/ready"
"$FAD_DAEMON" --config /dev/null --socket "$FAD_SOCKET" --supervise --backend cuda --ready-fd 3 \
	3>"$folder/ready" 2>"$folder/log" &
daemon=$!
read -r answer <"$folder/ready" || true
if [ "${answer:-}" != READY ]; then
	cat "$folder/log"
	exit 1
fi
result=0
"$1" || result=$?
kill -TERM "$daemon"
wait "$daemon" || result=$?
daemon=
[ "$result" -eq 0 ] || cat "$folder/log"
exit "$result"
