# A member that comes back is rebuilt on request, and then carries the array through the next loss.
. "$(dirname "$0")/lib.sh"
need jq

array 5 4
load write 100MiB 1
"$NETRAID" fail "$CONTROL" 2
load write 100MiB 1 --rewritten 2
"$NETRAID" rebuild "$CONTROL" 2
rebuilt
expect optimal "$(state)" "state after the rebuild"
crash m0
load verify 100MiB 1 --rewritten 2
stop engine
