# What has a name is its owner's: uploads have names that nobody can say, what a dead writer left is gone on with
# or thrown away on purpose only, and what was put can be read at once. Who may not take a volume over leaves
# whoever has it alone.
. "$(dirname "$0")/cluster/lib.sh"
need jq python3

mediator
for i in 1 2 3; do agent $i; done
soon known 3

# quiet COMMAND...: without what it says of its work.
quiet() { "$@" >/dev/null; }
# holds PATH FILE: the data has these bytes.
holds() { "$NETRAID" cat "$1" | cmp - "$2" || fail "$1 is not $2"; }

# Names that another program would take for its own are their owners', data or volumes.
head -c 9000 /dev/urandom >"$WORK/a"
head -c 15000 /dev/urandom >"$WORK/b"
quiet "$NETRAID" put "$WORK/a" /x.partial
quiet "$NETRAID" put "$WORK/b" /x
quiet "$NETRAID" put --resume "$WORK/b" /y
"$NETRAID" volume create /z.partial --size 16MiB >/dev/null
quiet "$NETRAID" put --force "$WORK/b" /z
for path in /x /y /z; do holds $path "$WORK/b"; done
holds /x.partial "$WORK/a"
expect volume "$("$NETRAID" stat --json /z.partial | jq -r .kind)" "kind of /z.partial"
# Every name that there can be, and every path.
for len in 247 248 255; do
    name=$(printf 'n%.0s' $(seq $len))
    quiet "$NETRAID" put "$WORK/a" "/$name"
    holds "/$name" "$WORK/a"
