# sg3-utils against one target with two LUNs: pages, opcodes, and the commands that a file system
# never sends.
. "$(dirname "$0")/lib.sh"

serve disk 64MiB --lun "file:$WORK/second.img:64MiB"
guest_start <<'GUEST'
start_iscsid
login 10.0.2.2
mapfile -t found < <(disks)
expect 2 "${#found[@]}" "disks"
first=/dev/${found[0]} second=/dev/${found[1]}

# fill DISK LETTER: all of it. at DISK BLOCK: the letter that a block begins with.
fill() { head -c 64M /dev/zero | tr '\0' "$2" | dd of=$1 bs=1M oflag=direct iflag=fullblock status=none; }
at() { dd if=$1 bs=512 skip=$2 count=1 iflag=direct status=none | head -c 1 | tr '\0' 0; }
letters() { for block in $2; do at $1 $block; done; }

say "== inquiry and pages"
sg_inq $first
pages=$(sg_vpd --page=sv --raw $first | tail -c +5 | od -An -v -t x1 | tr -s ' ' '\n' | sed -n 's/^\(..\)$/0x\1/p')
for page in $pages; do
    say "-- VPD $page"
    sg_vpd --page=$page $first
done
for wanted in 0x00 0x80 0x83 0xb0 0xb1 0xb2; do grep -qx $wanted <<<"$pages" || fail "no VPD page $wanted"; done
sense 'illegal request|VPD page failed' sg_vpd --page=0xcf $first
sg_luns $first | tee /tmp/luns
grep -Eq 'impl.*s 2 lun entries' /tmp/luns || fail "REPORT LUNS shows not both"
sg_modes --all $first
sg_modes --six --all $first
sg_logs --all $first || true
sg_readcap --long $first
sg_requests $first
sg_rtpg --verbose $first
sg_turs --number=100 $first

say "== opcodes"
sg_opcodes $first | tee /tmp/opcodes
sg_opcodes --tmf $first
sg_opcodes --opcode=0x8a --rctd $first
for command in 'Write(16)' 'Compare and write' 'Unmap' 'Extended copy' 'Sanitize' 'Persistent reserve out'; do
    grep -qiF "$command" /tmp/opcodes || fail "$command is not reported"
done

say "== unmap, write same, compare and write"
fill $first A
sg_unmap --lba=8 --num=8 $first
expect A0A "$(letters $first '7 8 16')" "after UNMAP"
sg_get_lba_status --lba=8 $first | tee /tmp/status
grep -Eqi 'lba=0x0*8 .*unmapped|deallocated' /tmp/status || fail "GET LBA STATUS shows unmapped blocks as mapped"
head -c 512 /dev/zero | tr '\0' S >/tmp/block
sg_write_same --in=/tmp/block --lba=100 --num=20 $first
sg_write_same --10 --in=/tmp/block --lba=200 --num=20 $first
sg_write_same --16 --unmap --in=/dev/zero --lba=304 --num=16 $first
expect ASSASSA0A "$(letters $first '99 100 119 120 200 219 220 304 320')" "after WRITE SAME"
sg_write_same --ndob --lba=400 --num=8 $first
expect A0A "$(letters $first '399 400 408')" "after WRITE SAME without a data-out buffer"
sense 'out of range' sg_write_same --in=/tmp/block --lba=131071 --num=2 $first
head -c 512 /dev/zero | tr '\0' A >/tmp/old
head -c 512 /dev/zero | tr '\0' N >/tmp/new
cat /tmp/old /tmp/new >/tmp/both
sg_compare_and_write --in=/tmp/both --lba=500 --num=1 --xferlen=1024 $first
expect AN "$(letters $first '499 500')" "after COMPARE AND WRITE"
sense 'miscompare' sg_compare_and_write --in=/tmp/both --lba=500 --num=1 --xferlen=1024 $first
expect N "$(at $first 500)" "after a COMPARE AND WRITE that did not match"
sg_verify --lba=0 --count=128 $first
sg_verify --in=/tmp/old --ndo=512 --lba=499 --count=1 $first
sense 'miscompare' sg_verify --in=/tmp/old --ndo=512 --lba=500 --count=1 $first
sg_write_verify --in=/tmp/new --lba=600 --num=1 $first
expect N "$(at $first 600)" "after WRITE AND VERIFY"
sg_sync $first

say "== extended copy"
fill $second Z
sg_xcopy if=$first of=$second bs=512 count=1024 skip=0 seek=2048
dd if=$first bs=512 count=1024 iflag=direct status=none | sha256sum >/tmp/one
dd if=$second bs=512 skip=2048 count=1024 iflag=direct status=none | sha256sum >/tmp/two
cmp /tmp/one /tmp/two || fail "EXTENDED COPY copied something else"
expect ZZ "$(letters $second '2047 3072')" "around the copy"
sg_copy_results --params $first

say "== task management"
sg_reset --no-esc --device $first
sg_turs $first || sg_turs $first
sg_reset --no-esc --target $first
for disk in $first $second; do sg_turs $disk || sg_turs $disk; done
expect N "$(at $first 500)" "after resets"

say "== start, stop, sanitize"
sg_start --stop $first
sense 'not ready' sg_turs --verbose $first
sg_start --start $first
sg_turs $first || sg_turs $first
sg_sanitize --block --quick --wait $first
expect 000 "$(letters $first '0 500 131071')" "after SANITIZE BLOCK ERASE"
expect Z "$(at $second 0)" "the other LUN after SANITIZE"
logout
GUEST
# A stopped unit fails the reads that the kernel tries when its disk was closed.
guest_end 'I/O error, dev sda|Buffer I/O error on dev sda'
stop disk
