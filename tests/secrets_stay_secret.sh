# CHAP secrets that come by file, environment and address are in no output, log, answer, command
# line of a child, or file that was made; neither as they are nor encoded.
. "$(dirname "$0")/lib.sh"
need jq python3

export NETRAID_LOG=trace RUST_LOG=trace RUST_BACKTRACE=1
mkdir "$WORK/seen" "$WORK/secret"
# In the target's file, in files and addresses of its clients, and wrong ones that are tried.
# Characters that encodings change are in each.
right='Ri~ght+plugh/42x'
wrong='Wr~ong+xyzzy/43y'
mutual='Mu~tual+frotz/44'
private() { install -m 600 /dev/null "$WORK/secret/$1" && say "$2" >"$WORK/secret/$1"; }
private chap "joe:$right"
printf 'joe:%s\nmutual:tgt:%s\n' "$right" "$mutual" >"$WORK/secret/chap"
private right "joe:$right"
private both "joe:$right
mutual:tgt:$mutual"
private swapped "joe:$right
mutual:tgt:$wrong"
private wrong "joe:$wrong"
private broken "joe $right"
private lines "joe:$right
nonsense
$wrong"

runs=0
# run COMMAND...: keeps all that it says, whether it succeeds or not.
run() {
    runs=$((runs + 1))
    timeout 30 "$NETRAID" "$@" >"$WORK/seen/$runs.out" 2>"$WORK/seen/$runs.err" || true
    ! grep -q panicked "$WORK/seen/$runs.err" || fail "panicked: $*"
}

control=unix:$WORK/target.sock
launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --iqn iqn.2026-01.test:m0 \
    --lun "file:$WORK/m0.img:64MiB" --lun ram:64MiB --chap-file "$WORK/secret/chap" --control "$control"
