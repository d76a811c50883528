/*
 * Keys and order: claims, lines, partial records, waking, hand-out, parked keys,
 * redrive, discard, seek, and handlers in a transaction.
 *
 * The messages 1..N are in the log; those in KEYED (bits) have one key, the
 * others have none and only keep a range open. Those in EXCL are exclusive, the
 * rest of KEYED is ordered. Ranges are BATCH ids long, range r begins after
 * r * BATCH. Two instances hold ranges and one line of deliveries each.
 *
 * A call of `work` is one step: it holds the group's lock from its first
 * statement to its commit, and what happens without that lock, the commit of a
 * handler's transaction, only takes away (a delivery) or marks; seen or not seen
 * by a statement, it could as well have come after the call. Such a group commits
 * synchronously, so the server's crashes undo nothing. A handler that outlives
 * its lease, or whose claim a seek deleted, is not counted as running.
 *
 *   N, BATCH, KEYED, EXCL, MAX_ATTEMPTS, FOLLOW (deliveries behind the head of a line)
 *   FAILS n        attempts that fail
 *   FAULTS n       how many of those that follow, together
 *   ENDS           a lease ends while its holder lives
 *   CRASH          an instance forgets everything
 *   SURRENDER      a range or a line is given back
 *   LOST           the confirmation of a partial record is lost
 *   LIMBO          that of a claim is, and nobody knows it
 *   BREAK_UP       an expired range may be broken up
 *   PARK           a dead letter of an ordered message parks the key
 *   REDRIVES n, DISCARDS n, SEEKS n
 *   SWEEP          repairs what waits though nobody holds the key
 *   TX             handlers commit a transaction of their own
 */

#ifndef N
#define N 4
#endif
#ifndef BATCH
#define BATCH 2
#endif
#ifndef KEYED
#define KEYED 10          /* bits 1 and 3 */
#endif
#ifndef EXCL
#define EXCL 0
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#ifndef FOLLOW
#define FOLLOW 2
#endif
#ifndef FAILS
#define FAILS 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef REDRIVES
#define REDRIVES 0
#endif
#ifndef DISCARDS
#define DISCARDS 0
#endif
#ifndef SEEKS
#define SEEKS 0
#endif

#define RANGES   (N / BATCH)
#define BIT(x)   (1 << (x))
#define BELOW(x) (BIT(x) - 1)
#define OF(r)    (((1 << BATCH) - 1) << ((r) * BATCH + 1))
#define AFTER(r) (255 & ~BELOW(((r) + 1) * BATCH + 1))
#define RANGE_OF(m) (((m) - 1) / BATCH)
#define ORDERED  (KEYED & ~EXCL)

/* ---- the database: sets of messages, or of ranges, as bits ------------------ */

byte claimed;             /* ranges handed out */
byte open, hashes;        /* claims; those that hold the key's hash */
byte owned[2];            /* claims whose token an instance knows and counts on or has left */
byte pending, running, waiting;   /* deliveries */
byte has[2];              /* running deliveries whose token an instance knows */
byte failed;              /* deliveries that have failed before */
byte aside;               /* flagged out of order */
byte done, dead, parks, succ, discarded;

/* ---- what an instance believes ------------------------------------------------ */

byte bel[2];              /* its ranges */
byte left[2];             /* those of them whose lease has ended, by its own clock */
byte todo[2];             /* messages of the key not yet recorded */
byte line[2];             /* those of them that are deliveries */
bit  line_left[2];
byte ok[2], bad[2], wait[2];      /* outcomes */
byte runs[2];             /* the one whose handler runs in its lease */

byte faults, fails;
byte first;               /* parked and redriven: to run before their successors */

#ifdef TX
byte tx[2];               /* the message of a handler's transaction that is to commit */
bit  tx_line[2];          /* it is a delivery */
bit  tx_token[2];         /* the row still has the token that it knows */
bit  locked[2];           /* it has locked that row */
byte unsure[2];           /* outcomes: again, uncounted */
byte effects;
#define UNSURE(i) unsure[i]
#define LOCKED_ROWS ((locked[0] -> tx[0] : 0) | (locked[1] -> tx[1] : 0))
#else
#define UNSURE(i) 0
#define LOCKED_ROWS 0
#endif
#ifdef OWN_BY_NAME
byte named[2];            /* claims in the name of an instance that does not know them */
#endif

hidden byte a_, c_, e_, g_, h_, k_, n_, t_;

#define MAIN(r)      (todo[i] & ~line[i] & OF(r))       /* not recorded, of range r */
#define ENDED(i)     (ok[i] | bad[i] | wait[i] | UNSURE(i))
#define DELIVERIES   (pending | running | waiting)
#define IN_RANGES    (((open & 1) -> OF(0) : 0) | ((open & 2) -> OF(1) : 0) | ((open & 4) -> OF(2) : 0) | ((open & 8) -> OF(3) : 0))
#define ROW_LOCKED(r) (LOCKED_ROWS & OF(r) & ~running)

