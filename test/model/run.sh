#!/bin/bash
# Checks the protocol models with spin: every model must hold, every mutant (a planted error) must be found.
#
#   test/model/run.sh                        all, as a table; the last line is `N passed, N failed`
#   test/model/run.sh ring table             the rows of these models only
#   test/model/run.sh trace ring -DMUTANT_ONE_TAG
#                                            the steps that lead to the error
#
# Needs spin (Debian's package) and gcc. At most 2 GiB and JOBS (default 2) searches at a time.
set -u
here=$(cd "$(dirname "$0")" && pwd)
jobs=${JOBS:-2}
limit=${LIMIT_SECONDS:-200}                # of processor time, a search

# One row a line: model, what is expected (holds: no error; acyclic: moreover every run ends; found: an error), flags.
rows='
death holds
death holds -DN=1 -DDEATHS=2
death holds -DFOLLOW=1 -DN=2 -DOWED=2
death holds -DFOLLOW=1 -DN=2 -DR=1 -DOWED=2
park holds
table acyclic
table holds -DFOLLOW
ring acyclic
tiles acyclic
tiles acyclic -DLONG
tiles holds -DWORKERS=3 -DN=2
tiles holds -DFOLLOW=1
tiles acyclic -DFOLLOW=2
tiles holds -DFOLLOW=1 -DOWED=3
tiles acyclic -DFOLLOW=1 -DN=4 -DOWED=3
tiles holds -DFOLLOW=2 -DOWED=3
tiles holds -DFOLLOW=1 -DS=12 -DR=3 -DN=4 -DOWED=3
tiles holds -DFOLLOW=1 -DN=4 -DOWED=3 -DSETTLE_UNTAGGED
tiles holds -DFOLLOW=1 -DN=4 -DWORD_LATE
tiles holds -DFOLLOW=1 -DN=4 -DTILE_SEQUENCE_IGNORED
collect acyclic
collect holds -DR=3
dependency acyclic
dependency acyclic -DTILEWISE
park acyclic -DN=2
ring found -DMUTANT_ONE_TAG
ring found -DMUTANT_NO_VALIDATE
ring found -DMUTANT_VALIDATE_EARLY
ring found -DMUTANT_RETIRE_BY_MARK
ring found -DMUTANT_CURSOR_JUMPS
ring found -DMUTANT_PLAIN_COMPARE
ring found -DMUTANT_COLLECT_LATE
tiles found -DMUTANT_CLAIM_STORE
tiles found -DMUTANT_PUBLISH_STORE
tiles found -DMUTANT_PUBLISH_UNCHECKED
tiles found -DMUTANT_PUBLISH_UNSCANNED
tiles found -DMUTANT_RETIRE_BY_MARK
tiles found -DLONG -DMUTANT_LEFTOVER_WORDS
tiles found -DFOLLOW=1 -DMUTANT_FOLLOW_UNTAGGED
tiles found -DFOLLOW=1 -DMUTANT_FOLLOW_ONE_TAG
tiles found -DFOLLOW=1 -DMUTANT_FIELDS_BEFORE_TAGS
tiles found -DFOLLOW=1 -DMUTANT_FOLLOW_CLAIMED
tiles found -DFOLLOW=1 -DMUTANT_FOLLOW_STORE
tiles found -DFOLLOW=1 -DMUTANT_FOLLOW_ANY_COUNT
tiles found -DFOLLOW=1 -DMUTANT_TILE_STATUS_IGNORED
tiles found -DFOLLOW=1 -DMUTANT_TILE_CLAIMED_IS_DONE
tiles found -DFOLLOW=1 -DMUTANT_RETIRE_BY_MARK
tiles found -DFOLLOW=1 -DMUTANT_NO_HELP
tiles found -DFOLLOW=1 -DOWED=3 -DMUTANT_DEBT_FORGOTTEN
tiles found -DFOLLOW=1 -DOWED=3 -DMUTANT_OWES_LAST_ONLY
tiles found -DFOLLOW=1 -DOWED=3 -DMUTANT_SETTLE_STOPS
tiles found -DFOLLOW=1 -DOWED=3 -DMUTANT_SETTLE_LAST_MOVES_MARK
tiles found -DFOLLOW=1 -DOWED=3 -DMUTANT_PUBLISH_UNCHECKED
collect found -DMUTANT_ADOPT_COUNT
dependency found -DMUTANT_REUSE_AT_ONCE
dependency found -DTILEWISE -DMUTANT_TILE_SEQUENCE_IGNORED
table found -DMUTANT_POSITIONS_AT_SUBMIT
table found -DMUTANT_FREE_AT_FLIP
table found -DMUTANT_FREE_BY_OWN_QUEUE
table found -DMUTANT_READ_EACH_TILE
table found -DMUTANT_RESOLVE_AT_RUN
table found -DMUTANT_DESCRIPTOR_EPOCH
table found -DMUTANT_BARRIER_PASSED_EARLY
table found -DMUTANT_KILL_IGNORED
table found -DMUTANT_LOST_FLIP
table found -DFOLLOW -DMUTANT_READ_EACH_TILE
table found -DFOLLOW -DMUTANT_FOLLOW_CONTROL
table found -DFOLLOW -DMUTANT_FOLLOW_KEEPS_FUNCTION
park found -DMUTANT_LOST_RACE_IS_NOTHING
park found -DMUTANT_NOTIFY_ONLY
park found -DMUTANT_BELL_READ_LATE
park found -DMUTANT_ANNOUNCE_LATE
park found -DMUTANT_SLEEP_WHILE_WAITING
park found -DMUTANT_QUIT_UNRUNG
park found -DMUTANT_CANCEL_BEFORE_LEFT
death found -DMUTANT_REPLACE_FIRST
death found -DMUTANT_NO_RECOVERY
death found -DMUTANT_RECOVER_HELD_ONLY
death found -DFOLLOW=1 -DN=2 -DMUTANT_RECOVER_TO_CURSOR
death found -DFOLLOW=1 -DN=2 -DOWED=2 -DMUTANT_RECOVER_HELD_ONLY
death found -DMUTANT_RECOVER_BEFORE_TAIL
death found -DMUTANT_RECOVER_KEEPS_MARK
death found -DMUTANT_RECOVER_STOPS_AT_REUSED
death found -DMUTANT_RETIRE_BY_MARK
death found -DMUTANT_NO_HELP
'

