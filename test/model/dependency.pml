/* dependency.pml: a dependency across queues that fails.
 *
 * Covers: a task of queue B that depends on a task of queue A [code: dependenciesDone], while A goes on and uses the
 * completion slot of the failed task again [code: ringSpace] [code: writeDescriptor]. (Inside one queue the order of
 * claims keeps the slot: tiles.pml.) With TILEWISE a tile of it needs only one tile of the task of A, whose tile word may
 * still be the one of the task before in that slot [code: tileDone].
 *
 * Abstracts: everything else; A has a ring of one slot and runs its tasks in order.
 *
 * Proved: the dependent of a failed task does not run, and nothing waits for ever. The slot of a task that failed is
 * held until its dependents in other queues have ended: a dependent that came late would find a later task's word and
 * take the dependency for done (mutant REUSE_AT_ONCE). Across queues the sequence in the tile word counts (mutant
 * TILE_SEQUENCE_IGNORED); inside one queue the order of claims would do without (tiles.pml, TILE_SEQUENCE_IGNORED). */
#define N 3
#ifdef TILEWISE
#define P 1                                 /* the task of A that the dependent needs */
#else
#define P 0
#endif
byte tailA, tailB, markA;
byte doneSeq; bool doneFailed;              /* A's one completion slot: number + 1, status */
bool ended, ran;                            /* the dependent in B */
byte tileSeq; bool tileDone, tileFailed;    /* the word of one tile of A's slot */
bool good;                                  /* ghost: that tile of P ended well */
#if defined(MUTANT_TILE_SEQUENCE_IGNORED)
#define TILE_DONE(n) (tileDone && !tileFailed)
#else
#define TILE_DONE(n) (tileSeq == (n) + 1 && tileDone && !tileFailed)
#endif

proctype host() {
  do
  :: tailA < N ->
    markA == tailA;
#ifndef MUTANT_REUSE_AT_ONCE
    if :: tailA == P + 1 -> ended :: else fi;
#endif
    tailA++;
    if :: tailA == P + 1 -> tailB = 1 :: else fi
  :: else -> break
  od;
  markA == N;
  ended;
#ifndef TILEWISE
  assert(!ran)
#endif
}

proctype queueA() {
  byte n; bool bad;
end_idle:
  do
  :: n < tailA ->
#ifdef TILEWISE
    d_step { tileSeq = n + 1; tileDone = false; tileFailed = false };
    atomic {                                /* of P this tile may fail, or another, or none */
      if :: bad = false :: n == P -> bad = true; tileFailed = true :: n == P -> bad = true fi;
      good = (n == P && !tileFailed);
      tileDone = true
    };
#else
    bad = (n == P);
#endif
    d_step { doneFailed = bad; doneSeq = n + 1 };
    n++;
    markA = n
  od
}

proctype queueB() {
  bool bad;
end_idle:
  tailB == 1;
  if
  :: atomic { doneSeq > P -> bad = (doneSeq == P + 1 && doneFailed) }
#ifdef TILEWISE
  :: doneSeq <= P -> if :: TILE_DONE(P) :: atomic { doneSeq > P -> bad = (doneSeq == P + 1 && doneFailed) } fi
#endif
  fi;
  if
  :: !bad ->
    ran = true
#ifdef TILEWISE
    ;
    assert(good)
#endif
  :: else
  fi;
  ended = true
}

init { atomic { run host(); run queueA(); run queueB() } }
