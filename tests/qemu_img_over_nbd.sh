# qemu-img copies an image onto the array and finds it equal, also with a member lost.
. "$(dirname "$0")/lib.sh"
need jq qemu-img

array 5 4 96MiB
head -c 100000000 /dev/urandom >"$WORK/image"
truncate -s 100663296 "$WORK/image"
qemu-img convert -n -f raw -O raw "$WORK/image" "$NBD"
qemu-img compare -f raw -F raw "$WORK/image" "$NBD"
crash m1
qemu-img compare -f raw -F raw "$WORK/image" "$NBD"
expect degraded "$(state)" "state"
stop engine
