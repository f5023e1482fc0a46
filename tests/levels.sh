# Levels 0, 1 and 5 keep what was written over a restart; 1 and 5 also over a loss and a replacement.
. "$(dirname "$0")/lib.sh"
need jq

targets 4
target spare
mapfile -t urls < <(members 4)
for level in 0 1 5; do
    say "level $level"
    "$NETRAID" create vol --level $level --force "${urls[@]}" >/dev/null
    attach "${urls[@]}"
    len=$((40 << 20))
    load write $len $level
    stop engine
    attach "${urls[@]}"
    load verify $len $level
    if [ $level = 0 ]; then
        refused "member" "$NETRAID" fail "$CONTROL" 1
    else
        "$NETRAID" fail "$CONTROL" 1
        load verify $len $level
        "$NETRAID" replace --force "$CONTROL" 1 "${URI[spare]}"
        rebuilt
        expect optimal "$(state)" "state after the rebuild"
        "$NETRAID" fail "$CONTROL" 0
        load verify $len $level
    fi
    stop engine
done
