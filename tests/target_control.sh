# LUNs and sessions of a running target are added, shown and removed through its control socket,
# also under load.
. "$(dirname "$0")/lib.sh"
need jq iscsi-ls iscsi-inq iscsi-readcapacity16 stat fio

control=unix:$WORK/target.sock
target m0 64MiB --control "$control"
portal=$(jq -r '.addresses[0]' <<<"${READY[m0]}")
status() { "$NETRAID" status --json "$control" | jq -r "$1"; }

expect 600 "$(stat -c %a "$WORK/target.sock")" "mode of the socket"
expect target "$(status .kind)" "kind"
expect 67108864 "$(status '.luns[0].capacity_bytes')" "capacity"
expect true "$(status '.luns[0].free_bytes > 0')" "space that is left below"
expect "nobody is logged in" "$("$NETRAID" session list "$control")" "sessions"
expect 0 "$("$NETRAID" lun list --json "$control" | jq '.[0].lun')" "LUNs that are listed"

# The socket is one target's, and never takes the place of a file.
refused 'cannot listen' "$NETRAID" target --listen 127.0.0.1:0 --lun ram:1MiB --control "$control"
say keep >"$WORK/file"
refused 'cannot listen' "$NETRAID" target --listen 127.0.0.1:0 --lun ram:1MiB --control "unix:$WORK/file"
expect keep "$(cat "$WORK/file")" "the file"

# A new LUN is there for everybody, with the number that was asked for, or the lowest free one.
(cd "$WORK" && "$NETRAID" lun add "$control" file:added.img:32MiB --lun 5 >/dev/null)
expect 33554432 "$(stat -c %s "$WORK/added.img")" "a relative path is the caller's"
expect 1 "$("$NETRAID" lun add --json "$control" ram:16MiB --block-len 4096 | jq .lun)" "the next free LUN"
expect 3 "$(iscsi-ls --show-luns "iscsi://$portal" | grep -c 'Lun:')" "LUNs"
iscsi-inq "${URI[m0]/%\/0/\/5}" | grep -qi DIRECT_ACCESS || fail "the new LUN is no disk"
iscsi-readcapacity16 "${URI[m0]/%\/0/\/1}" | grep -q 'Total size:16777216' || fail "capacity of LUN 1"

# What cannot be done is refused in words.
refused 'LUN 5: is in use' "$NETRAID" lun add "$control" ram:1MiB --lun 5
refused 'largest is 16383' "$NETRAID" lun add "$control" "file:$WORK/not.img:1M" --lun 16384
expect 1 "$("$NETRAID" lun add "$control" "file:$WORK/none/x:1M" 2>&1 | grep -o 'No such file' | wc -l)" "times that the cause is told"
[ ! -e "$WORK/not.img" ] || fail "a file was made for a LUN that cannot be"
refused 'in use|another|locked' "$NETRAID" lun add "$control" "file:$WORK/m0.img"
refused 'LUN 9: there is none; the target has LUN 0, 1, 5' "$NETRAID" lun remove "$control" 9
refused 'session 4711: there is none' "$NETRAID" session drop "$control" 4711
refused 'not understood.*fail' "$NETRAID" fail "$control" 0
refused 'target.sock2.*--control' "$NETRAID" status "${control}2"
refused 'write unix:PATH' "$NETRAID" lun remove "$WORK/target.sock" 1
printf '{"command":"remove_lun","lun":0,"more":1}\nnonsense\n{"command":"status"}\n' |
    python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.stdin.buffer.read())
f = s.makefile(); print(f.readline(), f.readline(), f.readline(), sep="", end="")' "$WORK/target.sock" >"$WORK/answers"
expect "error error ok" "$(jq -r 'keys[0]' "$WORK/answers" | xargs)" "answers to bad and good requests"

# A LUN grows while it serves; it shrinks only when that is said, and keeps what it still has.
capacity() { iscsi-readcapacity16 "${URI[m0]/%\/0/\/$1}" | sed -n 's/^Total size://p'; }
"$NETRAID" lun resize "$control" 5 48MiB >/dev/null
expect 50331648 "$(capacity 5)" "capacity of LUN 5 that grew"
expect 50331648 "$(stat -c %s "$WORK/added.img")" "size of its file"
refused 'would be lost' "$NETRAID" lun resize "$control" 5 16MiB
refused 'multiple|block' "$NETRAID" lun resize "$control" 5 1000
refused 'LUN 9: there is none' "$NETRAID" lun resize "$control" 9 1MiB
expect 50331648 "$(capacity 5)" "capacity after refusals"
expect 16777216 "$("$NETRAID" lun resize --json "$control" 5 16MiB --shrink | jq .capacity_bytes)" "capacity that is said"
expect 16777216 "$(capacity 5)" "capacity of LUN 5 that shrank"
expect serving "$(status '.luns[] | select(.lun == 5) | .state')" "state after that"