/* the rows of these messages have another token now, or are gone */
inline refuse_range(r)
{
#ifdef TX
	if :: !tx_line[0] && (tx[0] & OF(r)) -> tx_token[0] = 0 :: else fi;
	if :: !tx_line[1] && (tx[1] & OF(r)) -> tx_token[1] = 0 :: else fi
#else
	skip
#endif
}
inline refuse_deliveries(x)
{
#ifdef TX
	if :: tx_line[0] && (tx[0] & (x)) -> tx_token[0] = 0 :: else fi;
	if :: tx_line[1] && (tx[1] & (x)) -> tx_token[1] = 0 :: else fi
#else
	skip
#endif
}

/* what keeps an ordered message back that is above it */
#ifdef WAITING_IGNORED
#define UNRESOLVED   ((pending | running) & ORDERED & ~aside)
#else
#define UNRESOLVED   (DELIVERIES & ORDERED & ~aside)
#endif
#ifdef PARK_IGNORED_AT_CLAIM
#define CLAIM_PARKS  0
#else
#define CLAIM_PARKS  parks
#endif
#ifdef PARK_IGNORED_AT_WAKE
#define WAKE_PARKS   0
#else
#define WAKE_PARKS   parks
#endif
#define IN_ORDER(m)  (ORDERED & ~aside & BIT(m))
#define DIES(x)      (MAX_ATTEMPTS == 1 || (failed & (x)))

/* the lower claims that do not hold the key against an instance: its tokens say so */
#ifdef OWN_BY_NAME
#define ITS(i)       (owned[i] | named[i])
#else
#define ITS(i)       (owned[i] & ~left[i])
#endif

/* what holds after every commit: each message is in one place */
inline check()
{
	t_ = KEYED & ~BELOW(claimed * BATCH + 1);       /* to come */
	c_ = IN_RANGES & ~done & KEYED;
	assert((t_ & c_) == 0 && (t_ & DELIVERIES) == 0 && (c_ & DELIVERIES) == 0);
	assert((pending & running) == 0 && (pending & waiting) == 0 && (running & waiting) == 0);
	assert(((t_ | c_ | DELIVERIES | succ | dead | discarded) & KEYED) == KEYED);
	assert((succ & (t_ | c_ | DELIVERIES)) == 0);
	/* what has succeeded keeps nobody back */
	assert((succ & parks) == 0);
	t_ = 0; c_ = 0
}

/* the lowest eligible one that waits, if nobody holds the key */
inline wake()
{
	if
	:: hashes || running || !waiting
	:: else ->
	   c_ = 1;
	   do
	   :: c_ > N -> break
	   :: c_ <= N && (waiting & BIT(c_)) && !(IN_ORDER(c_) && ((UNRESOLVED | WAKE_PARKS) & BELOW(c_))) ->
	      waiting = waiting & ~BIT(c_); pending = pending | BIT(c_);
	      printf("message %d is woken\n", c_);
	      break
	   :: else -> c_++
	   od;
	   c_ = 0
	fi
}

/* the same for a call that dropped a hash of g_ */
inline wake_if_let_go()
{
	if
	:: g_ & ~hashes -> wake()
	:: else
	fi;
	g_ = 0
}

inline die(c)
{
	dead = dead | BIT(c); failed = failed & ~BIT(c);
	printf("message %d is a dead letter\n", c);
#ifdef PARK
	if :: IN_ORDER(c) -> parks = parks | BIT(c) :: else fi;
#endif
	aside = aside & ~BIT(c)
}

/* the outcomes n_ of messages; their old rows are gone */
inline settle(n)
{
	succ = succ | (n & ok[i]);
	failed = failed & ~(n & ok[i]); aside = aside & ~(n & ok[i]);
	waiting = waiting | (n & wait[i]);
	pending = pending | (n & UNSURE(i));
	c_ = 1;
	do
	:: c_ > N -> break
	:: c_ <= N && (n & bad[i] & BIT(c_)) ->
	   if
	   :: DIES(BIT(c_)) -> die(c_)
	   :: else -> pending = pending | BIT(c_); failed = failed | BIT(c_)
	   fi;
	   c_++
	:: else -> c_++
	od;
	c_ = 0
}

inline forget(x)
{
	todo[i] = todo[i] & ~(x); ok[i] = ok[i] & ~(x); bad[i] = bad[i] & ~(x); wait[i] = wait[i] & ~(x);
#ifdef TX
	unsure[i] = unsure[i] & ~(x);
#endif
	line[i] = line[i] & ~(x);
	if :: line[i] == 0 -> line_left[i] = 0 :: else fi
}

/* what is in line behind range r: in the ranges above it */
inline behind_waits(r)
{
#ifndef LINE_GOES_ON
	wait[i] = wait[i] | (todo[i] & ~line[i] & AFTER(r) & ~(runs[i] | ENDED(i)))
#else
	skip
#endif
}

inline leave_range(r)
{
	bel[i] = bel[i] & ~BIT(r); left[i] = left[i] & ~BIT(r);
	owned[i] = owned[i] & ~BIT(r)
}

/* the row of r goes */
inline close_range(r)
{
	open = open & ~BIT(r); hashes = hashes & ~BIT(r); done = done & ~OF(r);
	refuse_range(r)
}

