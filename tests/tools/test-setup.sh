#!/usr/bin/env bash
#
# `meson setup` says that it will compile GPU kernels, how long that takes, and how to leave them
# out. Run as: test-setup.sh SOURCE_DIRECTORY
set -euo pipefail

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
mkdir "$temporary/bin"
printf '#!/bin/sh\necho "Cuda compilation tools, release 12.9, V12.9.41"\n' >"$temporary/bin/nvcc"
chmod +x "$temporary/bin/nvcc"

PATH=$temporary/bin:$PATH meson setup -Dcuda=enabled -Dtests=false "$temporary/build" "$1" \
	>"$temporary/said"
expected='GPU kernels: compiled by .*/bin/nvcc \(12\.9\), in about [0-9]+ minutes.*; -Dcuda=disabled leaves them out'
if ! grep -qE "$expected" "$temporary/said"; then
	echo "FAILED: meson setup does not say '$expected', but:"
	cat "$temporary/said"
	exit 1
fi
