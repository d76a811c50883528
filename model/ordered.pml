/*
 * Ordered keys: one of a key at a time, in the order of ids.
 *
 * The messages 1..N are in the log; those in KEYED (bits) have one key, the
 * others have none and only keep a range open. A claim that covers the key
 * stores its hash. A later claim that finds the hash in an open claim, or a
 * delivery of the key that is not resolved, turns its messages of the key into
 * waiting deliveries. Whoever resolves one wakes the lowest waiting one, under
 * the group's lock, once the resolution is visible.
 *
 * Such a group commits synchronously, so the server's crashes undo nothing. A
 * lease runs out only for an instance that crashed or is frozen; a handler that
 * outlives its lease is not counted as running.
 *
 *   N, BATCH, KEYED, MAX_ATTEMPTS
 *   FREEZES n      instances frozen past their lease
 *   CRASH          instances may crash; SWEEP repairs what a crash left waiting
 *   BREAK_UP       an expired range is broken up instead of taken over
 *   REDRIVES n     dead letters sent again, out of order
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
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#ifndef FREEZES
#define FREEZES 0
#endif
#ifndef REDRIVES
#define REDRIVES 0
#endif

#define NONE   255
#define BIT(x) (1 << (x))
#define RANGE(l, h) ((BIT((h) + 1) - 1) & ~(BIT((l) + 1) - 1))
#define EVERY  (RANGE(0, N))

#define PENDING 1
#define RUNNING 2
#define WAITING 3

byte claimed;
byte tok[N];              /* claims by their low; 0: no row */
byte high[N];
byte hashes;              /* claims that hold the key's hash, by low */
byte del[N + 1];
byte dtok[N + 1];
byte attempt[N + 1];
byte done, dead, succ;    /* by message */

byte glock = NONE;
byte held[2];
bit  frozen[2];
byte freezes, redrives;

/* what a perfect observer knows */
byte running;             /* messages of the key whose handler runs in its lease */
byte redriven;            /* flagged: out of order */

hidden byte a_, c_, t_;

/* tokens are never used twice: what matters is who still believes in one */
#define MINE(i) ((i) + 1)
#define ANON    5
#define EXPIRED(t) ((t) == ANON || ((t) == MINE(1 - i) && frozen[1 - i]))

#define CLAIM_DUE(l)    (tok[l] && EXPIRED(tok[l]))
#define DELIVERY_DUE(x) (del[x] == PENDING || (del[x] == RUNNING && EXPIRED(dtok[x])))

/* what an instance has claimed */
#define NOTHING   0
#define FRESH     1
#define TAKEOVER  2
#define DELIVER   3

#define HELD(x)  ((KEYED & BIT(x)) && (del[x] == PENDING || del[x] == RUNNING))
#if N == 3
#define KEY_HELD (hashes || HELD(1) || HELD(2) || HELD(3))
#define KEY_WAITS (del[1] == WAITING || del[2] == WAITING || del[3] == WAITING)
#else
#define KEY_HELD (hashes || HELD(1) || HELD(2) || HELD(3) || HELD(4))
#define KEY_WAITS (del[1] == WAITING || del[2] == WAITING || del[3] == WAITING || del[4] == WAITING)
#endif

inline drop_claim(c)
{
	tok[c] = 0; high[c] = 0; hashes = hashes & ~BIT(c)
}
inline drop_delivery(m)
{
	del[m] = 0; dtok[m] = 0; attempt[m] = 0
}
inline fail(m, n)
{
	if
	:: n >= MAX_ATTEMPTS -> dead = dead | BIT(m); printf("message %d is a dead letter\n", m)
	:: else -> del[m] = PENDING; dtok[m] = 0; attempt[m] = n
	fi
}

inline forget()
{
	for (a_ : 0 .. N - 1) {
		if :: held[i] && tok[a_] == MINE(i) -> tok[a_] = ANON :: else fi;
		if :: held[i] && dtok[a_ + 1] == MINE(i) -> dtok[a_ + 1] = ANON :: else fi
	}
	held[i] = 0; frozen[i] = 0;
	what = NOTHING; lo = 0; hi = 0; m = 0; todo = 0; ok = 0; bad = 0; blocked = 0; early = 0; key = 0;
	a_ = 0
}

/* the lowest that waits, if the key is in nobody's hands: an open claim's, or those
   of a delivery that runs or retries */
inline wake_one()
{
	if
	:: KEY_HELD || !KEY_WAITS
	:: else ->
	   c_ = 1;
	   do
	   :: del[c_] == WAITING -> break
	   :: else -> c_++
	   od;
	   del[c_] = PENDING; printf("message %d is woken\n", c_);
	   c_ = 0
	fi
}

inline wake()
{
#ifdef WAKE_UNLOCKED
	d_step { wake_one() }
#else
	atomic { glock == NONE -> d_step { wake_one() } }
#endif
}

#define ALL_ENDED ((succ | dead) == EVERY && claimed == N && !tok[0] && !tok[1] && !tok[2] && !tok[N - 1])

