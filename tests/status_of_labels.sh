# `status` of addresses says what their labels add up to, changes nothing, and disturbs nobody who
# has the array attached.
. "$(dirname "$0")/lib.sh"
need jq

array 5 3
load write 20MiB 1
"$NETRAID" status --json "${URLS[@]}" >"$WORK/open.json"
expect "optimal false" "$(jq -r '"\(.state) \(.clean)"' "$WORK/open.json")" "an attached array"
load verify 20MiB 1
expect optimal "$(state)" "the running array afterwards"
stop engine
expect true "$("$NETRAID" status --json "${URLS[@]}" | jq -r .clean)" "a closed array is clean"
crash m1
"$NETRAID" status --json "${URLS[@]}" >"$WORK/lacks.json"
expect degraded "$(jq -r .state "$WORK/lacks.json")" "without a member"
expect missing "$(jq -r '.members[1].state' "$WORK/lacks.json")" "the member that is away"
crash m2
refused "1 of 3" "$NETRAID" status "${URLS[@]}"

# A reader that has seen enough is no failure.
mkfifo "$WORK/pipe"
exec {reader}<>"$WORK/pipe" {writer}>"$WORK/pipe" {reader}<&-
"$NETRAID" examine "${URLS[@]}" >&$writer || fail "a closed reader makes examine fail"
