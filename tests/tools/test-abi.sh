#!/usr/bin/env bash
#
# packaging/check-abi lets a library grow as faclient.h says, and refuses what breaks programs.
#   test-abi.sh CHECK_ABI CC
set -euo pipefail
check=$1
cc=$2
command -v abidiff >/dev/null || {
	echo "there is no abidiff"
	exit 77
}
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT

# library NAME: of the header on stdin.
library() {
	mkdir -p "$1"
	cat >"$1/x.h"
	cat >"$1/x.c" <<-END
		#include "x.h"
		int fa_sized(const struct fa_sized *x) { return x->a; }
		$(grep -q 'int fa_plain(' "$1/x.h" && echo 'int fa_plain(const struct fa_plain *x) { return x->a; }')
		$2
	END
	"$cc" -g -shared -fPIC -o "$1/libx.so" "$1/x.c"
}
header() {
	cat <<-END
		#include <stdint.h>
		struct fa_sized {
			uint32_t size;
			$1 a;
			$2
		};
		struct fa_plain {
			$3 a;
			$4
		};
		int fa_sized(const struct fa_sized *x);
		int fa_plain(const struct fa_plain *x);
	END
}
# expect STATUS NAME
expect() {
	local status=0
	"$check" --recorded x.abi "$2/libx.so" "$2/x.h" >log 2>&1 || status=$?
	if [ "$status" -ne "$1" ]; then
		cat log
		echo "FAILED: $2: exit status $status; expected $1"
		exit 1
	fi
}

header uint32_t '' uint32_t '' | library base ''
"$check" --record --recorded x.abi base/libx.so base/x.h
expect 0 base
header uint32_t '' uint32_t '' | library added-function 'int fa_more(void) { return 1; }'
expect 0 added-function
header uint32_t 'uint64_t b;' uint32_t '' | library grown-struct ''
expect 0 grown-struct
header uint32_t '' uint32_t 'uint64_t b;' | library grown-plain-struct ''
expect 1 grown-plain-struct
header float '' uint32_t '' | library other-type ''
expect 1 other-type
header float 'uint64_t b;' uint32_t '' | library other-type-and-grown ''
expect 1 other-type-and-grown
header uint32_t '' uint32_t '' | library no-debug ''
strip --strip-debug no-debug/libx.so
expect 1 no-debug
header uint32_t '' uint32_t '' | sed '/int fa_plain(/d' | library removed-function ''
expect 1 removed-function

# A reserved field may have a name later, but no other type.
header uint32_t 'uint32_t reserved;' uint32_t '' | library reserved ''
"$check" --record --recorded x.abi reserved/libx.so reserved/x.h
header uint32_t 'uint32_t b; uint64_t c;' uint32_t '' | library named-and-grown ''
expect 0 named-and-grown
header uint32_t 'float b; uint64_t c;' uint32_t '' | library named-with-other-type ''
expect 1 named-with-other-type
header uint32_t 'uint64_t c;' uint32_t '' | library reserved-is-gone ''
expect 1 reserved-is-gone
