/*
 * Producing: one sequencer, one inbox.
 *
 * A statement is one step: in READ COMMITTED it sees what was committed when it
 * started, plus its own transaction's rows. A transaction is several steps; its
 * rows become visible, and its locks free, at the step that commits it. A
 * statement whose wait lies between its snapshot and its reading is two steps,
 * and only in the variants that must fail (and where a relation can be
 * truncated in between, which no snapshot protects from).
 *
 * Sizes and parts of the protocol are chosen with -D; see run.sh.
 *   DIRECT n   producers that append under the stream's lock
 *   INBOX n    producers whose transaction inserts into the inbox
 *   EITHER     a direct producer may choose the inbox instead
 *   RETRY      direct producer 0 also sends its batch a second time
 *   DRAINS n   consumers or upkeep moving the inbox to the log
 *   BATCH n    rows that one drain moves at most
 *   HINT       a drain skips what its last complete drain saw
 *   PARTS n    inbox parts, rotated and truncated; DUMP adds an old snapshot
 *   RETAIN n   rounds of retention, which may remove the newest row
 */

#ifndef DIRECT
#define DIRECT 1
#endif
#ifndef INBOX
#define INBOX 2
#endif
#ifndef DRAINS
#define DRAINS 1
#endif
#ifndef BATCH
#define BATCH 2
#endif
#ifndef CLAIM
#define CLAIM 2          /* ids that one claim takes at most */
#endif
#ifndef DRAIN_ROLLBACKS
#define DRAIN_ROLLBACKS 1
#endif

#ifndef TURNS
#define TURNS 2          /* how often the current part changes */
#endif
#ifndef CUTS
#define CUTS 2           /* how often a part's truncation is tried */
#endif

#define NM    (DIRECT + INBOX)
#ifdef RETRY
#define PRODUCERS (NM + 1)
#else
#define PRODUCERS NM
#endif
#define NIDS  (NM + 3)
#define NOBODY 255

/* a row of the inbox */
#define NONE 0
#define UNC  1           /* inserted, not committed */
#define VIS  2           /* visible */
#define GONE 3           /* deleted by a committed drain, still on disk */
#define CUT  4           /* truncated away: no snapshot finds it */

byte ist[NM];            /* state of the message's row in the inbox */
byte iseq[NM];           /* its seq */
byte seq;                /* the sequence: never rolls back */

/* the log: NONE, UNC, VIS, GONE (deleted by retention), CUT */
byte lst[NIDS];
byte lmsg[NIDS];
byte first_id = 1;

byte slock = NOBODY;     /* who holds the stream's lock */
byte claimed;            /* the group's frontier */

/* what a perfect observer knows */
byte committed;          /* messages whose produce committed */
byte before[NM];         /* messages committed when this produce was called */
byte hasid;              /* messages that have an id */
byte finished;           /* producers that ended, or stay open for ever */
byte drained;            /* drains that found nothing after that */

#ifdef PARTS
byte ipart[NM];
byte current;
byte pused[PARTS];       /* transactions that hold a lock on the part */
bit  pexcl[PARTS];       /* locked exclusively */
#endif
#ifdef DUMP
bit  dump_open;
byte dump_inbox;         /* rows of the inbox that its snapshot sees */
#endif
#ifdef RETRY
byte batch_row[NM];      /* producer_batch: NONE, UNC, VIS */
bit  called;
#endif
#ifdef SEQUENCE_IDS
byte id_seq;
#endif

hidden byte a_, b_, c_, d_;

#define BIT(x) (1 << (x))

/* ---- locks -------------------------------------------------------------- */

#ifdef NO_LOCK
#define LOCK_STREAM   skip
#else
#define LOCK_STREAM   atomic { slock == NOBODY -> slock = _pid; printf("process %d has the stream's lock\n", _pid) }
#endif

inline unlock_stream() { if :: slock == _pid -> slock = NOBODY :: else fi }

#ifdef PARTS
#if PARTS == 2
#define PARTS_FREE (!pexcl[0] && !pexcl[1])
#else
#define PARTS_FREE (!pexcl[0] && !pexcl[1] && !pexcl[2])
#endif
inline share_parts()  { for (a_ : 0 .. PARTS - 1) { pused[a_]++ } parts_held = 1 }
inline leave_parts()  { if :: parts_held -> for (a_ : 0 .. PARTS - 1) { pused[a_]-- } parts_held = 0 :: else fi }
#else
#define PARTS_FREE true
inline share_parts()  { skip }
inline leave_parts()  { skip }
#endif