/* which of r's messages of the key its holder may run: k_; the others wait */
#ifdef RECORD_UNLOCKED
bit  busy;                /* a claim has looked, and is not committed */
byte saw_hashes, saw_running, saw_unresolved;
#define CAN_CLAIM    !busy
#define HASHES_SEEN  saw_hashes
#define RUNNING_SEEN saw_running
#define UNRESOLVED_SEEN (saw_unresolved | (waiting & OF(r)))
#else
#define CAN_CLAIM    1
#define HASHES_SEEN  hashes
#define RUNNING_SEEN running
#define UNRESOLVED_SEEN (UNRESOLVED | CLAIM_PARKS)
#endif

inline classify(r, its)
{
	t_ = OF(r) & KEYED & ~done;
	h_ = (HASHES_SEEN & BELOW(r) & ~(its)) || RUNNING_SEEN;
	k_ = 0;
	c_ = 1;
	do
	:: c_ > N -> break
	:: c_ <= N && (t_ & BIT(c_)) ->
	   if
	   :: h_ || (IN_ORDER(c_) && (UNRESOLVED_SEEN & BELOW(c_))) ->
	      waiting = waiting | BIT(c_); done = done | BIT(c_); printf("message %d waits\n", c_)
	   :: else -> k_ = k_ | BIT(c_)
	   fi;
	   c_++
	:: else -> c_++
	od;
	if
	:: k_ -> hashes = hashes | BIT(r)
	:: else -> hashes = hashes & ~BIT(r)
	fi;
	c_ = 0; t_ = 0; h_ = 0
}

/* ordered ones in its ranges behind which no ordered one starts */
#define STOPPED(i) ((wait[i] | UNSURE(i) | bad[i]) & ORDERED & ~line[i])
#define LEFT_UNENDED(r) (todo[i] & ~line[i] & BELOW(r * BATCH + 1) & ~ENDED(i) & \
	(((left[i] & 1) -> OF(0) : 0) | ((left[i] & 2) -> OF(1) : 0) | ((left[i] & 4) -> OF(2) : 0)))

inline hold(r)
{
	if
	:: k_ || (OF(r) & ~KEYED) ->
	   open = open | BIT(r); owned[i] = owned[i] | BIT(r);
	   bel[i] = bel[i] | BIT(r); left[i] = left[i] & ~BIT(r);
	   todo[i] = todo[i] | k_;
	   /* a call that was on its way when something lower failed or was left */
#ifndef ARRIVES_UNSEEN
	   if
	   :: k_ && LEFT_UNENDED(r) -> wait[i] = wait[i] | k_
	   :: else ->
	      if
	      :: STOPPED(i) & BELOW(r * BATCH + 1) -> wait[i] = wait[i] | (k_ & ORDERED)
	      :: else
	      fi
	   fi
#endif
	:: else -> close_range(r)      /* nothing is left of it */
	fi;
	k_ = 0
}

inline claim_fresh(r)
{
	printf("instance %d claims range %d\n", i, r);
	claimed++;
	classify(r, ITS(i));
	hold(r);
	check()
}

#define DUE(r) (CAN_CLAIM && (open & BIT(r)) && !(bel[i] & BIT(r)) && !ROW_LOCKED(r) && \
	(!((owned[0] | owned[1]) & BIT(r)) || (left[1 - i] & BIT(r))))

inline take_over(r)
{
	printf("instance %d takes range %d over\n", i, r);
	refuse_range(r);
	g_ = hashes;
	owned[1 - i] = owned[1 - i] & ~BIT(r);
#ifdef OWN_BY_NAME
	named[0] = named[0] & ~BIT(r); named[1] = named[1] & ~BIT(r);
#endif
#ifdef TAKEOVER_KEEPS_LINE
	k_ = OF(r) & KEYED & ~done;
#else
	classify(r, ITS(i));
#endif
	hold(r);
#ifndef NO_WAKE_AT_TAKEOVER
	wake_if_let_go();
#endif
	g_ = 0;
	check()
}

inline break_up(r)
{
	printf("instance %d breaks range %d up\n", i, r);
	g_ = hashes;
	owned[1 - i] = owned[1 - i] & ~BIT(r);
#ifdef BREAK_UP_ALL_PENDING
	k_ = OF(r) & KEYED & ~done;
	pending = pending | k_;
#else
	t_ = OF(r) & KEYED & ~done;
	h_ = (hashes & BELOW(r)) || running;
	c_ = 1;
	do
	:: c_ > N -> break
	:: c_ <= N && (t_ & BIT(c_)) ->
	   if
	   :: h_ || (IN_ORDER(c_) && ((UNRESOLVED | CLAIM_PARKS) & BELOW(c_))) -> waiting = waiting | BIT(c_)
	   :: else -> pending = pending | BIT(c_)
	   fi;
	   c_++
	:: else -> c_++
	od;
	c_ = 0; t_ = 0; h_ = 0;
#endif
	k_ = 0;
	close_range(r);
#ifndef NO_WAKE_AT_BREAK_UP
	wake_if_let_go();
#endif
	g_ = 0;
	check()
}

