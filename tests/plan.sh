# Plans: a site's file to begin with, wishes that can be met and some that cannot, and what is refused.
. "$(dirname "$0")/lib.sh"
need jq

site=$WORK/site.toml
"$NETRAID" plan --show >"$site"
sed -i 's/^disks = 8/disks = 4/; s/^chunk_bytes = .*/chunk_bytes = [65536]/; s/^# price_/price_/' "$site"

"$NETRAID" plan --site "$site" --capacity 7TiB --rebuild-within 1000 --json >"$WORK/met.json"
expect true "$(jq .wishes_met "$WORK/met.json")" "wishes met"
expect '[5,3]' "$(jq -c '.proposals[0].layout | [.level, .members]' "$WORK/met.json")" "the cheapest that holds it"
expect 8700 "$(jq '.proposals[0].price' "$WORK/met.json")" "three agents and disks"
expect true "$(jq '[.proposals[] | .survives >= 1 and .rebuild_hours > 0 and .mttdl_years > 0
    and .rates[0].degraded.read.mb_s > 0 and .rates[0].rebuilding.write.mb_s > 0] | all' "$WORK/met.json")" "figures of all"

"$NETRAID" plan --site "$site" --read 1000000 --json >"$WORK/unmet.json"
expect false "$(jq .wishes_met "$WORK/unmet.json")" "too much"
expect '"read_mb_s"' "$(jq '.proposals[0].unmet[0].wish' "$WORK/unmet.json")" "what is missing"
"$NETRAID" plan --site "$site" --read 1000000 --top 1 >"$WORK/unmet"
grep -q 'read_mb_s: wished' "$WORK/unmet"

# The same command gives the same bytes.
"$NETRAID" plan --site "$site" --read 1000000 --json | cmp - "$WORK/unmet.json"

refused 'survives the loss of 3' "$NETRAID" plan --site "$site" --survive 3
refused 'rate of reads is -1' "$NETRAID" plan --site "$site" --read=-1
"$NETRAID" simulate --preset today --show >"$WORK/parts.toml"
refused "no table 'plan'" "$NETRAID" plan --site "$WORK/parts.toml"
refused 'No such file' "$NETRAID" plan --site "$WORK/nowhere.toml"

# A site made of measurements is one that can be planned for.
"$NETRAID" bench transport --rounds 1 --seconds 0.3 --requests 4KiB,64KiB --json >"$WORK/transport.json"
"$NETRAID" bench parity --milliseconds 1 --json >"$WORK/parity.json"
"$NETRAID" bench volume --level 1 --members 2 --log on --only read-small,write-small --span 16MiB --rounds 1 --seconds 0.1 \
    --no-limit --json >"$WORK/array.json"
measured=(plan calibrate --transport "$WORK/transport.json" --parity "$WORK/parity.json")
"$NETRAID" "${measured[@]}" --array "$WORK/array.json" --disks 4 --disk-size 1GiB --disk-read 500 --disk-write 400 \
    >"$WORK/measured.toml"
"$NETRAID" plan --site "$WORK/measured.toml" --request 64KiB --top 100 --json >"$WORK/measured.json"
expect '[0,5,6,10]' "$(jq -c '[.proposals[].layout.level] | unique' <("$NETRAID" plan --site "$WORK/measured.toml" --survive 0 \
    --request 64KiB --top 100 --json))" "levels tried"
expect true "$(jq '[.proposals[] | .rates[0].healthy.read.mb_s > 0] | all' "$WORK/measured.json")" "rates of what was measured"
expect 1000 "$("$NETRAID" "${measured[@]}" --json | jq '.site.client.mips')" "as a document"
# A path is measured with many requests and with one at a time; the target's time has to be known.
target far 64MiB
far=(bench transport "${URI[far]}" --overwrite --rounds 1 --seconds 0.2 --requests 4KiB,64KiB --json)
status=0
"$NETRAID" bench transport "${URI[far]}" 2>"$WORK/usage" || status=$?
expect 2 $status "no word that data may be overwritten"
grep -q overwrite "$WORK/usage"
"$NETRAID" "${far[@]}" --whole-machine >"$WORK/many.json"
"$NETRAID" "${far[@]}" --server-pid "${PID[far]}" --depth 1 >"$WORK/alone.json"
"$NETRAID" "${far[@]}" >"$WORK/client.json"
"$NETRAID" bench member "${URI[far]}" --depth 1 --only read-small --span 16MiB --rounds 1 --seconds 0.05 --json >"$WORK/latency.json"
path=(plan calibrate --transport "$WORK/many.json" "$WORK/alone.json" --parity "$WORK/parity.json")
"$NETRAID" "${path[@]}" --member "$WORK/latency.json" --log-size 0 >"$WORK/path.toml"
expect 1 "$(grep -c 'client_rate_mbit_s = 1000000$' "$WORK/path.toml")" "a link without a limit"
expect 0 "$(grep -c '^.log.' "$WORK/path.toml")" "no log"
expect true "$("$NETRAID" "${path[@]}" --json | jq '.site.agent.costs.iscsi_read.instructions_per_batch >= 0')" "what a batch costs"
refused 'no processor time of the target' "$NETRAID" plan calibrate --transport "$WORK/client.json" --parity "$WORK/parity.json"
refused 'second one of its kind' "$NETRAID" plan calibrate --transport "$WORK/many.json" "$WORK/many.json" --parity "$WORK/parity.json"
refused 'all files are of --depth 1' "$NETRAID" plan calibrate --transport "$WORK/alone.json" --parity "$WORK/parity.json"
refused 'no file has large reads' "$NETRAID" "${measured[@]}" --member "$WORK/array.json"
refused 'not what `netraid bench --json` prints' "$NETRAID" plan calibrate --transport "$WORK/parity.json" --parity "$WORK/parity.json"
refused 'has 0 arrays' "$NETRAID" "${measured[@]}" --array <(echo '{"depth": 16, "subjects": []}')
refused 'lacks small reads' "$NETRAID" "${measured[@]}" --array <(jq 'del(.subjects[0].results[0])' "$WORK/array.json")

