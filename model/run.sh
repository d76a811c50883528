#!/bin/sh
# Checks the protocol's models with spin.
#
#   sh model/run.sh               every model and variant
#   sh model/run.sh NAME...       those whose name begins so
#   sh model/run.sh -show NAME    the shortest counterexample of a variant, told
#
# Needs spin and a C compiler (CC, default cc). Exits with 1 if a correct model
# reports an error or a variant that must fail passes.

set -u
here=$(cd "$(dirname "$0")" && pwd)
cc=${CC:-cc}
for tool in spin "$cc"; do
	command -v "$tool" >/dev/null 2>&1 || { echo "model: $tool is not on PATH" >&2; exit 1; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

show=
[ "${1:-}" = -show ] && { show=1; shift; [ $# -eq 1 ] || { echo "usage: run.sh -show NAME" >&2; exit 2; }; }
wanted=$*
failed=0 ran=0 began=$(date +%s)

want() {
	[ -n "$wanted" ] || return 0
	for w in $wanted; do
		if [ -n "$show" ]; then
			[ "$1" = "$w" ] && return 0
		else
			case $1 in "$w"*) return 0 ;; esac
		fi
	done
	return 1
}

# build DIR FILE CFLAGS FLAGS...
build() {
	dir=$1 file=$2 cflags=$3
	shift 3
	mkdir -p "$dir" && cp "$here/$file.pml" "$dir/" || return 1
	(
		cd "$dir" &&
		spin -a "$@" "$file.pml" >spin.out 2>&1 &&
		$cc $cflags -w -DMEMLIM=3500 -o pan pan.c >cc.out 2>&1
	) || { cat "$dir/spin.out" "$dir/cc.out" 2>/dev/null >&2; return 1; }
}

# check NAME FILE ok|fails FLAGS...
check() {
	name=$1 file=$2 expected=$3
	shift 3
	want "$name" || return 0
	ran=$((ran + 1))
	if [ -n "$show" ]; then
		tell "$file" "$@"
		return
	fi
	dir=$work/$ran
	level=-O1
	[ "$expected" = ok ] || level=-O0
	verdict=FAILED states=- depth=- seconds=- why=
	if build "$dir" "$file" "$level -DSAFETY" "$@"; then
		(cd "$dir" && ./pan -m100000 -w23 >out 2>&1)
		out=$dir/out
		states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$out" | head -n 1)
		depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' "$out" | head -n 1)
		seconds=$(sed -n 's/^pan: elapsed time \([0-9.]*\) seconds.*/\1/p' "$out" | head -n 1)
		why=$(sed -n 's/^pan:[0-9]*: \(.*\) (at depth.*/\1/p' "$out" | head -n 1)
		if grep -q 'too small\|out of memory\|reached -DMEMLIM' "$out"; then
			why="search not complete"
		elif [ "$expected" = ok ]; then
			grep -q 'errors: 0$' "$out" && verdict=ok
		else
			grep -q 'assertion violated' "$out" && verdict=ok
		fi
	fi
	[ "$verdict" = ok ] || failed=$((failed + 1))
	printf '%-36s %-6s %10s %6s %7s  %s\n' "$name" "$expected" "${states:--}" "${depth:--}" "${seconds:-0}" "$verdict"
	[ "$verdict" = ok ] || [ -z "$why" ] || echo "    $why"
	rm -rf "$dir"
}

# tell FILE FLAGS...: find the shortest counterexample, and print its events
tell() {
	file=$1
	shift
	dir=$work/show
	build "$dir" "$file" "-O2 -DSAFETY -DREACH" "$@" || exit 1
	cd "$dir" || exit 1
	./pan -m100000 -w23 -i >out 2>&1
	if [ ! -f "$file.pml.trail" ]; then
		echo "no counterexample"
		return
	fi
	spin -t -B "$@" "$file.pml"
}

[ -n "$show" ] || printf '%-36s %-6s %10s %6s %7s  %s\n' 'model or variant' expect states depth seconds verdict

# -- producing ---------------------------------------------------------------
check produce                        produce ok    -DDIRECT=2 -DINBOX=2
check produce-either-way             produce ok    -DDIRECT=1 -DINBOX=2 -DBATCH=1 -DEITHER
check produce-two-drains             produce ok    -DDIRECT=0 -DINBOX=3 -DBATCH=1 -DDRAINS=2 -DDRAIN_ROLLBACKS=0
check produce-sent-again             produce ok    -DDIRECT=1 -DINBOX=1 -DRETRY -DEITHER
check produce-hint                   produce ok    -DDIRECT=1 -DINBOX=2 -DBATCH=1 -DHINT
check produce-parts                  produce ok    -DDIRECT=0 -DINBOX=2 -DPARTS=2 -DNO_TAIL
check produce-parts-current          produce ok    -DDIRECT=0 -DINBOX=2 -DPARTS=2 -DNO_TAIL -DCUT_CURRENT
check produce-parts-dump             produce ok    -DDIRECT=0 -DINBOX=2 -DPARTS=2 -DNO_TAIL -DCUTS=1 -DDUMP
check produce-retention              produce ok    -DDIRECT=2 -DINBOX=1 -DRETAIN=1
check append-without-lock            produce fails -DDIRECT=2 -DINBOX=1 -DNO_LOCK
check lock-and-read-in-one-snapshot  produce fails -DDIRECT=2 -DINBOX=1 -DONE_SNAPSHOT
check ids-from-a-sequence            produce fails -DDIRECT=2 -DINBOX=0 -DDRAINS=0 -DSEQUENCE_IDS
check drain-deletes-by-range         produce fails -DDIRECT=0 -DINBOX=2 -DDELETE_RANGE
check drain-from-a-floor             produce fails -DDIRECT=0 -DINBOX=2 -DFLOOR
check newest-row-removed             produce fails -DDIRECT=2 -DINBOX=1 -DRETAIN=1 -DNEWEST_REMOVED
check first-id-without-lock          produce fails -DDIRECT=2 -DINBOX=1 -DRETAIN=1 -DFIRST_ID_UNLOCKED
check part-counted-before-its-lock   produce fails -DDIRECT=0 -DINBOX=2 -DPARTS=2 -DNO_TAIL -DCOUNT_BEFORE_LOCK
check part-cut-under-a-snapshot      produce fails -DDIRECT=0 -DINBOX=2 -DPARTS=2 -DNO_TAIL -DCUTS=1 -DDUMP -DSNAPSHOT_IGNORED
check snapshots-seen-before-the-lock produce fails -DDIRECT=0 -DINBOX=2 -DPARTS=2 -DNO_TAIL -DCUTS=1 -DDUMP -DSNAPSHOTS_BEFORE_LOCK
check append-past-the-inbox          produce fails -DDIRECT=1 -DINBOX=2 -DBATCH=1 -DPAST_THE_INBOX
check sequence-with-a-cache          produce fails -DDIRECT=0 -DINBOX=2 -DCACHED_SEQUENCE
check sent-again-without-batch-row   produce fails -DDIRECT=1 -DINBOX=1 -DRETRY -DNO_BATCH_ROW
check hint-blind-to-savepoints       produce fails -DDIRECT=0 -DINBOX=2 -DHINT -DHINT_SAVEPOINT
check hint-after-the-look            produce fails -DDIRECT=0 -DINBOX=2 -DHINT -DHINT_LATER
check hint-of-a-clipped-drain        produce fails -DDIRECT=0 -DINBOX=2 -DBATCH=1 -DHINT -DHINT_CLIPPED
check hint-before-commit             produce fails -DDIRECT=0 -DINBOX=2 -DHINT -DHINT_BEFORE_COMMIT

# -- groups and leases ---------------------------------------------------------
check lease                          lease   ok    -DN=3
check lease-redrive                  lease   ok    -DN=2 -DREDRIVES=1
check lease-server-crash             lease   ok    -DN=2 -DCRASHES=1
check lease-surrender-stale          lease   ok    -DN=2 -DSURRENDERS=1 -DSTALES=2
check lease-seek                     lease   ok    -DN=2 -DSEEKS=1
check lease-seek-redrive             lease   ok    -DN=2 -DSEEKS=1 -DREDRIVES=1 -DMAX_ATTEMPTS=1
check lease-effects                  lease   ok    -DN=2 -DEFFECTS -DMAX_RECLAIMS=0
check lease-effects-surrender        lease   ok    -DN=2 -DEFFECTS -DMAX_RECLAIMS=0 -DMAX_ATTEMPTS=1 -DSURRENDERS=1
check lease-effects-seek             lease   ok    -DN=2 -DEFFECTS -DONE_INSTANCE -DSEEKS=1
check lease-effects-server-crash     lease   ok    -DN=2 -DEFFECTS -DONE_INSTANCE -DCRASHES=1
check record-without-token           lease   fails -DN=2 -DNO_TOKEN_CHECK
check claim-without-lock             lease   fails -DN=2 -DNO_GROUP_LOCK
check claim-lock-in-one-snapshot     lease   fails -DN=2 -DGROUP_LOCK_ONE_SNAPSHOT
check done-marks-ignored             lease   fails -DN=2 -DSURRENDERS=1 -DMARKS_IGNORED
check done-marks-read-with-the-claim lease   fails -DN=2 -DEFFECTS -DONE_INSTANCE -DMARKS_WITH_CLAIM
check effects-checked-without-lock   lease   fails -DN=2 -DEFFECTS -DONE_INSTANCE -DCHECK_WITHOUT_ROW_LOCK
check break-up-in-one-statement      lease   fails -DN=2 -DEFFECTS -DONE_INSTANCE -DMAX_RECLAIMS=0 -DBREAKUP_ONE_STATEMENT
check record-in-one-statement        lease   fails -DN=2 -DEFFECTS -DONE_INSTANCE -DMAX_RECLAIMS=0 -DRECORD_ONE_STATEMENT
check surrender-marks-only-success   lease   fails -DN=2 -DSURRENDERS=1 -DSURRENDER_MARKS_SUCCESS
check surrender-keeps-token          lease   fails -DN=2 -DEFFECTS -DONE_INSTANCE -DSURRENDERS=1 -DSURRENDER_KEEPS_TOKEN
check range-mark-ends-a-delivery     lease   fails -DN=2 -DSURRENDERS=1 -DRANGE_MARK_ENDS_DELIVERY
check rest-of-a-range-keeps-token    lease   fails -DN=2 -DSTALES=2 -DREST_KEEPS_TOKEN
check dead-letter-committed-async    lease   fails -DN=2 -DCRASHES=1 -DMAX_ATTEMPTS=1 -DASYNC_DEAD
check redriven-beside-a-replay       lease   fails -DN=2 -DSEEKS=1 -DREDRIVES=1 -DMAX_ATTEMPTS=1 -DREDRIVEN_BESIDE_REPLAY
check seek-in-one-statement          lease   fails -DN=2 -DEFFECTS -DONE_INSTANCE -DSEEKS=1 -DSEEK_ONE_STATEMENT

# -- solo runs -------------------------------------------------------------------
check solo                           solo    ok
check solo-one-poison                solo    ok    -DPOISON=2
check never-solo                     solo    fails -DNEVER_SOLO
check solo-beside-others             solo    fails -DSOLO_BESIDE_OTHERS
check solo-claimed-early             solo    fails -DSOLO_CLAIMED_EARLY

# -- keys and order ------------------------------------------------------------
check ordered                        ordered ok    -DENDS -DCRASH -DSURRENDER -DLOST -DLIMBO -DFAULTS=3
check ordered-in-one-range           ordered ok    -DKEYED=30 -DENDS -DCRASH -DSURRENDER -DLOST -DLIMBO -DBREAK_UP -DFAULTS=2
check ordered-three-ranges           ordered ok    -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DCRASH -DSURRENDER -DLOST -DLIMBO -DBREAK_UP -DFAULTS=3
check ordered-four-ranges            ordered ok    -DBATCH=1 -DKEYED=30 -DENDS -DCRASH -DSURRENDER -DBREAK_UP -DFAULTS=2
check ordered-exclusive              ordered ok    -DKEYED=30 -DEXCL=20 -DENDS -DCRASH -DSURRENDER -DBREAK_UP
check ordered-exclusive-ranges       ordered ok    -DN=3 -DBATCH=1 -DKEYED=14 -DEXCL=6 -DENDS -DCRASH -DSURRENDER -DBREAK_UP -DFAULTS=2
check ordered-redrive                ordered ok    -DN=3 -DBATCH=1 -DKEYED=14 -DMAX_ATTEMPTS=1 -DFAILS=3 -DENDS -DCRASH -DREDRIVES=2 -DDISCARDS=1
check ordered-parked                 ordered ok    -DN=3 -DBATCH=1 -DKEYED=14 -DPARK -DMAX_ATTEMPTS=1 -DFAILS=3 -DENDS -DCRASH -DREDRIVES=2 -DDISCARDS=1
check ordered-parked-exclusive       ordered ok    -DKEYED=30 -DEXCL=8 -DPARK -DMAX_ATTEMPTS=1 -DENDS -DCRASH -DREDRIVES=2 -DDISCARDS=1
check ordered-seek                   ordered ok    -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DCRASH -DSEEKS=1
check ordered-seek-redrive           ordered ok    -DKEYED=30 -DMAX_ATTEMPTS=1 -DENDS -DCRASH -DSEEKS=1 -DREDRIVES=1
check ordered-seek-parked            ordered ok    -DKEYED=30 -DPARK -DMAX_ATTEMPTS=1 -DENDS -DCRASH -DSEEKS=1 -DREDRIVES=1
check ordered-effects                ordered ok    -DTX -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DLOST
check ordered-effects-crash          ordered ok    -DTX -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DLOST -DCRASH -DSWEEP
check ordered-effects-in-one-range   ordered ok    -DTX -DN=3 -DBATCH=3 -DKEYED=14 -DENDS -DLOST -DSURRENDER -DBREAK_UP -DFAULTS=2
check ordered-effects-exclusive      ordered ok    -DTX -DN=3 -DBATCH=3 -DKEYED=14 -DEXCL=4 -DENDS -DLOST -DSURRENDER
check ordered-effects-redrive        ordered ok    -DTX -DN=2 -DBATCH=1 -DKEYED=6 -DMAX_ATTEMPTS=1 -DENDS -DREDRIVES=1
check ordered-effects-parked         ordered ok    -DTX -DN=2 -DBATCH=1 -DKEYED=6 -DPARK -DMAX_ATTEMPTS=1 -DENDS -DREDRIVES=1
check ordered-effects-seek           ordered ok    -DTX -DN=2 -DBATCH=1 -DKEYED=6 -DENDS -DSEEKS=1
check chained-at-success             ordered fails -DN=2 -DBATCH=1 -DKEYED=6 -DENDS -DCHAIN_AT_SUCCESS
check line-of-a-lost-range-goes-on   ordered fails -DN=2 -DBATCH=1 -DKEYED=6 -DENDS -DLINE_GOES_ON
check own-by-name                    ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DLIMBO -DOWN_BY_NAME
check own-though-left                ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DOWN_BY_NAME
check arrives-behind-a-failure       ordered fails -DARRIVES_UNSEEN
check line-passes-a-failed-one       ordered fails -DKEYED=30 -DLINE_PASSES_A_FAILED_ONE
check line-passes-unrecorded-death   ordered fails -DTX -DN=3 -DBATCH=3 -DKEYED=14 -DMAX_ATTEMPTS=1 -DENDS -DLINE_PASSES_A_DEATH
check line-passes-a-parked-one       ordered fails -DN=2 -DKEYED=6 -DPARK -DMAX_ATTEMPTS=1 -DLINE_PASSES_A_DEATH
check line-passes-a-backoff          ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DEXCL=4 -DFOLLOWERS_PAST_BACKOFF
check takeover-keeps-its-line        ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DCRASH -DFAULTS=2 -DTAKEOVER_KEEPS_LINE
check break-up-all-pending           ordered fails -DKEYED=30 -DCRASH -DBREAK_UP -DBREAK_UP_ALL_PENDING
check waiting-ones-overtaken         ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DWAITING_IGNORED
check hand-out-unchecked             ordered fails -DMAX_ATTEMPTS=1 -DREDRIVES=1 -DHAND_OUT_UNCHECKED
check due-ones-hold-the-key          ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DEXCL=14 -DPENDING_HOLDS
check expiry-all-pending             ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DEXPIRY_ALL_PENDING
check expiry-lowest-pending          ordered fails -DTX -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DEXPIRY_LOWEST_PENDING
check part-repeated-undropped        ordered fails -DLOST -DREPEATED_UNDROPPED
check part-without-the-earlier-one   ordered fails -DKEYED=30 -DLOST -DCRASH -DLATEST_ONLY
check part-lets-go-of-the-key        ordered fails -DKEYED=30 -DPARTIAL_LETS_GO
check park-ignored-at-claim          ordered fails -DPARK -DMAX_ATTEMPTS=1 -DPARK_IGNORED_AT_CLAIM
check park-ended-by-another          ordered fails -DKEYED=30 -DEXCL=8 -DPARK -DMAX_ATTEMPTS=1 -DREDRIVES=1 -DPARK_IGNORED_AT_WAKE
check parked-one-set-aside           ordered fails -DPARK -DMAX_ATTEMPTS=1 -DREDRIVES=1 -DPARKED_REDRIVEN_ASIDE
check wake-before-resolution         ordered fails -DWAKE_FIRST
check record-without-lock            ordered fails -DN=2 -DBATCH=1 -DKEYED=6 -DRECORD_UNLOCKED
check no-wake-at-takeover            ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DCRASH -DSURRENDER -DFAULTS=2 -DNO_WAKE_AT_TAKEOVER
check no-wake-at-break-up            ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DCRASH -DBREAK_UP -DFAULTS=2 -DNO_WAKE_AT_BREAK_UP
check no-wake-at-expiry              ordered fails -DN=3 -DBATCH=1 -DKEYED=14 -DENDS -DNO_WAKE_AT_EXPIRY
check no-wake-at-discard             ordered fails -DDISCARDS=1 -DNO_WAKE_AT_DISCARD
check no-wake-at-redrive             ordered fails -DN=2 -DBATCH=1 -DKEYED=6 -DPARK -DMAX_ATTEMPTS=1 -DREDRIVES=1 -DNO_WAKE_AT_REDRIVE
check no-wake-at-seek                ordered fails -DSEEKS=1 -DNO_WAKE_AT_SEEK
check no-wake-for-a-gone-row         ordered fails -DTX -DN=3 -DBATCH=1 -DKEYED=14 -DNO_WAKE_FOR_A_GONE_ROW
check crash-without-sweep            ordered fails -DTX -DN=2 -DBATCH=1 -DKEYED=6 -DCRASH
check late-commit-of-a-recorded-one  ordered fails -DTX -DENDS -DMARK_IGNORED_AT_COMMIT
check seek-leaves-waiting-ones       ordered fails -DSEEKS=1 -DSEEK_LEAVES_WAITING
check seek-leaves-marks              ordered fails -DSEEKS=1 -DSEEK_LEAVES_MARKS
check seek-leaves-parks              ordered fails -DKEYED=30 -DPARK -DMAX_ATTEMPTS=1 -DSEEKS=1 -DSEEK_KEEPS_PARKED

if [ "$ran" -eq 0 ]; then
	echo "model: nothing is called $wanted" >&2
	exit 2
fi
[ -n "$show" ] && exit 0
echo "$ran checked, $failed failed, $(($(date +%s) - began)) s"
[ "$failed" -eq 0 ]
