/* tiles.pml: tasks of several tiles.
 *
 * Covers: claiming tile by tile through the cursor [code: step] [code: claimTile] [code: advanceCursor], helping a
 * cursor that its claimer has not moved yet [code: help], a failing tile [code: finishTile], completion by whoever
 * sees the last tile done [code: publishCompletion] [code: advanceMark], the publisher that stalls until its slot
 * serves a later task (ABA), a failed dependency read before its slot is used again [code: dependenciesDone], a
 * barrier between tasks, the full ring [code: ringSpace], tile words left over from tasks long past
 * [code: writeDescriptor] (configuration LONG: one worker, a sequence space that wraps under the same word).
 *
 * Abstracts: the reading of a descriptor (ring.pml); what a function does (it fails or not); parking (park.pml).
 *
 * Proved: no tile runs twice or never, no task ends twice, early or with another status than its first failing
 * tile's, nothing runs on the output of a failed task, no deadlock, no endless cycle. */
#ifdef LONG
#define S 8
#define N 9
#define WORKERS 1
#define TILES(n) ((n) == 0 || (n) == 6 || (n) == 8 -> 2 : 1)
#define BARRIER(n) (0)
#define DEPENDENT(n) (0)
#define FAILS(n, t) OK
#define EXPECTED(n) OK
#else
#ifndef N
#define N 5
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#define TILES(n) ((n) == 0 || (n) == 3 -> 2 : 1)
#define BARRIER(n) ((n) == 2)
#define DEPENDENT(n) ((n) == 1 || (n) == 4)
#define FAILS(n, t) ((n) == 0 && (t) == 1 -> FAILED : OK)
#define EXPECTED(n) ((n) == 0 -> FAILED : ((n) == 1 -> SKIPPED : OK))
#endif
#include "sequence.inc"
#include "executor.inc"

inline collect(n) {
  assert(completion[SLOT(SEQ(n))] == COMPLETION(SEQ(n), EXPECTED(n)))
}

proctype host() {
  byte n, i;
  do
  :: n < N ->
    RING_SPACE(SEQ(n));
    if :: n >= R -> collect(n - R) :: else fi;
    writeDescriptor(n, i);
    n++
  :: else -> break
  od;
  mark == SEQ(N);
  d_step {
    collect(N - 1); collect(N - 2);
    n = 0;
    do :: n < N -> assert(ended[n] == 1); n++ :: else -> break od;
    skip
  }
}

proctype worker(byte me) {
  byte c, t, n, i, m, status; short w, seen; bool ok;
  runWorker(me)
}

init {
  byte i;
  atomic {
    prepareSlots(i);
    run host();
    i = 1;
    do :: i <= WORKERS -> run worker(i); i++ :: else -> break od
  }
}
