/*
 * A parallel group: claims, leases, results, takeover, break-up, redrive.
 *
 * The messages 1..N are in the log. Two instances claim ranges under the
 * group's lock, work, and record by token. Time is not modelled: any open claim
 * and any running delivery may have expired whenever somebody looks, and an
 * instance may go on at any later time with what it believes (frozen), forget
 * everything (crashed), or lose the answer of a transaction that committed.
 *
 * A statement is a step. A statement that waits for a row is two: its snapshot,
 * and its visit of the row, which reads the newest version and checks the
 * condition again, while everything else it reads is as old as its snapshot.
 *
 *   N, BATCH       messages, ids of a range
 *   ONE_INSTANCE   instead of two (it may still crash and come back)
 *   MAX_RECLAIMS   takeovers before a range is broken up
 *   MAX_ATTEMPTS   failures before a dead letter
 *   EFFECTS        handlers work in a transaction that carries the done mark
 *   SURRENDERS n   early ends of a range: the finished ones recorded, the rest free
 *   STALES n       ranges left because the lease is too short
 *   REDRIVES n     dead letters sent again
 *   SEEKS n        the cursor set back or forward, fencing
 *   CRASHES n      server crashes that undo the last asynchronous commits
 */

#ifndef N
#define N 3
#endif
#ifndef BATCH
#define BATCH 2
#endif
#ifndef MAX_RECLAIMS
#define MAX_RECLAIMS 1
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#ifndef SURRENDERS
#define SURRENDERS 0
#endif
#ifndef STALES
#define STALES 0
#endif
#ifndef REDRIVES
#define REDRIVES 0
#endif
#ifndef SEEKS
#define SEEKS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif

#define NONE   255
#define REST   1          /* where the second half of (0, 2] begins */
#define BIT(x) (1 << (x))
#define RANGE(l, h) ((BIT((h) + 1) - 1) & ~(BIT((l) + 1) - 1))

/* a delivery's state */
#define PENDING 1
#define RUNNING 2

/* what a claim's next takeover does about staleness */
#define STALE_ONCE  1     /* left once: taken over whole, not counted */
#define TAKEN_STALE 2
#define STALE_TWICE 3     /* left again: taken over in parts */

typedef Db {
	byte claimed;
	/* claim, by its low: open claims never overlap, which is checked */
	byte tok[N];          /* 0: no row */
	byte high[N];
	byte reclaims[N];
	byte stale[N];
	byte free;            /* claims that were surrendered, by low */
	/* delivery */
	byte del[N + 1];      /* 0: no row */
	byte dtok[N + 1];
	byte attempt[N + 1];
	byte solo;            /* by message */
	/* done: what left its open range, by message */
	byte done;
	byte dead;
	/* what the group would count as succeeded */
	byte succ;
};

Db db;
#if CRASHES > 0
Db disk;                  /* what a crash leaves, when on_disk */
bit on_disk;
byte crashes;
#endif

byte glock = NONE;        /* the group's lock */
byte rowx[N];             /* a claim's row locked for update: 1 */
byte rows[N];             /* and for share: by how many */
byte delx[N + 1];         /* a delivery's row locked */

byte held[2];             /* the token that an instance believes in */
byte saw[2];              /* the token of the row that it is about to visit */
byte surrenders, stales;

/* what a perfect observer knows */
byte acked_dead;          /* dead letters whose transaction returned */
byte discarded;           /* passed over by an operator's seek */
byte replayed;            /* handed out again by one; its dead letters stay */
#ifdef EFFECTS
byte effects;             /* messages whose handler's writes are committed */
bit  estart[2];
byte emsg[2], etok[2], eout[2];
bit  edel[2];
#define E_BUSY 1
#define E_OK   2
#define E_NO   3
#endif

hidden byte a_, c_, t_;

/* ---- tokens ----------------------------------------------------------------

   A token is never used twice. All that matters is who remembers it, so a row
   carries MINE(i) while instance i believes in it, LATE(i) while only the
   abandoned backend of a handler of i does, and ANON when nobody is left. */

#define MINE(i) ((i) + 1)
#define LATE(i) ((i) + 3)
#define ANON    5

