# What a request costs in instructions, system calls and context switches, against tests/bench/costs.txt.
# Dist: what is packaged is what is measured.
# Alone: others that run change how often one waits for the other.
. "$(dirname "$0")/lib.sh"
need valgrind strace python3

python3 "$here/bench/costs" --netraid "$NETRAID"
