# A stock initiator with mutual CHAP and digests: the right secrets serve it, wrong ones on either
# side do not, and no discovery tells a stranger anything.
. "$(dirname "$0")/lib.sh"

install -m 600 /dev/null "$WORK/chap"
printf 'joe:a secret of joe\nmutual:disk:a secret of ours\n' >"$WORK/chap"
serve disk 64MiB --chap-file "$WORK/chap" --control "unix:$WORK/control.sock"
guest_start <<'GUEST'
start_iscsid
if iscsiadm -m discovery -t sendtargets -p 10.0.2.2 2>&1; then fail "a stranger discovers targets"; fi
find() { iscsiadm -m discoverydb -t sendtargets -p 10.0.2.2 "$@"; }
find --op new
for setting in authmethod=CHAP username=joe 'password=a secret of joe' username_in=disk 'password_in=a secret of ours'; do
    find --op update -n "discovery.sendtargets.auth.${setting%%=*}" -v "${setting#*=}"
done
find --discover
node() { iscsiadm -m node -T iqn.2026-01.test:disk -p 10.0.2.2 "$@"; }
set_auth() { node --op update -n node.session.auth.$1 -v "$2"; }
refused() {
    if timeout 60 iscsiadm -m node -T iqn.2026-01.test:disk -p 10.0.2.2 --login >/tmp/login 2>&1; then fail "$1: was let in"; fi
    cat /tmp/login
    ! grep -q 'secret' /tmp/login || fail "$1: shows a secret"
    grep -Eq 'authorization failure|iSCSI login failure' /tmp/login || fail "$1: is no login failure"
    [ -z "$(disks)" ] || fail "$1: a disk appeared"
}
# What fails is not tried for two minutes here.
node --op update -n node.session.initial_login_retry_max -v 1
refused 'without a secret'
set_auth authmethod CHAP
set_auth username joe
set_auth password 'a wrong secret!'
refused 'a wrong secret'
set_auth password 'a secret of joe'
set_auth username_in disk
set_auth password_in 'not our secret!'
refused 'a target that does not know the secret'
set_auth password_in 'a secret of ours'
node --op update -n node.conn[0].iscsi.HeaderDigest -v CRC32C
node --op update -n node.conn[0].iscsi.DataDigest -v CRC32C
node --login
udevadm settle
for digest in header data; do
    expect CRC32C "$(cat /sys/class/iscsi_connection/connection*/${digest}_digest | sed 's/^1$/CRC32C/')" "$digest digest"
done
fio --name=data --filename=$(disk) --size=16M --rw=randwrite --bsrange=512-64k --direct=1 --ioengine=libaio \
    --iodepth=8 --verify=crc32c --verify_fatal=1 --minimal >/dev/null
tell written
await seen
logout
GUEST
guest_tells written
status=$("$NETRAID" status --json "unix:$WORK/control.sock")
expect 1 "$(jq '.sessions | length' <<<"$status")" "sessions"
[ "$(jq .counters.refused_authentication <<<"$status")" -ge 2 ] || fail "no refusal is counted: $status"
expect 0 "$(jq .counters.digest_errors <<<"$status")" "digest errors"
tell_guest seen
guest_end 'detected conn error|login failed'
stop disk
