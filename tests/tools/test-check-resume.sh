#!/usr/bin/env bash
#
# ./check --resume: what has passed at a commit is not run again and counts; all else is run. The script
# checks a small project of its own here, in which two sections count how often they ran.
# Run as: test-check-resume.sh SOURCE_DIRECTORY
set -euo pipefail

source=$(cd "$1" && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cd "$temporary"
unset FAD_TEST_DRAW
export COUNTS=$temporary/counts HOME=$temporary GIT_CONFIG_NOSYSTEM=1
mkdir -p counts tree/tests/unit tree/packaging

cp "$source/check" "$source/.clang-format" tree/
cp "$source"/packaging/{build.sh,progress,sum-tests} tree/packaging/
cp "$source/meson_options.txt" tree/
cat >tree/tests/unit/test-includes.py <<'END'
#!/bin/sh
echo x >>"$COUNTS/includes"
END
cat >tree/test <<'END'
#!/bin/sh
echo x >>"$COUNTS/test"
test ! -e "$COUNTS/stray" || touch "$(dirname "$0")/stray"
test ! -e "$COUNTS/broken"
END
cat >tree/packaging/install-deps <<'END'
#!/bin/sh
END
chmod +x tree/test tree/tests/unit/test-includes.py tree/packaging/install-deps
echo 'int nothing;' >tree/nothing.c
echo '/build/' >tree/.gitignore
cat >tree/meson.build <<'END'
project('small')
alias_target('emulator', custom_target('made', output: 'made', command: ['touch', '@OUTPUT@']))
test('test', files('test'), suite: 'emulator-cases')
test('passes', find_program('true'), suite: 'emulator-cases')
test('skips', find_program('sh'), args: ['-c', 'exit 77'], suite: 'emulator-cases')
END
cd tree
git init -q .
git config user.name test
git config user.email test@localhost
git add .
git commit -qm one

failed=0
# check STATUS SUM INCLUDES TESTS ARGUMENT...: exits with STATUS after a line with SUM; until then the section
# of includes has run INCLUDES times, and the emulator's tests TESTS times.
check() {
	local status=0 want="$1 '$2' $3 $4" has

	shift 4
	./check --emulator "$@" >../log 2>&1 || status=$?
	has="$status '$(tail -n 1 ../log | sed 's/ in .*//')' $(wc -l <"$COUNTS/includes") $(wc -l <"$COUNTS/test")"
	if [ "$has" != "$want" ]; then
		echo "FAILED: ./check --emulator $*: $has; expected $want"
		sed 's/^/    /' ../log
		failed=1
	fi
}

says() {
	if ! grep -q -- "$1" ../log; then
		echo "FAILED: expected '$1' in:"
		sed 's/^/    /' ../log
		failed=1
	fi
}

formats=0
if command -v clang-format-14 >/dev/null; then
	formats=1
fi
all="$((4 + formats)) passed, 0 failed, $((2 - formats)) skipped"

# What failed is run again, with a build that is there, and what passed is not.
touch "$COUNTS/broken"
check 1 "$((3 + formats)) passed, 1 failed, $((2 - formats)) skipped" 1 1
rm "$COUNTS/broken"
rm -rf build/check-gcc
check 0 "$all" 1 2 --resume
says "Includes and format: not run again"
says "$((1 + formats)) of them passed in an earlier run"
if [ ! -f build/check-gcc/made ]; then
	echo "FAILED: the build was not made again"
	failed=1
fi
check 0 "$all" 1 2 --resume
says "Emulator: tests: not run again, passed at this commit (2 passed, 1 skipped)"

# Without the option all of it runs, and a section that fails then has not passed any more.
touch "$COUNTS/broken"
check 1 "$((3 + formats)) passed, 1 failed, $((2 - formats)) skipped" 2 3
rm "$COUNTS/broken"
check 0 "$all" 2 4 --resume

# What passed with other options, with changes, or at another commit does not count.
check 0 "$all" 3 5 --resume --draw 2
touch new
check 0 "$all" 4 6 --resume
says "everything runs"
git config status.showUntrackedFiles no
check 0 "$all" 5 7 --resume
says "everything runs"
rm new
check 0 "$all" 5 7 --resume
CFLAGS=-g check 0 "$all" 6 8 --resume
check 0 "$all" 6 8 --resume
git commit -q --allow-empty -m two
touch "$COUNTS/stray"
check 0 "$all" 7 9 --resume
says "Files changed meanwhile"
rm "$COUNTS/stray" stray
check 0 "$all" 7 10 --resume
check 0 "$all" 7 10 --resume
# A tree in another project's checkout, which does not have its files, has no commit.
rm -rf .git
git -C .. init -q
echo '*' >../.git/info/exclude
git -C .. -c user.name=test -c user.email=test@localhost commit -q --allow-empty -m other
check 0 "$all" 8 11
check 0 "$all" 9 12 --resume
says "everything runs"

exit $failed
