/* table.pml: the operator table while it changes.
 *
 * Covers: publish and kill as barrier tasks of queue A [code: controlTable]; a task of several tiles pinned to one
 * version [code: resolveFunction], one of a single tile that reads the table before its claim; the kill bit read
 * again before each tile [code: runTile]; each worker's own function table, brought up to date before a claim
 * [code: claimTile]; tasks of queue B, which the barrier does not order; freeing of the replaced function when every
 * queue's mark has passed the tail that it had once the flip was seen complete [code: reclaimVersions]; a worker that
 * dies inside the control task, before, between and after its stores [code: recover]; tiles followed ahead of the
 * cursor, up to the control task and in queue B also across it [code: followTile] (configuration FOLLOW, without kill
 * and death).
 *
 * Abstracts: slots, tile claims and completion words (tiles.pml, death.pml): a queue is as long as its tasks, a claim is
 * one exchange, publication one step.
 *
 * Proved: no function runs that has been freed, or that the worker has not installed; all tiles of a task run one
 * version; in queue A tasks before the flip run the old version and those behind it the new; behind the kill nothing
 * runs; no deadlock, no endless cycle.
 *
 * Queue A needs no resolution word, also where tiles are followed: a claim that succeeds shows that the tile was free when
 * the table was read, so no later control task had begun. What keeps it so is that no control task is followed into,
 * since it has one tile (mutant FOLLOW_CONTROL). In queue B a follower may not go on with the function of the task before
 * (mutant FOLLOW_KEEPS_FUNCTION): that task may end, and the function be freed, before the next one is there.
 *
 * Two points are stronger than they look. The epoch that counts is that of the function that was resolved, not that of
 * the descriptor: a task of queue B written before the flip may resolve after it (mutant DESCRIPTOR_EPOCH). And recovery
 * carries a dead worker's control task out instead of failing it: its stores can be repeated, while a flip that
 * ended as lost leaves the host to free a version that still stands in the table (mutant LOST_FLIP). */
#define A 0
#define B 1
#define WORKERS 2
#define OLD 1
#define NEW 2
#ifdef FOLLOW
/* queue A: task, task, flip; queue B: task, and another one before or after the flip */
#define LENGTH 3
#define FLIP 2
#define KILL LENGTH                         /* none */
#else
/* queue A: task, flip, task, kill, task; queue B: task, task */
#define LENGTH 5
#define FLIP 1
#define KILL 3
#endif
#define CONTROL(q, s) ((q) == A && ((s) == FLIP || (s) == KILL))
#ifdef FOLLOW
#define TILES(q, s) (CONTROL(q, s) -> 1 : 2)
#else
#define TILES(q, s) (((q) == A && ((s) == 0 || (s) == 2)) || ((q) == B && (s) == 0) -> 2 : 1)
#endif
#define AT(q, s) ((q) * LENGTH + (s))

byte tail[2], cursorSeq[2], cursorTile[2], mark[2];
byte claims[2 * LENGTH], doneTiles[2 * LENGTH];   /* of each task: the tiles claimed (a bit each), how many are done */
#define CLAIMED(q, s, t) (claims[AT(q, s)] & (1 << (t)))
byte resolution[2 * LENGTH];
byte entry = OLD, tableEpoch; bool killed;
byte epoch;                                 /* the host's: raised by installing NEW */
byte descriptorEpoch[2 * LENGTH];
bool freed[3];
byte version[2 * LENGTH];                   /* ghost: what the task's tiles ran */
#ifdef FOLLOW
byte deaths = 1;                            /* none more */
#else
byte deaths;
#endif

inline submit(q) {
  descriptorEpoch[AT(q, tail[q])] = epoch;
  tail[q] = tail[q] + 1
}

proctype host() {
  byte endA, endB;
  submit(A);
#ifdef FOLLOW
  submit(A);
#endif
  submit(B);
  epoch = 1;
  submit(A);                                /* the flip */
#ifdef MUTANT_POSITIONS_AT_SUBMIT
  endA = tail[A]; endB = tail[B];
#endif
#ifdef FOLLOW
  if :: submit(B) :: skip fi;
#else
  submit(A);
  submit(B);
#endif
  mark[A] > FLIP;
#ifndef MUTANT_POSITIONS_AT_SUBMIT
  endA = tail[A]; endB = tail[B];
#endif
#ifndef MUTANT_FREE_AT_FLIP
  mark[A] >= endA;
#ifndef MUTANT_FREE_BY_OWN_QUEUE
  mark[B] >= endB;
#endif
#endif
  freed[OLD] = true;
#ifdef FOLLOW
  if :: tail[B] == 1 -> submit(B) :: else fi;
#else
  submit(A);                                /* the kill */
  submit(A);
#endif
  mark[A] == LENGTH;
  mark[B] == 2
}