/* ---- records ------------------------------------------------------------------- */

#define HAS_RANGE_RECORD(r) ((bel[i] & BIT(r)) && !ROW_LOCKED(r) && \
	((MAIN(r) & ENDED(i)) || !MAIN(r)))
#define OPEN_ANYHOW(r) (OF(r) & ~KEYED)        /* the rest of the range is not finished */
#define ALL_ENDED(r) ((MAIN(r) & ~ENDED(i)) == 0)

/* how: 0 a part, 1 a part whose confirmation is lost, 2 the whole, 3 given back */
inline record_range(r, how)
{
	e_ = MAIN(r) & ENDED(i);
	if
	:: !(owned[i] & BIT(r)) ->
	   printf("instance %d has lost range %d\n", i, r);
	   if :: MAIN(r) -> behind_waits(r) :: else fi;
	   leave_range(r); forget(OF(r) & ~line[i])
	:: else ->
	   g_ = hashes;
	   printf("instance %d records of range %d: ok %d, failed %d, waiting %d, how %d\n", i, r, e_ & ok[i], e_ & bad[i], e_ & wait[i], how);
#ifdef REPEATED_UNDROPPED
	   n_ = e_ & ~DELIVERIES;
#else
	   n_ = e_ & ~done;
#endif
#ifdef LATEST_ONLY
	   if :: n_ & (n_ - 1) -> n_ = n_ & ~(n_ & (0 - n_)); e_ = n_ :: else fi;
#endif
#ifdef WAKE_FIRST
	   wake();
#endif
	   settle(n_);
	   done = done | e_;
	   if
#ifdef PARTIAL_LETS_GO
	   :: e_ -> hashes = hashes & ~BIT(r)
#endif
	   :: (MAIN(r) & ~e_) == 0 -> hashes = hashes & ~BIT(r)
	   :: else
	   fi;
	   if
	   :: how == 2 -> close_range(r); leave_range(r); forget(OF(r) & ~line[i])
	   :: how == 3 -> refuse_range(r); behind_waits(r); leave_range(r); forget(OF(r) & ~line[i])
	   :: how == 0 -> forget(e_)
	   :: how == 1 -> faults++
	   fi;
#ifdef WAKE_FIRST
	   g_ = 0
#else
	   wake_if_let_go()
#endif
	fi;
	n_ = 0; e_ = 0;
	check()
}

#define HAS_LINE_RECORD ((line[i] & ENDED(i)) && !(LOCKED_ROWS & line[i] & ENDED(i) & has[i] & running))

/* each delivery by its token */
inline record_line()
{
	e_ = line[i] & ENDED(i);
	n_ = e_ & has[i] & running;
	printf("instance %d records the deliveries (bits) %d: ok %d, failed %d, waiting %d\n", i, n_, n_ & ok[i], n_ & bad[i], n_ & wait[i]);
	running = running & ~n_; has[i] = has[i] & ~n_;
	refuse_deliveries(n_);
	settle(n_);
#ifdef NO_WAKE_FOR_A_GONE_ROW
	if :: n_ || (e_ & ok[i]) -> wake() :: else fi;
#else
	wake();
#endif
	forget(e_);
	n_ = 0; e_ = 0;
	check()
}

/* ---- deliveries ----------------------------------------------------------------- */

/* may stand in the line k_: nothing lower that it would have to wait for lies outside */
#ifdef FOLLOWERS_PAST_BACKOFF
#define FOLLOWS(c) (waiting & BIT(c))
#else
#define FOLLOWS(c) ((waiting & BIT(c)) && !(IN_ORDER(c) && (((UNRESOLVED & ~k_) | WAKE_PARKS) & BELOW(c))))
#endif

/* what an instance has not recorded of its ranges goes with the same call, before it is handed out anew */
#define CAN_TAKE_LINE (line[i] == 0 && (todo[i] & DELIVERIES) == 0)

inline hand_out(m)
{
	if
#ifndef HAND_OUT_UNCHECKED
#ifdef PENDING_HOLDS
	:: pending & ~BIT(m) -> waiting = waiting | pending; pending = 0     /* each sends the other back */
	:: hashes || running ->
#else
	:: hashes || running ->
#endif
	   printf("message %d is due, and waits: its key is held\n", m);
	   pending = pending & ~BIT(m); waiting = waiting | BIT(m)
#endif
	:: else ->
	   k_ = BIT(m);
	   n_ = 0;
	   c_ = m + 1;
	   do
	   :: c_ > N || n_ >= FOLLOW -> break
	   :: c_ <= N && n_ < FOLLOW && FOLLOWS(c_) -> k_ = k_ | BIT(c_); n_++; c_++
	   :: else -> c_++
	   od;
	   printf("instance %d gets the line (bits) %d\n", i, k_);
	   pending = pending & ~k_; waiting = waiting & ~k_; running = running | k_;
	   has[i] = has[i] | k_;
	   line[i] = line[i] | k_; todo[i] = todo[i] | k_;
	   c_ = 0; n_ = 0; k_ = 0
	fi;
	check()
}

