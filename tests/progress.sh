# A rebuild and a scrub of an array that is half mapped: what is shown as to be done is what is mapped, what is done moves all
# the time, and the time that is said to be left is true.
. "$(dirname "$0")/lib.sh"
need jq

# status JQ: of the array.
status() { "$NETRAID" status --json "$CONTROL" | jq -r "$1"; }
ms() { date +%s%3N; }
# home: waits until nothing is in the log.
home() {
    local deadline=$((SECONDS + 30))
    until [ "$(status '.log.dirty_bytes + .log.used_bytes')" = 0 ]; do
        [ $SECONDS -lt $deadline ] || fail "the log is not brought home"
        sleep 0.1
    done
}
# watch JQ COMMAND...: looks at that part of the status until the command succeeds; notes, a line a look, the time, the bytes that
# are done and are to be done, and the time left.
watch() {
    local part=$1 deadline=$((SECONDS + 120))
    shift
    : >"$WORK/looks"
    until "$@"; do
        [ $SECONDS -lt $deadline ] || fail "after 120 s not yet: $*"
        say "$(ms) $(status "$part | \"\(.done_bytes) \(.total_bytes) \(.left_ms // \"-\")\"")" >>"$WORK/looks"
        sleep 0.3
    done
    ended=$(ms)
}
# steady: what is done grew from look to look, and from a tenth on, up to two seconds before the end, the time left was true
# within a fifth, but for the half second in which the end is seen. A rate is known two seconds after the beginning.
steady() {
    awk -v ended="$ended" '
        $2 == "null" || $3 == 0 { next }
        !began { began = $1 }
        $2 < last { printf "%d bytes are done after %d\n", $2, last; bad = 1 }
        $2 > last { moves++ }
        { last = $2; looks++ }
        $2 * 10 >= $3 && ended - $1 > 2000 && $1 - began > 2500 {
            left = ended - $1
            if ($4 == "-") { printf "no time left is said %d ms before the end\n", left; bad = 1; next }
            off = $4 - left; if (off < 0) off = -off
            judged++
            if (off > left / 5 + 500) { printf "%d ms are said to be left %d ms before the end\n", $4, left; bad = 1 }
        }
        END {
            printf "%d looks, %d of them with more done, %d estimates\n", looks, moves, judged
            exit bad || moves * 4 < looks * 3 || judged < 8
        }' "$WORK/looks" || fail "progress is not steady or not true: $(tail -n 60 "$WORK/looks")"
}
is_whole() { [ "$(status '.members[1] | "\(.state) \(.successor)"')" = "in_sync null" ]; }
is_scrubbed() { [ "$(status .scrub.state)" = complete ]; }

targets 4 256MiB
target spare 256MiB --filter rate=6MiB/s --control "unix:$WORK/spare.sock"
mapfile -t URLS < <(members 4)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
half=$(($(status .capacity_bytes) / 2 / 196608 * 196608))
load write "$half" 1
home

say "a copy, as fast as the new member is"
"$NETRAID" replace "$CONTROL" 1 "${URI[spare]}" >/dev/null
expect copy "$(status .progress.kind)" "what goes on"
watch .progress is_whole
total=$(awk '$3 > 0 { print $3; exit }' "$WORK/looks")
chunks=$(($(status .log.mapped_bytes) / 3))
say "$total bytes were to be done, $chunks of chunks; a member has $((256 << 20))"
[ "$total" -ge "$chunks" ] && [ "$total" -le $((chunks + (8 << 20))) ] || fail "what is to be done is not what is mapped"
steady
rebuilt
load verify "$half" 1

say "a catch-up: what it missed, and no more"
"$NETRAID" fail "$CONTROL" 1
load write 24MiB 2
home
"$NETRAID" rebuild "$CONTROL" 1 >/dev/null
looked=$("$NETRAID" status --json "$CONTROL")
expect catch_up "$(jq -r .progress.kind <<<"$looked")" "what goes on"
watch .progress is_whole
total=$(awk '$3 != "null" { last = $3 } END { print last }' "$WORK/looks")
[ "$total" -le $((24 << 20)) ] || fail "$total bytes are said to be to be done: $(cat "$WORK/looks")"
rebuilt

say "a scrub under a rate"
"$NETRAID" scrub "$CONTROL" --start --rate 24MiB >/dev/null
watch .scrub is_scrubbed
"$NETRAID" status "$CONTROL" | grep 'scrub: complete' || fail "the status does not show it"
total=$(awk 'NR == 1 { print $3 }' "$WORK/looks")
stripes=$(($(status .log.mapped_bytes) / 3 * 4))
[ "$total" -ge "$stripes" ] && [ "$total" -le $((stripes + (16 << 20))) ] || fail "$total bytes to be scrubbed, $stripes are mapped"
steady
stop engine

say "a rebuild without a log"
"$NETRAID" filter "unix:$WORK/spare.sock" 0 none >/dev/null
"$NETRAID" create vol --force --level 5 --log off "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
load write "$half" 3
chunks=$(($(status .used_bytes) / 3))
"$NETRAID" filter "unix:$WORK/spare.sock" 0 rate=8MiB/s >/dev/null
"$NETRAID" replace --force "$CONTROL" 1 "${URI[spare]}" >/dev/null
expect rebuild "$(status .progress.kind)" "what goes on"
watch .progress is_whole
expect "$chunks" "$(awk '$3 > 0 { print $3; exit }' "$WORK/looks")" "bytes to be done"
steady
stop engine
