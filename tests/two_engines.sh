# Two engines, as of two machines, at one array: the second opens it by force, and no write of the
# first lands after that, whatever it had under way.
. "$(dirname "$0")/lib.sh"
need jq unshare
[ "$(id -u)" = 0 ] || { say "needs root for a mount namespace"; exit 77; }

targets 2
mapfile -t URLS < <(members 2)
"$NETRAID" create vol --level 1 "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
first=$NBD
expect "true true" "$("$NETRAID" status --json "$CONTROL" | jq -r '[.members[].exclusive] | join(" ")')" "exclusive"
load write 32MiB 1

# Another machine: its own locks, and its own identity.
mkdir -p /run/netraid
tr -d - </proc/sys/kernel/random/uuid >"$WORK/machine-id"
cat >"$WORK/elsewhere" <<'SH'
mount -t tmpfs none /run/netraid
[ ! -e /etc/machine-id ] || mount --bind "$1/machine-id" /etc/machine-id
shift
exec "$@"
SH
elsewhere=(unshare -m sh "$WORK/elsewhere" "$WORK" "$NETRAID" attach --json --nbd 127.0.0.1:0)

# A live engine is not pushed aside by mistake.
refused 'is open on' "${elsewhere[@]}" "${URLS[@]}"
load write 1MiB 1

# The first writes on and on, while the second takes over.
(while load write 32MiB 1 --rewritten 1; do :; done) >/dev/null 2>&1 &
writer=$!
launch second "${elsewhere[@]}" --force "${URLS[@]}"
NBD=$(jq -r '.exports[] | select(.kind == "nbd") | .uri' <<<"${READY[second]}")
load write 32MiB 2
said=$(next_event engine '.event == "state" and .state == "failed"')
grep -q 'another engine has taken it over' <<<"$said" || fail "the first engine says: $said"
wait $writer || true
load verify 32MiB 2

# It writes no more, for good.
refused 'netraid' "$NETRAID" load write "$first" --len 1MiB --seed 3
expect failed "$(state)" "the first engine's array"
load verify 32MiB 2
crash engine

# A clean end gives the members back: nobody needs to be told that the second is dead.
stop second
attach "${URLS[@]}"
load verify 32MiB 2
stop engine
