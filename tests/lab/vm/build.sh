#!/usr/bin/env bash
# build.sh DIR: makes the lab's guest in DIR: `linux`, a user-mode Linux kernel, and `root.img`,
# its root file system with Debian's open-iscsi, multipath and SCSI tools. Needs root, and
# mmdebstrap and e2fsprogs on the host, on which nothing is installed. Does nothing where DIR
# holds what this script makes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
stamp=$(sha256sum <"$here/build.sh")
[ "$(cat "$out/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

packages=(
    user-mode-linux base-files bash busybox-static coreutils util-linux mount procps grep sed mawk
    diffutils kmod iproute2 udev e2fsprogs xfsprogs open-iscsi dmsetup multipath-tools sg3-utils
    fio mdadm nbd-client
)
tree=$(mktemp -d "$out/tree.XXXXXX")
trap 'rm -rf "$tree"' EXIT
rm -f "$out/stamp"
sources=/etc/apt/sources.list.d/debian.sources
[ -e "$sources" ] || sources=/etc/apt/sources.list
# The packages are unpacked only: what their scripts would set up is set up below.
mmdebstrap --quiet --mode=root --variant=extract --include="$(IFS=, && echo "${packages[*]}")" \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$tree" - <"$sources"

mv "$tree/usr/bin/linux.uml" "$out/linux"
mkdir -p "$tree/lib/modules"
mv "$tree"/usr/lib/uml/modules/* "$tree/lib/modules/"
rm -rf "$tree"/usr/share/{doc,man,locale,info,perl,perl5} "$tree"/usr/lib/python3* "$tree/boot"
for modules in "$tree"/lib/modules/*; do depmod --basedir "$tree" "${modules##*/}"; done

ln -sf mawk "$tree/usr/bin/awk"
printf 'root:x:0:0:root:/root:/bin/bash\n' >"$tree/etc/passwd"
printf 'root:x:0:\ntty:x:5:\ndisk:x:6:\nkvm:x:7:\n' >"$tree/etc/group"
printf '127.0.0.1 localhost guest\n' >"$tree/etc/hosts"
mkdir -p "$tree"/{host,sys,proc,dev,run,tmp,mnt} "$tree"/etc/{iscsi,target} "$tree/var/lib/iscsi" "$tree/var/target/pr"
# open-iscsi stays as Debian ships it; only the name, made at random there, is fixed.
printf 'InitiatorName=iqn.2026-01.test:guest\n' >"$tree/etc/iscsi/initiatorname.iscsi"
printf 'defaults {\n    user_friendly_names yes\n    find_multipaths no\n}\nblacklist {\n    devnode "^ubd"\n}\n' \
    >"$tree/etc/multipath.conf"
# The rest of the start is a script on the host.
cat >"$tree/lab-init" <<'INIT'
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C
mount -t proc proc /proc
mount -t hostfs -o "$host" host /host
exec bash /host/init.sh >/host/log 2>&1 </dev/null
INIT
chmod 755 "$tree/lab-init"
mke2fs -qq -t ext4 -O ^has_journal -d "$tree" "$out/root.img" 600M >/dev/null
printf '%s\n' "$stamp" >"$out/stamp"