inline rename_token(from, to)
{
	if :: saw[0] == from -> saw[0] = to :: else fi;
	if :: saw[1] == from -> saw[1] = to :: else fi;
	for (a_ : 0 .. N - 1) {
		if :: db.tok[a_] == from -> db.tok[a_] = to :: else fi;
		if :: db.dtok[a_ + 1] == from -> db.dtok[a_ + 1] = to :: else fi;
#if CRASHES > 0
		if :: disk.tok[a_] == from -> disk.tok[a_] = to :: else fi;
		if :: disk.dtok[a_ + 1] == from -> disk.dtok[a_ + 1] = to :: else fi
#endif
	}
	a_ = 0
}

inline forget_token()
{
#ifdef EFFECTS
	if
	:: held[i] && eout[i] == E_BUSY && etok[i] == MINE(i) ->
	   etok[i] = LATE(i); rename_token(MINE(i), LATE(i))
	:: held[i] && !(eout[i] == E_BUSY && etok[i] == MINE(i)) ->
	   rename_token(MINE(i), ANON)
	:: else
	fi;
#else
	if :: held[i] -> rename_token(MINE(i), ANON) :: else fi;
#endif
	held[i] = 0
}

/* a row for the claim of (l, h] */
inline new_claim(l, h, t)
{
	assert(db.tok[l] == 0);        /* open claims never overlap */
	db.tok[l] = t; db.high[l] = h
}

inline drop_claim(c)
{
	db.tok[c] = 0; db.high[c] = 0; db.reclaims[c] = 0; db.stale[c] = 0;
	db.free = db.free & ~BIT(c)
}

inline new_delivery(m, n)
{
	assert(db.del[m] == 0);        /* one row for a message */
	db.del[m] = PENDING; db.attempt[m] = n
}

inline drop_delivery(m)
{
	db.del[m] = 0; db.dtok[m] = 0; db.attempt[m] = 0; db.solo = db.solo & ~BIT(m)
}

inline on_disk_clear()
{
#if CRASHES > 0
	if
	:: on_disk ->
	   on_disk = 0;
	   disk.claimed = 0; disk.free = 0; disk.solo = 0; disk.done = 0; disk.dead = 0; disk.succ = 0;
	   for (a_ : 0 .. N - 1) {
		disk.tok[a_] = 0; disk.high[a_] = 0; disk.reclaims[a_] = 0; disk.stale[a_] = 0
	   }
	   for (a_ : 1 .. N) { disk.del[a_] = 0; disk.dtok[a_] = 0; disk.attempt[a_] = 0 }
	:: else
	fi
#else
	skip
#endif
}

/* a record that contains a dead letter commits synchronously, and with it all
   that was written before */
inline bury(m)
{
	db.dead = db.dead | BIT(m);
	acked_dead = acked_dead | BIT(m);
	printf("message %d is a dead letter\n", m);
#ifndef ASYNC_DEAD
	on_disk_clear()
#endif
}

inline fail(m, n)
{
	if
	:: n >= MAX_ATTEMPTS -> bury(m)
	:: else -> new_delivery(m, n)
	fi
}

/* ---- what holds after every commit ---------------------------------------- */

inline check()
{
	c_ = db.claimed;               /* committed */
	t_ = 0;                        /* ids in open claims */
	for (a_ : 0 .. N - 1) {
		if
		:: db.tok[a_] != 0 ->
		   assert(a_ < db.high[a_] && db.high[a_] <= db.claimed);
		   /* open claims, so leases too, never overlap */
		   assert((t_ & RANGE(a_, db.high[a_])) == 0);
		   t_ = t_ | RANGE(a_, db.high[a_]);
		   if :: a_ < c_ -> c_ = a_ :: else fi
		:: else
		fi
	}
	for (a_ : 1 .. N) {
		/* committed passes nothing without an outcome */
		assert(a_ > c_ || db.del[a_] || ((db.succ | db.dead | discarded) & BIT(a_)));
		/* nothing is lost: a message without an end is still to come, in an
		   open range, or a delivery */
		assert(a_ > db.claimed || db.del[a_] || ((db.succ | db.dead | discarded) & BIT(a_)) ||
		       (t_ & ~db.done & BIT(a_)));
		/* and in one place only */
		assert(!(db.del[a_] && (t_ & ~db.done & BIT(a_))))
	}
	c_ = 0; t_ = 0
}