#define CAN_EXPIRE (running & ~LOCKED_ROWS & ((running & ~(has[0] | has[1])) | (line_left[0] -> has[0] : 0) | (line_left[1] -> has[1] : 0)))

/* they wait; the wake makes the lowest due, unless the one before it is about to commit */
inline expire()
{
	e_ = CAN_EXPIRE;
	printf("the deliveries (bits) %d expire\n", e_);
	running = running & ~e_; has[0] = has[0] & ~e_; has[1] = has[1] & ~e_;
	refuse_deliveries(e_);
#ifdef EXPIRY_ALL_PENDING
	pending = pending | e_;
#else
#ifdef EXPIRY_LOWEST_PENDING
	n_ = e_ & (0 - e_);
	pending = pending | n_; waiting = waiting | (e_ & ~n_);
#else
	waiting = waiting | e_;
#endif
#endif
#ifndef NO_WAKE_AT_EXPIRY
	wake();
#endif
	n_ = 0; e_ = 0;
	check()
}

/* ---- handlers ------------------------------------------------------------------- */

/* may start m: in a range, or in the line */
#define FREE_IN_RANGE(m) (!(line[i] & BIT(m)) && (bel[i] & ~left[i] & BIT(RANGE_OF(m))) && \
	(MAIN(RANGE_OF(m)) & BELOW(m) & ~ENDED(i)) == 0 && LOWER_RANGES(m))
#ifdef CHAIN_AT_SUCCESS
#define LOWER_RANGES(m) ((todo[i] & ~line[i] & BELOW(RANGE_OF(m) * BATCH + 1) & ~ok[i]) == 0)
#else
#define LOWER_RANGES(m) ((todo[i] & ~line[i] & BELOW(RANGE_OF(m) * BATCH + 1)) == 0)
#endif
#define FREE_IN_LINE(m) ((line[i] & BIT(m)) && !line_left[i] && (line[i] & BELOW(m) & ~ENDED(i)) == 0)
#define MAY_START(m) ((todo[i] & ~ENDED(i) & BIT(m)) && runs[i] == 0 && (FREE_IN_RANGE(m) || FREE_IN_LINE(m)))

/* what in an instance's memory may count for m: its own range's, its line's */
#define TOGETHER(m) ((line[i] & BIT(m)) -> line[i] : (OF(RANGE_OF(m)) & ~line[i]))
inline start(m)
{
	printf("instance %d starts %d\n", i, m);
	/* no two of the key at once */
	assert(runs[0] == 0 && runs[1] == 0);
	/* no success again */
	assert(!(succ & BIT(m)));
	if
	:: IN_ORDER(m) ->
	   /* every lower one has a success or is dead, or is out of order; a letter that parks keeps its successors back */
	   assert((ORDERED & BELOW(m) & ~(aside | succ | discarded | (dead & ~parks) | (todo[i] & TOGETHER(m) & ok[i]))) == 0);
	   assert(((parks | (first & ~(succ | dead | discarded | (todo[i] & TOGETHER(m) & ok[i])))) & BELOW(m)) == 0);
	   /* and no higher one has a success */
	   assert((ORDERED & succ & ~BELOW(m)) == 0)
	:: else
	fi;
	runs[i] = BIT(m)
}

/* the handler of runs[i] has failed: the ordered ones behind it wait. They do behind a death, too: it may not be
   recorded yet when the transaction of the next one commits, and it may park the key. */
#ifdef LINE_PASSES_A_DEATH
#define BREAKS_THE_LINE(x) (((x) & ORDERED & ~aside) && !DIES(x))
#else
#define BREAKS_THE_LINE(x) ((x) & ORDERED & ~aside)
#endif
inline has_failed()
{
	if
	:: BREAKS_THE_LINE(runs[i]) -> rest_waits()
	:: else
	fi;
	bad[i] = bad[i] | runs[i]; runs[i] = 0
}

#ifdef TX
#ifdef MARK_IGNORED_AT_COMMIT
#define CAN_COMMIT(i) tx_token[i]
#else
#define CAN_COMMIT(i) (tx_token[i] && (tx_line[i] || !(done & tx[i])))
#endif
#define AWAITED(i)    ((tx_line[i] -> (line[i] & tx[i]) : (todo[i] & ~line[i] & tx[i])) != 0)
#define RANGE_OF_BIT(x) (((x) >= 16 -> 3 : ((x) >= 8 -> 2 : ((x) >= 4 -> 1 : 0))) / BATCH)

/* the handler's transaction of runs[i] may or may not have committed: again soon */
inline is_unsure()
{
	if
	:: runs[i] & ORDERED & ~aside -> rest_waits()
	:: else
	fi;
	unsure[i] = unsure[i] | runs[i]; runs[i] = 0
}
#endif

inline rest_waits()
{
#ifndef LINE_PASSES_A_FAILED_ONE
	wait[i] = wait[i] | (todo[i] & ORDERED & ~aside & ~((runs[i] << 1) - 1) & ~ENDED(i) & ((runs[i] & line[i]) -> line[i] : ~line[i]))
#else
	skip
#endif
}

