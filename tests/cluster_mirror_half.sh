# A mirror's writer dies, its successor takes the volume over and closes it: from then on half of the mirror opens
# by itself, since all agents know that the dead writer is shut out.
. "$(dirname "$0")/cluster/lib.sh"
need jq

mediator
agent 1
agent 2
soon known 2
"$NETRAID" volume create /v --size 64MiB --level 1 --members 2 >/dev/null
serve() {
    launch engine "$NETRAID" volume attach --json "$@" /v --nbd "unix:$WORK/nbd.sock"
    NBD=$(jq -r '.exports[0].uri' <<<"${READY[engine]}")
}
serve
load write 8MiB 1 >/dev/null
crash engine
serve --take-over
load write 8MiB 2 >/dev/null
stop engine

crash agent2
# The half that is left does not have to wait for the end of the dead writer's tokens.
serve
load verify 8MiB 2 >/dev/null
load write 8MiB 3 >/dev/null
stop engine
agent 2
soon known 2
serve
load verify 8MiB 3 >/dev/null
stop engine