# Filters come and go; what is wrong with them is said.
expect error=100%:medium:read "$("$NETRAID" filter --json "$control" 5 error=100%:read | jq -r '.filters[]')" "filters"
! "$NETRAID" bench member "${URI[m0]/%\/0/\/5}" --span 4MiB --rounds 1 --seconds 0.1 >"$WORK/filter.out" 2>&1 ||
    fail "the filter does nothing"
refused 'has filters' "$NETRAID" lun resize "$control" 5 32MiB
refused 'slow' "$NETRAID" filter "$control" 5 slow
expect 0 "$("$NETRAID" filter --json "$control" 5 none | jq '.filters | length')" "filters that are left"

# use LUN SECONDS: reads and writes for so long; fails when a request does.
use() { "$NETRAID" bench member "${URI[m0]/%\/0/\/$1}" --overwrite --span 8MiB --rounds 1 --seconds "$2"; }

# in_use LUN: waits until a session has used the LUN.
in_use() {
    local deadline=$((SECONDS + 10))
    until [ "$(status ".luns[] | select(.lun == $1) | .commands.reads + .commands.writes")" -gt 0 ]; do
        [ $SECONDS -lt $deadline ] || fail "LUN $1 is not used"
        sleep 0.05
    done
}

# A LUN that is used is removed by force only; its user gets an error, the others' go on.
use 0 1 >"$WORK/stays.out" 2>"$WORK/stays.err" &
stays=$!
use 5 2 >"$WORK/goes.out" 2>"$WORK/goes.err" &
goes=$!
in_use 0
in_use 5
refused 'LUN 5: is in use by 1 sessions \(iqn' "$NETRAID" lun remove "$control" 5
"$NETRAID" lun remove "$control" 5 --force >/dev/null
! wait $goes || fail "the user of a LUN that went noticed nothing"
grep -q '^netraid: ' "$WORK/goes.err" || fail "no clean error: $(cat "$WORK/goes.err")"
wait $stays || fail "the user of another LUN was disturbed: $(cat "$WORK/stays.err")"
expect 2 "$(iscsi-ls --show-luns "iscsi://$portal" | grep -c 'Lun:')" "LUNs that are left"
(cd "$WORK" && "$NETRAID" lun add "$control" file:added.img --lun 5 >/dev/null)
expect 0 "$(status '.luns[] | select(.lun == 5) | .commands.writes')" "writes to the LUN that came back"

# A session that is dropped under load is made again by its initiator, which loses nothing.
before=$(status '.luns[0].commands.reads')
use 0 1 >"$WORK/dropped.out" 2>"$WORK/dropped.err" &
dropped=$!
until [ "$(status '.luns[0].commands.reads')" -gt "$before" ]; do sleep 0.05; done
id=$("$NETRAID" session list --json "$control" | jq '[.[] | select(.commands.writes > 0)][0].session')
expect 1 "$("$NETRAID" session drop --json "$control" "$id" | jq .dropped)" "dropped sessions"
wait $dropped || fail "a request was lost with its session: $(cat "$WORK/dropped.err")"
expect 1 "$(status .counters.dropped_sessions)" "dropped sessions that were counted"
"$NETRAID" status "$control" | grep -q 'dropped sessions' || fail "not shown to people"

# An array's session that has come back is registered with the LUN, and uses it before it has read or written.
"$NETRAID" create vol --level 0 --force "${URI[m0]}" >/dev/null
attach "${URI[m0]}"
"$NETRAID" session drop --json "$control" >/dev/null
until [ "$("$NETRAID" session list --json "$control" | jq length)" -gt 0 ]; do sleep 0.05; done
refused 'LUN 0: is in use by 1 sessions \(iqn' "$NETRAID" lun remove "$control" 0
expect 1 "$(status '.luns[] | select(.lun == 0) | .sessions')" "sessions that use LUN 0"
stop engine
"$NETRAID" lun remove "$control" 0 >/dev/null

"$NETRAID" stop "$control" >/dev/null
await_end "${PID[m0]}" 10 || fail "the target does not stop"
[ ! -e "$WORK/target.sock" ] || fail "the socket stayed"
