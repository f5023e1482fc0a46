# Every address that a target prints opens in QEMU and in netraid, and every form that libiscsi takes opens in
# netraid; what is wrong with one is said, and its secret is not.
. "$(dirname "$0")/lib.sh"
need jq iscsi-inq iscsi-ls qemu-img ip

install -m 600 /dev/null "$WORK/chap"
cat >"$WORK/chap" <<END
# who may log in
joe:abc/def:ghijkl
ann:another-secret-2
mutual:disk:the-disks-own-7
END
target m0 64MiB --chap-file "$WORK/chap" --control "unix:$WORK/m0.sock"
at=$(jq -r '.addresses[0]' <<<"${READY[m0]}")
name=iqn.2026-01.test:m0
control=unix:$WORK/m0.sock

# with ADDRESS [ARG...]: the address opens: a LUN without a label is there.
with() {
    "$NETRAID" examine "$@" >"$WORK/out" 2>"$WORK/err" || true
    grep -q 'no netraid label' "$WORK/err" || fail "not opened: $1: $(cat "$WORK/err")"
}

# Several users, and the form in which they were read.
expect '["joe","ann"]' "$(jq -c .chap.users <<<"${READY[m0]}")" "users"
expect disk "$(jq -r .chap.target <<<"${READY[m0]}")" "the target's own name"
[[ $(jq -r .chap.read_as <<<"${READY[m0]}") == *each\ line ]] || fail "the form is not told"
! grep -q 'ghijkl\|another\|own-7' <<<"${READY[m0]}" || fail "a secret is shown"
for login in joe%abc/def:ghijkl joe:abc/def:ghijkl ann%another-secret-2; do
    iscsi-inq "iscsi://$login@$at/$name/0" >/dev/null || fail "libiscsi as $login"
    with "iscsi://$login@$at/$name/0"
    ! grep -q 'ghijkl\|another' "$WORK/out" "$WORK/err" || fail "a secret is shown as $login"
done
with "iscsi://ann@$at/$name/0" --secret-file "$WORK/chap"

# What libiscsi takes behind a ?, and a name with escapes.
export NETRAID_SECRET=abc/def:ghijkl
for form in "$name/0" "${name/:/%3a}/0" "${name/:/%3A}/00" "$name/0?header_digest=crc32c" "$name/0?header_digest=none" \
    "$name/0?header_digest=crc32c&data_digest=crc32c" "$name/0?target_user=disk&target_password=the-disks-own-7" \
    "$name/0?" "$name/0?&" "$name/0?header_digest=none&" "$name/0?header_digest=none&&target_user=disk&target_password=the-disks-own-7"; do
    with "iscsi://joe@$at/$form"
    LIBISCSI_CHAP_USERNAME=joe LIBISCSI_CHAP_PASSWORD=$NETRAID_SECRET iscsi-inq "iscsi://$at/$form" >/dev/null ||
        fail "libiscsi does not take $form"
done
with "iscsi://joe@localhost:${at##*:}/$name/0"
refused 'did not prove itself' "$NETRAID" create v --level 0 "iscsi://joe@$at/$name/0?target_password=another-one-12"

# Whoever asks for no proof may be another, and is told nothing of the secret.
target open 64MiB
refused 'asks for no proof.*--allow-none' "$NETRAID" create v --level 0 "${URI[open]/\/\//\/\/joe@}"
"$NETRAID" create v --level 0 --allow-none "${URI[open]/\/\//\/\/joe@}" >/dev/null

# Reasons are said whole, whatever the address has in it.
while read -r address reason; do
    refused "$reason" "$NETRAID" create v --level 0 "$address"
    ! grep -q hidden < <("$NETRAID" create v --level 0 "$address" 2>&1) || fail "a secret is shown: $address"
done <<'END'
iscsi://[fe80::1%lo]:1/iqn.x/0 \[fe80::1%lo\]:1/iqn.x/0: .*connect
iscsi://127.0.0.1:1/iqn.x%3ay/0 127.0.0.1:1/iqn.x:y/0: .*refused
iscsi://joe%hidden/hidden@127.0.0.1:1/iqn.x/0 joe@127.0.0.1:1/iqn.x/0: .*refused
iscsi://joe:hidden@127.0.0.1:1/iqn.x/0 joe@127.0.0.1:1/iqn.x/0: .*refused
iscsi://joe%hidden@127.0.0.1:1/iqn.x/zero joe%\*\*\*@127.0.0.1:1/iqn.x/zero.*LUN
iscsi://joe:hidden@127.0.0.1:1/iqn.x/zero joe:\*\*\*@127.0.0.1:1/iqn.x/zero.*LUN
iscsi://joe@127.0.0.1:1/iqn.x/0?target_password=hidden%&x=1 unknown option
iscsi://joe@127.0.0.1:1/iqn.x/0?target_passwd=hidden joe@127.0.0.1:1/iqn.x/0\?target_passwd=\*\*\*.*unknown option
iscsi://joe@127.0.0.1:1/iqn.x/0?TARGET_PASSWORD=hidden joe@127.0.0.1:1/iqn.x/0\?TARGET_PASSWORD=\*\*\*.*unknown option
iscsi://joe@127.0.0.1:1/iqn.x/0?portal=joe:hidden@127.0.0.1 portal=joe:\*\*\*@127.0.0.1.*no host and port
iscsi://iqn.2026-01.x:joe:hidden@127.0.0.1:1/iqn.x/0 127.0.0.1:1/iqn.x/0: .*refused
nbd://joe:hidden@127.0.0.1:1/x nbd://joe:\*\*\*@127.0.0.1:1/x.*does not begin with iscsi
END

