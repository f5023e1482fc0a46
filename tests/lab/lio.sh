# Our initiator and Linux's own target: an array over four LIO targets, degraded and rebuilt; fenced
# where LIO can store registrations, and used without a fence where it has no directory for them.
. "$(dirname "$0")/lib.sh"

guest_start <<'GUEST'
modprobe -a target_core_mod target_core_file iscsi_target_mod
core=/sys/kernel/config/target/core
fabric=/sys/kernel/config/target/iscsi
mkdir -p $fabric
for index in 0 1 2 3; do
    truncate -s 64M /dev/shm/lun$index
    store=$core/fileio_$index/lun
    mkdir -p $store
    echo "fd_dev_name=/dev/shm/lun$index,fd_dev_size=67108864,fd_buffered_io=1" >$store/control
    echo 1 >$store/enable
    group=$fabric/iqn.2026-01.lio:$index/tpgt_1
    mkdir -p $group/lun/lun_0 "$group/np/10.0.2.15:$((3260 + index))"
    ln -s $store $group/lun/lun_0/store
    echo 0 >$group/attrib/authentication
    echo 1 >$group/attrib/generate_node_acls
    echo 1 >$group/attrib/cache_dynamic_acls
    echo 0 >$group/attrib/demo_mode_write_protect
    echo 1 >$group/enable
done
tell ready
await reservations
mkdir -p "$(cat /sys/kernel/config/target/dbroot)/pr"
tell reservations
await done
GUEST
guest_tells ready
for index in 0 1 2 3; do urls+=("iscsi://10.0.2.15:$((3260 + index))/iqn.2026-01.lio:$index/0"); done
"$NETRAID" create vol --level 5 "${urls[@]:0:3}"
exclusive() { "$NETRAID" status --json "$CONTROL" | jq -r '[.members[].exclusive] | join(" ")'; }
attach "${urls[@]:0:3}"
expect "false false false" "$(exclusive)" "exclusive without a place for registrations"
load write 1MiB 1
stop engine
tell_guest reservations
guest_tells reservations
attach "${urls[@]:0:3}"
expect "true true true" "$(exclusive)" "exclusive"
load write 100MiB 1
load verify 100MiB 1
"$NETRAID" fail "$CONTROL" 1
load verify 100MiB 1
load write 100MiB 1 --rewritten 2
"$NETRAID" replace "$CONTROL" 1 "${urls[3]}"
rebuilt
"$NETRAID" fail "$CONTROL" 0
load verify 100MiB 1 --rewritten 2
expect degraded "$(state)" "state"
stop engine
tell_guest done
guest_end 'for APTPL metadata failed'