/* ---- the sequencer's statements ------------------------------------------ */

/* the row positions to move: visible rows of the inbox in the order of seq, at
   most BATCH; more = some were left. hide: rows that are not looked at. */
inline look_inbox(hide, above)
{
	arr = 0; n = 0; more = 0;
	do
	:: b_ = NOBODY;
	   for (a_ : 0 .. NM - 1) {
		if
		:: ist[a_] == VIS && !((arr | hide) & BIT(a_)) && iseq[a_] > above &&
		   (b_ == NOBODY || iseq[a_] < iseq[b_]) -> b_ = a_
		:: else
		fi
	   }
	   if
	   :: b_ == NOBODY -> break
	   :: b_ != NOBODY && n == BATCH -> more = 1; break
	   :: else -> arr = arr | BIT(b_); n++
	   fi
	od;
	printf("process %d looks: head %d, moves the rows of messages %x (bits), %d left behind\n", _pid, head, arr, more);
	b_ = 0
}

/* the rows whose transaction is over in this snapshot. A savepoint's row carries
   the savepoint's own transaction id, and a snapshot lists only top-level ones:
   it calls the row over while its transaction is still open. */
inline look_for_hint()
{
	seen = 0;
#ifdef HINT
	for (a_ : 0 .. NM - 1) {
		if
		:: ist[a_] == VIS -> seen = seen | BIT(a_)
#ifdef HINT_SAVEPOINT
		:: ist[a_] == UNC -> seen = seen | BIT(a_)
#endif
		:: else
		fi
	}
#endif
}

/* the snapshot, and what it finds: the newest id, never below first_id */
inline snapshot_log()
{
	fid = first_id; vis = 0;
	for (a_ : 1 .. NIDS - 1) { if :: lst[a_] == VIS -> vis = vis | BIT(a_) :: else fi }
}
inline read_head()
{
	head = fid - 1;
	for (a_ : 1 .. NIDS - 1) {
		if
		:: (vis & BIT(a_)) && lst[a_] != CUT && a_ > head -> head = a_
		:: else
		fi
	}
}

/* "one statement takes the lock, the next reads" */
inline lock_and_look(hide, above)
{
#ifdef ONE_SNAPSHOT
	d_step { snapshot_log(); read_head(); look_inbox(hide, above); stop = (finished == PRODUCERS); look_for_hint(); fid = 0; vis = 0 }
	LOCK_STREAM;
#else
	LOCK_STREAM;
#ifdef RETAIN
	d_step { snapshot_log(); look_inbox(hide, above); stop = (finished == PRODUCERS); look_for_hint() }
	d_step { read_head(); fid = 0; vis = 0 }
#else
	atomic {
		PARTS_FREE ->
		d_step {
			snapshot_log(); read_head(); look_inbox(hide, above); stop = (finished == PRODUCERS); look_for_hint();
			fid = 0; vis = 0; share_parts()
		}
	}
#endif
#endif
}

#define TAKEN(i) (lst[i] == UNC)   /* the primary key waits for the other's end */

inline insert_row(i, m)
{
	assert(lst[i] != VIS);     /* the primary key's loud error */
	lst[i] = UNC; lmsg[i] = m;
	printf("process %d inserts message %d with id %d\n", _pid, m, i)
}

inline move_inbox()
{
	if
	:: n == 0
	:: n > 0 ->
	   atomic {
		!TAKEN(head + 1) && (n < 2 || !TAKEN(head + 2)) && (n < 3 || !TAKEN(head + 3)) ->
		d_step {
			c_ = 0; d_ = arr;
			do
			:: d_ == 0 -> break
			:: else ->
			   b_ = NOBODY;
			   for (a_ : 0 .. NM - 1) {
				if
				:: (d_ & BIT(a_)) && (b_ == NOBODY || iseq[a_] < iseq[b_]) -> b_ = a_
				:: else
				fi
			   }
			   c_++;
			   insert_row(head + c_, b_);
			   d_ = d_ & ~BIT(b_)
			od;
			b_ = 0; c_ = 0
		}
	   }
	   /* the delete is a statement of its own, with a snapshot of its own */
#ifdef DELETE_RANGE
	   d_step {
		c_ = 0;
		for (a_ : 0 .. NM - 1) { if :: (arr & BIT(a_)) && iseq[a_] > c_ -> c_ = iseq[a_] :: else fi }
		for (a_ : 0 .. NM - 1) { if :: ist[a_] == VIS && iseq[a_] <= c_ -> arr = arr | BIT(a_) :: else fi }
		c_ = 0
	   }
#endif
	fi
}