done
refused 255 "$NETRAID" put "$WORK/a" "/n$name"
wide=$(printf 'ü%.0s' $(seq 127))
quiet "$NETRAID" put "$WORK/a" "/$wide"
holds "/$wide" "$WORK/a"
deep=$(printf "/${name:0:254}%.0s" $(seq 16))
deep=$deep/${name:0:15}
expect 4096 ${#deep} "the longest path"
quiet "$NETRAID" put -p "$WORK/a" "$deep"
holds "$deep" "$WORK/a"

# What was begun is thrown away by force only, by whoever it was begun; nobody finds it by the name.
mkfifo "$WORK/pipe"
exec {pipe}<>"$WORK/pipe"
"$NETRAID" mkdir /d
"$NETRAID" put --size 64MiB - /d/f <"$WORK/pipe" 2>/dev/null & putting=$!
begun() { "$NETRAID" stat --upload /d/f >/dev/null 2>&1; }
soon begun
refused "is being put already" "$NETRAID" put "$WORK/a" /d/f
refused "has 67108864 bytes" "$NETRAID" put --resume "$WORK/a" /d/f
# What refuses the new one leaves the old one, which goes on.
anew=("$NETRAID" put --force "$WORK/a" /d/f)
refused "level 5 takes 9 hosts" "${anew[@]}" --members 9
refused "level 6 takes 4" "${anew[@]}" --level 6 --members 3
refused "a power of two" "${anew[@]}" --chunk 3000
refused "can be had now" "${anew[@]}" --rate 100GiB
refused "a limit below the rate" "${anew[@]}" --rate 2MiB --limit 1MiB
refused "too little space" "$NETRAID" put --force --size 100TiB - /d/f
if [ "$(id -u)" = 0 ]; then
    no_locks=(unshare --mount bash -c 'mount -t tmpfs -o ro none /run && exec "$@"' -)
    refused "lock file" "${no_locks[@]}" "${anew[@]}"
fi
begun || fail "an upload is thrown away for another one that was refused"
kill -0 $putting || fail "who puts is fenced for another one that was refused"
kill -KILL $putting
wait $putting 2>/dev/null || true
refused "--force begins anew" "$NETRAID" put "$WORK/a" /d/f
refused "no such thing" "$NETRAID" stat /d/f
expect 0 "$("$NETRAID" ls --json /d | jq '.entries | length')" "names in /d"
expect /d/f "$("$NETRAID" ls --uploads --json /d | jq -r '.entries[].path')" "uploads in /d"
expect 67108864 "$("$NETRAID" stat --upload --json /d/f | jq .upload_bytes)" "what is to be there"
refused "--upload" "$NETRAID" rm /d
quiet "$NETRAID" put --force "$WORK/a" /d/f
holds /d/f "$WORK/a"
expect 0 "$("$NETRAID" ls --uploads --json /d | jq '.entries | length')" "uploads that are left in /d"
# One that could not even begin leaves nothing.
refused "at most" "$NETRAID" put --rate 100GiB/s "$WORK/a" /none
refused "nothing of that name" "$NETRAID" stat --upload /none

# A writer that died after it said that all is there, and before it gave its plan back.
# ask PATH DOCUMENT: what the mediator answers to a POST.
ask() {
    python3 - "$NETRAID_ACCESS" "$@" <<'PY'
import json, ssl, sys, urllib.request
access = json.load(open(sys.argv[1]))
headers = {"Authorization": "Bearer " + access["token"], "Content-Type": "application/json"}
request = urllib.request.Request(access["mediator"] + sys.argv[2], sys.argv[3].encode(), headers)
try:
    trusted = ssl.create_default_context(cadata=access["authority"])
    print(urllib.request.urlopen(request, context=trusted).read().decode())
except urllib.error.HTTPError as refused:
    sys.exit(refused.read().decode())
PY
}
head -c 3000000 /dev/zero >"$WORK/zeros"
ask /v1/names '{"path": "/done", "kind": "data", "size_bytes": 3000000, "upload": true}' >/dev/null
plan=$(ask /v1/plans '{"path": "/done", "upload": true, "mode": "write", "initiator": "iqn.dead"}' | jq -r .plan)
ask "/v1/plans/$plan/state" '{"length_bytes": 3000000}' >/dev/null
ask /v1/rename '{"from": "/done", "to": "/done", "upload": true}' 2>/dev/null &&
    fail "named while somebody may write to it"
quiet "$NETRAID" put --resume "$WORK/zeros" /done
holds /done "$WORK/zeros"
"$NETRAID" volume heal /done >/dev/null

# What is of another kind is left as it is, and the right command is named.
"$NETRAID" volume create /disk --size 16MiB >/dev/null
# no_volume PATH TEXT: what is refused for it is refused with that text.
no_volume() {
    refused "$1 is $2" "$NETRAID" volume attach --take-over "$1" --nbd "unix:$WORK/no.sock"
    refused "$1 is $2" "$NETRAID" volume attach --read-only "$1" --nbd "unix:$WORK/no.sock"
    refused "$1 is $2" "$NETRAID" volume rm --force "$1"
    [ ! -e "$WORK/no.sock" ] || fail "a socket is left of what was refused"
}
no_volume /done "data: .netraid get."
no_volume /d "a directory: .netraid ls."
refused "/d is a directory" "$NETRAID" volume heal /d
refused "is a volume; .netraid volume attach." "$NETRAID" get /disk "$WORK/no"
refused "is a volume; .netraid volume attach." "$NETRAID" cat /disk
refused "is a directory or a volume" "$NETRAID" put --force "$WORK/zeros" /disk
# Of several that are to be removed, those are told that are gone when one is refused.
refused "removed before that: /disk: /missing" "$NETRAID" volume rm /disk /missing
refused "/disk: there is no such thing" "$NETRAID" ls /disk
holds /done "$WORK/zeros"

# Refused, a take-over leaves whoever has the volume alone.
"$NETRAID" volume create /v --size 64MiB --level 5 --members 3 >/dev/null
launch engine "$NETRAID" volume attach --json /v --nbd "unix:$WORK/nbd.sock"
NBD=$(jq -r '.exports[0].uri' <<<"${READY[engine]}")
generation() { "$NETRAID" stat --json /v | jq .stored.generation; }
before=$(generation)
load write 8MiB 1 >/dev/null
take=("$NETRAID" volume attach --take-over /v)
refused "is open to write in process ${PID[engine]} of this machine" "${take[@]}" --nbd "unix:$WORK/other.sock"
expect "$before" "$(generation)" "generation after a refusal for the lock"
load write 8MiB 2 >/dev/null
# As from another machine, which has no such lock.
elsewhere=(unshare --mount bash -c 'mount -t tmpfs none /run && exec "$@"' -)
if [ "$(id -u)" = 0 ]; then
    refused "nbd.sock" "${elsewhere[@]}" "${take[@]}" --nbd "unix:$WORK/nbd.sock"
    long=$WORK/$(printf 's%.0s' $(seq 110))
    mkdir "$WORK/mount"
    refused "cannot listen" "${elsewhere[@]}" "${take[@]}" --nbd "unix:$long"
    refused "cannot listen" "${elsewhere[@]}" "${take[@]}" --nbd "unix:$WORK/other.sock" --control "unix:$long"
    refused "cannot listen" "${elsewhere[@]}" "${take[@]}" --nbd "unix:$WORK/other.sock" --control "unix:$WORK/other.sock"
    refused "cannot listen" "${elsewhere[@]}" "${take[@]}" --nbd "unix:$WORK/other.sock" --nbd "unix:$WORK/other.sock"
    refused "is mounted over" "${elsewhere[@]}" "${take[@]}" --fuse "$WORK/mount" --control "unix:$WORK/mount/control"
    without_fuse=(unshare --mount bash -c 'mount --bind /dev/zero /dev/fuse && exec "$@"' -)
    [ ! -e /dev/fuse ] || refused "mount" "${without_fuse[@]}" "${elsewhere[@]}" "${take[@]}" --fuse "$WORK/mount"
    [ ! -e "$WORK/other.sock" ] || fail "a socket is left of an attachment that was refused"
    refused "at most" "${elsewhere[@]}" "${take[@]}" --nbd "unix:$WORK/other.sock" --rate 100GiB/s
    refused "its log must be brought home" "${elsewhere[@]}" "${take[@]}" --read-only --nbd "unix:$WORK/other.sock"
    few=(bash -c 'ulimit -n 20 && exec "$@"' -)
    refused "more files and sockets" "${few[@]}" "${elsewhere[@]}" "${take[@]}" --nbd "unix:$WORK/other.sock"
    expect "$before" "$(generation)" "generation after refusals"
    load write 8MiB 3 >/dev/null
    load verify 8MiB 3 >/dev/null
fi
stop engine
