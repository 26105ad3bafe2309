#!/usr/bin/env bash
#
# packaging/install-glslang without a network says what is missing, leaves no files, and keeps the compiler
# that is there.
#   test-install-glslang.sh SCRIPT
set -euo pipefail
script=$1
for program in apt-get apt-config dpkg-deb; do
	command -v "$program" >/dev/null || {
		echo "there is no $program"
		exit 77
	}
done
if [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
	echo "there is no debian-archive-keyring"
	exit 77
fi
if [ -n "$(apt-config dump Acquire::http::Proxy)" ]; then
	echo "apt has a proxy of its own, so that this test cannot take its network away"
	exit 77
fi
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT

mkdir -p packaging build/glslang temporary
cp "$script" packaging/install-glslang
touch build/glslang/kept
unset no_proxy NO_PROXY
status=0
TMPDIR=$PWD/temporary http_proxy=http://127.0.0.1:9 packaging/install-glslang >out 2>&1 || status=$?
cat out
if [ $status -ne 1 ] || ! tail -n 1 out | grep -q "^install-glslang: .*cannot be had"; then
	echo "FAILED: the exit status is $status, or the last line does not say what is missing"
	exit 1
fi
if [ ! -e build/glslang/kept ] || [ -n "$(ls -A temporary)" ]; then
	echo "FAILED: files were removed or left"
	exit 1
fi
