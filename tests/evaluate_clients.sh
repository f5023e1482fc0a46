# The buyer's test with clients on other hosts (two names of an sshd of our own), at a block device, and with a
# tape that is a character device.
. "$(dirname "$0")/lib.sh"
need jq ssh sshd ssh-keygen losetup mkfs.ext4 unshare python3
[ "$(id -u)" = 0 ] || { say "needs root for losetup and mounts"; exit 77; }

log=$WORK/log.jsonl
# The usual sizes need 4 GiB of room, which not every machine that runs the tests has.
small=(--file-size 8MiB --net-file-size 4MiB --buffer 64KiB)
evaluate() {
    "$NETRAID" evaluate --json --log "$log" "${small[@]}" --stream-seconds 20 --pairs 5 --tape-rate 4MiB "$@"
}
# result FILE TEST FILTER: of a test's result at the first target.
result() { jq -c "[.targets[0].results[] | select(.test == \"$2\")][0] | $3" "$1"; }

mkdir "$WORK/dir" "$WORK/bin" "$WORK/mnt"
echo mine >"$WORK/dir/mine"
head -c 6291456 /dev/urandom >"$WORK/noise"
head -c 6291456 /dev/urandom >"$WORK/other"

# An ssh that knows our hosts and keys only, and hosts that find our netraid. They have another file under one of the names.
ssh=$(command -v ssh) sshd=$(command -v sshd)
ssh-keygen -q -t ed25519 -N '' -f "$WORK/host_key"
ssh-keygen -q -t ed25519 -N '' -f "$WORK/key"
cp "$WORK/key.pub" "$WORK/authorized"
ln -s "$(realpath "$NETRAID")" "$WORK/bin/netraid"
cp "$WORK/noise" "$WORK/differs"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$WORK/sshd_config" <<END
ListenAddress 127.0.0.1:$port
HostKey $WORK/host_key
AuthorizedKeysFile $WORK/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
SetEnv PATH=$WORK/bin:$PATH
END
cat >"$WORK/ssh_config" <<END
Host alpha beta
    HostName 127.0.0.1
    Port $port
    IdentityFile $WORK/key
    IdentitiesOnly yes
    UserKnownHostsFile $WORK/known
    StrictHostKeyChecking accept-new
END
mkdir "$WORK/local"
printf '#!/bin/sh\nexec %q -F %q "$@"\n' "$ssh" "$WORK/ssh_config" >"$WORK/local/ssh"
chmod +x "$WORK/local/ssh"
PATH=$WORK/local:$PATH
mkdir -p /run/sshd
unshare --mount sh -c 'mount --bind "$1/other" "$1/differs" && exec "$2" -D -e -f "$1/sshd_config"' - "$WORK" "$sshd" \
    2>"$WORK/sshd.err" &
PID[sshd]=$!
for ((try = 0; ; try++)); do
    ssh -o BatchMode=yes alpha true 2>"$WORK/ssh.err" && break
    [ $try -lt 100 ] || { cat "$WORK/ssh.err" "$WORK/sshd.err"; fail "no sshd"; }
    sleep 0.1
done

say "clients on two hosts"
evaluate "$WORK/dir" --client alpha --client root@beta --tests net,host.9 --data "$WORK/noise" >"$WORK/net.json" \
    2>"$WORK/net.said" || { cat "$WORK/net.said"; fail "clients"; }
expect '[]' "$(jq -c '[.targets[0].results[] | select(.outcome.state != "done")]' "$WORK/net.json")" "what did not run"
expect '["alpha","root@beta","alpha"]' "$(result "$WORK/net.json" net.2 '[.rounds[0].streams[].host]')" "hosts of three clients"
expect '["read","read","write","write"]' "$(result "$WORK/net.json" net.5 '[.rounds[0].streams[].role]')" "two readers, two writers"
expect '["alpha","root@beta"]' "$(jq -c '[.baselines[] | select(.kind == "network" and .mb_per_s > 0) | .place]' "$WORK/net.json")" \
    "networks"
expect true "$(result "$WORK/net.json" host.9 '.figure.value > 0')" "a copy to a remote disk"
expect mine "$(ls -A "$WORK/dir")" "what is left"

say "data of a host that is not that of the run"
digest=$(jq -r .run.data.digest "$WORK/net.json")
refused "client alpha: --data $WORK/differs: has digest .* here, and $digest where" \
    "$NETRAID" evaluate "$WORK/dir" --log "$log" --client alpha --tests net.3 --data "$WORK/differs" \
    "${small[@]}"
expect mine "$(ls -A "$WORK/dir")" "what is left"

say "a host that is away, and one without netraid"
refused 'client nowhere.invalid: ended without a word' \
    "$NETRAID" evaluate "$WORK/dir" --log "$log" --client nowhere.invalid --tests net.3 "${small[@]}"
