# serve.sh netraid|tgt: one target for each configuration of the conformance suite; prints
# `CONFIGURATION URL...` lines and `ready`, and serves until its standard input ends.
. "$(dirname "$0")/../lib.sh"
need jq iscsi-test-cu

# The suite's data is not what is tested: it lives in memory.
DATA=$(mktemp -d /dev/shm/netraid-conformance.XXXXXX)
at_end rm -rf "$DATA"
SECRET=conformance-suite-1

serve_netraid() {
    install -m 600 /dev/null "$WORK/chap"
    say "suite:$SECRET" >"$WORK/chap"
    one() {
        local name=$1 lun=$2
        shift 2
        launch "$name" "$NETRAID" target --json --listen 127.0.0.1:0 --iqn "iqn.2026-01.test:$name" \
            --lun "$lun" "$@"
        URI[$name]=$(jq -r '.luns[0].uri' <<<"${READY[$name]}")
    }
    one default ram:128MiB
    say "default ${URI[default]}"
    truncate -s 128M "$DATA/read-only"
    one read-only "file:$DATA/read-only,ro"
    say "read-only ${URI[read-only]}"
    one two-portals "file:$DATA/two-portals:128MiB" --listen 127.0.0.1:0
    local address='"iscsi://\(.addresses[])/\(.iqn)/0"'
    say two-portals "$(jq -r "[$address] | join(\" \")" <<<"${READY[two-portals]}")"
    # The suite looks at a SANITIZE after three seconds, and it must still be running then.
    one slow "file:$DATA/slow:64MiB" --filter rate=12MiB/s
    say "slow ${URI[slow]}"
    one removable ram:64MiB --removable
    say "removable ${URI[removable]}"
    one file "file:$DATA/file:128MiB"
    say "file ${URI[file]}"
    one chap ram:128MiB --chap-file "$WORK/chap"
    say "chap ${URI[chap]/suite@/suite%$SECRET@}"
}

serve_tgt() {
    need tgtd tgtadm
    export TGT_IPC_SOCKET=$WORK/tgt.ipc
    local first=$((20000 + RANDOM % 5000)) second tid=0 name
    second=$((first + 5000))
    # It ends on no signal but this one while LUNs are in use.
    tgtd -f --iscsi "portal=127.0.0.1:$first,portal=127.0.0.1:$second" >"$WORK/tgtd.err" 2>&1 &
    PID[tgtd]=$!
    at_end crash tgtd
    until tgtadm --op show --mode sys >/dev/null 2>&1; do
        kill -0 "${PID[tgtd]}" || fail "tgtd does not run"
        sleep 0.1
    done
    for name in default read-only two-portals slow chap removable file; do
        tid=$((tid + 1))
        truncate -s 128M "$DATA/$name"
        tgtadm --lld iscsi --op new --mode target --tid $tid --targetname "iqn.2026-01.tgt:$name"
        tgtadm --lld iscsi --op new --mode logicalunit --tid $tid --lun 1 --backing-store "$DATA/$name"
        tgtadm --lld iscsi --op bind --mode target --tid $tid --initiator-address ALL
    done
    tgtadm --lld iscsi --op update --mode logicalunit --tid 6 --lun 1 --params removable=1
    tgtadm --lld iscsi --op update --mode logicalunit --tid 2 --lun 1 --params readonly=1
    tgtadm --lld iscsi --op new --mode account --user suite --password "$SECRET"
    tgtadm --lld iscsi --op bind --mode account --tid 5 --user suite
    say "default iscsi://127.0.0.1:$first/iqn.2026-01.tgt:default/1"
    say "read-only iscsi://127.0.0.1:$first/iqn.2026-01.tgt:read-only/1"
    say "two-portals" "iscsi://127.0.0.1:"{$first,$second}"/iqn.2026-01.tgt:two-portals/1"
    say "slow iscsi://127.0.0.1:$first/iqn.2026-01.tgt:slow/1"
    say "removable iscsi://127.0.0.1:$first/iqn.2026-01.tgt:removable/1"
    say "file iscsi://127.0.0.1:$first/iqn.2026-01.tgt:file/1"
    say "chap iscsi://suite%$SECRET@127.0.0.1:$first/iqn.2026-01.tgt:chap/1"
}

"serve_$1"
say ready
cat >/dev/null
