#!/bin/bash
# A throw-away Slurm on this machine: a controller and two nodes, n1 and n2, of 4 cores each.
#
#   eval "$(scripts/slurm.sh start)"     start it; the shell then knows it by SLURM_CONF
#   scripts/slurm.sh stop                end it, and all its jobs; nothing of it is left
#
# It needs munge and Slurm: on Debian, apt-get install munge slurm-wlm. It lives in one folder,
# DDP_LESSONS_SLURM (default: /tmp/ddp-lessons-slurm), listens on ports of 127.0.0.1 that are free,
# and touches no other Slurm of the machine. Root may start it, in a container too; so may a user,
# whose jobs it then runs, and nobody else's.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
folder=${DDP_LESSONS_SLURM:-/tmp/ddp-lessons-slurm}
nodes=(n1 n2)

fail() {
    echo "slurm.sh: $*" >&2
    exit 1
}

pid_files() {
    printf '%s\n' "${nodes[@]/#/$folder/slurmd-}" "$folder/slurmctld" "$folder/munged" |
        sed 's/$/.pid/'
}

configure() {
    local ports host
    # Three ports that nobody uses now.
    read -ra ports < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in sockets))')
    host=$(hostname -s)
    cat <<END
ClusterName=lesson
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=4 State=UNKNOWN
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
END
}

start() {
    local tool node tries
    for tool in python3 munged slurmctld slurmd sinfo; do
        command -v "$tool" >/dev/null ||
            fail "no $tool on this machine. On Debian: apt-get install munge slurm-wlm"
    done
    export SLURM_CONF=$folder/slurm.conf
    if [ -e "$folder" ]; then
        fail "$folder is there: one runs, or was not stopped. Run: scripts/slurm.sh stop"
    fi
    (umask 022 && mkdir "$folder" && mkdir "$folder"/{state,spool-n1,spool-n2})
    configure >"$SLURM_CONF"
    (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
    {
        munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
            --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" \
            --seed-file="$folder/munge.seed"
        slurmctld -f "$SLURM_CONF"
        for node in "${nodes[@]}"; do
            slurmd -f "$SLURM_CONF" -N "$node"
        done
    } </dev/null >"$folder/daemons.log" 2>&1 || give_up
    for tries in $(seq 100); do
        if [ "$(sinfo --noheader --Node --format=%T 2>/dev/null | grep -c idle)" = 2 ]; then
            echo "export SLURM_CONF=$SLURM_CONF"
            return
        fi
        sleep 0.2
    done
    give_up
}

give_up() {
    tail -n 5 "$folder"/*.log >&2
    stop
    fail "it did not start: its last words stand above."
}

is_ours() { # a process: its number may be another one's by now
    cat "/proc/$1/cmdline" "/proc/$1/environ" 2>/dev/null | grep -qaF "$folder/"
}

stop() {
    local file pid pids=()
    [ -e "$folder" ] || return 0
    [ -O "$folder" ] || fail "$folder is another user's. Set DDP_LESSONS_SLURM to a folder of your own"
    if [ -e "$folder/slurmctld.pid" ]; then
        SLURM_CONF=$folder/slurm.conf timeout 10 scancel --partition=debug 2>/dev/null || true
    fi
    while read -r file; do
        if [ -s "$file" ] && is_ours "$(cat "$file")"; then
            pids+=("$(cat "$file")")
        fi
    done < <(pid_files)
    # What runs a job's step is a process of its own, known by the folder that it was started for.
    for pid in $(pgrep -x slurmstepd || true); do
        if { tr '\0' '\n' <"/proc/$pid/environ"; } 2>/dev/null | grep -q "^SLURM_CONF=$folder/"; then
            pids+=("$pid")
        fi
    done
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for _ in $(seq 50); do
        alive=0
        for pid in "${pids[@]}"; do
            if kill -0 "$pid" 2>/dev/null; then alive=1; fi
        done
        if [ $alive = 0 ]; then break; fi
        sleep 0.2
    done
    for pid in "${pids[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    rm -rf "$folder"
}

case ${1:-} in
start) start ;;
stop) stop ;;
*) fail "expected start or stop (got '${1:-}')" ;;
esac