mv "$WORK/bin/netraid" "$WORK/bin/other"
refused 'client alpha: ended without a word' \
    "$NETRAID" evaluate "$WORK/dir" --log "$log" --client alpha --tests net.3 "${small[@]}"
mv "$WORK/bin/other" "$WORK/bin/netraid"

say "an interruption reaches the hosts"
"$NETRAID" evaluate "$WORK/dir" --log "$log" --client alpha --tests net.1 --net-file-size 256MiB --file-size 8MiB --rounds 50 \
    >/dev/null 2>"$WORK/cut.said" &
child=$!
for ((try = 0; ; try++)); do
    grep -q 'this takes' "$WORK/cut.said" && [ -n "$(ls "$WORK/dir"/.netraid-evaluate-*/* 2>/dev/null)" ] && break
    [ $try -lt 600 ] || fail "it never began"
    sleep 0.05
done
kill -TERM $child
await_end $child 20 || fail "it goes on"
wait $child || true
expect mine "$(ls -A "$WORK/dir")" "what is left by an interrupted run"
expect '' "$(pgrep -f "^netraid evaluate-client|$WORK/bin/netraid evaluate-client" || true)" "clients that are left"

say "a block device"
truncate -s 96M "$WORK/disk"
loop=$(losetup --find --show "$WORK/disk")
detach() {
    ! mountpoint -q "$WORK/mnt" || umount --lazy "$WORK/mnt"
    losetup --detach "$loop" 2>/dev/null || true
}
at_end detach
refused 'destroy-data' "$NETRAID" evaluate "$loop" --log "$log"
refused 'another device on the hosts' "$NETRAID" evaluate "$loop" --destroy-data --client alpha --log "$log"
refused 'stands on it' "$NETRAID" evaluate "$WORK/disk" --destroy-data --log "$log"
mkfs.ext4 -q "$loop"
mount "$loop" "$WORK/mnt"
refused 'is in use' "$NETRAID" evaluate "$loop" --destroy-data --log "$log"
umount "$WORK/mnt"
evaluate "$loop" --destroy-data --tests host.1,host.2,host.3,net.5,random,trick --random-seconds 0.3 --depths 1,8 \
    >"$WORK/block.json" 2>"$WORK/block.said" || { cat "$WORK/block.said"; fail "a block device"; }
expect '["block",true,100663296]' "$(jq -c '.targets[0].target | [.kind, .direct, .capacity_bytes]' "$WORK/block.json")" "what it is"
expect '[]' "$(jq -c '[.targets[0].results[] | select(.outcome.state != "done")]' "$WORK/block.json")" "what did not run"
expect '[]' "$(jq -c '[.targets[0].findings[] | select(.state == "found")]' "$WORK/block.json")" "findings of an honest device"
expect 5 "$(result "$WORK/block.json" trick.regions '.regions | length')" "places"

say "a tape that is a character device"
python3 - "$WORK/tape" 2>"$WORK/tape.err" <<'END' &
import os, sys, threading
drive, end = os.openpty()
os.system("stty -F " + os.ttyname(end) + " raw -echo")
def give():
    while True:
        os.write(drive, os.urandom(4096))
threading.Thread(target=give, daemon=True).start()
with open(sys.argv[1] + ".new", "w") as named:
    named.write(os.ttyname(end))
os.rename(sys.argv[1] + ".new", sys.argv[1])
while True:
    os.read(drive, 65536)
END
PID[tape]=$!
for ((try = 0; ; try++)); do
    [ ! -s "$WORK/tape" ] || break
    [ $try -lt 100 ] || fail "no terminal: $(<"$WORK/tape.err")"
    sleep 0.05
done
tape=$(<"$WORK/tape")
refused 'give --destroy-data' "$NETRAID" evaluate "$WORK/dir" --tape "$tape" --log "$log"
evaluate "$WORK/dir" --tape "$tape" --destroy-data --tests host.5,host.6,host.7,host.8,host.9 >"$WORK/tape.json" \
    2>"$WORK/tape.said" || { cat "$WORK/tape.said"; fail "a tape"; }
expect '[]' "$(jq -c '[.targets[0].results[] | select(.outcome.state != "done")]' "$WORK/tape.json")" "what did not run"
for test in host.5 host.6; do
    expect true "$(result "$WORK/tape.json" $test '.rounds[0].streams[0] | .bytes == 8388608 and .mb_per_s > 3 and .mb_per_s < 4.5')" \
        "$test at the tape's rate"
done
expect '["from_tape","read","remote_copy","to_tape","write"]' \
    "$(jq -c '[.targets[0].results[].rounds[].streams[].role] | unique' "$WORK/tape.json")" "roles"
expect mine "$(ls -A "$WORK/dir")" "what is left"
