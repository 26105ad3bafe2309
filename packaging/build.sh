# Sourced by quickstart and check, in the top directory of the source tree.

jobs=${jobs:-$(nproc)}

say() { printf '\n== %s\n' "$*"; }

# Seconds as "75 s" or "2 min 5 s".
duration() {
	if [ "$1" -lt 120 ]; then
		echo "$1 s"
	else
		echo "$(($1 / 60)) min $(($1 % 60)) s"
	fi
}

# A build directory is made anew if meson, a compiler, or the set of options differ.
toolchain() {
	meson --version
	"${CC:-cc}" --version | head -n 1
	"${CXX:-c++}" --version | head -n 1
}

# setup_build DIR OPTION...: configures DIR with exactly these options, whatever it was
# before. Other values of the same options keep what is built. A directory that cannot be
# used again is emptied, except for other build directories in it (build/check-*) and the
# compiler (build/nvcc).
setup_build() {
	local dir=$1 want

	shift
	want="$(toolchain) ${*%%=*}"
	if [ -f "$dir/build.ninja" ] && [ "$(cat "$dir/.toolchain" 2>/dev/null)" = "$want" ] &&
		meson setup --reconfigure "$dir" "$@" >"$dir/.setup.log" 2>&1; then
		return 0
	fi
	if [ -d "$dir" ]; then
		find "$dir" -mindepth 1 -maxdepth 1 ! -name 'check-*' ! -name nvcc -exec rm -rf {} +
	fi
	mkdir -p "$dir"
	if ! meson setup "$dir" "$@" >"$dir/.setup.log" 2>&1; then
		tail -n 30 "$dir/.setup.log"
		return 1
	fi
	echo "$want" >"$dir/.toolchain"
}

# compile DIR [TARGET]...: shows how far it is, and the end of ninja's output if it fails.
compile() {
	local dir=$1

	shift
	if ninja -C "$dir" -j "$jobs" "$@" 2>&1 | packaging/progress "$dir/.ninja.log" files; then
		tail -n 1 "$dir/.ninja.log"
		return 0
	fi
	tail -n 60 "$dir/.ninja.log"
	return 1
}
