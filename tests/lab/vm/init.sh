# The guest's start, as its first process: brings up the system, runs /host/run.sh, and powers off.
# /host is a directory of the host, live in both directions. It goes on after a step that failed:
# a guest that came up half still tells why.
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
ln -s /proc/self/fd /dev/fd
for where in /run /tmp /dev/shm; do mkdir -p $where && mount -t tmpfs tmpfs $where; done
mkdir -p /run/lock
# The kernel's own calls of modprobe begin with an empty environment.
if [ -n "${GLIBC_TUNABLES:-}" ]; then
    printf '#!/bin/bash\nexport GLIBC_TUNABLES=%s\nexec /sbin/modprobe "$@"\n' "$GLIBC_TUNABLES" >/run/modprobe
    chmod 755 /run/modprobe
    echo /run/modprobe >/proc/sys/kernel/modprobe
fi
modprobe -a configfs sd_mod sg
mount -t configfs configfs /sys/kernel/config
echo guest >/proc/sys/kernel/hostname
ip link set lo up
for path in 0 1; do
    ip address add "10.0.$((2 + path)).15/24" dev "vec$path"
    ip link set "vec$path" up
done
/lib/systemd/systemd-udevd --daemon 2>/dev/null
udevadm trigger --action=add
udevadm settle
cd /host
bash /host/run.sh
status=$?
dmesg --notime --level emerg,alert,crit,err,warn >/host/kernel.warnings
dmesg >/host/kernel.log
echo $status >/host/status
sync
echo o >/proc/sysrq-trigger
sleep 60
