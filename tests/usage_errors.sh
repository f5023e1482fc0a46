# What is typed wrong ends with status 2 and help; what is dangerous is refused with a remedy.
. "$(dirname "$0")/lib.sh"

usage() {
    local status=0
    "$NETRAID" "$@" >"$WORK/out" 2>"$WORK/usage.txt" || status=$?
    expect 2 $status "status of: $*"
    [ -s "$WORK/usage.txt" ] || fail "says nothing: $*"
}
usage
usage nonsense
usage target
usage target --lun ram:0
usage target --lun tape:/dev/st0
usage target --listen 127.0.0.1:0 --lun ram:1MiB --iqn iqn.2026-01.org:../../x
usage create vol --level 3 iscsi://127.0.0.1/x/0
usage create vol --level 5
usage attach iscsi://127.0.0.1/x/0 --nbd
usage attach --nbd 127.0.0.1:0 --standby --take-over iscsi://127.0.0.1/x/0
usage attach --nbd 127.0.0.1:0 --standby --read-only iscsi://127.0.0.1/x/0
usage attach --nbd 127.0.0.1:0 --standby --standby-after 1s iscsi://127.0.0.1/x/0
usage attach --nbd 127.0.0.1:0 --on-active true iscsi://127.0.0.1/x/0
usage quickstart --size many

refused "insecure" "$NETRAID" target --listen 0.0.0.0:0 --lun ram:1MiB
refused "$WORK/none" "$NETRAID" target --listen 127.0.0.1:0 --lun "file:$WORK/none"
refused "$WORK/none" "$NETRAID" target --listen 127.0.0.1:0 --lun ram:1MiB --chap-file "$WORK/none"
refused "control" "$NETRAID" status "unix:$WORK/none"
for command in target create status examine attach fail replace rebuild stop quickstart bench; do
    "$NETRAID" $command --help >/dev/null || fail "$command has no help"
done
