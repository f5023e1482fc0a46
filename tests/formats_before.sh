# Arrays of two versions of the program: one of format 1 is used by both in turns, with a member missing as well; one of
# format 2 is refused by the program of before, which says what to do and leaves it as it is.
# Before: NETRAID_BEFORE is the last program that makes format 1.
. "$(dirname "$0")/lib.sh"
need jq

[ -n "${NETRAID_BEFORE:-}" ] || fail "NETRAID_BEFORE says no program; 'cargo xtask blackbox formats_before' builds it"
[ -x "$NETRAID_BEFORE" ] || fail "NETRAID_BEFORE: $NETRAID_BEFORE is no program"
new=$NETRAID

# by old|new: which program is run from now on.
by() { if [ "$1" = old ]; then NETRAID=$NETRAID_BEFORE; else NETRAID=$new; fi; }

say "format 1, in turns"
by old
array 5 4
load write 60MiB 1
stop engine
by new
attach "${URLS[@]}"
load verify 60MiB 1
load write 90MiB 2
"$NETRAID" scrub "$CONTROL" --start --wait --json | tee "$WORK/scrub.json"
expect '"complete" 0' "$(jq -s -r '.[-1] | "\(.state | tojson) \(.wrong)"' "$WORK/scrub.json")" "what a scrub finds"
# With a member away, and the engine killed: the older program opens what the newer one left in the log.
crash m3
load write 60MiB 3
crash engine
by old
attach "${URLS[@]}"
load verify 60MiB 3
target m3
rebuilt
load write 90MiB 4
crash engine
by new
attach "${URLS[@]}"
load verify 90MiB 4
expect optimal "$(state)" "state of the array of format 1"
stop engine

say "format 2, and the program of before"
"$NETRAID" create vol --force --level 5 "${URLS[@]}"
attach "${URLS[@]}"
load write 60MiB 5
stop engine
for ((i = 0; i < 4; i++)); do stop "m$i"; done
sha256sum "$WORK"/m?.img >"$WORK/before"
for ((i = 0; i < 4; i++)); do target "m$i"; done
by old
refused 'incompatible features 0x4 .*use a later version' "$NETRAID" attach --nbd 127.0.0.1:0 "${URLS[@]}"
refused 'incompatible features 0x4 .*use a later version' "$NETRAID" attach --force --nbd 127.0.0.1:0 "${URLS[@]}"
refused . "$NETRAID" create other --level 5 "${URLS[@]}"
for ((i = 0; i < 4; i++)); do stop "m$i"; done
sha256sum --check --quiet "$WORK/before" || fail "the program of before has changed the members"
for ((i = 0; i < 4; i++)); do target "m$i"; done
by new
attach "${URLS[@]}"
load verify 60MiB 5
expect optimal "$(state)" "state of the array of format 2"