# build MODEL EXPECTED FLAGS...: leaves ./pan in the current, empty directory.
build() {
  local model=$1 expected=$2
  shift 2
  cp "$here"/*.pml "$here"/*.inc .
  local search=-DSAFETY
  [ "$expected" = acyclic ] && search=-DNP
  # An error is found after few states: to optimize would take longer than the search.
  local level=-O1
  [ "$expected" = found ] && level=-O0
  spin -a "$@" "$model.pml" >spin.txt 2>&1 && ! grep -qi error spin.txt &&
    gcc "$level" -w "$search" -DNOFAIR -DCOLLAPSE -DMEMLIM=2000 -DVECTORSZ=2048 -o pan pan.c >gcc.txt 2>&1
}

# one NUMBER ROW: searches one row, prints its line of the table.
one() {
  local number=$1 model expected
  set -- $2
  model=$1 expected=$2
  shift 2
  local work status=FAIL result=- states=- began=$SECONDS option=
  # The table of states begins with 2^table entries, all of which are written to, and grows where there are more.
  local table=22
  [ "$expected" = found ] && table=20
  work=$(mktemp -d)
  cd "$work" || exit 1
  [ "$expected" = acyclic ] && option=-l
  if ! build "$model" "$expected" "$@"; then
    result='does not build'
  else
    (ulimit -t "$limit"; exec ./pan $option -m100000 "-w$table") >pan.txt 2>&1
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.txt)
    if grep -q 'errors: 1' pan.txt; then
      result=$(sed -n 's/^pan:1: \(assertion violated\|invalid end state\|non-progress cycle\).*/\1/p' pan.txt)
      [ -z "$result" ] && result='another error'
      # An error counts as found only if it is one of the three kinds, not say a full table.
      [ "$expected" = found ] && [ "$result" != 'another error' ] && status=ok
    elif grep -q 'errors: 0' pan.txt && ! grep -qE 'Search not completed|max search depth|reached -DMEMLIM|out of memory' pan.txt; then
      result='no error'
      [ "$expected" != found ] && status=ok
    else
      result='search not finished'
    fi
  fi
  rm -rf "$work"
  printf '%03d %-4s  %-10s  %-7s  %-36s  %-18s  %10s  %4ss\n' "$number" "$status" "$model" "$expected" "$*" "$result" "${states:--}" $((SECONDS - began))
}

for tool in spin gcc; do
  command -v "$tool" >/dev/null || { echo "run.sh: $tool is missing: apt-get install $tool"; exit 2; }
done

case "${1:-}" in
--one)
  one "$2" "$3"
  ;;
trace)
  shift
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work" || exit 1
  model=$1
  shift
  build "$model" holds "$@" || { cat spin.txt; exit 1; }
  # Breadth first: the shortest way to the error.
  gcc -O1 -w -DSAFETY -DBFS -DCOLLAPSE -DMEMLIM=2000 -DVECTORSZ=2048 -o pan pan.c && (ulimit -t "$limit"; exec ./pan) >pan.txt 2>&1
  if [ -f "$model.pml.trail" ]; then spin -t -p -g -l "$@" "$model.pml"; else grep -E 'errors|pan' pan.txt; fi
  ;;
*)
  table=$(mktemp)
  trap 'rm -f "$table"' EXIT
  number=0
  while read -r row; do
    [ -z "$row" ] && continue
    number=$((number + 1))
    [ $# -gt 0 ] && [[ " $* " != *" ${row%% *} "* ]] && continue
    printf '%s\0%s\0' "$number" "$row"
  done <<<"$rows" | xargs -0 -n 2 -P "$jobs" "$here/run.sh" --one >"$table"
  sort "$table" | cut -c5-
  passed=$(grep -c '^[0-9]* ok ' "$table")
  failed=$(grep -c '^[0-9]* FAIL ' "$table")
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
  ;;
esac
