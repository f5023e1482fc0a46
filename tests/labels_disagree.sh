# Members of different arrays, a member twice, and a copy of a member are refused by name.
. "$(dirname "$0")/lib.sh"
need jq

targets 6
attach_refused() { refused "$1" "$NETRAID" attach --nbd 127.0.0.1:0 "${@:2}"; }
"$NETRAID" create one --level 5 "${URI[m0]}" "${URI[m1]}" "${URI[m2]}" >/dev/null
"$NETRAID" create two --level 5 "${URI[m3]}" "${URI[m4]}" "${URI[m5]}" >/dev/null
attach_refused "different arrays.*'(one|two)'" "${URI[m0]}" "${URI[m1]}" "${URI[m5]}"
attach_refused "twice|both|once" "${URI[m0]}" "${URI[m0]}" "${URI[m1]}"

stop m5
cp --sparse=always "$WORK/m0.img" "$WORK/m5.img"
target m5
attach_refused "both carry|same|twice" "${URI[m0]}" "${URI[m1]}" "${URI[m2]}" "${URI[m5]}"

target plain
attach_refused "no netraid label" "${URI[plain]}"