/* rows head+1 .. head+count are this transaction's */
inline commit_rows(count)
{
	printf("process %d commits\n", _pid);
	for (c_ : head + 1 .. head + count) {
		lst[c_] = VIS;
		/* nothing appears at or below what was claimed or removed */
		assert(c_ > claimed && c_ >= first_id);
		/* no gap below a visible id */
		assert(c_ == 1 || c_ - 1 < first_id || (lst[c_ - 1] != NONE && lst[c_ - 1] != UNC));
		b_ = lmsg[c_];
		/* one id for a message */
		assert(!(hasid & BIT(b_)));
		/* what had returned before this one was called has a lower id */
		assert((before[b_] & ~hasid) == 0);
		hasid = hasid | BIT(b_)
	}
	for (a_ : 0 .. NM - 1) {
		if
		:: arr & BIT(a_) -> ist[a_] = GONE; iseq[a_] = 0
		:: else
		fi
	}
	b_ = 0; c_ = 0
}
inline drop_rows(count)
{
	printf("process %d rolls back\n", _pid);
	for (c_ : head + 1 .. head + count) { lst[c_] = NONE; lmsg[c_] = 0 }
	c_ = 0
}

/* ---- producers ----------------------------------------------------------- */

inline call(m)
{
	d_step { before[m] = committed; printf("produce of message %d is called\n", m) }
}

/* an insert into the inbox in a transaction that may stay open, commit or end */
inline through_inbox(m)
{
#ifdef PARTS
	d_step { part = current }
#endif
#ifndef CACHED_SEQUENCE
	d_step { seq++; iseq[m] = seq; printf("message %d draws seq %d\n", m, seq) }
#endif
#ifdef PARTS
	atomic { !pexcl[part] -> pused[part]++; ipart[m] = part; ist[m] = UNC; printf("message %d is inserted into part %d of the inbox\n", m, part) }
#else
	d_step { ist[m] = UNC; printf("message %d is inserted into the inbox\n", m) }
#endif
	if
	:: d_step {
		ist[m] = VIS; committed = committed | BIT(m); finished++;
		printf("message %d's transaction commits\n", m);
#ifdef RETRY
		batch_row[m] = VIS;
#endif
#ifdef PARTS
		pused[part]--
#endif
	   }
	:: d_step {               /* rolled back, or its connection died */
		ist[m] = NONE; iseq[m] = 0; finished++;
		printf("message %d's transaction rolls back\n", m);
#ifdef RETRY
		batch_row[m] = NONE;
#endif
#ifdef PARTS
		pused[part]--; ipart[m] = 0
#endif
	   }
#ifndef RETRY
	:: d_step { finished++; printf("message %d's transaction stays open for ever\n", m) }
#endif
	fi
}

proctype Inbox(byte m)
{
	byte part;
#ifdef CACHED_SEQUENCE
	d_step { seq++; iseq[m] = seq }
#endif
	call(m);
	through_inbox(m)
}

proctype Direct(byte m; bit again)
{
	byte head, fid, vis, n, arr, part, seen;
	bit more, parts_held, own, stop;

#ifdef RETRY
	/* sent a second time while the first may still be running */
	if
	:: again -> called
	:: else -> call(m); called = 1
	fi;
#ifndef NO_BATCH_ROW
	/* the batch's row comes before the stream's lock, so that nobody waits
	   for it with the lock in hand */
	atomic {
		batch_row[m] != UNC ->
		if
		:: batch_row[m] == VIS -> finished++; goto over
		:: else -> batch_row[m] = UNC
		fi
	}
#else
	d_step { batch_row[m] = UNC }
#endif
#else
	call(m);
#endif
#ifdef EITHER
	if
	:: true
	:: through_inbox(m); goto over
	fi;
#endif

#ifdef SEQUENCE_IDS
	atomic { head = id_seq; id_seq++; insert_row(head + 1, m); own = 1 }
#else
	lock_and_look(0, 0);
	move_inbox();
	if
#ifndef PAST_THE_INBOX
	:: more ->
	   d_step {
		seq++; iseq[m] = seq; ist[m] = UNC;
#ifdef PARTS
		ipart[m] = current
#endif
	   }
#endif
	:: else -> atomic { !TAKEN(head + n + 1) -> insert_row(head + n + 1, m); own = 1 }
	fi;
#endif
	if
	:: d_step {
		commit_rows(n + own);
		if :: !own -> ist[m] = VIS :: else fi;
		committed = committed | BIT(m);
		finished++;
#ifdef RETRY
		batch_row[m] = VIS;
#endif
		leave_parts(); unlock_stream()
	   }
	:: d_step {
		drop_rows(n + own);
		if :: !own -> ist[m] = NONE; iseq[m] = 0 :: else fi;
		finished++;
#ifdef RETRY
		batch_row[m] = NONE;
#endif
		leave_parts(); unlock_stream()
	   }
	fi;
over:	skip
}

