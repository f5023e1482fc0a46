# Half of a mirror that missed writes does not open alone, and two halves that went on without each
# other are never mixed.
. "$(dirname "$0")/lib.sh"
need jq

array 1 2
load write 8MiB 1
crash m1
load write 8MiB 1 --rewritten 2
stop engine
crash m0
target m1
refused "newer data.*--force" "$NETRAID" attach --nbd 127.0.0.1:0 "${URLS[@]}"

# An administrator insists: m1 goes on alone.
attach --force "${URLS[@]}"
load verify 8MiB 1
stop engine
target m0
refused "two histories" "$NETRAID" attach --nbd 127.0.0.1:0 "${URLS[@]}"
