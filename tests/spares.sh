# Spares take the places of members that stay away, or that were set aside, by themselves; what they become is found again when the
# array is attached anew; spares that are no spares are left alone, and told of.
. "$(dirname "$0")/lib.sh"
need jq

status() { "$NETRAID" status --json "$CONTROL" | jq -c "$1"; }
is_so() { [ "$(status "$1")" = "$2" ]; }
# noticed WORDS [TIMES]: the engine has said so, so often.
noticed() { expect "${2:-1}" "$(grep -c "$1" "$WORK/engine.err")" "notices of '$1'"; }

targets 7
mapfile -t URLS < <(members 7)
"$NETRAID" create vol --level 5 "${URLS[@]:0:4}" >/dev/null
"$NETRAID" create other --level 1 "${URLS[@]:4:1}" "${URLS[@]:6:1}" >/dev/null

# Members, spares: the first of them is a member of another array.
with_spares() {
    attach "${URLS[@]:0:4}" --spare "${URLS[4]}" --spare "${URLS[5]}" --spare-after 2s "$@"
}
refused 'is given twice' "$NETRAID" attach --nbd "unix:$WORK/no" "${URLS[@]:0:4}" --spare "${URLS[1]}"
with_spares
expect '["'"${URLS[4]}"'","'"${URLS[5]}"'"]' "$(status .spares)" "spares"
noticed "is no spare, but a member of array 'other'"
load write 32MiB 7

# One that goes for good.
kill -KILL "${PID[m1]}"
wait "${PID[m1]}" || true
unset "PID[m1]"
await 30 is_so '.members[1].url' "\"${URLS[5]}\""
await 30 is_so '.state' '"optimal"'
noticed "does not take the place of member 1: ${URLS[4]}"
noticed "has taken the place of member 1"
expect '["'"${URLS[4]}"'"]' "$(status .spares)" "spares that are left"
load verify 32MiB 7
stop engine

# The old address of a member that is no more, and the spare that has its place.
with_spares
await 30 is_so '.state' '"optimal"'
expect "\"${URLS[5]}\"" "$(status '.members[1].url')" "member 1 after it was attached anew"
load verify 32MiB 7
stop engine
target m1
refused "was member 1, has been replaced; give the address of the device that took its place" \
    "$NETRAID" attach --nbd "unix:$WORK/no" "${URLS[@]:0:4}"
attach "${URLS[@]:0:4}" --degraded
await 30 is_so '.state' '"degraded"'
load verify 32MiB 7
stop engine

# One that was set aside is replaced at once; what the spare lacks of room is told.
target small 8MiB
target m8
attach "${URLS[0]}" "${URLS[5]}" "${URLS[@]:2:2}" --spare "${URI[small]}" --spare "${URI[m8]}" --spare-after 1h
"$NETRAID" fail "$CONTROL" 3 >/dev/null
await 30 is_so '.members[3].url' "\"${URI[m8]}\""
await 30 is_so '.state' '"optimal"'
noticed "spare ${URI[small]} does not take the place of member 3"
load verify 32MiB 7
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"
stop engine