#ifdef TX
#define LATE_SUCCESS  is_unsure()
#else
#define LATE_SUCCESS  ok[i] = ok[i] | runs[i]; runs[i] = 0
#endif

/* a lease ends; a handler that still runs ends some time, and counts as not running */
inline lease_ends(r)
{
	left[i] = left[i] | BIT(r);
	if
	:: MAIN(r) & ~ENDED(i) -> behind_waits(r)
	:: else
	fi
}

#define CAN_SURRENDER(r) (faults < FAULTS && (bel[i] & ~left[i] & BIT(r)) && !ROW_LOCKED(r) && \
	!(runs[i] & OF(r) & ~line[i]) && !ALL_ENDED(r))
#define STALE(r)         ((left[i] & BIT(r)) && !ROW_LOCKED(r) && !ALL_ENDED(r) && !(MAIN(r) & ENDED(i)))

/* left for want of lease, and nothing of it to record */
inline leave_stale(r)
{
	printf("instance %d leaves range %d\n", i, r);
#ifdef OWN_BY_NAME
	named[i] = named[i] | (owned[i] & BIT(r));
#endif
	leave_range(r); forget(OF(r) & ~line[i])
}

inline crash()
{
	bel[i] = 0; left[i] = 0; owned[i] = 0; has[i] = 0; runs[i] = 0;
	forget(255)
}

#define PART(r)      (HAS_RANGE_RECORD(r) && (OPEN_ANYHOW(r) || !ALL_ENDED(r)) && MAIN(r))
#define WHOLE(r)     (HAS_RANGE_RECORD(r) && ALL_ENDED(r))
#define PART_LOST(r) (faults < FAULTS && HAS_RANGE_RECORD(r) && (MAIN(r) & ENDED(i)))
#define MAY_END(r)   (faults < FAULTS && (bel[i] & ~left[i] & BIT(r)))
#define MAY_GET(m)   ((pending & BIT(m)) && CAN_TAKE_LINE)

/* one of those for which it holds */
#if N / BATCH == 1
#define SOME_RANGE(holds) if :: holds(0) -> r = 0 fi
#endif
#if N / BATCH == 2
#define SOME_RANGE(holds) if :: holds(0) -> r = 0 :: holds(1) -> r = 1 fi
#endif
#if N / BATCH == 3
#define SOME_RANGE(holds) if :: holds(0) -> r = 0 :: holds(1) -> r = 1 :: holds(2) -> r = 2 fi
#endif
#if N / BATCH == 4
#define SOME_RANGE(holds) if :: holds(0) -> r = 0 :: holds(1) -> r = 1 :: holds(2) -> r = 2 :: holds(3) -> r = 3 fi
#endif
#if N == 2
#define SOME_MESSAGE(holds) if :: holds(1) -> m = 1 :: holds(2) -> m = 2 fi
#endif
#if N == 3
#define SOME_MESSAGE(holds) if :: holds(1) -> m = 1 :: holds(2) -> m = 2 :: holds(3) -> m = 3 fi
#endif
#if N == 4
#define SOME_MESSAGE(holds) if :: holds(1) -> m = 1 :: holds(2) -> m = 2 :: holds(3) -> m = 3 :: holds(4) -> m = 4 fi
#endif

