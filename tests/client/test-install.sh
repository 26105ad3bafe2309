#!/bin/sh
# Tests the installed library: pkg-config finds it, programs link it shared and static, and
# its header compiles as C and C++ without a warning.
# usage: test-install.sh BUILD SOURCE CC CXX SANITIZE
set -eu

build=$1 source=$2 cc=$3 cxx=$4 sanitize=$5

if [ "$sanitize" != none ]; then
	echo 'a library with a sanitizer cannot be linked by others'
	exit 77
fi
if ! command -v pkg-config >/dev/null; then
	echo 'pkg-config is not installed'
	exit 77
fi

root=$(mktemp -d /tmp/fad-test-XXXXXX)
trap 'rm -rf "$root"' EXIT
meson install -C "$build" --no-rebuild --quiet --destdir "$root" --tags runtime,devel >/dev/null

pc=$(find "$root" -name libfaclient.pc)
lib=$(dirname "$(dirname "$pc")")
PKG_CONFIG_PATH=$(dirname "$pc")
PKG_CONFIG_SYSROOT_DIR=$root
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR

# shellcheck disable=SC2046 # words are wanted
$cc -Wall -Wextra -Werror -o "$root/shared" "$source/client/examples/attention.c" \
	$(pkg-config --cflags --libs libfaclient)
# The archive is complete: besides it a program needs only libc.
# shellcheck disable=SC2046
$cc -Wall -Wextra -Werror -o "$root/static" "$source/client/examples/attention.c" \
	$(pkg-config --cflags libfaclient) "$lib/libfaclient.a"

cat >"$root/header.cc" <<'CODE'
#include <faclient.h>
#include <cstring>
/* The structs that have a function of the same name can be used. */
int wait_for(struct fa_client *client, const struct fa_attention *attention)
{
	struct fa_info info = {};
	return fa_info(client, &info) + fa_attention(client, attention, nullptr);
}
int main()
{
	return std::strcmp(fa_version(), "0.1.0") || *fa_error();
}
CODE
# shellcheck disable=SC2046
$cxx -Wall -Wextra -Wshadow -Wpedantic -Werror -o "$root/cplusplus" "$root/header.cc" \
	$(pkg-config --cflags --libs libfaclient)
printf '#include <faclient.h>\nint main(void) { return 0; }\n' >"$root/header.c"
for std in c99 c11 gnu11; do
	# shellcheck disable=SC2046
	$cc -std=$std -Wall -Wextra -Wpedantic -Werror -o "$root/header" "$root/header.c" \
		$(pkg-config --cflags libfaclient)
done

# Each header compiles alone.
for header in faclient faclient_kv faclient_timeline; do
	printf '#include <%s.h>\nint main(void) { return *fa_version() == 0; }\n' "$header" >"$root/alone.c"
	cp "$root/alone.c" "$root/alone.cc"
	for compile in "$cc -std=c99" "$cc -std=c11" "$cxx -std=c++17"; do
		case $compile in *++*) file=alone.cc ;; *) file=alone.c ;; esac
		# shellcheck disable=SC2046,SC2086
		$compile -Wall -Wextra -Wshadow -Wpedantic -Werror -Wno-address -fsyntax-only \
			"$root/$file" $(pkg-config --cflags libfaclient)
	done
done

LD_LIBRARY_PATH=$lib "$root/cplusplus"
for program in shared static; do
	# Row 0 of causal attention sees itself alone: its first numbers are v's.
	LD_LIBRARY_PATH=$lib "$root/$program" >"$root/numbers"
	grep -Eq '^-?0\.[0-9]+ -?0\.[0-9]+ -?0\.[0-9]+$' "$root/numbers"
done
