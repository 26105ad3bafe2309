#!/usr/bin/env bash
#
# `meson setup` says that it will compile GPU kernels, how long that takes, and how to leave them
# out. Run as: test-setup.sh SOURCE_DIRECTORY
set -euo pipefail

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
mkdir "$temporary/bin"

# check RELEASE NOTE: what it says with nvcc of that release.
check() {
	printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.41"\n' "$1" "$1" >"$temporary/bin/nvcc"
	chmod +x "$temporary/bin/nvcc"
	PATH=$temporary/bin:$PATH meson setup --wipe -Dcuda=enabled -Dtests=false "$temporary/build" "$source" \
		>"$temporary/said"
	expected="GPU kernels *: compiled by .*/bin/nvcc \\(${1//./\\.}$2\\), in about [0-9]+ minutes.*; -Dcuda=disabled leaves them out"
	if ! grep -qE "$expected" "$temporary/said"; then
		echo "FAILED: meson setup does not say '$expected', but:"
		cat "$temporary/said"
		exit 1
	fi
}

source=$1
meson setup -Dcuda=disabled -Dtests=false "$temporary/build" "$source" >"$temporary/said"
check 12.9 ', older than what they are tuned with: some may be slower'
check 13.0 ''
