# libiscsi's tests of reservations.
. "$(dirname "$0")/lib.sh"
need jq iscsi-test-cu

target m0
for suite in PrinReadKeys PrinServiceactionRange PrinReportCapabilities ProutRegister ProutReserve \
    ProutClear ProutPreempt Reserve6; do
    iscsi-test-cu --dataloss --test="SCSI.$suite" "${URI[m0]}" >"$WORK/$suite" 2>&1 || {
        cat "$WORK/$suite"
        fail "$suite"
    }
    # Ran, passed, failed: a test that is skipped fails nothing.
    read -r _ _ ran passed failed _ < <(grep -E '^ +asserts' "$WORK/$suite")
    [ "$ran" -gt 0 ] && [ "$ran" = "$passed" ] && [ "$failed" = 0 ] || fail "$suite: $ran $passed"
done
stop m0
