#!/bin/sh
# Makes sure that this machine has what the tests need, and installs what is
# missing with its package manager. Run from the root of the repository:
#
#   sh internal/tools/install-postgres.sh [postgres|cc|git|spin|pgbouncer|chromium|npm ...]
#
# Without arguments: PostgreSQL's server programs. A server that runs here is
# neither stopped nor changed; the tests start their own.
set -eu

has() { command -v "$1" >/dev/null 2>&1; }

# present TOOL: is it there, and does it work?
present() {
	case $1 in
	postgres) go run ./internal/pgserver/cmd/pgfind >/dev/null 2>&1 ;;
	cc)
		# The race detector needs a C compiler with the C library's headers.
		# shellcheck disable=SC2046 # CC may hold options
		printf '#include <stdlib.h>\nint main(void) { return 0; }\n' |
			$(go env CC) -x c -o /dev/null - >/dev/null 2>&1
		;;
	pgbouncer) has pgbouncer || [ -x /usr/sbin/pgbouncer ] ;;
	chromium) has chromium || has chromium-browser || has google-chrome ;;
	npm) has npm && has node ;;
	*) has "$1" ;;
	esac
}

# packages TOOL: the packages that bring it, in the words of this manager.
packages() {
	case $manager:$1 in
	apt-get:cc) echo gcc libc6-dev ;;
	dnf:cc) echo gcc glibc-devel ;;
	apk:cc) echo gcc musl-dev ;;
	apt-get:postgres | apk:postgres) echo postgresql ;;
	dnf:postgres) echo postgresql-server ;;
	brew:postgres) echo postgresql@17 ;;
	apt-get:npm | apk:npm) echo nodejs npm ;;
	dnf:npm) echo nodejs-npm ;;
	brew:npm) echo node ;;
	brew:cc)
		echo "install-postgres: a C compiler is missing; run: xcode-select --install" >&2
		return 1
		;;
	*:postgres | *:cc | *:git | *:spin | *:pgbouncer | *:chromium) echo "$1" ;;
	*)
		echo "install-postgres: do not know what brings $1" >&2
		return 1
		;;
	esac
}

# root COMMAND...: as root, by sudo where that is needed and there.
root() {
	if [ "$(id -u)" -ne 0 ] && has sudo; then
		sudo "$@"
	else
		"$@"
	fi
}

# no_cluster keeps Debian's package from making and starting a cluster that
# nobody uses. On somebody's own machine that is not ours to decide.
no_cluster() {
	conf=/etc/postgresql-common/createcluster.conf
	[ "${CI:-}" = true ] && [ ! -e $conf ] || return 0
	apt_install postgresql-common
	root sed -i 's/^#* *create_main_cluster *=.*/create_main_cluster = false/' $conf
}

apt_install() {
	# In runlevel 1 a package's service is not started.
	root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
		apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" </dev/null
}

install() {
	case $manager in
	apt-get)
		# A foreign source that does not answer need not matter.
		root apt-get -q update </dev/null || echo "install-postgres: apt-get update failed; going on" >&2
		case " $* " in *" postgresql "*) no_cluster ;; esac
		apt_install "$@"
		;;
	dnf) root dnf install -y "$@" </dev/null ;;
	apk) root apk add "$@" </dev/null ;;
	brew) brew install "$@" </dev/null ;;
	esac
}

[ $# -gt 0 ] || set -- postgres
missing=
for tool in "$@"; do
	present "$tool" || missing="$missing $tool"
done
[ -n "$missing" ] || exit 0

manager=
for candidate in apt-get dnf apk brew; do
	if has $candidate; then
		manager=$candidate
		break
	fi
done
if [ -z "$manager" ]; then
	echo "install-postgres: missing:$missing; there is no apt-get, dnf, apk or brew to install it with" >&2
	exit 1
fi

list=
for tool in $missing; do
	brings=$(packages "$tool")
	list="$list $brings"
done
echo "install-postgres: missing:$missing; installing$list with $manager" >&2
# shellcheck disable=SC2086 # a list of words
if ! said=$(install $list 2>&1); then
	echo "$said" >&2
	exit 1
fi

for tool in $missing; do
	if ! present "$tool"; then
		echo "install-postgres: $tool is still missing" >&2
		[ "$tool" != postgres ] || go run ./internal/pgserver/cmd/pgfind >&2
		exit 1
	fi
done
