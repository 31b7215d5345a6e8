/* park.pml: sleeping and waking workers, and shutdown.
 *
 * Covers: a worker that announces itself, looks again and sleeps on the doorbell value read before [code: park]
 * [code: run]; the host that writes a task and rings only when somebody is announced, waking one sleeper a tile
 * [code: ringDoorbell]; the host that takes tasks itself while it waits [code: help] and then does not wait any
 * more, so that the workers have to find the rest; a look that loses a race and must not count as "nothing"
 * [code: claimTile] [code: step]; a task that waits for its dependency, for which no bell will ring
 * [code: dependenciesDone]; shutdown at any moment, in the middle of tasks [code: stop] [code: shutdown], and what becomes of
 * the tasks that nobody began.
 *
 * Abstracts: tiles, slots and completion words (tiles.pml): a claim is one exchange of the cursor. The sleep has no
 * time-out here, so the proof does not lean on it. A worker that found a waiting task naps, and wakes by itself: here it
 * blocks until the dependency is done, or something else changed.
 *
 * Proved: no wake-up is lost (a task is there, everybody sleeps: an invalid end state); every task ends exactly once,
 * run or cancelled; shutdown ends every worker; no endless cycle. */
#ifndef N
#define N 3
#endif
#define WORKERS 2
#define DEPENDENT(n) ((n) == 1)             /* on task n - 1 */
#define NOTHING 0
#define WAITING 1
#define RAN 2

byte tail, cursor, doorbell, parked, left;
bool quit, asleep[WORKERS + 1], done[N];
byte ended[N];                              /* ghost */

inline step(result) {
  do
  :: c = cursor;
    if
    :: tail <= c -> result = NOTHING; break
    :: else ->
      if
      :: DEPENDENT(c) && !done[c - 1] ->
        if :: cursor == c -> result = WAITING; break :: else fi
      :: else ->
        d_step { won = false; if :: cursor == c -> cursor = c + 1; won = true :: else fi };
        if
        :: won ->
          ended[c]++;
          assert(ended[c] == 1);
          done[c] = true;
          result = RAN;
          break
#ifdef MUTANT_LOST_RACE_IS_NOTHING
        :: else -> result = NOTHING; break
#else
        :: else
#endif
        fi
      fi
    fi
  od
}

inline notifyOne() {
  if
  :: asleep[1] -> asleep[1] = false
  :: asleep[2] -> asleep[2] = false
  :: !asleep[1] && !asleep[2]
  fi
}

inline ringDoorbell() {
  if
  :: parked > 0 ->
#ifndef MUTANT_NOTIFY_ONLY
    doorbell++;
#endif
    atomic { notifyOne() }
  :: else
  fi
}

proctype host() {
  byte n, c, found; bool won;
  do
  :: n < N ->
    tail = n + 1;
    ringDoorbell();
    n++
  :: else -> break
  od;
  if
  :: do                                     /* waits for the first task, and helps meanwhile */
    :: done[0] -> break
    :: !done[0] ->
      step(found);
      if :: found != RAN -> done[0] || cursor < tail && !DEPENDENT(cursor) :: else fi
    od;
    if
    :: true -> done[N - 1] && done[N - 2]    /* then only looks: the workers have to do the rest */
    :: true                                 /* or shuts down */
    fi
  :: true
  fi;
#ifdef MUTANT_CANCEL_BEFORE_LEFT
  c = cursor;
#endif
  quit = true;
#ifndef MUTANT_QUIT_UNRUNG
  doorbell++;
#endif
  d_step { asleep[1] = false; asleep[2] = false };
#ifndef MUTANT_CANCEL_BEFORE_LEFT
  left == WORKERS;
  c = cursor;
#endif
  do
  :: c < N -> ended[c]++; c++               /* cancelled */
  :: else -> break
  od;
  left == WORKERS;
  d_step {
    n = 0;
    do :: n < N -> assert(ended[n] == 1); n++ :: else -> break od;
    skip
  }
}

inline waitForDependency() {
  if :: quit :: cursor != c :: DEPENDENT(c) && done[c - 1] fi
}

proctype worker(byte me) {
  byte c, found, bell; bool won;
  do
  :: quit -> break
  :: !quit ->
    step(found);
    if :: found == RAN -> skip
    :: else ->
#ifndef MUTANT_BELL_READ_LATE
      bell = doorbell;
#endif
#ifndef MUTANT_ANNOUNCE_LATE
      parked++;
#endif
      step(found);
#ifdef MUTANT_SLEEP_WHILE_WAITING
      if :: found == WAITING -> found = NOTHING :: else fi;
#endif
#ifdef MUTANT_BELL_READ_LATE
      bell = doorbell;
#endif
#ifdef MUTANT_ANNOUNCE_LATE
      parked++;
#endif
      if
      :: found == NOTHING && !quit ->
        atomic { if :: doorbell == bell -> asleep[me] = true :: else fi };
        !asleep[me]
      :: found == WAITING && !quit -> waitForDependency()
      :: else
      fi;
      parked--
    fi
  od;
  left++
}

init { atomic { run host(); run worker(1); run worker(2) } }
