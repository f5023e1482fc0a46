# The performance model: the document of a point, settings, sweeps, a page with plots, and what is refused.
. "$(dirname "$0")/lib.sh"
need jq

simulate() { "$NETRAID" simulate --seeds 3 "$@"; }

simulate --preset swift-1991 --json >"$WORK/swift.json"
expect '["mix","read","write"]' "$(jq -c '[.[].parameters.operation] | sort' "$WORK/swift.json")" "operations"
near='.[] | select(.parameters.operation == $op and .parameters.disks == 32 and .parameters.client_mips == 100)
    | .results.rate_mb_s.mean > 0.9 * $mb and .results.rate_mb_s.mean < 1.1 * $mb
    and .results.rate_mb_s.low <= .results.rate_mb_s.mean and .results.rate_mb_s.mean <= .results.rate_mb_s.high
    and (.results.client_cpu.mean - $cpu | fabs) < 0.05 and (.results.disk.mean - $disk | fabs) < 0.05
    and .results.network.mean > 0 and .parameters.transfer_unit_bytes == 32768'
expect true "$(jq --arg op read --argjson mb 20 --argjson cpu 0.30 --argjson disk 0.58 "$near" "$WORK/swift.json")" "reads"
expect true "$(jq --arg op write --argjson mb 9 --argjson cpu 0.60 --argjson disk 0.27 "$near" "$WORK/swift.json")" "writes"

# The same command gives the same bytes.
simulate --preset swift-1991 --json >"$WORK/again.json"
cmp "$WORK/swift.json" "$WORK/again.json"

# A description of one's own, with settings and sweeps.
"$NETRAID" simulate --preset today --show >"$WORK/mine.toml"
points=$(simulate --config "$WORK/mine.toml" --set client.mips=2000 --set operation=read \
    --sweep disks=3..5 --sweep network.rate_mbit_s=10000,25000 --json)
expect 6 "$(jq length <<<"$points")" "points of two sweeps"
expect '[2000]' "$(jq -c '[.[].parameters.client_mips] | unique' <<<"$points")" "what was set"
expect '[10000,25000]' "$(jq -c '[.[].parameters["network.rate_mbit_s"]] | unique' <<<"$points")" "what was swept"

simulate --preset iraid-2003 --sweep disks=1..4 --set operation=mix --report "$WORK/report.html" >"$WORK/table"
expect 4 "$(grep -c '<svg' "$WORK/report.html")" "plots"
expect 4 "$(grep -c mix "$WORK/table")" "rows"

# With a disk away, and while one is rebuilt.
one=$(simulate --preset today --set operation=read --sweep away=0,1 --json)
expect true "$(jq '.[1].results.rate_mb_s.mean <= 1.05 * .[0].results.rate_mb_s.mean' <<<"$one")" "rates degraded"
simulate --preset today --set operation=write --set 'rebuild={ used_bytes = 1000000000, rate_limit_mb_s = 50 }' >"$WORK/rebuild"
grep -q 'rebuild MB/s' "$WORK/rebuild"
refused 'survives the loss of 0' "$NETRAID" simulate --preset today --set level=0 --set away=1

refused 'client.mips is 0' "$NETRAID" simulate --preset today --set client.mips=0
refused 'there is no parameter' "$NETRAID" simulate --preset today --set clint.mips=1
refused 'unknown field' "$NETRAID" simulate --preset today --set client.mops=1
refused 'disks=65' "$NETRAID" simulate --preset today --sweep disks=64,65
refused 'more arrive than' "$NETRAID" simulate --preset today --set workload.arrivals_per_second=1000000
refused 'No such file' "$NETRAID" simulate --config "$WORK/nowhere.toml"
