# Which arrays have a log, and what is refused of it; nothing is written by what is refused.
. "$(dirname "$0")/lib.sh"
need jq

targets 5
mapfile -t URLS < <(members 5)
# log LEVEL [ARG...]: bytes of the log of a new array.
log() { "$NETRAID" create vol --json --force --level "$1" "${@:2}" "${URLS[@]}" | jq .log_bytes; }
refused 'level 0 has no redundancy for a log' "$NETRAID" create vol --level 0 --log on "${URLS[@]}"
refused 'level 6 needs a log' "$NETRAID" create vol --level 6 --log off "${URLS[@]}"
refused 'level 10 needs a log' "$NETRAID" create vol --level 10 --log off "${URLS[@]:0:4}"
refused 'an array with a log has crc32c' "$NETRAID" create vol --level 5 --checksums none "${URLS[@]}"
refused 'without a log has none' "$NETRAID" create vol --level 5 --log off --checksums crc32c "${URLS[@]}"
refused 'the array has no log' "$NETRAID" create vol --level 0 --log-size 1MiB "${URLS[@]}"
refused 'this array needs' "$NETRAID" create vol --level 5 --log-size 4KiB "${URLS[@]}"
refused 'no netraid label' "$NETRAID" examine "${URLS[0]}"
expect 0 "$(log 0)" "level 0"
expect 0 "$(log 5 --log off)" "level 5 without"
for level in 1 5 6; do expect 4194304 "$(log $level --checksums crc32c)" "level $level"; done
expect 2097152 "$(log 5 --log-size 2MiB)" "a size that was asked for"
# What was made last is what is attached; it says how full its log is.
attach "${URLS[@]}"
expect 2097152 "$("$NETRAID" status --json "$CONTROL" | jq .log.size_bytes)" "the status"
stop engine
expect 2097152 "$("$NETRAID" status --json "${URLS[@]}" | jq .log_bytes)" "the labels"
