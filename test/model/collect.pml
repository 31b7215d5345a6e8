/* collect.pml: how a task's status reaches the host.
 *
 * Covers: tasks that complete out of order and fail; the counter of failures, raised before the completion
 * [code: publishCompletion]; the mark [code: advanceMark]; the host that looks at any time [code: refresh] and reads
 * the statuses of the tasks behind the mark only when the counter has changed; the slot used again [code: ringSpace].
 *
 * Abstracts: claiming and tiles (tiles.pml): two workers complete the tasks that they take, any of which may fail.
 *
 * Proved: when the mark has passed a task and the host has looked, it knows whether the task failed.
 *
 * The counter may already count a task that the mark has not passed. A look that takes the new count for done with the
 * tasks behind the mark forgets that task's failure later (mutant ADOPT_COUNT): so statuses are read until the mark
 * has passed all that was submitted when the change was seen. */
#define N 4
#include "sequence.inc"

byte tail, taken, mark, failures;           /* numbers do not wrap here */
byte doneSeq[R]; bool doneFailed[R];        /* doneSeq: number + 1, so that 0 is none */
bool failed[N];                             /* ghost */

inline look() {
  now = mark;
  if
  :: now != seen ->
    count = failures;
#ifdef MUTANT_ADOPT_COUNT
    if :: count != known -> known = count; readUntil = now :: else fi;
#else
    if :: count != known -> known = count; readUntil = tail :: else fi;
#endif
    do
    :: seen < now ->
      d_step {
        if :: seen < readUntil -> remembered = doneFailed[seen % R] :: else -> remembered = false fi;
        assert(remembered == failed[seen]);
        remembered = false;
        seen++
      }
    :: else -> break
    od
  :: else
  fi
}

proctype host() {
  byte now, seen, known, count, readUntil; bool remembered;
  do
  :: tail < N && tail - seen < R -> tail++
  :: seen < mark -> look()
  :: seen == N -> break
  od
}

proctype worker() {
  byte n, m; bool fails;
end_idle:
  do
  :: atomic { taken < tail -> n = taken; taken++ };
    if :: fails = true :: fails = false fi;
    if :: fails -> failures++ :: else fi;
    d_step { failed[n] = fails; doneFailed[n % R] = fails; doneSeq[n % R] = n + 1 };
    do
    :: m = mark;
      if
      :: doneSeq[m % R] == m + 1 -> d_step { if :: mark == m -> mark = m + 1 :: else fi }
      :: else -> break
      fi
    od
  od
}

init { atomic { run host(); run worker(); run worker() } }
