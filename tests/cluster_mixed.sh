# Two versions of the program in one cluster: agents are upgraded under an older mediator, then the mediator, then
# agents are put back under the newer mediator, and the mediator at last. All the time a volume of an older and one of a newer
# client are written and read, and after each step both put, rename, read and remove files.
# Before: NETRAID_BEFORE is the program of version 1 of the documents.
. "$(dirname "$0")/cluster/lib.sh"

[ -n "${NETRAID_BEFORE:-}" ] || fail "NETRAID_BEFORE says no program; 'cargo xtask blackbox cluster_mixed' builds it"
[ -x "$NETRAID_BEFORE" ] || fail "NETRAID_BEFORE: $NETRAID_BEFORE is no program"
declare -A PROGRAM=([old]=$NETRAID_BEFORE [new]=$NETRAID)
AGENTS=(1 2 3 4)
SEED=${NETRAID_MIXED_SEED:-$(date +%s)}
RANDOM=$SEED
say "seed $SEED"

# with old|new COMMAND...: with that program. run ARG...: asks by it.
with() {
    local NETRAID=${PROGRAM[$1]}
    shift
    "$@"
}
run() { "$NETRAID" "$@"; }

# begin old|new: a volume of that client, attached and hammered from now on.
begin() {
    with "$1" run volume create "/volume-$1" --size 64MiB --level 5 --members 3 >/dev/null
    launch "engine-$1" "${PROGRAM[$1]}" volume attach --json "/volume-$1" --nbd "unix:$WORK/$1.nbd" \
        --control "unix:$WORK/$1.sock" --term 20s
    cat <&"${EVENTS[engine-$1]}" >"$WORK/engine-$1.log" &
    launch "hammer-$1" "${PROGRAM[$1]}" hammer --json "$(jq -r '.exports[0].uri' <<<"${READY[engine-$1]}")" \
        --len 8MiB --seed "$SEED"
    next_event "hammer-$1" '.event == "verified"' >/dev/null
}
optimal() { [ "$(with "$1" run status --json "unix:$WORK/$1.sock" 2>/dev/null | jq -r .state)" = optimal ]; }

# spoken VERSION...: what the mediator speaks with its agents, in order; null where it does not say.
spoken() {
    expect "$(printf '%s\n' "$@" | jq -cs sort)" "$(with new run mediator agents --json --access "$ADMIN" |
        jq -c '[.agents[].documents] | sort')" "versions"
}

# tried STAGE: both clients do all that they do, and nothing that was there before is gone.
STAGES=()
tried() {
    local client stage path i
    STAGES+=("$1")
    for client in old new; do
        soon optimal "$client"
        path=/$1-$client
        head -c $((RANDOM * 100 + 5000)) /dev/urandom >"$WORK$path"
        with "$client" run put "$WORK$path" "$path.first"
        with "$client" run mv "$path.first" "$path"
        with "$client" run put "$WORK$path" "$path.second"
        with "$client" run rm "$path.second"
        with "$client" run volume create "$path.volume" --size 4MiB >/dev/null
        with "$client" run stat --json "$path.volume" | jq -e '.stored.members | length > 1' >/dev/null
        with "$client" run volume rm "$path.volume"
    done
    for client in old new; do
        with "$client" run ls --json / >"$WORK/names"
        for stage in "${STAGES[@]}"; do
            # What an array has that a newer client wrote is not for the older one.
            with "$client" run cat "/$stage-old" | cmp - "$WORK/$stage-old"
            [ "$client" = old ] || with new run cat "/$stage-new" | cmp - "$WORK/$stage-new"
            for path in "/$stage-old" "/$stage-new"; do
                jq -e --arg path "$path" '.entries[] | select(.path == $path)' "$WORK/names" >/dev/null ||
                    fail "$path is not listed"
            done
        done
        with "$client" run mediator agents --json --access "$ADMIN" >/dev/null
        with "$client" run mediator log --json --access "$ADMIN" >/dev/null
        for i in "${AGENTS[@]}"; do
            expect true "$(with "$client" run agent status --json --dir "$WORK/agent$i" |
                jq '.memberships[0].is_heard')" "agent $i is heard, says the $client program"
        done
        soon with "$client" agree
    done
    for client in "${!PID[@]}"; do [ -d "/proc/${PID[$client]}" ] || fail "$client has ended"; done
    say "$1: ok"
}

# agents_become old|new: one after the other, in place.
agents_become() {
    local i
    for i in "${AGENTS[@]}"; do
        stop "agent$i"
        with "$1" agent "$i"
        soon with new known ${#AGENTS[@]}
        soon optimal old
        soon optimal new
    done
}
mediator_becomes() {
    stop mediator
    with "$1" mediator
    soon with new known ${#AGENTS[@]}
}

with old mediator
for i in "${AGENTS[@]}"; do with old agent "$i"; done
soon with new known ${#AGENTS[@]}
begin old
begin new
tried all-old
spoken null null null null
agents_become new
tried new-agents
spoken null null null null
# An agent knows that its mediator is of the version before.
expect 1 "$(with new run agent status --json --dir "$WORK/agent1" | jq '.memberships[0].documents')" "its version"
mediator_becomes new
tried all-new
spoken 2 2 2 2
agents_become old
tried new-mediator
spoken 1 1 1 1
mediator_becomes old
tried all-old-again

for client in old new; do
    # All that it wrote is read again.
    stop "hammer-$client"
    stop "engine-$client"
    with "$client" run volume rm "/volume-$client"
done
for path in $(with old run ls --json / | jq -r '.entries[].path'); do with old run rm "$path"; done
soon with old agree
expect 0 "$(jq .segments "$WORK/check.json")" "segments that are left"
empty() { [ "$(find "$WORK"/agent*/segments -type f | wc -l)" = 0 ]; }
soon empty
