#!/usr/bin/env bash
# Train across several hosts on one machine. Each host is a set of Linux namespaces: a network of its own whose one link
# leads to a switch that joins all, a name, process numbers, /dev/shm, boot_id and machine-id, and an sshd. So neither
# MPI finds shared memory across hosts, and what leaves a host is counted, limited and cut as on a real link. Files are
# the machine's, as on a cluster that shares them, apart from /run and /dev/shm.
#
# usage: bash scripts/run_hosts.sh HOSTS RANKS [option ...] [flag of mpizero.train ...]
#        bash scripts/run_hosts.sh HOSTS RANKS [option ...] --exec COMMAND ...
#        bash scripts/run_hosts.sh --check [option ...]
#
#   --rate RATE      limit each host's link, both ways: 1gbit, 200mbit (as tc has it); without it, links have no limit
#   --pin            host I runs on one CPU: on CPU I mod the number of CPUs
#   --mpirun PATH    Open MPI's or MPICH's; else it is the one beside python ($PYTHON, or in PATH), or that in PATH
#   --exec COMMAND   mpirun starts this on all ranks, in place of training; the rest of the line belongs to it
#   --check          only tell whether this machine can: status 0, or 2 and what is missing
#
# examples:
#   bash scripts/run_hosts.sh 2 4 --stage 3 --shard-size 2
#   bash scripts/run_hosts.sh 2 4 --stage 3 --shard-size 2 --rate 1gbit --json F
#   bash scripts/run_hosts.sh 2 4 --exec python -m pytest --with-mpi tests/comm/test_collectives.py
#
# `--json F` holds the summary of mpizero.train and, of each rank, traffic[].inter_host_bytes_per_step from its traffic
# log, and in hosts[] what the links counted meanwhile: scripts/host_bytes.py says what that includes.
#
# At the start the first process of each host is named. To lose a host, kill -9 PROCESS; to cut it off, nsenter -t
# PROCESS -n ip link set eth0 down. Either ends the job within some seconds, which names it, with a status other than 0.
#
# Linux, root, iproute2, util-linux, openssh-client and openssh-server are needed. All that is made lives in namespaces
# that end with this script, however it ends: so runs side by side cannot meet, and nothing is left.
set -euo pipefail

say() { printf 'run_hosts.sh: %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 2; }

# ---- what is asked for

case ${1-} in
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --check) what=check hosts=2 ranks=2 words=("${@:2}") ;;
    *)  [[ ${1-} =~ ^[1-9][0-9]*$ && ${2-} =~ ^[1-9][0-9]*$ ]] ||
            fail 'two numbers come first, HOSTS and RANKS: see --help'
        what=train hosts=$1 ranks=$2 words=("${@:3}")
        (( hosts <= ranks )) || fail "$ranks ranks are not enough for $hosts hosts: each needs one"
        (( hosts <= 200 )) || fail 'more than 200 hosts have no addresses here' ;;
