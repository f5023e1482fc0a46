# Persistent reservations between two initiators of a real kernel: every type, fencing by
# PREEMPT AND ABORT under load, and registrations that survive the target's end.
. "$(dirname "$0")/lib.sh"

mkdir "$WORK/state"
serve disk 64MiB --state "$WORK/state"
guest_start <<'GUEST'
start_iscsid
for name in a b; do
    iscsiadm -m iface -I $name --op new
    iscsiadm -m iface -I $name --op update -n iface.initiatorname -v iqn.2026-01.test:$name
    login 10.0.2.2 $name
done
mapfile -t found < <(disks)
expect 2 "${#found[@]}" "disks of two initiators"
a=/dev/${found[0]} b=/dev/${found[1]}
# Through the generic driver, so that the block layer keeps nothing and repeats nothing. Block 0:
# READ(10) and WRITE(10) with FUA.
head -c 512 /dev/zero >/tmp/block
writes() { sg_raw --send=512 --infile=/tmp/block "$1" 2a 08 00 00 00 00 00 00 01 00; }
reads() { sg_raw --request=512 --outfile=/dev/null "$1" 28 08 00 00 00 00 00 00 01 00; }
# conflict COMMAND...: must end with the status RESERVATION CONFLICT, 24 for these tools.
conflict() {
    local status=0
    "$@" >/tmp/output 2>&1 || status=$?
    [ $status = 24 ] || { cat /tmp/output; fail "status $status instead of a conflict: $*"; }
}
# Unit attentions that another's command left are taken note of here.
settle() { for disk in $a $b; do for _ in 1 2 3 4; do sg_turs $disk >/dev/null 2>&1 && break; done; done; }
pr() { sg_persist --no-inquiry "$@"; }

register() {
    pr --out --register-ignore --param-sark=$2 $1
    settle
}
# type EXCLUSIVE-ACCESS REGISTRANTS: what another may do while a holds that type.
names=(- 'Write Exclusive' - 'Exclusive Access' - 'Write Exclusive, registrants only'
    'Exclusive Access, registrants only' 'Write Exclusive, all registrants' 'Exclusive Access, all registrants')
for type in 1 3 5 6 7 8; do
    register $a 0xa
    pr --out --reserve --param-rk=0xa --prout-type=$type $a
    pr --in --read-reservation $a | tee /tmp/reservation
    grep -qi "${names[type]}" /tmp/reservation || fail "type $type has another name"
    writes $a >/dev/null
    reads $a >/dev/null
    conflict writes $b
    case $type in 1 | 5 | 7) reads $b >/dev/null ;; *) conflict reads $b ;; esac
    register $b 0xb
    case $type in 1 | 3) conflict writes $b ;; *) writes $b >/dev/null ;; esac
    case $type in 3) conflict reads $b ;; *) reads $b >/dev/null ;; esac
    # Who is registered and does not hold it releases nothing, and clears all.
    pr --out --release --param-rk=0xb --prout-type=$type $b || true
    case $type in 7 | 8) ;; *) pr --in --read-reservation $a | grep -q 'scope' || fail "another released type $type" ;; esac
    conflict pr --out --clear --param-rk=0xc $b
    pr --out --clear --param-rk=0xb $b
    settle
    pr --in --read-keys $a | grep -q 'NO registered' || fail "keys after CLEAR"
    writes $b >/dev/null
done
pr --in --report-capabilities $a
pr --in --read-full-status $a

# Fencing: b takes the disk from a, whose writes end with an error and never arrive afterwards.
register $a 0xa
register $b 0xb
pr --out --reserve --param-rk=0xa --prout-type=5 $a
fio --name=load --filename=$a --rw=randwrite --bs=4k --direct=1 --ioengine=libaio --iodepth=16 \
    --time_based --runtime=60 --output=/tmp/fio &
load=$!
sleep 2
pr --out --preempt-abort --param-rk=0xb --param-sark=0xa --prout-type=5 $b
dd if=$b bs=1M iflag=direct status=none | sha256sum >/tmp/before
if wait $load; then fail "the load of the fenced initiator went on"; fi
dd if=$b bs=1M iflag=direct status=none | sha256sum >/tmp/after
cmp /tmp/before /tmp/after || fail "a write arrived after the fence"
settle
conflict writes $a
pr --in --read-keys $b | tee /tmp/keys
grep -q 0xb /tmp/keys || fail "b lost its key"
! grep -q '0xa$' /tmp/keys || fail "a kept its key"

# APTPL: the target dies and comes back; the reservation is there.
pr --out --register-ignore --param-sark=0xb --param-aptpl $b
tell registered
await back
for _ in $(seq 100); do settle; pr --in --read-keys $b >/tmp/keys 2>/dev/null && break; sleep 0.2; done
grep -q 0xb /tmp/keys || fail "the key did not survive the target's end"
pr --in --read-reservation $b | grep -q 'registrants only' || fail "the reservation did not survive"
settle
conflict writes $a
writes $b >/dev/null
pr --out --clear --param-rk=0xb $b
settle
writes $a >/dev/null
logout
GUEST
guest_tells registered
crash disk
serve disk 64MiB --state "$WORK/state"
tell_guest back
# What the kernel and udev read of a disk that is reserved for another fails.
guest_end 'reservation conflict|critical nexus error|I/O error, dev sd|Buffer I/O error on dev sd|unable to read RDB block|detected conn error|Parameters changed|eservations? preempted|egistrations preempted|eservations released|callbacks suppressed'
stop disk
