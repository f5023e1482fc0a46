# An agent whose clock is an hour off: the mediator names it, with how far it is off and what helps, and who is refused a
# login there is told why. With its clock right, all of that is gone.
. "$(dirname "$0")/cluster/lib.sh"
need cc

cat >"$WORK/clock.c" <<'C'
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    long end = syscall(SYS_clock_gettime, id, at);
    const char *off = getenv("CLOCK_OFF_S");
    if (end == 0 && id == CLOCK_REALTIME && off) at->tv_sec += atol(off);
    return (int)end;
}
C
cc -shared -fPIC -o "$WORK/clock.so" "$WORK/clock.c"
# off SECONDS I: starts agent I with a clock that is so far ahead.
off() {
    local netraid=$NETRAID
    printf '#!/bin/bash\nLD_PRELOAD=%q CLOCK_OFF_S=%q exec %q "$@"\n' "$WORK/clock.so" "$1" "$netraid" >"$WORK/off"
    chmod +x "$WORK/off"
    NETRAID=$WORK/off agent "$2"
}
# agents: what the mediator says of them, one a line.
agents() { "$NETRAID" mediator agents --access "$ADMIN"; }
says() { agents | grep -q "$1"; }

mediator
agent 1
agent 2
agent 3
soon known 3
head -c 100000 /dev/urandom >"$WORK/file"
"$NETRAID" put --level 5 --members 3 "$WORK/file" /file >/dev/null
! says "clock" || fail "a clock is named that is right: $(agents)"

for ahead in 3600 -3600; do
    stop agent3
    off $ahead 3
    # What is seen may be a moment less.
    [ $ahead -gt 0 ] && way="3,[56][09][09] s ahead of" || way="3,[56][09][09] s behind"
    soon says "in service, but its clock is $way"
    agents | grep "clock" | grep -q "host3" || fail "another agent is named: $(agents)"
    says "timedatectl set-ntp true" || fail "no remedy: $(agents)"
    "$NETRAID" mediator status --access "$ADMIN" | grep -q "on host3: its clock is 3,[56]" || fail "the status names nobody"
    "$NETRAID" mediator log --access "$ADMIN" | grep -q "its clock is 3,[56].* the mediator's" || fail "nothing in the log"
    grep -q "host3: its clock is 3,[56]" "$WORK/mediator.err" || fail "the mediator's own log names nobody"
    # Without the two others it cannot be read; why the third one refuses is said.
    stop agent1
    ! timeout 100 "$NETRAID" get --force /file "$WORK/got" 2>"$WORK/said" || fail "read with one member that lets in"
    grep -q "by the agent's clock: its clock is 3,[56]" "$WORK/said" || fail "no reason: $(cat "$WORK/said")"
    ! grep -q "check the user name" "$WORK/said" || fail "$(cat "$WORK/said")"
    say "told: $(grep -o "the target does not let.*" "$WORK/said" | head -n 1)"
    agent 1
    soon known 3
done
stop agent3
agent 3
soon known 3
right() { ! says "clock"; }
soon right
"$NETRAID" get --force /file "$WORK/got" >/dev/null
cmp "$WORK/file" "$WORK/got"