inline carryOut() {
  if
  :: s == FLIP -> tableEpoch = 1; entry = NEW
  :: s == KILL -> killed = true
  fi
}

proctype worker() {
  byte q, s, t, fn, own; bool won, ahead;
again:
  atomic { s = 0; t = 0; fn = 0; won = false; ahead = false };
end_idle:
  if
  :: atomic { cursorSeq[A] < tail[A] && !(CONTROL(A, cursorSeq[A]) && CLAIMED(A, cursorSeq[A], 0)
      && mark[A] <= cursorSeq[A]) -> q = A; s = cursorSeq[A]; t = cursorTile[A] }
  :: atomic { cursorSeq[B] < tail[B] -> q = B; s = cursorSeq[B]; t = cursorTile[B] }
  fi;
  if
  :: CLAIMED(q, s, t) -> goto pass         /* another's: help the cursor */
  :: else
  fi;
resolve:
  if :: own < descriptorEpoch[AT(q, s)] -> own = epoch :: else fi;
#ifdef MUTANT_FOLLOW_KEEPS_FUNCTION
  if :: !ahead -> fn = entry :: else fi;
#else
  fn = entry;
#endif
#ifndef MUTANT_READ_EACH_TILE
  if                                        /* in queue A the claim below shows that no later control task had begun */
  :: TILES(q, s) > 1 && q != A -> d_step { if :: resolution[AT(q, s)] == 0 -> resolution[AT(q, s)] = fn :: else -> fn = resolution[AT(q, s)] fi }
  :: else
  fi;
#endif
#ifndef MUTANT_DESCRIPTOR_EPOCH
  if :: own < tableEpoch -> own = epoch :: else fi;
#endif
  d_step { if :: !CLAIMED(q, s, t) -> claims[AT(q, s)] = claims[AT(q, s)] | (1 << t); won = true :: else fi };
  if :: !won -> goto again :: else fi;
#ifdef MUTANT_BARRIER_PASSED_EARLY
  if :: true ->
#else
  if :: !CONTROL(q, s) && !ahead ->
#endif
    d_step { if :: cursorSeq[q] == s && cursorTile[q] == t -> if :: t + 1 < TILES(q, s) -> cursorTile[q] = t + 1 :: else -> cursorSeq[q] = s + 1; cursorTile[q] = 0 fi :: else fi }
  :: else
  fi;
  if
  :: CONTROL(q, s) ->
    if :: skip :: deaths == 0 -> goto died fi;
    carryOut();
    if :: skip :: deaths == 0 -> goto died fi
  :: else ->
#ifdef MUTANT_RESOLVE_AT_RUN
    fn = entry;
#endif
#ifdef MUTANT_KILL_IGNORED
    if
    :: true ->
#else
    if
    :: !killed ->
#endif
      d_step {
        assert(!freed[fn]);
        assert(fn == OLD || own >= 1);
        assert(version[AT(q, s)] == 0 || version[AT(q, s)] == fn);
        version[AT(q, s)] = fn;
        assert(q == B || (s < FLIP && fn == OLD) || (s > FLIP && s < KILL && fn == NEW))
      };
      assert(!freed[fn])                    /* still, when it returns */
    :: else
    fi
  fi;
publish:
  atomic {
    doneTiles[AT(q, s)] = doneTiles[AT(q, s)] + 1;
    do
    :: mark[q] < LENGTH && doneTiles[AT(q, mark[q])] == TILES(q, mark[q]) -> mark[q] = mark[q] + 1
    :: else -> break
    od;
    skip
  };
#ifdef FOLLOW
  /* [code: followTile] The same tile of the next task, perhaps ahead of the cursor, or for some reason not. */
  if
  :: true
#ifdef MUTANT_FOLLOW_CONTROL
  :: d_step { s + 1 < tail[q] && t < TILES(q, s + 1) && !CLAIMED(q, s + 1, t) -> s = s + 1; won = false; ahead = true }; goto resolve
#else
  :: d_step { TILES(q, s) > 1 && s + 1 < tail[q] && TILES(q, s + 1) == TILES(q, s) && !CLAIMED(q, s + 1, t) ->
       s = s + 1; won = false; ahead = true }; goto resolve
#endif
  fi;
#endif
  goto again;
pass:
  if :: CONTROL(q, s) -> if :: mark[q] > s :: cursorSeq[q] != s fi :: else fi;
  d_step { if :: cursorSeq[q] == s && cursorTile[q] == t -> if :: t + 1 < TILES(q, s) -> cursorTile[q] = t + 1 :: else -> cursorSeq[q] = s + 1; cursorTile[q] = 0 fi :: else fi };
  goto again;
died:                                       /* the supervisor, then the replacement, which has installed nothing */
  deaths = 1;
  own = 0;
#ifndef MUTANT_LOST_FLIP
  carryOut();
#endif
  goto publish
}

init { atomic { run host(); run worker(); run worker() } }