# What check data takes beside computing it, and what targets that share a machine do.
"$NETRAID" bench volume --level 5 --members 5 --log on --only read-small,write-small --span 16MiB --rounds 1 --seconds 0.1 \
    --no-limit --whole-machine --json >"$WORK/parity-array.json"
"$NETRAID" "${measured[@]}" --array "$WORK/array.json" --parity-array "$WORK/parity-array.json" --one-machine 2 --json >"$WORK/all.json"
piece='.site.client.costs.parity.instructions_per_check_piece'
jq '.subjects[0].results |= map(if .is_write then .client_cpu_s_per_gb *= 2 else . end)' "$WORK/parity-array.json" >"$WORK/dear.json"
"$NETRAID" "${measured[@]}" --array "$WORK/array.json" --parity-array "$WORK/dear.json" --json >"$WORK/dearer.json"
expect true "$(jq -n --slurpfile a "$WORK/all.json" --slurpfile b "$WORK/dearer.json" "\$b[0]$piece > \$a[0]$piece + 1000")" "check data"
jq '.subjects[0].results |= map(.mb_per_s *= 0.2)' "$WORK/array.json" >"$WORK/slower.json"
"$NETRAID" "${measured[@]}" --array "$WORK/slower.json" --one-machine 2 --json >"$WORK/slow-machine.json"
expect true "$(jq '.site.machine.busy_part < 0.95' "$WORK/slow-machine.json")" "a machine that is not always busy"
refused 'not of 5 members' "$NETRAID" "${measured[@]}" --parity-array "$WORK/array.json"
refused 'not of 2 members' "$NETRAID" "${measured[@]}" --array "$WORK/parity-array.json"
refused 'level 0 of 2' "$NETRAID" "${measured[@]}" --array <(sed 's/level 1 of/level 0 of/' "$WORK/array.json")
refused 'make no sense' "$NETRAID" "${measured[@]}" --array <(jq '.subjects[0].results[0].mb_per_s = 0' "$WORK/array.json")

# What hosts measured of their own disks: the slowest counts.
mkdir "$WORK/fast"
"$NETRAID" agent calibrate --dir "$WORK/fast" --json >"$WORK/fast.json"
jq '.sequential_read = 100000000 | .sequential_write = 80000000 | .scattered_read = 10000000 | .scattered_write = 10000000
    | .network = 110000000' "$WORK/fast.json" >"$WORK/slow.json"
"$NETRAID" "${measured[@]}" --agent "$WORK/fast.json" "$WORK/slow.json" --json >"$WORK/agents.json"
expect '[100,80]' "$(jq -c '[.site.disk.read_mb_s, .site.disk.write_mb_s]' "$WORK/agents.json")" "the slowest disk"
# 64 KiB take 6.6 ms anywhere, and 0.7 or 0.8 ms in order.
expect true "$(jq '.site.disk.seek.mean_ms > 5.7 and .site.disk.seek.mean_ms < 5.9' "$WORK/agents.json")" "what an access takes"
expect true "$(jq '.site.network.rate_mbit_s > 880 and .site.network.rate_mbit_s < 930' "$WORK/agents.json")" "the slowest network"
"$NETRAID" "${measured[@]}" --agent "$WORK/slow.json" --disks 3 --disk-size 1GiB >"$WORK/agents.toml"
"$NETRAID" plan --site "$WORK/agents.toml" --top 100 --json >"$WORK/of_agents.json"
# 256 KiB take 8.4 ms of each of two disks: 62 MB/s.
expect true "$(jq '.proposals[] | select(.layout.level == 5 and .layout.members == 2 and .layout.chunk_bytes == 262144)
    | .rates[0].healthy.read.mb_s | . > 55 and . < 70' "$WORK/of_agents.json")" "two such disks"
refused 'rate of nothing' "$NETRAID" "${measured[@]}" --agent <(jq '.scattered_read = 0' "$WORK/slow.json")
refused 'agent calibrate' "$NETRAID" "${measured[@]}" --agent "$WORK/parity.json"
