# All targets are killed while nothing runs; what was flushed is there when they are back.
. "$(dirname "$0")/lib.sh"
need jq

array 5 3
load write 60MiB 7
stop engine
for index in 0 1 2; do crash m$index; done
targets 3
attach "${URLS[@]}"
expect optimal "$(state)" "state"
load verify 60MiB 7
stop engine
