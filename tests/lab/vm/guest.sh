# What the guest's part of a test has: sourced before it.
set -euo pipefail

say() { printf '%s\n' "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}
# expect WANTED FOUND WHAT
expect() { [ "$1" = "$2" ] || fail "$3: expected '$1', found '$2'"; }

# tell WORD: the host's `guest_tells WORD` goes on. await WORD: until the host did `tell_guest WORD`.
tell() { touch "/host/told.$1"; }
await() {
    local deadline=$((SECONDS + 60))
    until [ -e "/host/answer.$1" ]; do
        [ $SECONDS -lt $deadline ] || fail "the host never said $1"
        sleep 0.1
    done
}

# login PORTAL [IFACE]: discovery and login as an administrator does it; every portal that the
# target advertises is logged in to. start_iscsid comes first.
start_iscsid() {
    modprobe -a iscsi_tcp
    iscsid
    local deadline=$((SECONDS + 20))
    until iscsiadm -m session >/dev/null 2>&1 || [ $? = 21 ]; do
        [ $SECONDS -lt $deadline ] || fail "iscsid does not answer"
        sleep 0.1
    done
}
login() {
    iscsiadm -m discovery -t sendtargets -p "$1" ${2:+-I "$2"}
    iscsiadm -m node ${2:+-I "$2"} --login
    udevadm settle
}
logout() {
    udevadm settle
    iscsiadm -m node --logoutall=all
}

# disks: the names of all iSCSI disks, in the order of their sessions. disk: the only one.
disks() {
    local session path
    for session in $(ls -d /sys/class/iscsi_session/session* | sort -V); do
        for path in "$session"/device/target*/*/block/*; do
            [ ! -e "$path" ] || say "${path##*/}"
        done
    done
}
disk() {
    local found deadline=$((SECONDS + 20))
    until found=$(disks) && [ -n "$found" ]; do
        [ $SECONDS -lt $deadline ] || fail "no disk appeared"
        sleep 0.1
    done
    expect 1 "$(wc -l <<<"$found")" "disks"
    say "/dev/$found"
}

# sense KEY COMMAND...: the command must fail, and its output must match the extended pattern.
sense() {
    local pattern=$1 text
    shift
    if text=$("$@" 2>&1); then fail "succeeded: $*: $text"; fi
    grep -Eqi -- "$pattern" <<<"$text" || fail "does not say '$pattern': $*: $text"
}