proctype Instance(byte i)
{
	byte r, m;

end:	do
#ifdef RECORD_UNLOCKED
	:: d_step {
		claimed < RANGES && (claimed || i == 0) && !busy -> busy = 1;
		saw_hashes = hashes; saw_running = running; saw_unresolved = UNRESOLVED | CLAIM_PARKS;
		printf("instance %d looks for what holds the key\n", i)
	   }
	   d_step { a_ = claimed; claim_fresh(a_); a_ = 0; busy = 0 }
#else
	:: d_step { claimed < RANGES && (claimed || i == 0) -> a_ = claimed; claim_fresh(a_); a_ = 0 }
#endif
#ifdef LIMBO
	:: d_step {
		claimed < RANGES && (claimed || i == 0) && faults < FAULTS -> faults++; a_ = claimed;
		e_ = bel[i];
		claim_fresh(a_);
		printf("instance %d never hears of it\n", i);
		if
		:: bel[i] & ~e_ ->
#ifdef OWN_BY_NAME
		   named[i] = named[i] | BIT(a_);
#endif
		   leave_range(a_); forget(OF(a_) & ~line[i])
		:: else
		fi;
		a_ = 0; e_ = 0
	   }
#endif
	:: atomic { SOME_RANGE(DUE); d_step { take_over(r); r = 0 } }
#ifdef BREAK_UP
	:: atomic { SOME_RANGE(DUE); d_step { break_up(r); r = 0 } }
#endif
	:: atomic { SOME_RANGE(PART); d_step { record_range(r, 0); r = 0 } }
	:: atomic { SOME_RANGE(WHOLE); d_step { record_range(r, 2); r = 0 } }
#ifdef LOST
	:: atomic { SOME_RANGE(PART_LOST); d_step { record_range(r, 1); r = 0 } }
#endif
#ifdef SURRENDER
	:: atomic { SOME_RANGE(CAN_SURRENDER); d_step { faults++; record_range(r, 3); r = 0 } }
#endif
#ifdef ENDS
	:: atomic {
		SOME_RANGE(MAY_END);
		faults++;
		printf("instance %d: the lease of range %d ends\n", i, r);
		if
		:: runs[i] & OF(r) & ~line[i] ->
		   if
		   :: d_step { LATE_SUCCESS; lease_ends(r); r = 0 }
		   :: d_step { has_failed(); lease_ends(r); r = 0 }
		   fi
		:: else -> d_step { lease_ends(r); r = 0 }
		fi
	   }
	:: atomic { SOME_RANGE(STALE); d_step { leave_stale(r); r = 0 } }
#endif
	:: atomic { SOME_MESSAGE(MAY_GET); d_step { hand_out(m); m = 0 } }
	:: atomic { SOME_MESSAGE(MAY_START); d_step { start(m); m = 0 } }
#ifndef TX
	:: d_step { runs[i] -> printf("instance %d: (bits) %d succeeds\n", i, runs[i]); ok[i] = ok[i] | runs[i]; runs[i] = 0 }
#else
	/* the check and the commit, in one flush */
	:: d_step {
		runs[i] && !tx[i] ->
		tx[i] = runs[i]; tx_line[i] = (line[i] & runs[i]) != 0;
		tx_token[i] = (tx_line[i] -> (has[i] & runs[i]) != 0 : (owned[i] & BIT(RANGE_OF_BIT(runs[i]))) != 0)
	   }
	:: d_step {                   /* the row by its token, and no mark */
		tx[i] && !locked[i] && CAN_COMMIT(i) -> locked[i] = 1
	   }
	:: atomic {
		locked[i] ->
		d_step {
			printf("the handler's transaction for (bits) %d commits\n", tx[i]);
			assert(!(effects & tx[i]));
			effects = effects | tx[i]; succ = succ | tx[i];
			if
			:: tx_line[i] ->
			   running = running & ~tx[i]; has[0] = has[0] & ~tx[i]; has[1] = has[1] & ~tx[i];
			   failed = failed & ~tx[i]; aside = aside & ~tx[i]
			:: else -> done = done | tx[i]
			fi
		}
		if
		:: runs[i] == tx[i] && AWAITED(i) -> d_step { ok[i] = ok[i] | runs[i]; runs[i] = 0 }
		:: runs[i] == tx[i] && AWAITED(i) -> d_step { printf("instance %d does not hear of it\n", i); is_unsure() }
		:: !(runs[i] == tx[i] && AWAITED(i))
		fi;
		d_step { tx[i] = 0; tx_line[i] = 0; tx_token[i] = 0; locked[i] = 0; check() }
	   }
	:: d_step {                   /* refused, or rolled back */
		tx[i] && (locked[i] || !CAN_COMMIT(i)) ->
		printf("the handler's transaction for (bits) %d rolls back\n", tx[i]);
		if :: runs[i] == tx[i] && AWAITED(i) -> is_unsure() :: else fi;
		tx[i] = 0; tx_line[i] = 0; tx_token[i] = 0; locked[i] = 0
	   }
#endif
	:: d_step { runs[i] && fails < FAILS -> printf("instance %d: (bits) %d fails\n", i, runs[i]); fails++; has_failed() }
	:: d_step { HAS_LINE_RECORD -> record_line() }
#ifdef SURRENDER
	:: d_step {
		faults < FAULTS && (line[i] & ~ENDED(i) & ~runs[i]) -> faults++;
		printf("instance %d gives the rest of its line back\n", i);
		wait[i] = wait[i] | (line[i] & ~ENDED(i) & ~runs[i])
	   }
#endif
#ifdef ENDS
	:: atomic {
		line[i] && !line_left[i] && faults < FAULTS -> faults++;
		printf("instance %d: the lease of its line ends\n", i);
		line_left[i] = 1;
		if
		:: runs[i] & line[i] ->
		   if
		   :: d_step { LATE_SUCCESS }
		   :: d_step { has_failed() }
		   fi
		:: else
		fi
	   }
	:: d_step {
		line_left[i] && !(line[i] & ENDED(i)) ->
		has[i] = has[i] & ~line[i]; forget(line[i])
	   }
#endif
#ifdef CRASH
	:: d_step {
		faults < FAULTS && (bel[i] || line[i]) -> faults++;
		printf("instance %d crashes\n", i);
		crash()
	   }
#endif
	od
}

/* whoever looks for expired deliveries, and upkeep */
active proctype Keeper()
{
end:	do
	:: d_step { CAN_EXPIRE -> expire() }
#ifdef SWEEP
	:: d_step { waiting && !hashes && !running -> e_ = waiting; wake(); e_ = 0 }
#endif
	od
}

#if SEEKS > 0
/* the cursor behind range m: claims go, and with them their tokens; going back,
   deliveries above the target too; then marks. Instances learn of it with the
   reply of their next call, before they take anything from that reply. */
