/*
 * Breaking up: the message that kills its process is found, no neighbour dies.
 *
 * One process with two handlers at a time; it is started again whenever it dies.
 * The messages in POISON (bits) kill the process each time they run, at any
 * moment after their start. Each of the others may fail once by itself, so with
 * MAX_ATTEMPTS 2 a single expiry counted wrongly makes it a dead letter. A range
 * is one message here. What was held by a process that died has expired.
 *
 *   after MAX_RECLAIMS takeovers a range becomes a delivery that runs solo;
 *   after its first expiry a delivery is solo; the expiry of a delivery counts as
 *   an attempt only if it ran solo.
 */

#ifndef N
#define N 3
#endif
#ifndef POISON
#define POISON 10         /* bits 1 and 3 */
#endif
#ifndef MAX_RECLAIMS
#define MAX_RECLAIMS 2
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif

#define BIT(x) (1 << (x))

/* a message's way */
#define FRESH    0
#define RANGE    1        /* in a claim */
#define RANGE_X  2        /* the claim has expired */
#define PENDING  3        /* a delivery */
#define RUNNING  4
#define RUNNING_X 5
#define OK       6
#define DEAD     7

byte st[N + 1];
byte reclaims[N + 1];
byte attempt[N + 1];
byte solo;                /* deliveries that run solo */
byte failed;              /* failed by itself once */

byte item[2];             /* what each handler of the process has */
bit  started[2];
bit  alone;               /* the process holds a solo delivery */

#ifdef NEVER_SOLO
#define SOLO(m) false
#else
#define SOLO(m) (solo & BIT(m))
#endif

#define SETTLED(m) (st[m] == OK || st[m] == DEAD)
#if N == 2
#define ALL_SETTLED (SETTLED(1) && SETTLED(2))
#else
#define ALL_SETTLED (SETTLED(1) && SETTLED(2) && SETTLED(3))
#endif

#define FREE(m) (st[m] == FRESH || st[m] == RANGE_X || st[m] == PENDING || st[m] == RUNNING_X)

hidden byte a_;

inline attempt_failed(m)
{
	attempt[m]++;
	if
	:: attempt[m] >= MAX_ATTEMPTS ->
	   st[m] = DEAD; printf("message %d is a dead letter\n", m);
	   /* no neighbour does */
	   assert(POISON & BIT(m))
	:: else -> st[m] = PENDING
	fi
}

inline die()
{
	printf("the process dies\n");
	for (a_ : 0 .. 1) {
		if
		:: item[a_] && st[item[a_]] == RANGE -> st[item[a_]] = RANGE_X
		:: item[a_] && st[item[a_]] == RUNNING -> st[item[a_]] = RUNNING_X
		:: else
		fi;
		item[a_] = 0; started[a_] = 0
	}
	alone = 0
}

/* what the process may claim for a free handler */
#ifdef SOLO_BESIDE_OTHERS
#define MAY(m) (FREE(m) && !alone)
#else
#ifdef SOLO_CLAIMED_EARLY
#define MAY(m) (FREE(m) && !alone)
#else
/* a solo delivery only when nothing else runs or waits in the process */
#define MAY(m) (FREE(m) && !alone && (!(st[m] == PENDING && SOLO(m)) || item[1 - s] == 0))
#endif
#endif

proctype Handler(byte s)
{
	byte m;

end:	do
	:: item[s] == 0 ->
	   atomic {
		if
		:: item[s] == 0 && MAY(1) -> m = 1
		:: item[s] == 0 && MAY(2) -> m = 2
#if N > 2
		:: item[s] == 0 && MAY(3) -> m = 3
#endif
		:: ALL_SETTLED -> break
		fi;
		d_step {
			if
			:: st[m] == FRESH ->
			   st[m] = RANGE; item[s] = m
			:: st[m] == RANGE_X && reclaims[m] < MAX_RECLAIMS ->
			   reclaims[m]++; st[m] = RANGE; item[s] = m
			:: st[m] == RANGE_X && reclaims[m] >= MAX_RECLAIMS ->
			   printf("the range of %d is broken up\n", m);
			   reclaims[m] = 0; st[m] = PENDING; solo = solo | BIT(m)
			:: st[m] == RUNNING_X ->
			   if
#ifdef NEVER_SOLO
			   :: true -> attempt_failed(m)
#else
			   :: SOLO(m) -> attempt_failed(m)
#endif
			   :: else -> solo = solo | BIT(m); st[m] = PENDING
			   fi
			:: st[m] == PENDING ->
			   st[m] = RUNNING; item[s] = m;
			   if
			   :: SOLO(m) -> alone = 1; printf("message %d is claimed to run solo\n", m)
			   :: else
			   fi
			fi;
			if :: item[s] -> printf("handler %d has message %d\n", s, m) :: else fi;
			m = 0
		}
	   }
	:: d_step {
#ifdef SOLO_CLAIMED_EARLY
		/* claimed, and waiting for the others of the process to end */
		item[s] && !started[s] && (!(st[item[s]] == RUNNING && SOLO(item[s])) || item[1 - s] == 0) ->
#else
		item[s] && !started[s] ->
#endif
		started[s] = 1;
		printf("handler %d starts message %d\n", s, item[s])
	   }
	:: d_step {
		started[s] && (POISON & BIT(item[s])) -> die()
	   }
	:: d_step {
		started[s] && !(POISON & BIT(item[s])) ->
		printf("message %d succeeds\n", item[s]);
		if :: st[item[s]] == RUNNING && SOLO(item[s]) -> alone = 0 :: else fi;
		st[item[s]] = OK; solo = solo & ~BIT(item[s]);
		item[s] = 0; started[s] = 0
	   }
	:: d_step {
		started[s] && !(POISON & BIT(item[s])) && !(failed & BIT(item[s])) ->
		printf("message %d fails\n", item[s]);
		failed = failed | BIT(item[s]);
		if :: st[item[s]] == RUNNING && SOLO(item[s]) -> alone = 0 :: else fi;
		attempt_failed(item[s]);
		item[s] = 0; started[s] = 0
	   }
	od
}

init {
	atomic { run Handler(0); run Handler(1) };
	timeout ->
	d_step {
		/* the one that kills is found, the others succeed */
		for (a_ : 1 .. N) {
			assert(st[a_] == ((POISON & BIT(a_)) -> DEAD : OK))
		}
		a_ = 0
	}
}
