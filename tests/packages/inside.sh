#!/bin/sh
# Runs as root in a booted container (run): the packages are installed, tested, upgraded under load, and
# purged. Exits with 1 if anything failed.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
ALL="fad libfaclient0 libfaclient-dev python3-faclient"
USERS="load-1 load-2"

fail() {
	echo "FAILED: $*"
	journalctl --no-pager -n 60 -u fad || true
	exit 1
}
wait_for() {
	for _ in $(seq 300); do
		! eval "$2" || return 0
		sleep 0.1
	done
	fail "waited 30 s for $1"
}
# As in unattended upgrades, dpkg keeps a configuration file that the operator has changed.
apt() { apt-get -y -qq -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@" >/test/apt.log 2>&1 || { cat /test/apt.log; fail "apt-get $*"; }; }
main_pid() { systemctl show -P MainPID fad; }
steps() { { grep '^[0-9]*$' "/test/$1.log" 2>/dev/null || true; } | tail -n 1; }

# What a package may leave behind: files, users, groups, units that failed.
state() {
	find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /dev -o -path /tmp -o -path /out \
		-o -path /test -o -path /var/log/journal -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt \
		-o -path /var/log/apt -o -path /var/log/dpkg.log \
		-o -path /var/lib/systemd/timers -o -name '*-' -o -name .pwd.lock \) -prune \
		-o -print | sort
	find /var/log /var/lib/dpkg/info /run -name '*fa[dc]*' ! -name '*fad-test*' ! -name 'fad-test*'
	cut -d : -f 1 /etc/passwd /etc/group | sort
	systemctl --failed --plain --no-legend
}

for user in $USERS; do
	useradd --system --no-create-home "$user"
done
systemctl daemon-reload
state >/test/before

apt install /test/old/*.deb
systemctl is-active --quiet fad || fail "the service does not run after the installation"
old=$(dpkg-query -W -f '${Version}' fad)
echo "installed: $old"

for user in $USERS; do
	usermod -aG fad "$user"
	systemd-run --quiet --unit="$user" --uid="$user" --property="StandardOutput=append:/test/$user.log" \
		--property="StandardError=append:/test/$user.log" python3 /test/debian-tests/load.py
	wait_for "$user to begin" "[ -n \"\$(steps $user)\" ]"
done
sleep 1
systemctl enable --quiet --now fad-metrics
systemctl enable --quiet fad@0 2>/dev/null
before=$(main_pid)
before_metrics=$(systemctl show -P MainPID fad-metrics)
for user in $USERS; do
	eval "steps_$(echo "$user" | tr - _)=\$(steps $user)"
done
# A setting that an operator has changed.
sed -i 's/^#drain_timeout_ms = .*/drain_timeout_ms = 5000/' /etc/fad/fad.conf

apt install /test/new/*.deb
new=$(dpkg-query -W -f '${Version}' fad)
dpkg --compare-versions "$new" gt "$old" || fail "$new is no upgrade of $old"
[ "$(main_pid)" != "$before" ] || fail "the upgrade did not restart the service"
[ "$(readlink "/proc/$(main_pid)/exe")" = /usr/bin/fad ] || fail "the old program runs: $(readlink "/proc/$(main_pid)/exe")"
systemctl is-active --quiet fad-metrics && [ "$(systemctl show -P MainPID fad-metrics)" != "$before_metrics" ] ||
	fail "the upgrade did not restart the exporter that ran"
grep -q '^drain_timeout_ms = 5000' /etc/fad/fad.conf || fail "the upgrade changed the configuration"
for user in $USERS; do
	eval "old_steps=\$steps_$(echo "$user" | tr - _)"
	wait_for "$user to go on" "[ \"\$(steps $user)\" -gt $((old_steps + 20)) ]"
	kill "$(systemctl show -P MainPID "$user")"
	wait_for "$user to end" "! systemctl is-active --quiet $user"
	tail -n 1 "/test/$user.log"
	grep -q 'of them during 1 restarts.*every committed token was there' "/test/$user.log" || fail "$user"
	systemctl reset-failed "$user" 2>/dev/null || true
done
echo "upgraded: $new"
if [ -e /test/cuda ]; then
	factl doctor | grep 'kernels: [1-9][0-9]* modules for GPUs' || fail "the package has no GPU kernels"
fi

for test in service build-client; do
	sh "/test/debian-tests/$test" >/test/log 2>&1 || { cat /test/log; fail "$test"; }
	tail -n 1 /test/log
done

# What an operator has switched off stays off.
systemctl disable --quiet --now fad
apt install --reinstall /test/new/fad_*.deb
! systemctl is-active --quiet fad || fail "the upgrade started a service that was disabled"
! systemctl is-enabled --quiet fad || fail "the upgrade enabled a service that was disabled"
systemctl enable --quiet --now fad

# shellcheck disable=SC2086 # words
apt remove fad
! systemctl is-active --quiet fad || fail "fad runs without its package"
! systemctl is-active --quiet fad-metrics || fail "fad-metrics runs without its package"
[ ! -e /run/fad ] || fail "/run/fad is left"
[ -e /etc/fad/fad.conf ] || fail "the configuration went before the purge"
# shellcheck disable=SC2086 # words
apt purge $ALL
systemctl daemon-reload
state >/test/after
diff /test/before /test/after || fail "the purge left these (>), or took these (<)"
echo "purged: nothing is left"
echo passed