/* ---- an instance ----------------------------------------------------------- */

#if N == 2
#define DONE_ALL (db.claimed == N && !db.tok[0] && !db.tok[1] && !db.del[1] && !db.del[2])
#define UNLOCKED (!rowx[0] && !rowx[1] && !rows[0] && !rows[1] && !delx[1] && !delx[2])
#else
#define DONE_ALL (db.claimed == N && !db.tok[0] && !db.tok[1] && !db.tok[2] && !db.del[1] && !db.del[2] && !db.del[3])
#define UNLOCKED (!rowx[0] && !rowx[1] && !rowx[2] && !rows[0] && !rows[1] && !rows[2] && !delx[1] && !delx[2] && !delx[3])
#endif

#define NOTHING  0
#define FRESH    1
#define TAKEOVER 2
#define DELIVER  3
#define REDELIVER 4

inline lock_group()
{
#ifndef NO_GROUP_LOCK
	atomic { glock == NONE -> glock = i; printf("instance %d has the group's lock\n", i) }
#else
	skip
#endif
}
inline unlock_group() { if :: glock == i -> glock = NONE :: else fi }

/* the snapshot of the claiming statement, and what it decides to claim */
inline choose()
{
	atomic {
		marks = db.done;
		if
		:: db.claimed < N ->
		   what = FRESH; lo = db.claimed;
		   if
		   :: lo + BATCH < N -> hi = lo + BATCH
		   :: else -> hi = N
		   fi
		:: db.tok[0] -> what = TAKEOVER; c = 0; saw[i] = db.tok[0]
		:: db.tok[1] -> what = TAKEOVER; c = 1; saw[i] = db.tok[1]
#if N > 2
		:: db.tok[2] -> what = TAKEOVER; c = 2; saw[i] = db.tok[2]
#endif
		:: db.del[1] == PENDING -> what = DELIVER; m = 1
		:: db.del[1] == RUNNING -> what = REDELIVER; m = 1; saw[i] = db.dtok[1]
		:: db.del[2] == PENDING -> what = DELIVER; m = 2
		:: db.del[2] == RUNNING -> what = REDELIVER; m = 2; saw[i] = db.dtok[2]
#if N > 2
		:: db.del[3] == PENDING -> what = DELIVER; m = 3
		:: db.del[3] == RUNNING -> what = REDELIVER; m = 3; saw[i] = db.dtok[3]
#endif
		:: else -> what = NOTHING
		fi
	}
}

/* SKIP LOCKED, and the condition once more on the newest version */
inline visit()
{
	atomic {
		if
		:: what == TAKEOVER ->
		   if
		   :: rowx[c] || rows[c] || db.tok[c] != saw[i] -> what = NOTHING
		   :: else -> rowx[c] = 1
		   fi
		:: what == REDELIVER ->
		   if
		   :: delx[m] || db.del[m] != RUNNING || db.dtok[m] != saw[i] -> what = NOTHING
		   :: else -> delx[m] = 1
		   fi
		:: what == DELIVER ->
		   if
		   :: delx[m] || db.del[m] != PENDING -> what = NOTHING
		   :: else -> delx[m] = 1
		   fi
		:: else
		fi
	}
}

inline open_rows()
{
	if
	:: what == TAKEOVER -> rowx[c] = 0
	:: what == REDELIVER || what == DELIVER -> delx[m] = 0
	:: else
	fi
}

inline reset()
{
	what = NOTHING; c = 0; m = 0; lo = 0; hi = 0; marks = 0; todo = 0; ok = 0; bad = 0; saw[i] = 0;
	forget_token()
}

/* what came of the handed-out messages, each in any way; drawn when it is first
   written down, as nothing depends on it before. part: some have not run */
