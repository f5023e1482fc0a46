# Pages that are written for people open in a browser: figures are there, nothing is asked for, nothing
# is wider than the window, wide and narrow, light and dark. NETRAID_SCREENSHOTS keeps the pictures.
# Outside: npm fetches what drives the browser.
. "$(dirname "$0")/lib.sh"
need jq node npm chromium

pictures=${NETRAID_SCREENSHOTS:-$WORK/pictures}
mkdir -p "$pictures" "$WORK/browser"
cp "$here"/pages/{package.json,package-lock.json,check.mjs} "$WORK/browser"
(cd "$WORK/browser" && npm ci --ignore-scripts --no-audit --no-fund >npm.out 2>&1) || {
    cat "$WORK/browser/npm.out"
    fail "npm ci"
}
check() { (cd "$WORK/browser" && timeout 120 node check.mjs "$pictures" "$@"); }

# What the check looks for is found where it is wrong.
printf '<!DOCTYPE html><title>wrong</title><p style="width: 2000px">x<svg width="0" height="9"></svg>%s' \
    '<img src="missing.png"><script>nothing.here()</script>' >"$WORK/wrong.html"
status=0
check "$WORK/wrong.html" 2>"$WORK/wrong.txt" || status=$?
expect 1 "$status" "status for a page that is wrong"
for fault in 'figure 0: 0 x' 'nothing is drawn' 'pixels wide' 'asks for .*missing.png' 'failed request' 'script: nothing'; do
    grep -q "$fault" "$WORK/wrong.txt" || fail "not noticed: $fault"
done

"$NETRAID" simulate --preset iraid-2003 --seeds 2 --sweep disks=1..4 --report "$WORK/simulate.html" >/dev/null
"$NETRAID" bench climb --members 3 --seconds 0.02 --rounds 1 --span 16MiB --requests 4KiB,64KiB,1MiB \
    --report "$WORK/climb.html" >/dev/null
mkdir "$WORK/"{one,two}
"$NETRAID" evaluate "$WORK/one" "$WORK/two" --log "$WORK/log.jsonl" --file-size 8MiB --net-file-size 4MiB --buffer 64KiB \
    --random-seconds 0.2 --depths 1,8 --stream-seconds 10 --tape-rate 32MiB --tests host.1,host.2,host.5,net,random,trick.compression \
    --report "$WORK/evaluate.html" >/dev/null
check "$WORK/"{simulate,climb,evaluate}.html || fail "pages"
ls "$pictures"/{simulate,climb,evaluate}-{1280,400}-{light,dark}.png >/dev/null
