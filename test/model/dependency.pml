/* dependency.pml: a dependency across queues that fails.
 *
 * Covers: a task of queue B that depends on a task of queue A [code: dependenciesDone], while A goes on and uses the
 * completion slot of the failed task again [code: ringSpace] [code: writeDescriptor]. (Inside one queue the order of
 * claims keeps the slot: tiles.pml.)
 *
 * Abstracts: everything else; A has a ring of one slot and runs its tasks in order.
 *
 * Proved: the dependent of a failed task does not run, and nothing waits for ever. The slot of a task that failed is
 * held until its dependents in other queues have ended: a dependent that came late would find a later task's word and
 * take the dependency for done (mutant REUSE_AT_ONCE). */
#define N 3
byte tailA, tailB, markA;
byte doneSeq; bool doneFailed;              /* A's one completion slot: number + 1, status */
bool ended, ran;                            /* the dependent in B */

proctype host() {
  tailA = 1;
  tailB = 1;
  do
  :: tailA < N ->
    markA == tailA;
#ifndef MUTANT_REUSE_AT_ONCE
    if :: doneFailed && doneSeq == 1 -> ended :: else fi;
#endif
    tailA++
  :: else -> break
  od;
  markA == N;
  ended;
  assert(!ran)
}

proctype queueA() {
  byte n;
end_idle:
  do
  :: n < tailA -> d_step { doneFailed = (n == 0); doneSeq = n + 1 }; n++; markA = n
  od
}

proctype queueB() {
  bool bad;
end_idle:
  tailB == 1;
  doneSeq >= 1;
  d_step { bad = (doneSeq == 1 && doneFailed) };
  if :: !bad -> ran = true :: else fi;
  ended = true
}

init { atomic { run host(); run queueA(); run queueB() } }