inline results()
{
#ifndef EFFECTS
	ok = 0; bad = 0; b2 = 1;
	do
	:: b2 > N -> break
	:: b2 <= N && !(todo & BIT(b2)) -> b2++
	:: b2 <= N && (todo & BIT(b2)) -> ok = ok | BIT(b2); b2++
	:: b2 <= N && (todo & BIT(b2)) -> bad = bad | BIT(b2); b2++
	:: b2 <= N && (todo & BIT(b2)) && part -> b2++
	od;
	b2 = 0
#else
	skip
#endif
}

#ifdef EFFECTS
/* each handler in its transaction; one that does not answer in time is abandoned,
   and its transaction may still be on its way */
inline run_effects()
{
	b2 = 1;
	do
	:: b2 > N -> break
	:: b2 <= N && !(todo & BIT(b2)) -> b2++
	:: b2 <= N && (todo & BIT(b2)) && part -> b2++
	:: b2 <= N && (todo & BIT(b2)) ->
	   atomic {
		eout[i] != E_BUSY ->
		emsg[i] = b2; etok[i] = held[i]; edel[i] = (what == DELIVER);
		eout[i] = E_BUSY; estart[i] = 1;
		printf("instance %d starts the handler of %d\n", i, b2)
	   }
	   if
	   :: d_step { eout[i] == E_OK -> ok = ok | BIT(b2); eout[i] = 0 }
	   :: d_step { eout[i] == E_NO -> bad = bad | BIT(b2); eout[i] = 0 }
	   :: d_step { eout[i] == E_BUSY -> bad = bad | BIT(b2); printf("instance %d abandons the handler of %d\n", i, b2) }
	   :: goto forgot                         /* crashed */
	   fi;
	   b2++
	od;
	b2 = 0
}

inline backend_ends()
{
	if :: etok[i] == LATE(i) -> rename_token(LATE(i), ANON) :: else fi;
	etok[i] = 0
}

#ifdef CHECK_WITHOUT_ROW_LOCK
#define share(c)   skip
#define unshare(c) skip
#else
#define share(c)   rows[c]++
#define unshare(c) rows[c]--
#endif

/* the backend of a handler's transaction */
proctype Backend(byte i)
{
	byte c;
end:
	do
	:: atomic { estart[i] -> estart[i] = 0 };
	   /* the check comes last: lock the row that carries the token */
	   atomic {
		if
		:: edel[i] ->
		   if
		   :: !(db.del[emsg[i]] == RUNNING && db.dtok[emsg[i]] == etok[i]) -> c = NONE
		   :: delx[emsg[i]] == 0 && db.del[emsg[i]] == RUNNING && db.dtok[emsg[i]] == etok[i] ->
		      delx[emsg[i]] = 1
		   fi
		:: else ->
		   if
		   :: db.tok[0] == etok[i] && !rowx[0] -> c = 0; share(0)
		   :: db.tok[1] == etok[i] && !rowx[1] -> c = 1; share(1)
#if N > 2
		   :: db.tok[2] == etok[i] && !rowx[2] -> c = 2; share(2)
#endif
		   :: db.tok[0] != etok[i] && db.tok[1] != etok[i] && db.tok[N - 1] != etok[i] -> c = NONE
		   fi
		fi
	   }
	   if
	   :: c == NONE -> d_step { c = 0; backend_ends(); eout[i] = E_NO; printf("the handler of %d is refused\n", emsg[i]); emsg[i] = 0; edel[i] = 0 }
	   :: c != NONE ->
	      if
	      :: d_step {
			/* the effects of a message are there once */
			assert(!(effects & BIT(emsg[i])));
			effects = effects | BIT(emsg[i]);
			db.succ = db.succ | BIT(emsg[i]);
			printf("the handler's transaction for %d commits\n", emsg[i]);
			if
			:: edel[i] -> delx[emsg[i]] = 0; drop_delivery(emsg[i])
			:: else -> unshare(c); db.done = db.done | BIT(emsg[i])
			fi;
			on_disk_clear();
			c = 0; backend_ends(); eout[i] = E_OK; emsg[i] = 0; edel[i] = 0;
			check()
		 }
	      :: d_step {
			printf("the handler's transaction for %d rolls back\n", emsg[i]);
			if
			:: edel[i] -> delx[emsg[i]] = 0
			:: else -> unshare(c)
			fi;
			c = 0; backend_ends(); eout[i] = E_NO; emsg[i] = 0; edel[i] = 0
		 }
	      fi
	   fi
	od
}
#endif

