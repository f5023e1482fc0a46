# Targets and an engine of several threads: what was written is read, while a member is lost and replaced.
. "$(dirname "$0")/lib.sh"
need jq

for name in m0 m1 m2 m3 spare; do target "$name" 64MiB --threads 3 --control "unix:$WORK/$name.sock"; done
mapfile -t URLS < <(members 4)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
attach --sessions 3 --threads 3 "${URLS[@]}"
for name in m0 engine; do
    threads=$(find "/proc/${PID[$name]}/task" -mindepth 1 -maxdepth 1 | wc -l)
    [ "$threads" -ge 4 ] || fail "$name has $threads threads"
done
load write 96MiB 1
load verify 96MiB 1
expect 3 "$("$NETRAID" session list --json "unix:$WORK/m0.sock" | jq length)" "sessions of a member"
crash m2
load write 96MiB 2
"$NETRAID" replace "$CONTROL" 2 "${URI[spare]}"
load write 96MiB 3
rebuilt
load verify 96MiB 3
expect optimal "$(state)" "state"
stop engine
stop m0