inline seek(m)
{
	printf("seek to the end of range %d\n", m);
	/* above the target */
	e_ = 255 & ~BELOW(m * BATCH + 1);
	/* finished in no way: passed over */
	discarded = discarded | (BELOW(m * BATCH + 1) & KEYED & ~(DELIVERIES | succ | dead));
	discarded = discarded & ~e_; succ = succ & ~e_;
	g_ = hashes | (running & e_);
	open = 0; hashes = 0; owned[0] = 0; owned[1] = 0;
	pending = pending & ~e_; running = running & ~e_;
#ifndef SEEK_LEAVES_WAITING
	waiting = waiting & ~e_;
#endif
	has[0] = has[0] & ~e_; has[1] = has[1] & ~e_;
	failed = failed & ~e_; aside = aside & ~e_; first = first & ~e_;
#ifndef SEEK_LEAVES_MARKS
	done = 0;
#endif
#ifndef SEEK_KEEPS_PARKED
	parks = parks & ~e_;
#endif
	claimed = m;
	/* what the instances forget; they keep deliveries below the target, or not */
	for (a_ : 0 .. 1) {
		bel[a_] = 0; left[a_] = 0;
		n_ = todo[a_] & ~(line[a_] & ~e_);
		todo[a_] = todo[a_] & ~n_; line[a_] = line[a_] & ~n_;
		ok[a_] = ok[a_] & ~n_; bad[a_] = bad[a_] & ~n_; wait[a_] = wait[a_] & ~n_; runs[a_] = runs[a_] & ~n_;
		if :: line[a_] == 0 -> line_left[a_] = 0 :: else fi
	}
	a_ = 0; n_ = 0;
#ifdef TX
	unsure[0] = unsure[0] & todo[0]; unsure[1] = unsure[1] & todo[1];
	effects = effects & ~e_;
	if :: tx[0] && !(tx_line[0] && (tx[0] & ~e_)) -> tx_token[0] = 0 :: else fi;
	if :: tx[1] && !(tx_line[1] && (tx[1] & ~e_)) -> tx_token[1] = 0 :: else fi;
#endif
	e_ = 0;
#ifndef NO_WAKE_AT_SEEK
	wake_if_let_go();
#endif
	g_ = 0
}
#endif

#if REDRIVES > 0 || DISCARDS > 0 || SEEKS > 0
active proctype Operator()
{
	byte redrives, discards, seeks, m;

	do
#if REDRIVES > 0
	:: atomic {
		redrives < REDRIVES && (dead & KEYED) -> redrives++;
		m = 1;
		do
		:: dead & KEYED & BIT(m) -> break
		:: (dead & KEYED & ~BELOW(m + 1)) -> m++
		od;
		d_step {
			printf("message %d is redriven\n", m);
			dead = dead & ~BIT(m);
			if
			:: BELOW(claimed * BATCH + 1) & ~(IN_RANGES & ~done) & ~DELIVERIES & BIT(m) ->
			   succ = succ & ~BIT(m);
			   if
#ifndef PARKED_REDRIVEN_ASIDE
			   :: parks & BIT(m) -> waiting = waiting | BIT(m)        /* in its place */
#endif
			   :: else -> pending = pending | BIT(m); aside = aside | (BIT(m) & ORDERED)
			   fi
			:: else
			fi;
			first = first | (parks & DELIVERIES & BIT(m)); parks = parks & ~BIT(m);
#ifndef NO_WAKE_AT_REDRIVE
			wake();
#endif
			m = 0;
			check()
		}
	   }
#endif
#if DISCARDS > 0
	:: atomic {
		discards < DISCARDS && ((dead | pending | waiting) & KEYED) -> discards++;
		m = 1;
		do
		:: (dead | pending | waiting) & BIT(m) -> break
		:: ((dead | pending | waiting) & ~BELOW(m + 1)) -> m++
		od;
		d_step {
			printf("message %d is discarded\n", m);
			dead = dead & ~BIT(m); parks = parks & ~BIT(m);
			pending = pending & ~BIT(m); waiting = waiting & ~BIT(m);
			failed = failed & ~BIT(m); aside = aside & ~BIT(m);
			discarded = discarded | BIT(m);
#ifndef NO_WAKE_AT_DISCARD
			wake();
#endif
			m = 0;
			check()
		}
	   }
#endif
#if SEEKS > 0
	:: atomic {
		seeks < SEEKS && !LOCKED_ROWS -> seeks++;
		m = 0;
		do
		:: break
		:: m < RANGES -> m++
		od;
		d_step { seek(m); m = 0; check() }
	   }
#endif
	:: break
	od
}
#endif

init {
	atomic { run Instance(0); run Instance(1) };
	timeout ->
	d_step {
		/* nobody waits for ever, but behind a letter that parks */
		assert(claimed == RANGES && open == 0 && pending == 0 && running == 0);
		assert(waiting == 0 || parks);
		a_ = 1;
		do
		:: a_ > N -> break
		:: a_ <= N -> assert(!(waiting & BIT(a_)) || (IN_ORDER(a_) && (parks & BELOW(a_)))); a_++
		od
	}
}
