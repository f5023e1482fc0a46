#!/usr/bin/env bash
# run.sh LINUX ARG...: runs the guest's kernel LINUX, also on a processor with AMX.
#
# Linux 6.1 in user mode has 2.7 KiB for the registers of a process. With AMX they are 11 KiB, and no
# process of the guest starts. Where the host refuses to hand them out (PTRACE_GETREGSET of
# NT_X86_XSTATE), that kernel asks for the registers up to SSE as of old: a filter of system calls
# refuses. What lies above SSE is then lost now and then, so the guest's C library is told to leave
# AVX alone (init.sh tells it to what the kernel starts).
set -euo pipefail
grep -qw amx_tile /proc/cpuinfo || exec "$@"
command -v bwrap >/dev/null || { echo "on this processor the lab needs bwrap: install bubblewrap"; exit 77; }

# Each line is a struct sock_filter: code, steps to skip if true and if false, operand.
filter=(
    2000 00 00 00000000 # load the number of the call
    1500 00 04 65000000 # is it ptrace?
    2000 00 00 10000000 # load its first argument
    1500 00 02 04420000 # is it PTRACE_GETREGSET?
    2000 00 00 20000000 # load its third argument
    1500 01 00 02020000 # is it NT_X86_XSTATE?
    0600 00 00 0000ff7f # allowed
    0600 00 00 05000500 # fails with EIO
)
bytes=$(printf %s "${filter[@]}" | sed 's/../\\x&/g')
tunables=GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512BW,-AVX512VL,-AVX_Fast_Unaligned_Load
exec bwrap --die-with-parent --dev-bind / / --seccomp 9 -- "$@" "$tunables" 9< <(printf %b "$bytes")
