/* ring.pml: the descriptor ring.
 *
 * Covers: a descriptor of two lines, each ending in its tag, the lines reaching the reader in any order and
 * interleaving; the reader that takes it only when both tags match [code: tagsMatch] and whose fields are made valid
 * by reading the cursor again [code: step]; the claim that decides between readers [code: claimTile]; passing the
 * cursor on, also for others [code: advanceCursor] [code: help]; completion and mark [code: publishCompletion]
 * [code: advanceMark]; the writer [code: writeDescriptor] and its wait on a full ring [code: ringSpace]; a barrier
 * task whose slot is retired; sequences that wrap; every slot used three times or more; readers that stall anywhere.
 *
 * Abstracts: one tile a task (tiles.pml has more); one field a line, holding the task's number; memory is
 * sequentially consistent (the code fences where plain loads could drift: mutant VALIDATE_EARLY shows why); an
 * idle worker blocks until the ring changes, where the code spins or parks (park.pml).
 *
 * Proved: no torn descriptor passes the validation, no task runs twice or never, every status is collected for the
 * task that it belongs to, no deadlock, no endless cycle. */
#ifndef N
#define N 6
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#include "sequence.inc"
#define BARRIER(n) ((n) == 1)

byte tag0[R], tag1[R], line0[R], line1[R];
byte cursor = FIRST, mark = FIRST;
byte tile[R];                               /* the sequence that claimed the slot's only tile */
byte doneSeq[R], doneStatus[R];             /* one 64-bit word in the code: always written together */
bool ran[N];                                /* ghost */

#ifdef MUTANT_ONE_TAG
#define READY(slot, c) (tag0[slot] == c)
#else
#define READY(slot, c) (tag0[slot] == c && tag1[slot] == c)
#endif

#ifdef MUTANT_PLAIN_COMPARE
#define PAST(a, s) ((a) > (s))
#else
#define PAST(a, s) (OLDER(s, a))
#endif

/* [code: ringSpace] The slot is free when the mark AND the cursor have passed the task that used it. The mark alone is
 * not enough: a barrier, or a tile ended by recovery, completes while the cursor still stands on it. A cursor that jumps
 * to the mark when it finds a later tag (mutant CURSOR_JUMPS) mends the deadlock, but not the descriptor that is
 * half written while its old tags and the cursor still vouch for it. */
#if defined(MUTANT_RETIRE_BY_MARK) || defined(MUTANT_CURSOR_JUMPS)
#define RING_SPACE(seq) PAST(mark, BEHIND(seq))
#else
#define RING_SPACE(seq) (PAST(mark, BEHIND(seq)) && PAST(cursor, BEHIND(seq)))
#endif

inline collect(task) {
  assert(doneSeq[SLOT(SEQ(task))] == SEQ(task) && doneStatus[SLOT(SEQ(task))] == task)
}

proctype host() {
  byte n, seq, slot, first, second;
  do
  :: n < N ->
    seq = SEQ(n); slot = SLOT(seq);
    RING_SPACE(seq);
#ifndef MUTANT_COLLECT_LATE
    if :: n >= R -> collect(n - R) :: else fi;
#endif
    first = 0; second = 0;
    do                                      /* [code: writeDescriptor], stronger than its order: any interleaving */
    :: first == 0 -> line0[slot] = n; first = 1
    :: first == 1 -> tag0[slot] = seq; first = 2
    :: second == 0 -> line1[slot] = n; second = 1
    :: second == 1 -> tag1[slot] = seq; second = 2
    :: first == 2 && second == 2 -> break
    od;
#ifdef MUTANT_COLLECT_LATE
    if :: n >= R -> collect(n - R) :: else fi;
#endif
    n++
  :: else -> break
  od;
  mark == SEQ(N);
  d_step {
    collect(N - 1); collect(N - 2);
    n = 0;
    do :: n < N -> assert(ran[n]); n++ :: else -> break od;
    skip
  }
}

proctype worker() {
  byte c, slot, a, b, w, m; bool won;
again:
  atomic { c = cursor; slot = SLOT(c); a = 0; b = 0; w = 0; m = 0; won = false };
end_idle:
  if
  :: cursor != c -> goto again
  :: cursor == c && READY(slot, c)
#ifdef MUTANT_CURSOR_JUMPS
  :: cursor == c && tag0[slot] != c && OLDER(c, mark) ->
    d_step { if :: cursor == c -> cursor = mark :: else fi };
    goto again
#endif
  fi;
  if :: tag0[slot] != c -> goto again :: else fi;
#ifndef MUTANT_ONE_TAG
  if :: tag1[slot] != c -> goto again :: else fi;
#endif
#ifdef MUTANT_VALIDATE_EARLY
  if :: cursor != c -> goto again :: else fi;
#endif
  a = line0[slot];
  b = line1[slot];
#if !defined(MUTANT_NO_VALIDATE) && !defined(MUTANT_VALIDATE_EARLY)
  if :: cursor != c -> goto again :: else fi;
#endif
  assert(a == b && SEQ(a) == c);            /* not torn, not another task's */
  w = tile[slot];
  if
  :: OLDER(w, c) ->
    d_step { if :: tile[slot] == w -> tile[slot] = c; won = true :: else fi };
    if :: !won -> goto again :: else fi
  :: w == c ->                              /* claimed by another: help */
    if
    :: BARRIER(a) ->
      if :: cursor != c -> goto again :: doneSeq[slot] == c fi
    :: else
    fi;
    d_step { if :: cursor == c -> cursor = NEXT(c) :: else fi };
    goto again
  :: else -> cursor != c; goto again        /* the word serves a later task, so the cursor has moved on */
  fi;
  if
  :: !BARRIER(a) -> d_step { if :: cursor == c -> cursor = NEXT(c) :: else fi }
  :: else
  fi;
  assert(!ran[a]);
  ran[a] = true;
  w = doneSeq[slot];
  if
  :: OLDER(w, c) -> d_step { if :: doneSeq[slot] == w -> doneSeq[slot] = c; doneStatus[slot] = a :: else fi }
  :: else
  fi;
  do
  :: m = mark;
    if
    :: doneSeq[SLOT(m)] == m -> d_step { if :: mark == m -> mark = NEXT(m) :: else fi }
    :: else -> break
    fi
  od;
  goto again
}

init {
  byte i;
  atomic {
    do
    :: i < R ->
      tag0[SLOT(SEQ(i))] = BEHIND(SEQ(i)); tag1[SLOT(SEQ(i))] = BEHIND(SEQ(i));
      line0[i] = N; line1[i] = N;
      tile[SLOT(SEQ(i))] = BEHIND(SEQ(i)); doneSeq[SLOT(SEQ(i))] = BEHIND(SEQ(i));
      i++
    :: else -> break
    od;
    run host();
    i = 0;
    do :: i < WORKERS -> run worker(); i++ :: else -> break od
  }
}
