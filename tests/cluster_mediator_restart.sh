# The mediator of a running cluster is ended and killed, and started again, under loops of commands: each waits for it, says
# so in one line, and does once what it was asked for. None fails; with --retry 0 each fails at once.
. "$(dirname "$0")/cluster/lib.sh"

ROUNDS=${NETRAID_RESTARTS:-6}

mediator
for i in 1 2 3; do agent "$i"; done
soon known 3
head -c 300000 /dev/urandom >"$WORK/file"

# tried NAME COMMAND...: one command of a loop; what it said is kept where it failed.
tried() {
    local name=$1 status=0
    shift
    timeout 60 "$NETRAID" "$@" >"$WORK/$name.out" 2>"$WORK/$name.text" || status=$?
    say "$*" >>"$WORK/done"
    grep -h "waiting for it" "$WORK/$name.text" >>"$WORK/waited" || true
    [ "$(grep -c "waiting for it" "$WORK/$name.text")" -le 1 ] || say "twice: $*" >>"$WORK/failures"
    [ $status = 0 ] || say "$* ended with $status: $(cat "$WORK/$name.text")" >>"$WORK/failures"
}
# puts N: whole files, that are read, renamed and removed.
puts() {
    local number=0
    while [ ! -e "$WORK/stop" ]; do
        number=$((number + 1))
        tried "put$1" put -p "$WORK/file" "/files$1/$number"
        tried "put$1" stat "/files$1/$number"
        tried "put$1" get --force "/files$1/$number" "$WORK/got$1"
        cmp "$WORK/file" "$WORK/got$1" || say "/files$1/$number is another file" >>"$WORK/failures"
        tried "put$1" mv "/files$1/$number" "/files$1/moved"
        tried "put$1" rm "/files$1/moved"
    done
}
# names: what is short, so that a restart meets each of them.
names() {
    local number=0
    while [ ! -e "$WORK/stop" ]; do
        number=$((number + 1))
        tried names mkdir "/d$number"
        tried names ls /
        tried names volume create "/d$number/v" --size 8MiB
        tried names mediator agents --access "$ADMIN"
        tried names volume rm "/d$number/v"
        tried names rm "/d$number"
    done
}
touch "$WORK/failures" "$WORK/waited"
puts 1 & first=$!
puts 2 & second=$!
names & third=$!
for ((round = 0; round < ROUNDS; round++)); do
    sleep "1.$((RANDOM % 10))"
    if [ $((round % 2)) = 0 ]; then stop mediator; else crash mediator; fi
    sleep "0.$((RANDOM % 10))"
    mediator
done
sleep 1
touch "$WORK/stop"
wait $first $second $third
say "$(wc -l <"$WORK/done") commands over $ROUNDS restarts, $(wc -l <"$WORK/waited") waited, $(wc -l <"$WORK/failures") failed"
[ ! -s "$WORK/failures" ] || fail "$(head -n 20 "$WORK/failures")"
[ -s "$WORK/waited" ] || fail "no command met a restart"
grep -q "https://$MEDIATOR_AT" "$WORK/waited" || fail "the line does not name the mediator: $(head -n 1 "$WORK/waited")"

# Nothing is left of what was asked for twice.
[ "$("$NETRAID" ls --json / | jq -r '.entries[].path' | grep -c '^/d[0-9]')" = 0 ] || fail "names are left: $("$NETRAID" ls /)"
soon agree

# Without a mediator: --retry bounds the wait, and 0 is at once. A refusal is never waited for.
began=$SECONDS
! "$NETRAID" stat --retry 20s /nothing 2>"$WORK/said" || fail "there is nothing by that name"
[ $((SECONDS - began)) -lt 5 ] || fail "a refusal took $((SECONDS - began)) s"
grep -q "there is no such thing" "$WORK/said" || fail "$(cat "$WORK/said")"
stop mediator
began=$SECONDS
! "$NETRAID" ls --retry 0 / 2>"$WORK/said" || fail "nobody answers, and ls says that all is well"
[ $((SECONDS - began)) -le 1 ] || fail "--retry 0 took $((SECONDS - began)) s"
! grep -q "waiting" "$WORK/said" || fail "--retry 0 waits: $(cat "$WORK/said")"
began=$SECONDS
! "$NETRAID" ls --retry 2s / 2>"$WORK/said" || fail "nobody answers, and ls says that all is well"
took=$((SECONDS - began))
[ $took -ge 1 ] && [ $took -le 4 ] || fail "--retry 2s took $took s"
[ "$(grep -c "waiting for it, 2 s at most" "$WORK/said")" = 1 ] || fail "$(cat "$WORK/said")"
say "--retry 2s said: $(cat "$WORK/said")"