/* ---- whoever moves the inbox --------------------------------------------- */

#ifdef FLOOR
#define ABOVE floor
#else
#define ABOVE 0
#endif

proctype Drain()
{
	byte head, fid, vis, n, arr, rollbacks, hide, floor, seen;
	bit more, parts_held, stop;

	do
	:: lock_and_look(hide, ABOVE);
#ifdef HINT
	   /* a look that left rows behind is no hint, nor is one whose drain
	      rolled back */
	   d_step {
#ifdef HINT_LATER
		look_for_hint();
#endif
#ifndef HINT_CLIPPED
		if :: more -> seen = hide :: else fi;
#endif
#ifdef HINT_BEFORE_COMMIT
		hide = seen;
#endif
		skip
	   }
#endif
	   if
	   :: n == 0 ->
	      d_step {
		if :: stop -> drained++ :: else fi;
#ifdef HINT
		hide = seen; seen = 0;
#endif
		leave_parts(); unlock_stream(); head = 0
	      }
	      if :: stop -> break :: else fi
	   :: else ->
	      move_inbox();
	      if
	      :: d_step {
#ifdef FLOOR
			for (a_ : 0 .. NM - 1) { if :: (arr & BIT(a_)) && iseq[a_] > floor -> floor = iseq[a_] :: else fi }
#endif
			commit_rows(n);
#ifdef HINT
			hide = seen; seen = 0;
#endif
			leave_parts(); unlock_stream(); head = 0; n = 0; arr = 0; more = 0
		 }
	      :: d_step {
			rollbacks < DRAIN_ROLLBACKS -> rollbacks++;
			drop_rows(n); seen = 0;
			leave_parts(); unlock_stream(); head = 0; n = 0; arr = 0; more = 0
		 }
	      fi
	   fi
	od
}

/* ---- the tailing consumer: claims up to the head ------------------------- */

#ifdef NO_TAIL
#define LATE true        /* only the last look, not the claims before it */
#else
#define LATE false
#endif

proctype Tail()
{
	byte head, fid, vis, hi;

	do
#ifndef NO_TAIL
	:: d_step { snapshot_log() }
	   d_step {
		read_head();
		hi = claimed;
		if
		:: head > claimed + CLAIM -> hi = claimed + CLAIM
		:: head > claimed && head <= claimed + CLAIM -> hi = head
		:: else
		fi;
		for (c_ : claimed + 1 .. hi) {
			/* seen, or told as lost to retention; what the snapshot does
			   not show is judged by first_id read again */
			assert(((vis & BIT(c_)) && lst[c_] != CUT) || c_ < first_id)
		}
		if :: hi > claimed -> printf("the group claims (%d, %d]\n", claimed, hi) :: else fi;
		claimed = hi; hi = 0; fid = 0; vis = 0; head = 0; c_ = 0
	   }
#endif
	:: atomic {
		finished == PRODUCERS && drained == DRAINS ->
		d_step {
			snapshot_log(); read_head();
			if
			:: claimed >= head || LATE ->
			   /* nothing is lost: all that committed has its id, and
			      every id was passed while visible */
			   assert((committed & ~hasid) == 0);
			   hi = 1
			:: else
			fi;
			fid = 0; vis = 0; head = 0
		}
		if :: hi == 1 -> break :: else fi
	   }
	od
}

/* ---- upkeep of the inbox's parts ----------------------------------------- */

#ifdef PARTS

/* a snapshot that still sees a row as waiting which a drain has moved since */
inline look_for_snapshots()
{
	old = 0;
#ifdef DUMP
#ifndef SNAPSHOT_IGNORED
	for (a_ : 0 .. NM - 1) {
		if
		:: dump_open && (dump_inbox & BIT(a_)) && ipart[a_] == p -> old = 1
		:: else
		fi
	}
#endif
#endif
}

inline count_part()
{
	rows = 0;
	printf("part %d is counted\n", p);
	for (a_ : 0 .. NM - 1) { if :: ist[a_] == VIS && ipart[a_] == p -> rows = 1 :: else fi }
}

