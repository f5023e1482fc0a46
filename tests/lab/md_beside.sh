# How long users stand still when a member is lost, replaced and rebuilt: this array, and md over open-iscsi as Debian ships it
# (replacement_timeout 120), for the same faults, with the same users in the same guest. Prints the table of docs/members.md.
GUEST_LIMIT=${GUEST_LIMIT:-900}
. "$(dirname "$0")/lib.sh"

SIZE=96MiB
CONTROL=unix:$WORK/control.sock

# member I: a target at a port of its own, with an empty disk.
member() {
    launch "m$1" "$NETRAID" target --json --insecure --iqn "iqn.2026-01.test:m$1" --listen "10.0.2.2:$((3260 + $1))" \
        --lun "ram:$SIZE"
    URI[m$1]=$(jq -r '.luns[0].uri' <<<"${READY[m$1]}")
}
members() {
    local index
    for index in 0 1 2 3; do member $index; done
}
killed() { crash m1; }
hung() { kill -STOP "${PID[m1]}"; }
end_members() {
    local name
    for name in m0 m1 m2 m3; do
        [ -z "${PID[$name]:-}" ] || crash "$name"
    done
}

# stalls NAME: for how long nobody was answered, in pieces of 200 ms and more, and the longest of them, in ms.
stalls() {
    sort -n "$GUEST/$1_lat.1.log" | awk -F, 'NR > 1 && $1 - last > 200 { sum += $1 - last; if ($1 - last > most) most = $1 - last } { last = $1 } END { printf "%d %d %d\n", sum, most, NR }'
}

# The users: 100 reads and 100 writes a second of 4 KiB, at four places at once, until they are told to end.
guest_start <<'GUEST'
await() {
    until [ -e "/host/answer.$1" ]; do sleep 0.1; done
}
users() {
    fio --name=users --filename="$1" --size=48M --rw=randrw --bs=4k --direct=1 --ioengine=libaio --iodepth=4 \
        --rate_iops=100,100 --time_based --runtime=600 --write_lat_log="/host/$2" --output="/host/$2.txt" &
    load=$!
    sleep 5
    tell "$2.loaded"
}
end_users() {
    sleep 3
    kill -INT $load
    # What ends by a signal has a status of its own.
    wait $load || grep -q 'err= 0' "/host/$1.txt" || { cat "/host/$1.txt"; fail "users of $1 saw an error"; }
    tell "$1.ended"
}

modprobe -a raid456 nbd
start_iscsid
for fault in killed hung; do
    await "md.$fault.begins"
    for port in 3260 3261 3262; do iscsiadm -m discovery -t sendtargets -p "10.0.2.2:$port"; done
    login 10.0.2.2:3263
    mapfile -t names < <(disks)
    expect 4 ${#names[@]} disks
    mdadm --create /dev/md0 --run --level=5 --raid-devices=3 --assume-clean "/dev/${names[0]}" "/dev/${names[1]}" "/dev/${names[2]}"
    users /dev/md0 "md.$fault"
    until grep -q '\[U_U\]' /proc/mdstat; do sleep 0.2; done
    mdadm /dev/md0 --add "/dev/${names[3]}"
    until grep -q '\[UUU\]' /proc/mdstat; do sleep 0.2; done
    end_users "md.$fault"
    mdadm --stop /dev/md0
    iscsiadm -m node --logoutall=all || true
    iscsiadm -m node -o delete || true

    await "netraid.$fault.begins"
    nbd-client 10.0.2.2 10809 /dev/nbd0
    users /dev/nbd0 "netraid.$fault"
    await "netraid.$fault.rebuilt"
    end_users "netraid.$fault"
    nbd-client -d /dev/nbd0
    tell "netraid.$fault.over"
done
GUEST

rows=()
for fault in killed hung; do
    members
    tell_guest "md.$fault.begins"
    guest_tells "md.$fault.loaded"
    $fault
    guest_tells "md.$fault.ended"
    rows+=("md over open-iscsi | $fault | $(stalls "md.$fault")")
    end_members

    members
    "$NETRAID" create vol --level 5 "${URI[m0]}" "${URI[m1]}" "${URI[m2]}" >/dev/null
    launch engine "$NETRAID" attach --json --insecure --nbd 10.0.2.2:10809 --control "$CONTROL" \
        "${URI[m0]}" "${URI[m1]}" "${URI[m2]}"
    tell_guest "netraid.$fault.begins"
    guest_tells "netraid.$fault.loaded"
    $fault
    await 60 is_in_state 1 faulty
    "$NETRAID" replace "$CONTROL" 1 "${URI[m3]}" --wait
    tell_guest "netraid.$fault.rebuilt"
    guest_tells "netraid.$fault.over"
    rows+=("netraid | $fault | $(stalls "netraid.$fault")")
    stop engine
    end_members
done
guest_end 'I/O error|detected conn error|md|ping timeout|rejecting I/O|sd [0-9]|nbd|blk_update|session[0-9]+|raid'
printf '%s\n' "volume | fault | stalls in all, the longest, ms; requests" "${rows[@]}"
for row in "${rows[@]}"; do
    case $row in
    netraid*) [ "$(cut -d'|' -f3 <<<"$row" | awk '{ print $1 }')" -lt 5000 ] || fail "users stood still for too long: $row" ;;
    esac
done