proctype Instance(byte i)
{
	byte what, c, m, lo, hi, marks, todo, ok, bad, part, b2;

end:	do
	::
	   /* -- claim: one statement takes the group's lock, the next reads -- */
#ifdef GROUP_LOCK_ONE_SNAPSHOT
	   atomic { !DONE_ALL -> choose() }
	   lock_group();
#else
	   /* one step: a record that commits between the two might as well have
	      committed before the lock was taken */
	   atomic { !DONE_ALL && glock == NONE -> lock_group(); choose() }
#endif
	   if
	   :: what > FRESH -> visit()
	   :: else
	   fi;
	   if
	   :: what == NOTHING -> d_step { unlock_group(); reset() }
	   :: else ->
	      if
	      :: d_step {              /* rolled back */
			open_rows(); unlock_group(); reset()
		 }
	      :: what == FRESH ->
		 d_step {
			printf("instance %d claims (%d, %d]\n", i, lo, hi);
			held[i] = MINE(i);
			db.claimed = hi;
			new_claim(lo, hi, MINE(i));
			unlock_group(); check()
		 }
	      :: what == TAKEOVER ->
		 d_step {
			lo = c; hi = db.high[c];
			rowx[c] = 0;
			if
			:: db.reclaims[c] >= MAX_RECLAIMS && !(db.free & BIT(c)) && db.stale[c] != STALE_ONCE && db.stale[c] != STALE_TWICE ->
			   printf("instance %d breaks up (%d, %d]\n", i, lo, hi);
#ifndef BREAKUP_ONE_STATEMENT
			   /* a statement of its own: while the row is locked no mark
			      comes, and this one sees all that came before */
			   marks = db.done;
#endif
			   for (c_ : lo + 1 .. hi) {
				if
				:: marks & BIT(c_)
				:: else -> new_delivery(c_, 0); db.solo = db.solo | BIT(c_)
				fi
			   }
			   db.done = db.done & ~RANGE(lo, hi);
			   drop_claim(c);
			   what = NOTHING
			:: else ->
			   held[i] = MINE(i);
			   if
			   :: db.stale[c] == STALE_TWICE && hi > lo + 1 ->
			      /* the lower half; the rest as a range of its own, under
			         a token that nobody holds */
			      part = lo + (hi - lo) / 2;
#ifndef REST_KEEPS_TOKEN
			      new_claim(part, hi, ANON);
#else
			      saw[i] = db.tok[c];
			      new_claim(part, hi, saw[i]);
#endif
			      db.tok[c] = MINE(i);
			      db.reclaims[part] = db.reclaims[c];
			      db.free = db.free | BIT(part);
			      hi = part; db.high[c] = hi; db.stale[c] = 0; part = 0
			   :: else ->
			      db.tok[c] = MINE(i);
			      if
			      :: db.stale[c] == STALE_ONCE -> db.stale[c] = TAKEN_STALE
			      :: db.stale[c] == STALE_TWICE -> db.stale[c] = 0
			      :: else -> if :: db.free & BIT(c) :: else -> db.reclaims[c]++ fi
			      fi
			   fi;
			   db.free = db.free & ~BIT(c);
			   printf("instance %d takes over (%d, %d]\n", i, lo, hi)
			fi;
			c = 0; saw[i] = 0; unlock_group(); check()
		 }
	      :: what == DELIVER ->
		 d_step {
			printf("instance %d claims the delivery of %d\n", i, m);
			delx[m] = 0;
			held[i] = MINE(i);
			db.del[m] = RUNNING; db.dtok[m] = MINE(i);
			unlock_group(); check()
		 }
	      :: what == REDELIVER ->
		 d_step {
			printf("instance %d takes over the delivery of %d\n", i, m);
			delx[m] = 0; what = DELIVER; saw[i] = 0;
			if
			:: db.solo & BIT(m) -> db.attempt[m]++
			:: else -> db.solo = db.solo | BIT(m)
			fi;
			if
#ifdef RANGE_MARK_ENDS_DELIVERY
			:: db.done & BIT(m) ->
			   drop_delivery(m); what = NOTHING
#endif
			:: db.attempt[m] >= MAX_ATTEMPTS ->
			   drop_delivery(m); bury(m); what = NOTHING
			:: else ->
			   held[i] = MINE(i); db.dtok[m] = MINE(i)
			fi;
			unlock_group(); check()
		 }
	      fi;

	      /* -- read what was claimed, in a later transaction -- */
	      if
	      :: what == NOTHING
	      :: what == DELIVER ->
		 d_step {
			todo = BIT(m);
			/* recorded as success: not handed out again while the token stands */
			assert(!(db.dtok[m] == held[i] && (db.succ & BIT(m))))
		 }
	      :: else ->
		 d_step {
#ifdef MARKS_WITH_CLAIM
			todo = RANGE(lo, hi) & ~marks;
#else
#ifdef MARKS_IGNORED
			todo = RANGE(lo, hi);
#else
			todo = RANGE(lo, hi) & ~db.done;
#endif
#endif
			marks = 0; saw[i] = 0;
			what = FRESH;
			for (a_ : 0 .. N - 1) {
				assert(!(db.tok[a_] == held[i] && (todo & (db.succ | (db.dead & ~replayed)))))
			}
			a_ = 0
		 }
	      fi;

	      /* -- work, then record what came of it -- */
	      if
	      :: what == NOTHING
	      :: what != NOTHING -> goto forgot          /* crashed, or the answer was lost */
	      :: what != NOTHING ->
#ifdef EFFECTS
		 run_effects();
#endif
		 part = 0; goto again
#if SURRENDERS > 0
	      :: what == FRESH && surrenders < SURRENDERS ->
		 atomic { surrenders++; part = 1 }
#ifdef EFFECTS
		 run_effects();
#endif
		 goto again
#endif
#if STALES > 0
	      :: what == FRESH && stales < STALES ->
		 /* too little lease left: marked, and left to its expiry */
		 d_step {
			!rowx[lo] ->
			stales++;
			if
			:: db.tok[lo] == held[i] ->
			   printf("instance %d leaves (%d, %d] stale\n", i, lo, hi);
			   if
			   :: db.stale[lo] == TAKEN_STALE -> db.stale[lo] = STALE_TWICE
			   :: db.stale[lo] == 0 -> db.stale[lo] = STALE_ONCE
			   :: else
			   fi
			:: else
			fi
		 }
		 if
		 :: goto forgot
		 :: part = 1; goto again     /* on stopping, by its token */
		 fi
#endif
	      fi;
	      goto forgot;

	      /* -- a range's record, or its surrender (part) -- */
again:	      if
	      :: what == DELIVER -> goto delivery
	      :: else
	      fi;
#ifdef RECORD_ONE_STATEMENT
	      d_step { marks = db.done }                 /* the statement's snapshot */
#endif
	      atomic {                                   /* the row, after a wait */
		      if
#ifdef NO_TOKEN_CHECK
		      :: db.tok[lo] && !rowx[lo] && !rows[lo] -> rowx[lo] = 1; c = lo
		      :: !db.tok[lo] -> goto lost
#else
#ifdef REST_KEEPS_TOKEN
		      :: db.tok[lo] != held[i] && db.tok[REST] == held[i] && !rowx[REST] && !rows[REST] -> rowx[REST] = 1; c = REST
#endif
		      :: db.tok[lo] == held[i] && !rowx[lo] && !rows[lo] -> rowx[lo] = 1; c = lo
		      :: db.tok[lo] != held[i] -> goto lost
#endif
		      fi
	      }
	      if
	      :: atomic { results(); d_step {
#ifndef RECORD_ONE_STATEMENT
			/* the next statement; while the row is locked no mark comes */
			marks = db.done;
#endif
			printf("instance %d records (%d, %d]: ok %x, failed %x, part %d\n", i, lo, hi, ok, bad, part);
			/* a result whose token is gone changes nothing */
			assert(db.tok[c] == held[i]);
			rowx[c] = 0;
			db.succ = db.succ | (ok & ~marks);
			for (c_ : lo + 1 .. hi) {
				if
				:: bad & ~marks & BIT(c_) -> fail(c_, 1)
				:: else
				fi
			}
			if
			:: part && (RANGE(lo, hi) & ~(marks | ok | bad)) ->
#ifdef SURRENDER_MARKS_SUCCESS
			   db.done = db.done | ok;
#else
			   db.done = db.done | ok | bad;
#endif
			   db.free = db.free | BIT(c);
			   db.stale[c] = 0;
#ifndef SURRENDER_KEEPS_TOKEN
			   db.tok[c] = ANON
#endif
			:: else ->
			   db.done = db.done & ~RANGE(lo, hi);
			   drop_claim(c)
			fi;
			check()
		 } }
	      :: d_step { rowx[c] = 0 }                    /* rolled back */
	      fi;
	      goto recorded;

	      /* -- a delivery's record -- */
delivery:     atomic {
			!(db.dtok[m] == held[i] && db.del[m] == RUNNING) || !delx[m] ->
			if
			:: db.dtok[m] == held[i] && db.del[m] == RUNNING -> delx[m] = 1
#ifdef NO_TOKEN_CHECK
			:: db.del[m] == RUNNING && db.dtok[m] != held[i] && !delx[m] -> delx[m] = 1
#endif
			:: else -> goto lost
			fi
	      }
	      if
	      :: atomic { results(); d_step {
			printf("instance %d records the delivery of %d: ok %d\n", i, m, ok == BIT(m));
			assert(db.dtok[m] == held[i]);
			delx[m] = 0;
			if
			:: ok -> drop_delivery(m); db.succ = db.succ | BIT(m)
			:: else ->
			   c_ = db.attempt[m] + 1;
			   t_ = db.solo & BIT(m);
			   drop_delivery(m);
			   db.solo = db.solo | t_;
			   fail(m, c_);
			   if :: !db.del[m] -> db.solo = db.solo & ~BIT(m) :: else fi
			fi;
			check()
		 } }
	      :: d_step { delx[m] = 0 }
	      fi;

recorded:     /* the answer may be lost: then it is sent again by the same token */
	      if
	      :: goto again
	      :: goto forgot
	      fi;
lost:	      skip;
forgot:	      atomic { reset(); part = 0; b2 = 0;
#ifdef EFFECTS
			if :: eout[i] != E_BUSY -> eout[i] = 0 :: else fi
#endif
	      }
	   fi
	od
}

