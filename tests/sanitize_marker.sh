# A target that finds the marker of a sanitize operation goes on with it when it starts; one that
# it cannot read keeps it from starting.
. "$(dirname "$0")/lib.sh"
need jq iscsi-inq

file=$WORK/disk.img
head -c 8388608 /dev/urandom >"$file"
say rubbish >"$file.sanitize"
refused 'disk.img.sanitize: is damaged.*remove the file' \
    "$NETRAID" target --listen 127.0.0.1:0 --lun "file:$file"

# Whichever link leads to the file.
mkdir "$WORK/links"
ln -s "$file" "$WORK/links/other.img"
refused 'disk.img.sanitize: is damaged' \
    "$NETRAID" target --listen 127.0.0.1:0 --lun "file:$WORK/links/other.img"

# Block erase, as docs/formats/sanitize.md describes it.
printf 'NRSANIT\0\1\0\2\0\0\0\0\0\xb1\x69\x16\x53' >"$file.sanitize"
target disk 8MiB
for ((tries = 0; tries < 100; tries++)); do
    [ -e "$file.sanitize" ] || break
    sleep 0.1
done
[ ! -e "$file.sanitize" ] || fail "the marker stays"
cmp -n 8388608 "$file" /dev/zero || fail "something is left"
# A file system may keep the attribute with the disk's identity in a block of its own.
[ "$(stat -c %b "$file")" -le 8 ] || fail "blocks of the file: $(stat -c %b "$file"), expected 8 at most"
iscsi-inq "${URI[disk]}" | grep -q DIRECT_ACCESS
stop disk
