# Only who knows the secret gets in, foreign clients and ours; the secret is never shown.
. "$(dirname "$0")/lib.sh"
need jq iscsi-inq

install -m 600 /dev/null "$WORK/chap"
say "joe:Xyzzy-plugh-42" >"$WORK/chap"
target m0 64MiB --chap-file "$WORK/chap"
with_user=${URI[m0]}
without_user=${URI[m0]/joe@/}

LIBISCSI_CHAP_USERNAME=joe LIBISCSI_CHAP_PASSWORD=Xyzzy-plugh-42 iscsi-inq "$without_user" >/dev/null
for wrong in "joe wrong-secret-000" "ann Xyzzy-plugh-42" " "; do
    read -r user secret <<<"$wrong" || true
    ! LIBISCSI_CHAP_USERNAME=$user LIBISCSI_CHAP_PASSWORD=$secret timeout 20 iscsi-inq "$without_user" \
        >/dev/null 2>&1 || fail "let '$user' in with '$secret'"
done

NETRAID_SECRET=Xyzzy-plugh-42 "$NETRAID" create v --level 0 "$with_user" >/dev/null
install -m 600 /dev/null "$WORK/secret"
say "joe:Xyzzy-plugh-42" >"$WORK/secret"
"$NETRAID" examine --secret-file "$WORK/secret" "$with_user" >/dev/null
NETRAID_SECRET=wrong-secret-000 refused 'authentication' "$NETRAID" create v --level 0 "$with_user"
refused 'secret' "$NETRAID" create v --level 0 "$with_user"
refused 'authentication' "$NETRAID" create v --level 0 "$without_user"

"$NETRAID" examine "${URI[m0]/joe@/joe%Xyzzy-plugh-42@}" >"$WORK/out" 2>&1
grep -q 'carries its secret' "$WORK/out" || fail "no warning about the secret in the address"
stop m0

# Members that have to prove themselves: the right secret, a wrong one, and a target without.
say "mutual:disk:Plover-maze-77" >>"$WORK/chap"
target m1 64MiB --chap-file "$WORK/chap"
install -m 600 "$WORK/chap" "$WORK/both"
"$NETRAID" create v --level 0 --secret-file "$WORK/both" "${URI[m1]}" >/dev/null
export NETRAID_SECRET=Xyzzy-plugh-42
NETRAID_MUTUAL_SECRET=Plover-maze-77 "$NETRAID" examine "${URI[m1]}" >/dev/null
NETRAID_MUTUAL_SECRET=wrong-secret-000 refused 'did not prove itself' \
    "$NETRAID" create v --level 0 "${URI[m1]}"
NETRAID_MUTUAL_SECRET=Plover-maze-77 refused 'give the address a user' "$NETRAID" create v --level 0 "${URI[m1]/joe@/}"
stop m1
unset NETRAID_SECRET

# A device that takes a member's place is reached as its own user, by a secret that the engine was given, or
# by that of its address.
install -m 600 /dev/null "$WORK/of-joe"
install -m 600 /dev/null "$WORK/of-ann"
say "joe:Xyzzy-plugh-42" >"$WORK/of-joe"
say "ann:Plover-maze-77" >"$WORK/of-ann"
install -m 600 /dev/null "$WORK/of-both"
cat "$WORK/of-joe" "$WORK/of-ann" >"$WORK/of-both"
for name in j0 j1; do target $name 64MiB --chap-file "$WORK/of-joe"; done
for name in a0 a1; do target $name 64MiB --chap-file "$WORK/of-ann"; done
"$NETRAID" create mixed --level 1 --secret-file "$WORK/of-joe" "${URI[j0]}" "${URI[j1]}" >/dev/null
attach --secret-file "$WORK/of-both" "${URI[j0]}" "${URI[j1]}"
load write 16MiB 1 >/dev/null
refused "no secret for user 'eve'" "$NETRAID" replace "$CONTROL" 1 "${URI[a0]/ann@/eve@}"
"$NETRAID" replace "$CONTROL" 1 "${URI[a0]}"
rebuilt
stop engine
attach --secret-file "$WORK/of-both" "${URI[j0]}" "${URI[a0]}"
"$NETRAID" replace "$CONTROL" 0 "${URI[a1]/ann@/ann%Plover-maze-77@}"
rebuilt
load verify 16MiB 1 >/dev/null
stop engine

# Whoever replaces hands over the secret of the address's user, by file or environment, where the engine knows
# none; no other one, and nobody is shown it.
attach --secret-file "$WORK/of-ann" "${URI[a0]}" "${URI[a1]}"
refused "no secret for user 'joe'.* give --secret-file" "$NETRAID" replace "$CONTROL" 1 "${URI[j0]}" --force
NETRAID_SECRET_JOE=wrong-secret-000 refused 'authentication' \
    "$NETRAID" replace "$CONTROL" 1 "${URI[j0]}" --force
"$NETRAID" replace "$CONTROL" 1 "${URI[j0]}" --force --secret-file "$WORK/of-both"
rebuilt
NETRAID_SECRET_JOE=Xyzzy-plugh-42 "$NETRAID" replace "$CONTROL" 0 "${URI[j1]}" --force
rebuilt
# What the engine was given serves as before.
"$NETRAID" replace "$CONTROL" 1 "${URI[a1]}" --force
rebuilt
load verify 16MiB 1 >/dev/null
"$NETRAID" status --json "$CONTROL" >>"$WORK/out"
stop engine
! grep -r 'Xyzzy\|Plover\|wrong-secret' "$WORK"/*.err "$WORK/out" || fail "a secret was shown"