proctype Instance(byte i)
{
	byte what, lo, hi, m, todo, ok, bad;
	bit blocked, early, key;

end:	do
	::
	   /* -- claim: one statement takes the group's lock; the next sees claims and
	      deliveries in one snapshot. What it saw may be resolved before it
	      commits: that is why wakers take the lock. -- */
	   atomic {
		glock == NONE && (claimed < N || CLAIM_DUE(0) || CLAIM_DUE(1) || CLAIM_DUE(2) || CLAIM_DUE(N - 1) ||
			DELIVERY_DUE(1) || DELIVERY_DUE(2) || DELIVERY_DUE(3) || DELIVERY_DUE(N)) ->
		if
		:: claimed < N ->
		   what = FRESH; lo = claimed;
		   if
		   :: lo + BATCH < N -> hi = lo + BATCH
		   :: else -> hi = N
		   fi
		:: CLAIM_DUE(0) -> what = TAKEOVER; lo = 0
		:: CLAIM_DUE(1) -> what = TAKEOVER; lo = 1
		:: CLAIM_DUE(2) -> what = TAKEOVER; lo = 2
#if N > 3
		:: CLAIM_DUE(3) -> what = TAKEOVER; lo = 3
#endif
		:: DELIVERY_DUE(1) -> what = DELIVER; m = 1
		:: DELIVERY_DUE(2) -> what = DELIVER; m = 2
		:: DELIVERY_DUE(3) -> what = DELIVER; m = 3
#if N > 3
		:: DELIVERY_DUE(4) -> what = DELIVER; m = 4
#endif
		fi;
		glock = i;
#ifdef TWO_SNAPSHOTS
		/* deliveries first, claims by the statement after */
		blocked = KEY_WAITS || HELD(1) || HELD(2) || HELD(3) || HELD(N)
#else
#ifdef WAITING_IGNORED
		blocked = KEY_HELD
#else
		blocked = KEY_WAITS || KEY_HELD
#endif
#endif
	   }
#ifdef TWO_SNAPSHOTS
	   d_step { blocked = blocked || hashes }
#endif
	   if
	   :: what == FRESH ->
	      d_step {
		printf("instance %d claims (%d, %d]\n", i, lo, hi);
		claimed = hi;
		held[i] = MINE(i); tok[lo] = MINE(i); high[lo] = hi;
		for (c_ : lo + 1 .. hi) {
			if
			:: (KEYED & BIT(c_)) && blocked ->
			   del[c_] = WAITING; done = done | BIT(c_); printf("message %d waits\n", c_)
			:: (KEYED & BIT(c_)) && !blocked -> hashes = hashes | BIT(lo)
			:: else
			fi
		}
		c_ = 0; glock = NONE
	      }
	   :: what == TAKEOVER ->
	      d_step {
		if
		:: CLAIM_DUE(lo) ->
		   hi = high[lo];
#ifdef BREAK_UP
		   printf("instance %d breaks up (%d, %d]\n", i, lo, hi);
		   t_ = 0;
		   for (c_ : lo + 1 .. hi) {
			if
			:: done & BIT(c_)
			:: !(done & BIT(c_)) && (KEYED & BIT(c_)) && t_ -> del[c_] = WAITING
			:: else ->
			   del[c_] = PENDING;
			   if :: KEYED & BIT(c_) -> t_ = 1 :: else fi
			fi
		   }
		   t_ = 0;
		   done = done & ~RANGE(lo, hi);
		   drop_claim(lo);
		   what = NOTHING
#else
		   printf("instance %d takes over (%d, %d]\n", i, lo, hi);
		   held[i] = MINE(i); tok[lo] = MINE(i)
#endif
		:: else -> what = NOTHING
		fi;
		c_ = 0; glock = NONE
	      }
	   :: what == DELIVER ->
	      d_step {
		if
		:: DELIVERY_DUE(m) ->
		   printf("instance %d claims the delivery of %d\n", i, m);
		   del[m] = RUNNING; dtok[m] = MINE(i); held[i] = MINE(i)
		:: else -> what = NOTHING
		fi;
		glock = NONE
	      }
	   fi;
	   if
	   :: what == NOTHING -> goto forgot
#ifdef CRASH
	   :: what != NOTHING -> goto forgot
#endif
	   :: what == DELIVER -> todo = BIT(m) & KEYED
	   :: what == FRESH || what == TAKEOVER -> atomic { what = FRESH; m = lo + 1; todo = RANGE(lo, hi) & ~done & KEYED }
	   fi;

	   /* -- the key's handlers, in line -- */
	   do
	   :: m > N || (todo & RANGE(m - 1, N)) == 0 || bad -> break
	   :: m <= N && !bad && (todo & RANGE(m - 1, N)) && !(todo & BIT(m)) -> m++
	   :: m <= N && !bad && (todo & BIT(m)) ->
	      if
	      :: frozen[i] -> goto forgot        /* too little lease to start */
	      :: d_step {
			!frozen[i] ->
			printf("instance %d starts %d\n", i, m);
			/* no two of the key at once */
			assert(running == 0);
			/* every lower one has a success or is dead */
			for (a_ : 1 .. N) {
				assert(a_ >= m || !(KEYED & BIT(a_)) || ((redriven | succ | dead | ok) & BIT(a_)) || (redriven & BIT(m)))
			}
			a_ = 0;
			running = BIT(m)
		 }
	      fi;
	      if
	      :: d_step { ok = ok | BIT(m); running = running & (frozen[i] * 255 | ~BIT(m)); printf("instance %d: %d succeeds\n", i, m) }
	      :: d_step { bad = bad | BIT(m); running = running & (frozen[i] * 255 | ~BIT(m)); printf("instance %d: %d fails\n", i, m) }
#ifdef CRASH
	      :: d_step { running = running & (frozen[i] * 255 | ~BIT(m)); printf("instance %d crashes\n", i) } goto forgot
#endif
#if FREEZES > 0
	      :: d_step {
			!frozen[i] && freezes < FREEZES -> freezes++;
			frozen[i] = 1; running = running & ~BIT(m);
			printf("instance %d is frozen\n", i)
		 }
		 if
		 :: atomic { ok = ok | BIT(m) }
		 :: atomic { bad = bad | BIT(m) }
		 fi
#endif
	      fi;
	      if :: what == FRESH -> m++ :: else -> break fi
	   od;

	   if
	   :: what == DELIVER -> goto delivery
	   :: else
	   fi;
	   m = 0;
	   if
	   :: early = 0
	   :: (hashes & BIT(lo)) && (RANGE(lo, hi) & ~KEYED) -> early = 1     /* the key's part, before the rest */
	   fi;

	   /* -- a range's record, whole or the key's part of it -- */
range:
#ifdef WAKE_FIRST
	   wake();
#endif
	   atomic {
		if
		:: tok[lo] != held[i] -> goto forgot
		:: tok[lo] == held[i] ->
		   d_step {
			printf("instance %d records (%d, %d]: ok %x, failed %x, key only %d\n", i, lo, hi, ok, bad, early);
			succ = succ | ok;
			key = (hashes & BIT(lo)) != 0;
			for (c_ : lo + 1 .. hi) {
				if
				:: bad & BIT(c_) -> fail(c_, 1)
				/* the rest of the key, not started */
				:: todo & ~(ok | bad) & BIT(c_) -> del[c_] = WAITING; printf("message %d waits\n", c_)
				:: else
				fi
			}
			c_ = 0;
			if
			:: early -> done = done | todo; hashes = hashes & ~BIT(lo); todo = 0; ok = 0; bad = 0
			:: else ->
			   succ = succ | (RANGE(lo, hi) & ~KEYED);
			   done = done & ~RANGE(lo, hi);
			   drop_claim(lo)
			fi
		   }
		fi
	   }
#ifdef CRASH
	   if
	   :: true
	   :: goto forgot
	   fi;
#endif
#ifndef WAKE_FIRST
	   /* whoever resolved something of the key */
	   if
	   :: key -> wake()
	   :: else
	   fi;
#endif
	   if
	   :: early ->
	      atomic { early = 0; key = 0 }
#ifdef CRASH
	      if :: goto range :: goto forgot fi
#else
	      goto range
#endif
	   :: else -> goto forgot
	   fi;

	   /* -- a delivery's record -- */
delivery:
#ifdef WAKE_FIRST
	   wake();
#endif
	   atomic {
		if
		:: !(del[m] == RUNNING && dtok[m] == held[i]) -> goto forgot
		:: del[m] == RUNNING && dtok[m] == held[i] ->
		   d_step {
			printf("instance %d records the delivery of %d: failed %d\n", i, m, bad != 0);
			if
			:: bad -> c_ = attempt[m] + 1; drop_delivery(m); fail(m, c_); c_ = 0
			:: else -> drop_delivery(m); succ = succ | BIT(m)
			fi;
			redriven = redriven & ~(succ | dead)
		   }
		fi
	   }
#ifdef CRASH
	   if
	   :: true
	   :: goto forgot
	   fi;
#endif
#ifndef WAKE_FIRST
	   wake();
#endif
forgot:	   atomic { d_step { forget() } }
	od
}

#ifdef SWEEP
/* waiting rows whose predecessor is gone */
active proctype Sweep()
{
end:	do
	:: atomic {
		glock == NONE && KEY_WAITS && !KEY_HELD ->
		d_step { wake_one() }
	   }
	od
}
#endif

#if REDRIVES > 0
/* a redriven message takes its turn: it waits while the key is in somebody's hands */
active proctype Operator()
{
	do
	:: redrives < REDRIVES && (dead & KEYED) ->
	   redrives++;
	   atomic {
		glock == NONE ->
		d_step {
			c_ = 1;
			do
			:: dead & KEYED & BIT(c_) -> break
			:: else -> c_++
			od;
			printf("message %d is redriven\n", c_);
			dead = dead & ~BIT(c_);
			redriven = redriven | BIT(c_);
#ifdef REDRIVEN_AT_ONCE
			del[c_] = PENDING;
#else
			del[c_] = WAITING;
			wake_one();
#endif
			c_ = 0
		}
	   }
	:: break
	od
}
#endif

init {
	atomic { run Instance(0); run Instance(1) };
	timeout ->
	/* nobody waits for ever */
	assert(ALL_ENDED)
}
