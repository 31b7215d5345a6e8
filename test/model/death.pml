/* death.pml: a worker dies.
 *
 * Covers: a worker that ends before any of its steps, also between winning a tile and moving the cursor, between
 * finishing a tile and publishing, between publishing and moving the mark; its recovery by the supervisor while the
 * other worker and the producer go on [code: recover]; help for the cursor that it left behind [code: help]
 * [code: advanceCursor]; its replacement under the same owner id, which may die as well (DEATHS); a death inside a
 * barrier task; dependents of a lost task; the ring full meanwhile [code: ringSpace]; a death ahead of the cursor
 * [code: followTile] (configuration FOLLOW), and with completions owed [code: settle], also of a slot that serves the
 * next task by now (configurations OWED). The step is that of tiles.pml [code: step] [code: claimTile]
 * [code: finishTile] [code: publishCompletion] [code: advanceMark] [code: run].
 *
 * Abstracts: how the death is noticed (a worker's exit event: a worker is never recovered while it lives); the reading
 * of a descriptor (ring.pml); parking (park.pml; the replacement begins with a step, so no bell is lost with a worker);
 * what a control task has written when its worker dies (table.pml).
 *
 * Proved: at most one tile a death is lost, and its task ends as lost; every other tile runs exactly once; every task
 * ends exactly once; a worker that lives never finds its tile ended by another; nothing waits for ever. */
#ifndef N
#define N 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define WORKERS 2
#ifdef FOLLOW
#define TILES(n) ((n) < 2 -> 2 : 1)
#define BARRIER(n) (0)
#define DEPENDENT(n) ((n) == 1)
#define TILEWISE(n) ((n) == 1)
#else
#define TILES(n) ((n) == 0 || (n) == 3 -> 2 : 1)
#define BARRIER(n) ((n) == 1)
#define DEPENDENT(n) ((n) == 2)
#endif
#define FAILS(n, t) OK
#include "sequence.inc"
#include "executor.inc"

byte tail = FIRST;                          /* written by the host when the tags are */
bool dying[WORKERS + 1], exited[WORKERS + 1];
byte deaths;

/* A status other than OK needs a loss: the task's own or that of the one before it. */
inline collect(n) {
  d_step {
    assert(COMPLETION_SEQ(completion[SLOT(SEQ(n))]) == SEQ(n));
    if
    :: COMPLETION_STATUS(completion[SLOT(SEQ(n))]) == OK
    :: COMPLETION_STATUS(completion[SLOT(SEQ(n))]) == LOST -> bad++; assert(losses > 0)
    :: COMPLETION_STATUS(completion[SLOT(SEQ(n))]) == SKIPPED -> assert(DEPENDENT(n) && bad > 0)
    fi;
    assert(bad <= losses)
  }
}

proctype host() {
  byte n, i, bad;
  do
  :: n < N ->
    RING_SPACE(SEQ(n));
    if :: n >= R -> collect(n - R) :: else fi;
    writeDescriptor(n, i);
    d_step { n++; tail = SEQ(n) }
  :: else -> break
  od;
  mark == SEQ(N);
#if N > 1 && R > 1
  collect(N - 2);
#endif
  collect(N - 1);
  d_step {
    n = 0;
    do :: n < N -> assert(ended[n] == 1); n++ :: else -> break od;
    skip
  }
}

proctype worker(byte me) {
  byte c, t, n, i, m, status, first, end; short w, seen; bool ok, won;
  { runWorker(me) } unless { dying[me] };
  d_step {                                  /* what it knew is gone */
    c = 0; t = 0; n = 0; i = 0; m = 0; status = 0; first = 0; end = 0; w = 0; seen = 0; ok = false; won = false;
    dying[me] = false; exited[me] = true
  }
}

/* Anything may kill a worker at any time. The workers are alike, so the first to die is worker 1. */
proctype reaper() {
end_idle:
  do
  :: deaths < DEATHS -> atomic { if :: dying[1] = true :: deaths > 0 -> dying[2] = true fi; deaths++ }
  od
}

/* [code: recover] Every task from the mark to the tail is published, whether or not a tile of it was held by the dead:
 * it may have died between its last tile and the publication. Not only to the cursor: followTile claims ahead of it.
 * The tail's own sequence is looked at too. Its task may be there, and claimed: the tail is written after the tags, by
 * another thread than this one, so it may be one behind. */
inline recover(who) {
#ifdef MUTANT_RECOVER_TO_CURSOR
  s = mark;
  last = cursorSeq;
#else
  last = tail;
  s = mark;
#endif
  do
#ifdef MUTANT_RECOVER_BEFORE_TAIL
  :: OLDER(s, last) ->
#else
  :: OLDER(s, NEXT(last)) ->
#endif
    atomic { found = READY(SLOT(s), s); if :: found -> n = task[SLOT(s)] :: else fi };
    if
    :: found ->
#ifdef MUTANT_RECOVER_HELD_ONLY
      found = false;
#endif
      t = 0;
      do
      :: t < TILES(n) ->
        d_step {
          if
          :: TILE(SLOT(s), t) == HELD_BY(s, who) ->
            TILE(SLOT(s), t) = WORD(s, who, DONE, LOST);
            losses++;
            assert(losses <= deaths);
            found = true
          :: else
          fi
        };
        t++
      :: else -> break
      od;
      if :: found -> publishCompletion(n, s, seen, status, i, w, won) :: else fi
#ifdef MUTANT_RECOVER_STOPS_AT_REUSED
    :: else -> break
#else
    :: else                                 /* complete and its slot written anew since the mark was read: go on */
#endif
    fi;
    s = NEXT(s)
  :: else -> break
  od;
#ifndef MUTANT_RECOVER_KEEPS_MARK
  advanceMark(m);
#endif
  s = 0; last = 0; t = 0; n = 0; found = false; won = false
}

proctype supervisor() {
  byte who, s, last, n, t, i, m, status; short w, seen; bool found, won;
end_idle:
  do
  :: atomic { exited[1] -> exited[1] = false; who = 1 }; goto lost
  :: atomic { exited[2] -> exited[2] = false; who = 2 }; goto lost
  od;
lost:
#ifdef MUTANT_REPLACE_FIRST
  run worker(who);
#endif
#ifndef MUTANT_NO_RECOVERY
  recover(who);
#endif
#ifndef MUTANT_REPLACE_FIRST
  run worker(who);
#endif
  goto end_idle
}

init {
  byte i;
  atomic {
    prepareSlots(i);
    run host();
    run supervisor();
    run reaper();
    run worker(1);
    run worker(2)
  }
}