esac
rate='' pin='' mpirun='' flags=() run=()
for (( i = 0; i < ${#words[@]}; i++ )); do
    case ${words[i]} in
        --rate|--mpirun) (( i + 1 < ${#words[@]} )) || fail "${words[i]} needs a value"
                         printf -v "${words[i]#--}" %s "${words[++i]}" ;;
        --rate=*) rate=${words[i]#*=} ;;
        --mpirun=*) mpirun=${words[i]#*=} ;;
        --pin) pin=yes ;;
        --exec) what=exec run=("${words[@]:i+1}"); (( ${#run[@]} )) || fail '--exec needs a command'
                (( ! ${#flags[@]} )) || fail "in front of --exec only options of this script may stand, not ${flags[0]}"
                break ;;
        *) flags+=("${words[i]}") ;;
    esac
done
[[ -z $rate || $rate =~ ^[0-9]+(\.[0-9]+)?[kmgtKMGT]?bit$ && $rate =~ [1-9] ]] ||
    fail "--rate $rate: write 1gbit, 200mbit or the like"

# ---- what is there

[[ $(uname -s) == Linux ]] || fail 'hosts are made of Linux namespaces: this needs Linux'
(( EUID == 0 )) || fail "only root may make network namespaces: sudo env PATH=\"\$PATH\" bash $0 ..."
sshd=$(PATH=$PATH:/usr/sbin:/sbin command -v sshd) || fail 'sshd is missing: apt-get install openssh-server'
export PATH=$PATH:/usr/sbin:/sbin
for tool in ip:iproute2 tc:iproute2 unshare:util-linux nsenter:util-linux setpriv:util-linux taskset:util-linux \
        ssh:openssh-client ssh-keygen:openssh-client; do
    command -v "${tool%:*}" >/dev/null || fail "${tool%:*} is missing: apt-get install ${tool#*:}"
done
[[ -z $mpirun ]] || mpirun=$(command -v "$mpirun") || fail "--mpirun: there is no such program"
python=${PYTHON:-$(command -v python || command -v python3)} ||
    fail 'no Python: activate the virtual environment, or set PYTHON'
mpirun=${mpirun:-$(PATH=$(dirname "$python"):$PATH command -v mpirun)} ||
    fail "no mpirun: pip install 'mpizero[mpich]', or name one with --mpirun"
case $("$mpirun" --version 2>&1) in
    *"Open MPI"*) mpi=openmpi ;;
    *HYDRA*) mpi=mpich ;;
    *) fail "$mpirun is neither Open MPI's nor MPICH's" ;;
esac
repository=$(cd "$(dirname "$0")/.." && pwd)
case $what in
    train) run=("$python" "$repository/scripts/host_bytes.py" "${flags[@]}")
           export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH} ;;
    exec) program=$(command -v "${run[0]}") || fail "--exec ${run[0]}: there is no such program"
          run[0]=$program ;;
esac

# ---- a world of its own, which is this process's: so no cleaning up can be forgotten

cure='allow it (in a container: --privileged, or --cap-add SYS_ADMIN and NET_ADMIN)'
if [[ ${RUN_HOSTS_WORLD-} != "$$" ]]; then # the process stays the same below
    why=$(unshare --net --uts --ipc --mount --pid --fork mount -t tmpfs run /run 2>&1) ||
        fail "root may not make namespaces here (${why##*: }): $cure"
    RUN_HOSTS_WORLD=$$ exec unshare --net --mount bash "$0" "$@"
fi
unset RUN_HOSTS_WORLD
mount -t tmpfs -o mode=755 run /run
mkdir -m 700 /run/sshd
mkdir /run/bin /run/tmp /run/cgroup
try() { "$@" 2>/run/why || fail "root may not make hosts here (${*:1:4}: $(tail -n 1 /run/why)): $cure"; }

# The first process of a host, in its namespaces: furnishes them, and becomes the host's sshd.
host() { # INDEX SSHD
    hostname "host$1"
    mount -t tmpfs -o mode=1777 shm /dev/shm
    mount -t sysfs sysfs /sys # of this network
    mount --rbind /run/cgroup /sys/fs/cgroup
    mount --bind "/run/boot_id.$1" /proc/sys/kernel/random/boot_id
    [ ! -e /etc/machine-id ] || mount --bind "/run/machine-id.$1" /etc/machine-id
    ip link set lo up
    until [ -e /sys/class/net/eth0 ]; do sleep 0.02; done
    ip addr add "10.0.0.$(($1 + 1))/24" dev eth0
    ip link set eth0 up
    exec "$2" -D -e -f /run/sshd_config
}
export -f host

write_files() {
    local i
    ssh-keygen -q -t ed25519 -N '' -f /run/key
    echo "host* $(cut -d' ' -f1,2 /run/key.pub)" >/run/known_hosts
    cat >/run/sshd_config <<END
HostKey /run/key
AuthorizedKeysFile /run/key.pub
PidFile none
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
MaxStartups 1000
ClientAliveInterval 2
ClientAliveCountMax 3
SetEnv PATH="$PATH" TMPDIR=/run/tmp
LogLevel ERROR
END
    cat >/run/ssh_config <<END
User root
IdentityFile /run/key
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile /run/known_hosts
BatchMode yes
ConnectTimeout 5
ServerAliveInterval 2
ServerAliveCountMax 3
LogLevel ERROR
END
    # ssh as all find it, which reads no other configuration
    printf '#!/bin/sh\nexec %s -F /run/ssh_config "$@"\n' "$(command -v ssh)" >/run/bin/ssh
    chmod +x /run/bin/ssh
    echo '127.0.0.1 localhost' >/run/hosts
    for (( i = 0; i < hosts; i++ )); do
        slots=$(( ranks / hosts + (i < ranks % hosts) ))
        if [[ $mpi == openmpi ]]; then echo "host$i slots=$slots"; else echo "host$i:$slots"; fi >>/run/hostfile
        echo "10.0.0.$(( i + 1 )) host$i" >>/run/hosts
        cat /proc/sys/kernel/random/uuid >"/run/boot_id.$i"
        tr -d - <"/run/boot_id.$i" >"/run/machine-id.$i"
    done
    echo 'root:*:19000::::::' >/run/shadow # sshd lets nobody in whose account is locked
}

parents=() inits=() on_cpu=() job=''
trap '{ kill -KILL "${inits[@]}" && wait "${parents[@]}"; } 2>/dev/null || true' EXIT

# A signal is mpirun's, to heed or not. Before there is one, it ends this script.
forward() { # NAME
    [[ -n $job ]] || exit "$(( 128 + $(kill -l "$1") ))"
    heard=yes
    local child=$(child_of "$job")
    kill "-$1" ${child:-"$job"} 2>/dev/null || true
}
for name in HUP INT TERM USR1; do trap "forward $name" "$name"; done

child_of() { cat "/proc/$1/task/$1/children" 2>/dev/null || true; }
in_host() { nsenter --target "${inits[$1]}" "${@:2}"; }
limit() { [[ -z $rate ]] || try "$@" root tbf rate "$rate" burst 128kb latency 50ms; }
place() { [[ -z $pin ]] || on_cpu=(taskset -c "${cpus[$1 % ${#cpus[@]}]}"); }

# Wait until the rest of the line succeeds; an error if host I ends first, or it takes a minute.
await() { # I COMMAND...
    local end=$(( SECONDS + 60 ))
    until "${@:2}" >/dev/null 2>&1; do
        (( SECONDS < end )) && kill -0 "${parents[$1]}" 2>/dev/null ||
            fail "host$1 did not start ($(tail -n 1 "/run/log.$1")): $cure"
        sleep 0.05
    done
}

start_host() { # I
    place "$1"
    "${on_cpu[@]}" setpriv --pdeathsig KILL unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc \
        bash -ec 'host "$@"' host "$1" "$sshd" </dev/null >"/run/log.$1" 2>&1 &
    parents+=($!)
    await "$1" grep -q . "/proc/$!/task/$!/children"
    inits+=($(child_of $!))
    try ip link add "host$1" type veth peer name eth0 netns "${inits[$1]}"
    try ip link set "host$1" master switch up
    limit tc qdisc add dev "host$1"
    limit in_host "$1" --net tc qdisc add dev eth0
}

# ---- the hosts

set -m # what starts below gets a terminal's signals from here alone
cpus=($("$python" -c 'import os; print(*sorted(os.sched_getaffinity(0)))'))
try mount --rbind /sys/fs/cgroup /run/cgroup
write_files
mount --bind /run/hosts /etc/hosts
mount --bind /run/shadow /etc/shadow
try ip link add switch type bridge
try ip addr add 10.0.0.254/24 dev switch
try ip link set switch up
for (( i = 0; i < hosts; i++ )); do start_host "$i"; done
for (( i = 0; i < hosts; i++ )); do await "$i" /run/bin/ssh "host$i" true; done
[[ $what != check ]] || exit 0
for i in "${!inits[@]}"; do printf 'host%d is process %d, ' "$i" "${inits[i]}"; done >/run/said
say "$(</run/said)links ${rate:-without a limit}"

# ---- the job, from host0

export PATH=/run/bin:$PATH TMPDIR=/run/tmp
ssh=$repository/hostfiles/ssh-or-end
case $mpi in
    mpich)
        export HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=$ssh
        options=(-f /run/hostfile) ;;
    openmpi) # the first names are version 4's; see hostfiles/README.md
        export OMPI_MCA_plm_rsh_agent=$ssh PRTE_MCA_plm_ssh_agent=$ssh
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
        export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
        export PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe
        options=(--hostfile /run/hostfile)
        for name in $(compgen -e | grep -vE '^(OMPI_|PRTE_|PMIX_|_$|SHLVL$|PWD$|OLDPWD$)'); do
            options+=(-x "$name")
        done ;;
esac
place 0
"${on_cpu[@]}" nsenter --target "${inits[0]}" --net --uts --ipc --mount --pid \
    bash -c 'cd "$1" && exec "${@:2}"' - "$PWD" "$mpirun" "${options[@]}" -n "$ranks" "${run[@]}" </dev/null &
job=$! heard=yes
while [[ -n $heard ]]; do # wait ends at a signal, too
    heard='' status=0
    wait "$job" 2>/dev/null || status=$?
done

# mpirun names the host that ssh has lost, if there is still an mpirun, and sees it from host0.
for i in "${!inits[@]}"; do
    if ! link=$(in_host "$i" --net ip -br link show eth0 2>/dev/null); then
        say "host$i has died"
    elif [[ $link != *' UP '* ]]; then
        say "host$i is cut off: its link is down"
    else
        continue
    fi
    (( status )) || status=1
done
exit "$status"
