/* tiles.pml: tasks of several tiles.
 *
 * Covers: claiming tile by tile through the cursor [code: step] [code: claimTile] [code: advanceCursor], helping a
 * cursor that its claimer has not moved yet [code: help], a failing tile [code: finishTile], completion by whoever
 * sees the last tile done [code: publishCompletion] [code: advanceMark], the publisher that stalls until its slot
 * serves a later task (ABA), a failed dependency read before its slot is used again [code: dependenciesDone], a
 * barrier between tasks, the full ring [code: ringSpace], tile words left over from tasks long past
 * [code: writeDescriptor] (configuration LONG: one worker, a sequence space that wraps under the same word); tile-wise
 * dependencies [code: tileDone] and tiles followed ahead of the cursor [code: followTile], with the descriptor read in
 * pieces there (configurations FOLLOW, 1 and 2); completions that a follower owes, and looks at only when it stops or
 * owes several [code: follow] [code: settle], in slots that may serve later tasks by then (configurations OWED).
 *
 * Abstracts: the reading of a descriptor at the cursor (ring.pml); which function a task gets (table.pml); what a function does (it fails or not); parking (park.pml).
 *
 * Proved: no tile runs twice or never, no task ends twice, early or with another status than its first failing
 * tile's, nothing runs on the output of a failed task, no deadlock, no endless cycle. With FOLLOW moreover: no tile runs
 * with the fields of another task; a tile with a tile-wise dependency runs only when its own tile of that task ended
 * well, and the task fails when any failed; no barrier runs before all tiles in front of it are claimed, and no tile
 * before the barrier in front of it has ended.
 *
 * Three things are not needed for that, and the rows WORD_LATE, TILE_SEQUENCE_IGNORED and SETTLE_UNTAGGED show it: that
 * followTile reads the tile word first (any word of an earlier life shows that the slot was not used anew until then);
 * that tileDone compares the sequence, as long as both tasks are of one queue (between queues it counts:
 * dependency.pml); and that settle compares the tags (a slot is used anew only after its completion, which
 * publishCompletion looks at first). */
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
#ifndef WORKERS
#define WORKERS 2
#endif
#if defined(FOLLOW) && FOLLOW == 1
/* a run of three with a failing tile, a barrier behind it, and a task behind that */
#ifndef N
#define N 5
#endif
#define TILES(n) ((n) == 3 -> 1 : 2)
#define BARRIER(n) ((n) == 3)
#define DEPENDENT(n) ((n) == 1 || (n) == 2)
#define TILEWISE(n) DEPENDENT(n)
#define FAILS(n, t) ((n) == 1 && (t) == 1 -> FAILED : OK)
#define EXPECTED(n) ((n) == 1 -> FAILED : ((n) == 2 -> SKIPPED : OK))
#elif defined(FOLLOW)
/* a task that is followed though it depends on nothing, one that needs all of the task before it, and a tile-wise one */
#ifndef N
#define N 4
#endif
#define TILES(n) (2)
#define BARRIER(n) (0)
#define DEPENDENT(n) ((n) == 2 || (n) == 3)
#define TILEWISE(n) ((n) == 3)
#define FAILS(n, t) OK
#define EXPECTED(n) OK
#else
#ifndef N
#define N 5
#endif
#define TILES(n) ((n) == 0 || (n) == 3 -> 2 : 1)
#define BARRIER(n) ((n) == 2)
#define DEPENDENT(n) ((n) == 1 || (n) == 4)
#define FAILS(n, t) ((n) == 0 && (t) == 1 -> FAILED : OK)
#define EXPECTED(n) ((n) == 0 -> FAILED : ((n) == 1 -> SKIPPED : OK))
#endif
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
    collect(N - 1);
#if R > 1
    collect(N - 2);
#endif
    n = 0;
    do :: n < N -> assert(ended[n] == 1); n++ :: else -> break od;
    skip
  }
}

proctype worker(byte me) {
  byte c, t, n, i, m, status, first, end; short w, seen; bool ok, won;
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