url=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
[[ $url == iscsi://joe@* ]] || fail "no user in $url"
with() { say "${url/joe@/joe%$1@}"; }
# As somebody types it who does not know how addresses are written.
shouted() { with "$1" | sed 's/^iscsi/ISCSI/'; }

# Addresses come last here: whoever reads command lines of ours sees these, which we warn about.
for command in "examine" "status" "create v --level 0 --force" "bench member --seconds 0.1 --rounds 1"; do
    read -ra words <<<"$command"
    run --json "${words[@]}" --secret-file "$WORK/secret/right" "$url"
    run "${words[@]}" --secret-file "$WORK/secret/wrong" "$url"
    run "${words[@]}" --secret-file "$WORK/secret/broken" "$url"
    run "${words[@]}" --secret-file "$WORK/secret/lines" "$url"
    run --json "${words[@]}" --secret-file "$WORK/secret/both" "$url"
    run "${words[@]}" --secret-file "$WORK/secret/swapped" "$url"
    NETRAID_SECRET=$right run "${words[@]}" "$url"
    NETRAID_SECRET=$right NETRAID_MUTUAL_SECRET=$mutual run --json "${words[@]}" "$url"
    NETRAID_SECRET=$right NETRAID_MUTUAL_SECRET=$wrong run "${words[@]}" "$url"
    NETRAID_SECRET_JOE=$wrong run --json "${words[@]}" "$url"
    run --json "${words[@]}" "$(with "$right")"
    run "${words[@]}" "$(with "$wrong")"
    run "${words[@]}" "$(shouted "$right")"
    run "${words[@]}" "$url?target_user=tgt&target_password=$mutual"
    run "${words[@]}" "$(with "$right")x" "$(with "$wrong")/7/8"
    run "${words[@]}" --no-such-option "$(with "$right")"
done
# Options that take something else, and quote what they cannot read.
for address in "$(with "$right")" "${url/joe@/joe:$right@}" "$url?target_user=tgt&target_password=$mutual"; do
    for option in redirect rate pace chap-allow allow listen iqn filter state block-len threads; do
        run target --lun ram:1MiB "--$option" "$address"
    done
    run target --lun "$address"
    run attach --nbd "unix:$WORK/none.sock" --write-cache "$address" "$url"
    run create v --level "$address" --chunk "$address" "$url"
done
NETRAID_SECRET=$right run create v --level 0 --force "$url"
launch engine "$NETRAID" attach --json --nbd 127.0.0.1:0 --secret-file "$WORK/secret/both" \
    --control "unix:$WORK/engine.sock" "$url"
run status --json "unix:$WORK/engine.sock"
run replace "unix:$WORK/engine.sock" 0 "$(with "$wrong")"
run replace "unix:$WORK/engine.sock" 0 "$url" --secret-file "$WORK/secret/both"
run replace "unix:$WORK/engine.sock" 0 "$url" --secret-file "$WORK/secret/lines"
NETRAID_SECRET_JOE=$wrong run --json replace "unix:$WORK/engine.sock" 0 "$url" --force
run fail "unix:$WORK/engine.sock" "$(with "$right")"
run attach --nbd 127.0.0.1:0 "$(with "$wrong")"
for json in "" --json; do
    run $json status "$control"
    run $json session list "$control"
done
run lun add "$control" ram:1MiB
run lun remove "$control" 0
# Addresses where none belong: they are quoted in what is said of them.
for address in "$(with "$wrong")" "$(shouted "$wrong")" "file:$(with "$wrong")"; do
    run lun add "$control" "$address"
    run --json lun add "$control" "$address,block=7"
    run lun resize "$control" 0 "$address"
    run lun remove "$control" "$address"
    run filter "$control" 0 "$address"
    run --json filter "$control" 0 "trace=$address"
    run session drop "$control" "$address"
    run session list "$address"
    run status --json "unix:$address"
    run stop "$address"
    run target --listen 127.0.0.1:0 --lun "$address"
    run target --listen "$address" --lun ram:1MiB
    run target --listen 127.0.0.1:0 --lun ram:1MiB --filter "0:$address"
    run target --listen 127.0.0.1:0 --lun ram:1MiB --iqn "$address"
    run target --listen 127.0.0.1:0 --lun ram:1MiB --chap-file "$address"
    run attach --nbd "$address" "$url"
    run bench volume "$address"
    run "$address"
done
# Addresses that no command takes as they are, or that hold a secret where none belongs.
at=127.0.0.1:1
for address in "nbd://joe:$wrong@$at/x" "scsi://joe:$wrong@$at/iqn.x/0" "joe:$wrong@$at/iqn.x/0" \
    "iscsi://iqn.2026-01.x:joe:$wrong@$at/iqn.x/0" "iscsi://joe@$at/iqn.x/0?target_passwd=$wrong" \
    "iscsi://joe@$at/iqn.x/0?TARGET_PASSWORD=$wrong" "iscsi://joe@$at/iqn.x/0?portal=joe:$wrong@$at"; do
    run examine "$address"
    NETRAID_SECRET=$right run create v --level 0 "$address"
    NETRAID_SECRET=$right run attach --nbd "unix:$WORK/none.sock" "$address"
    run status "$address"
    run evaluate --log "$WORK/evaluated.jsonl" "$address"
    run target --listen 127.0.0.1:0 --lun "$address"
    run lun add "$control" "$address"
    run fail "unix:$WORK/engine.sock" "$address"
done
# What the control sockets answer to lines that no command sends.
python3 - "$WORK/target.sock" "$WORK/engine.sock" "$(with "$wrong")" "$(shouted "$wrong")" >"$WORK/seen/answers.out" <<'END'
import json, socket, sys
*paths, address, shouted = sys.argv[1:]
lines = []
for text in [address, shouted, "backing " + shouted, [address], {address: 1}]:
    for command in ["add_lun", "set_filter", "fail", "replace", "rebuild", "status"]:
        for field in ["backing", "filter", "member", "with", "secret", "lun", "other"]:
            lines.append(json.dumps({"command": command, "lun": 0, "member": "0", "with": "0", field: text}))
        lines.append(json.dumps({"command": command, field: text})[:-9])
    lines.append(json.dumps({"command": text}))
    lines.append(json.dumps(text))
lines += [address, '{"command": %s' % address, '{"%s": ' % address]
for path in paths:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(path)
        stream = client.makefile("rw")
        for line in lines:
            stream.write(line + "\n")
            stream.flush()
            answer = stream.readline()
            assert answer.endswith("\n") and json.loads(answer), (line, answer)
            print(answer)
END
[ "$(wc -l <"$WORK/seen/answers.out")" -gt 300 ] || fail "the control sockets did not answer"
run target --listen 127.0.0.1:0 --lun ram:1MiB --chap-file "$WORK/secret/broken"
run target --listen 127.0.0.1:0 --lun ram:1MiB --chap-file "$WORK/secret/lines"
[ "$(grep -l 'authentication' "$WORK"/seen/*.err | wc -l)" -ge 8 ] || fail "no wrong secret was tried"
grep -q 'joe' "$WORK"/seen/*.out || fail "nothing was seen"

# What others see of the processes that run: command lines; and what these have written so far.
for name in m0 engine; do
    tr '\0' '\n' <"/proc/${PID[$name]}/cmdline" >"$WORK/seen/$name.cmdline"
    printf '%s\n' "${READY[$name]}" >"$WORK/seen/$name.ready"
done
stop engine
run session drop "$control"
stop m0
cp "$WORK"/*.err "$WORK/seen/"

grep -aq . "$WORK/seen/m0.err" || fail "the target's log is empty"
python3 - "$WORK/seen" "$right" "$wrong" "$mutual" <<'END'
import base64, os, sys, urllib.parse
seen, *secrets = sys.argv[1:]
forms = {}
for secret in secrets:
    raw = secret.encode()
    forms[secret] = {
        "plain": raw, "percent": urllib.parse.quote(secret, safe="").encode(),
        "escaped": secret.replace("/", "\\/").encode(), "hex": raw.hex().encode(),
        "HEX": raw.hex().upper().encode(), "spaced": raw.hex(" ").encode(),
        "list": ", ".join(str(byte) for byte in raw).encode(),
        "array": ",".join(str(byte) for byte in raw).encode(),
        "reversed": raw[::-1], "tail": raw[4:],
    }
    # However the text before it shifts it, the middle of an encoding is the same.
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        forms[secret][f"base64+{shift}"] = encoded[4:-4]
        forms[secret][f"base64url+{shift}"] = encoded[4:-4].translate(bytes.maketrans(b"+/", b"-_"))
shown = 0
for name in sorted(os.listdir(seen)):
    data = open(os.path.join(seen, name), "rb").read()
    for secret, ways in forms.items():
        for way, form in ways.items():
            if form in data:
                shown += 1
                line = next((l for l in data.splitlines() if form in l), b"")
                print(f"{name}: shows {secret[:2]}... ({way}): {line[:300]!r}")
if shown:
    sys.exit(f"FAILED: secrets were shown {shown} times")
print(f"{len(os.listdir(seen))} outputs searched")
END