# LUNs from 256 on: in QEMU, in what libiscsi lists, and back.
for lun in 255 256 16383; do
    printed=$("$NETRAID" lun add --json "$control" ram:16MiB --lun $lun | jq -r .uri)
    with "$printed"
    with "${printed%/*}/$lun"
    LIBISCSI_CHAP_PASSWORD=$NETRAID_SECRET LIBISCSI_CHAP_USERNAME=joe qemu-img info --output json -f raw \
        "${printed/joe@/}" | jq -e '."virtual-size" == 16777216' >/dev/null || fail "QEMU does not open $printed"
    LIBISCSI_CHAP_USERNAME=joe LIBISCSI_CHAP_PASSWORD=$NETRAID_SECRET iscsi-ls -s "iscsi://$at" |
        grep -q "Lun:${printed##*/} " || fail "not listed as ${printed##*/}"
done

# Which digest was chosen is shown: libiscsi's preferred one, and then the best that may be.
digest() {
    "$NETRAID" bench member --secret-file "$WORK/chap" --overwrite --span 1MiB --rounds 1 --seconds 1 "${URI[$1]}" >/dev/null &
    local bench=$! deadline=$((SECONDS + 10)) found=
    until [ -n "$found" ]; do
        [ $SECONDS -lt $deadline ] || fail "no session of $1"
        found=$("$NETRAID" session list --json "unix:$WORK/$1.sock" | jq -r '.[0].chap // empty')
    done
    "$NETRAID" session list "unix:$WORK/$1.sock" | grep -q "CHAP $found" || fail "not shown to people"
    wait $bench
    DIGEST=$found
}
digest m0
expect sha3-256 "$DIGEST" "the digest that netraid prefers"
stop m0
target m1 64MiB --chap-file "$WORK/chap" --control "unix:$WORK/m1.sock" --chap-allow md5,sha1
digest m1
expect sha1 "$DIGEST" "the first that may be"
stop m1

# Files that can be read in more than one way, or would let nobody in, are refused, and not shown.
while IFS= read -r text; do
    printf "$text" >"$WORK/chap"
    refused 'CHAP file' "$NETRAID" target --listen 127.0.0.1:0 --lun ram:1MiB --chap-file "$WORK/chap"
    ! grep -q hidden < <("$NETRAID" target --listen 127.0.0.1:0 --lun ram:1MiB --chap-file "$WORK/chap" 2>&1) ||
        fail "a line is shown: $text"
done <<'END'
\xef\xbb\xbfjoe:hidden-secret-1\n
joe:hidden-secret-1\nhidden-secret-2\n
iqn.x:hidden-secret-1\nann:hidden-secret-2\n
joe:hidden-secret-1\njoe:hidden-secret-2\n
joe:hidden-secret-1\n\xef\xbb\xbfann:hidden-secret-2\n
mutual:disk:hidden-secret-1\n
joe:"hidden-secret-1"\n
joe: hidden-secret-1\n
joe:hidden-secret-1 # joe\n
joe:hidden-secret-1\0x\n
j\xffoe:hidden-secret-1\n
END

# Quotation marks as tgt has them, and blanks around a name, are no part of it.
printf 'incominguser "joe" "hidden-secret-1"\n ann :hidden-secret-2\n' >"$WORK/chap"
target quoted 64MiB --chap-file "$WORK/chap"
expect '["joe","ann"]' "$(jq -c .chap.users <<<"${READY[quoted]}")" "users"
for login in joe%hidden-secret-1 ann%hidden-secret-2; do
    iscsi-inq "${URI[quoted]/joe@/$login@}" >/dev/null || fail "not let in as ${login%%%*}"
done
stop quoted

# An address of the link: with its zone by name where it is used, and without where it is told to others.
export here NETRAID
[ "$(id -u)" = 0 ] || { say "no superuser: zones are not tried"; exit 0; }
unshare --net bash -s <<'END'
. "$here/lib.sh"
ip link set lo up
ip -6 address add fe80::7/64 dev lo scope link nodad
launch linked "$NETRAID" target --json --listen '[fe80::7%lo]:0' --listen '[::1]:0' --insecure --lun ram:16MiB
uri=$(jq -r '.luns[0].uri' <<<"${READY[linked]}")
[[ $uri == *"[fe80::7%lo]:"* ]] || fail "the zone is not named: $uri"
! "$NETRAID" examine "$uri" 2>"$WORK/err" || fail "a label is there"
grep -q 'no netraid label' "$WORK/err" || fail "netraid does not open $uri: $(cat "$WORK/err")"
qemu-img info -f raw "$uri" >/dev/null || fail "QEMU does not open $uri"
portal=${uri#iscsi://}
for at in "${portal%%/*}" "$(jq -r '.addresses[1]' <<<"${READY[linked]}")"; do
    iscsi-ls "iscsi://$at" >"$WORK/ls" || fail "no discovery at $at"
    ! grep -q '%' "$WORK/ls" || fail "a zone is told: $(cat "$WORK/ls")"
done
stop linked
END