proctype Upkeep()
{
	byte p, turns, cuts;
	bit rows, old;

	do
	:: turns < TURNS -> d_step { current = (current + 1) % PARTS; turns++; printf("part %d is current\n", current) }
	:: cuts < CUTS ->
	   cuts++;
	   if
	   :: p = 0
	   :: p = 1
#if PARTS > 2
	   :: p = 2
#endif
	   fi;
	   if
#ifndef CUT_CURRENT
	   :: p == current -> skip
#endif
	   :: else ->
#ifdef COUNT_BEFORE_LOCK
	      d_step { count_part() }
#endif
#ifdef SNAPSHOTS_BEFORE_LOCK
	      d_step { look_for_snapshots() }
#endif
	      if
	      :: atomic { pused[p] == 0 -> pexcl[p] = 1; printf("part %d is locked exclusively\n", p) };
		 d_step {
#ifndef COUNT_BEFORE_LOCK
			count_part();
#endif
#ifndef SNAPSHOTS_BEFORE_LOCK
			look_for_snapshots()
#endif
		 }
		 d_step {
			if
			:: rows || old
			:: else ->
			   printf("part %d is truncated\n", p);
			   for (a_ : 0 .. NM - 1) {
				if
				:: ipart[a_] == p && (ist[a_] == VIS || ist[a_] == GONE) -> ist[a_] = CUT
				:: else
				fi
			   }
			fi;
			pexcl[p] = 0
		 }
	      :: pused[p] > 0        /* NOWAIT */
	      fi
	   fi;
	   d_step { p = 0; rows = 0; old = 0 }
	:: break
	od
}
#endif

#ifdef DUMP
/* pg_dump: its snapshot first, the lock of each table later, then the rows */
proctype Dump()
{
	bit parts_held;
	d_step {
		dump_inbox = 0;
		for (a_ : 0 .. NM - 1) { if :: ist[a_] == VIS -> dump_inbox = dump_inbox | BIT(a_) :: else fi }
		dump_open = 1;
		printf("the dump takes its snapshot: waiting in the inbox %x (bits)\n", dump_inbox)
	}
	atomic { PARTS_FREE -> d_step { share_parts() } }
	d_step {
		/* each message is in the inbox or in the log of this snapshot */
		printf("the dump reads the inbox\n");
		for (a_ : 0 .. NM - 1) { assert(!(dump_inbox & BIT(a_)) || ist[a_] != CUT) }
		dump_inbox = 0; dump_open = 0; leave_parts()
	}
}
#endif

/* ---- retention ----------------------------------------------------------- */

#ifdef RETAIN
proctype Retention()
{
	byte head, fid, vis, up, rounds;

	do
	:: rounds < RETAIN ->
	   rounds++;
#ifdef NEWEST_REMOVED
	   d_step { snapshot_log(); read_head(); up = head + 1; fid = 0; vis = 0; head = 0 }
#else
#ifndef FIRST_ID_UNLOCKED
	   LOCK_STREAM;
#endif
	   d_step { snapshot_log(); read_head(); fid = 0; vis = 0; up = first_id }
	   do
	   :: up <= head -> up++
	   :: break
	   od;
	   skip;
	   d_step { first_id = up; head = 0; unlock_stream(); printf("retention commits first_id %d\n", up) }
#endif
	   if
	   :: d_step { printf("retention deletes the rows below %d\n", up); for (a_ : 1 .. up - 1) { if :: lst[a_] == VIS -> lst[a_] = GONE :: else fi } up = 0 }
#ifndef NEWEST_REMOVED
	   :: d_step { printf("retention truncates the rows below %d\n", up); for (a_ : 1 .. up - 1) { if :: lst[a_] == VIS || lst[a_] == GONE -> lst[a_] = CUT :: else fi } up = 0 }
#endif
	   fi
	:: break
	od
}
#endif

init {
	byte m;
	atomic {
#if DIRECT > 0
		for (m : 0 .. DIRECT - 1) { run Direct(m, 0) }
#endif
#if INBOX > 0
		for (m : DIRECT .. NM - 1) { run Inbox(m) }
#endif
#ifdef RETRY
		run Direct(0, 1);
#endif
#if DRAINS > 0
		for (m : 1 .. DRAINS) { run Drain() }
#endif
		run Tail();
#ifdef PARTS
		run Upkeep();
#endif
#ifdef DUMP
		run Dump();
#endif
#ifdef RETAIN
		run Retention();
#endif
		m = 0
	}
}
