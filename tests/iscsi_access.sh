# Who may log in: allowed names, mutual CHAP, and logins that are sent to another portal.
. "$(dirname "$0")/lib.sh"
need jq iscsi-inq iscsi-ls

inq() { timeout 20 iscsi-inq "$@" >"$WORK/inq" 2>&1; }

# An allow-list; names are compared without case.
target listed 64MiB --allow iqn.2026-01.test:Friend --allow iqn.2026-01.test:other
inq -i iqn.2026-01.test:friend "${URI[listed]}" || fail "a friend is not let in"
! inq -i iqn.2026-01.test:friends "${URI[listed]}" || fail "a stranger is let in"
refused 'not allowed' "$NETRAID" examine "${URI[listed]}"
stop listed
grep "login refused: the initiator's name is not allowed" "$WORK/listed.err" |
    grep -q 'iqn.2026-01.test:friends' || fail "the log does not tell who was refused"

# Open addresses want to know whom they let in.
refused 'chap-file.*allow.*insecure' "$NETRAID" target --listen 0.0.0.0:0 --lun ram:1MiB

# The target proves itself to who asks for it, and to nobody else's secret.
install -m 600 /dev/null "$WORK/chap"
printf '%s\n' 'joe:Xyzzy-plugh-42' 'mutual:tgt:Frotz-ozmoo-43' >"$WORK/chap"
target proven 64MiB --chap-file "$WORK/chap"
plain=${URI[proven]/joe@/}
export LIBISCSI_CHAP_USERNAME=joe LIBISCSI_CHAP_PASSWORD=Xyzzy-plugh-42
inq "$plain" || fail "one-way"
export LIBISCSI_CHAP_TARGET_USERNAME=tgt LIBISCSI_CHAP_TARGET_PASSWORD=Frotz-ozmoo-43
inq "$plain" || fail "mutual"
! LIBISCSI_CHAP_TARGET_PASSWORD=wrong-secret-000 inq "$plain" || fail "took a wrong proof"
! LIBISCSI_CHAP_PASSWORD=wrong-secret-000 inq "$plain" || fail "let in without the secret"
grep -q 'login refused: wrong name or secret' "$WORK/proven.err" || fail "the log tells no failed login"
unset LIBISCSI_CHAP_USERNAME LIBISCSI_CHAP_PASSWORD
unset LIBISCSI_CHAP_TARGET_USERNAME LIBISCSI_CHAP_TARGET_PASSWORD
stop proven
printf '%s\n' 'joe:Xyzzy-plugh-42' 'mutual:tgt:Xyzzy-plugh-42' >"$WORK/chap"
refused 'secret is also' "$NETRAID" target --listen 127.0.0.1:0 --lun ram:1MiB --chap-file "$WORK/chap"
printf '%s\n' 'joe:elevenbytes' >"$WORK/chap"
refused '11 bytes' "$NETRAID" target --listen 127.0.0.1:0 --lun ram:1MiB --chap-file "$WORK/chap"
! grep -r 'Xyzzy\|Frotz' "$WORK"/*.err || fail "a secret was shown"

# Logins are sent on to where the target is; libiscsi follows.
target real 64MiB --lun ram:16MiB
to=$(jq -r '.addresses[0]' <<<"${READY[real]}")
launch moved "$NETRAID" target --json --listen 127.0.0.1:0 --iqn iqn.2026-01.test:real \
    --lun ram:1MiB --redirect "$to"
from=$(jq -r '.addresses[0]' <<<"${READY[moved]}")
iscsi-readcapacity16 "iscsi://$from/iqn.2026-01.test:real/0" | tee "$WORK/capacity"
grep -q 'Total size:67108864' "$WORK/capacity" || fail "was not sent to the other target"
stop moved

# One target behind two portals: discovery through either names both, the asked one first.
launch two "$NETRAID" target --json --listen 127.0.0.1:0 --listen 127.0.0.2:0 \
    --iqn iqn.2026-01.test:two --lun ram:1MiB
mapfile -t portals < <(jq -r '.addresses[]' <<<"${READY[two]}")
for portal in "${portals[@]}"; do
    iscsi-ls "iscsi://$portal" >"$WORK/ls"
    grep -q "$portal,1" "$WORK/ls" || fail "$portal is not named first: $(cat "$WORK/ls")"
    inq "iscsi://$portal/iqn.2026-01.test:two/0" || fail "portal $portal"
done
stop two
stop real
