# Whole files over four agents behind links of 200 Mbit/s each, level 5: `put` has to move nearly three
# times, and `get` nearly four times, what it does with one agent alone.
# Alone: it compares how long transfers take.
. "$(dirname "$0")/links/lib.sh"

# Bytes that are moved with one agent; four times as many with four. What beginning and end take is a tenth of
# a second more with four: with SIZE=536870912 it counts for little.
SIZE=${SIZE:-134217728}
PUT=2.7        # times one agent, at least
GET=3.6

mediator
for i in 1 2 3 4; do
    host "$i"
    agent "$i" --rate 100MiB/s
done
known 4

# seconds COMMAND...: how long it takes.
seconds() {
    local began=$EPOCHREALTIME
    "$@" >/dev/null
    jq -n "$EPOCHREALTIME - $began"
}
# rates NAME LEN ARG...: puts a file, gets it, compares; sets PUT_RATE and GET_RATE, in MB/s.
rates() {
    local name=$1 len=$2 put get
    shift 2
    head -c "$len" /dev/urandom >"$WORK/file"
    put=$(seconds "$NETRAID" put -p --json "$@" "$WORK/file" "/t/$name")
    get=$(seconds "$NETRAID" get --json "/t/$name" "$WORK/back")
    cmp "$WORK/file" "$WORK/back"
    rm "$WORK/back"
    PUT_RATE=$(jq -n "$len / $put / 1e4 | round / 100")
    GET_RATE=$(jq -n "$len / $get / 1e4 | round / 100")
    say "$name: put $PUT_RATE MB/s, get $GET_RATE MB/s"
}
rates one $SIZE --survives 0 --members 1
one_put=$PUT_RATE one_get=$GET_RATE
rates four $((4 * SIZE)) --level 5 --members 4
put=$(jq -n "$PUT_RATE / $one_put * 100 | round / 100")
get=$(jq -n "$GET_RATE / $one_get * 100 | round / 100")
say "four agents against one: put $put times, get $get times"
jq -e -n "$put >= $PUT" >/dev/null || fail "put: less than $PUT times"
jq -e -n "$get >= $GET" >/dev/null || fail "get: less than $GET times"