/* ---- the server, the operator ----------------------------------------------- */

#if CRASHES > 0
#define NO_TRANSACTION (glock == NONE && UNLOCKED)

/* A crash ends every open transaction; a transaction of an instance may roll back
   at any time, so it is enough to let the server crash when none is open. */
proctype Server()
{
	do
	:: d_step {
		!on_disk -> on_disk = 1;
		disk.claimed = db.claimed; disk.free = db.free; disk.solo = db.solo;
		disk.done = db.done; disk.dead = db.dead; disk.succ = db.succ;
		for (a_ : 0 .. N - 1) {
			disk.tok[a_] = db.tok[a_]; disk.high[a_] = db.high[a_];
			disk.reclaims[a_] = db.reclaims[a_]; disk.stale[a_] = db.stale[a_]
		}
		for (a_ : 1 .. N) {
			disk.del[a_] = db.del[a_]; disk.dtok[a_] = db.dtok[a_]; disk.attempt[a_] = db.attempt[a_]
		}
		printf("the log is on disk up to here\n")
	   }
	:: d_step {
		on_disk && NO_TRANSACTION && crashes < CRASHES -> crashes++;
		db.claimed = disk.claimed; db.free = disk.free; db.solo = disk.solo;
		db.done = disk.done; db.dead = disk.dead; db.succ = disk.succ;
		for (a_ : 0 .. N - 1) {
			db.tok[a_] = disk.tok[a_]; db.high[a_] = disk.high[a_];
			db.reclaims[a_] = disk.reclaims[a_]; db.stale[a_] = disk.stale[a_]
		}
		for (a_ : 1 .. N) {
			db.del[a_] = disk.del[a_]; db.dtok[a_] = disk.dtok[a_]; db.attempt[a_] = disk.attempt[a_]
		}
		on_disk_clear();
		printf("the server crashes and comes back as it was then\n");
		/* never undone: dead letters, and what a handler's transaction did */
		assert(db.dead == acked_dead);
#ifdef EFFECTS
		assert((effects & ~db.succ) == 0);
#endif
		check()
	   }
	:: d_step { on_disk_clear() } break
	od
}
#endif

