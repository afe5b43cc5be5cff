#!/bin/bash
# Check the health of a node: Prolog, Epilog or HealthCheckProgram in slurm.conf, which run it as root on the node:
#
#     Prolog=/shared/busbw/prolog.sh
#     PrologFlags=Alloc             # before the job gets its nodes, and not before its first step
#     PrologEpilogTimeout=60
#
# A Prolog or Epilog that fails makes Slurm drain the node, and a failed Prolog puts the job back into the queue (held,
# unless SchedulerParameters has nohold_on_prolog_fail). So only a node that FAILS ends with status 1 here: one that
# cannot be judged, that has no busbw, or on which the check itself breaks, is used as before and noted in the log.
#
# Slurm ignores the status of a HealthCheckProgram, which has to drain the node itself: set DRAIN=yes in a copy. It must
# not disturb jobs (HealthCheckNodeState=IDLE), and has 60 s:
#
#     HealthCheckProgram=/shared/busbw/health.sh
#     HealthCheckNodeState=IDLE
#     HealthCheckInterval=3600

BUSBW=${BUSBW:-busbw}  # path of busbw: slurmd sets no PATH, so a copy needs /shared/venv/bin/busbw
DRAIN=${DRAIN:-}  # yes: drain a node that fails
RULES=${RULES:-}  # file of rules, beside those of every check
BASELINE=${BASELINE:-}  # name of a baseline of this node; its folder is BUSBW_RESULTS_DIR

line=$(timeout --kill-after=5 45 "$BUSBW" gate --prolog --json ${RULES:+--rules "$RULES"} ${BASELINE:+--baseline "$BASELINE"})
node=${SLURMD_NODENAME:-$(hostname -s)}
case $line in
*'"healthy": false'*)
    echo "busbw: $node failed its health check: $line" >&2
    [ "$DRAIN" = yes ] && scontrol update "NodeName=$node" State=DRAIN Reason="busbw gate --prolog failed"
    exit 1
    ;;
*'"healthy": true'*) ;;
*) echo "busbw: $node was not judged: ${line:-no result}" >&2 ;;
esac
exit 0
