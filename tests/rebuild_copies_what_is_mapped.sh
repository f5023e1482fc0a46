# A member of a large array that holds a new file system and a few files is replaced: what is
# written to its successor is what is mapped, and no more.
. "$(dirname "$0")/lib.sh"
need jq mkfs.ext4 fsck.ext4 debugfs
[ "$(id -u)" = 0 ] || { say "needs root for a mount"; exit 77; }

targets 4 2GiB
target spare 2GiB --control "unix:$WORK/spare.sock"
mapfile -t URLS < <(members 4)
mkdir "$WORK/fuse" "$WORK/files"
for index in $(seq 12); do head -c $((index * 200000 + 13)) /dev/urandom >"$WORK/files/f$index"; done
# status JQ: of the array.
status() { "$NETRAID" status --json "$CONTROL" | jq -r "$1"; }
home() {
    local deadline=$((SECONDS + 30))
    until [ "$(status '.log.dirty_bytes + .log.used_bytes')" = 0 ]; do
        [ $SECONDS -lt $deadline ] || fail "the log is not brought home"
        sleep 0.1
    done
}

for level in 5 6; do
    say "level $level"
    "$NETRAID" create vol --force --level $level "${URLS[@]}" >/dev/null
    attach --fuse "$WORK/fuse" "${URLS[@]}"
    file=$(jq -r '.exports[] | select(.kind == "fuse") | .path' <<<"${READY[engine]}")
    mkfs.ext4 -q -F -d "$WORK/files" "$file"
    home
    mapped=$(status .log.mapped_bytes)
    capacity=$(status .capacity_bytes)
    say "$mapped of $capacity bytes are mapped"
    [ $((mapped * 10)) -lt "$capacity" ] || fail "a new file system fills the volume"
    written() { "$NETRAID" status --json "unix:$WORK/spare.sock" | jq '.luns[0].commands.written_bytes'; }
    before=$(written)
    "$NETRAID" replace --force "$CONTROL" 1 "${URI[spare]}"
    rebuilt
    expect optimal "$(state)" "state after the rebuild"
    wrote=$(($(written) - before))
    # Its chunks; beside them labels, checkpoints, what the log gets meanwhile, and table pages: while it is copied to, and
    # once more when it takes the place.
    chunks=$((mapped / (level == 5 ? 3 : 2)))
    tables=$("$NETRAID" examine --json "${URLS[0]}" |
        jq '[.[0].label.regions[] | select(.name == "map" or .name == "sums") | .len] | add')
    say "$wrote bytes were written: $chunks of chunks, at most $tables of tables"
    [ $wrote -le $((chunks + 2 * tables + (1 << 20))) ] || fail "more was copied than is mapped"
    [ $wrote -ge $((chunks / 2)) ] || fail "less was copied than is mapped"
    # And it carries the array from now on.
    "$NETRAID" fail "$CONTROL" 0
    fsck.ext4 -fn "$file" >/dev/null
    rm -rf "$WORK/found"
    mkdir "$WORK/found"
    debugfs -R "rdump / $WORK/found" "$file" >/dev/null 2>&1
    diff -r --exclude=lost+found "$WORK/files" "$WORK/found"
    stop engine
done
