#!/usr/bin/env bash
#
# packaging/build-debs writes a changelog of one entry, also of an annotated tag, which git shows
# with its own text.
#   test-build-debs.sh SOURCE_DIRECTORY
set -euo pipefail
source=$1
export DEBFULLNAME=Test DEBEMAIL=test@example.org
git -C "$source" rev-parse HEAD >/dev/null 2>&1 || {
	echo "this is no git checkout"
	exit 77
}
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT

git clone -q --depth 1 "file://$(git -C "$source" rev-parse --show-toplevel)" clone
cp "$source/packaging/build-debs" clone/packaging/
git -C clone -c user.name=Test -c user.email=test@example.org tag -a 9.9 -m "A tag" -m "of two lines"
written=$(clone/packaging/build-debs --source --commit 9.9 --output debs)
lines=$(wc -l <"$written/debian/changelog")
if [ "$lines" -ne 5 ] || ! tail -n 1 "$written/debian/changelog" | grep -qE '^ -- Test <test@example.org>  [A-Z][a-z]{2}, .*[0-9]{4}$'; then
	cat "$written/debian/changelog"
	echo "FAILED: the changelog is not one entry"
	exit 1
fi