#if REDRIVES > 0 || SEEKS > 0
proctype Operator()
{
	byte n, k, to;

	do
#if REDRIVES > 0
	:: n < REDRIVES && db.dead ->
	   n++;
	   atomic { glock == NONE -> glock = 2 };
	   d_step {
		c_ = 1;
		do
		:: db.dead & BIT(c_) -> break
		:: else -> c_++
		od;
		printf("message %d is redriven\n", c_);
		db.dead = db.dead & ~BIT(c_); acked_dead = acked_dead & ~BIT(c_);
#ifndef REDRIVEN_BESIDE_REPLAY
		/* after a seek back it may be on its way already */
		to = db.claimed < c_ || db.del[c_];
		for (a_ : 0 .. N - 1) {
			to = to || (db.tok[a_] && (RANGE(a_, db.high[a_]) & ~db.done & BIT(c_)))
		}
		if :: to :: else -> new_delivery(c_, 0); db.succ = db.succ & ~BIT(c_) fi;
		to = 0;
#else
		new_delivery(c_, 0);
#endif
		on_disk_clear();
		glock = NONE; check()
	   }
#endif
#if SEEKS > 0
	:: k < SEEKS ->
	   k++;
	   if
	   :: to = 0
	   :: to = 1
	   :: to = N
	   fi;
	   atomic { glock == NONE -> glock = 2 };
#ifdef SEEK_ONE_STATEMENT
	   d_step { c_ = 0; to = to | (db.done << 4) }
#define SEEK_MARKS (to >> 4)
#define SEEK_TO    (to & 15)
#else
#define SEEK_MARKS db.done
#define SEEK_TO    to
#endif
	   /* the claims' and the deliveries' rows, after a wait: fences the tokens */
	   atomic {
		UNLOCKED ->
		d_step {
			for (c_ : 0 .. N - 1) { rowx[c_] = 1; delx[c_ + 1] = 1 }
			c_ = 0
		}
	   }
	   /* the next statement: marks */
	   d_step {
		printf("seek to %d\n", SEEK_TO);
		for (c_ : 0 .. N - 1) { rowx[c_] = 0; drop_claim(c_) }
		db.done = db.done & ~SEEK_MARKS;
		for (c_ : 1 .. N) {
			delx[c_] = 0;
			if
			:: c_ > SEEK_TO ->
			   if :: db.del[c_] -> drop_delivery(c_) :: else fi;
			   /* to be handed out again */
			   db.succ = db.succ & ~BIT(c_);
			   discarded = discarded & ~BIT(c_);
			   replayed = replayed | BIT(c_);
#ifdef EFFECTS
			   effects = effects & ~BIT(c_)
#endif
			:: else ->
			   if
			   :: db.del[c_] || ((db.succ | db.dead) & BIT(c_))
			   :: else -> discarded = discarded | BIT(c_)
			   fi
			fi
		}
		db.claimed = SEEK_TO;
		on_disk_clear();
		to = 0; c_ = 0; glock = NONE; check();
		/* a mark that survives would hide its message from the replay */
		assert((db.done & RANGE(db.claimed, N)) == 0)
	   }
#endif
	:: break
	od
}
#endif

init {
	atomic {
		run Instance(0);
#ifdef EFFECTS
		run Backend(0);
#endif
#ifndef ONE_INSTANCE
		run Instance(1);
#ifdef EFFECTS
		run Backend(1);
#endif
#endif
#if CRASHES > 0
		run Server();
#endif
#if REDRIVES > 0 || SEEKS > 0
		run Operator();
#endif
	};
	/* when nothing can happen any more, each message has an end */
	timeout ->
	d_step {
		assert(DONE_ALL);
		for (a_ : 1 .. N) { assert((db.succ | db.dead | discarded) & BIT(a_)) }
		a_ = 0
	}
}
