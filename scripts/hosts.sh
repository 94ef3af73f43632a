#!/bin/bash
# A throw-away network of hosts on this machine: node1, node2 ..., each with an address, a loopback,
# a host name, processes and an sshd of its own, on a switch with links as slow as you like.
#
#   eval "$(scripts/hosts.sh up 2 --rate 100mbit --delay 5ms)"
#   scripts/hosts.sh run 1 COMMAND...     run a command on node1, as if one were logged in there
#   scripts/hosts.sh cut 2                pull node2's cable out
#   scripts/hosts.sh mute 2               lose all that node2 sends, though it hears the others
#   scripts/hosts.sh mend 2               put its cable in again, or let it be heard
#   scripts/hosts.sh off 2                switch node2 off: all its processes are gone at once
#   scripts/hosts.sh down                 end them all; nothing of it is left
#
# --rate limits what each link carries, either way. --delay is what each message takes longer, one
# way. --private FOLDER gives each host an empty FOLDER of its own; all else is shared, as a cluster
# shares its homes. /run and /dev/shm are always each host's own.
#
# This machine is node0 on that network, so that a notebook here reaches the hosts:
# ssh -F "$DDP_LESSONS_HOSTS/ssh_config" node1. It needs root, in a container too, and on Debian
# apt-get install iproute2 openssh-server. It lives in one folder, DDP_LESSONS_HOSTS (default:
# /tmp/ddp-lessons-hosts); another one at the same time needs another folder. DDP_LESSONS_NET has the
# first three numbers of all addresses (default: the first of 10.213.7 to 10.213.250 that is free).
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
folder=${DDP_LESSONS_HOSTS:-/tmp/ddp-lessons-hosts}
net=${DDP_LESSONS_NET:-}

use_net() { # names of devices have 15 letters at most: the network tells two test beds apart
    net=$1
    tag=ddp${net//./}
    switch=$tag-switch
}
if [ -e "$folder/net" ]; then net=$(cat "$folder/net"); fi
if [ -n "$net" ]; then use_net "$net"; fi

fail() {
    echo "hosts.sh: $*" >&2
    exit 1
}

is_number() {
    [[ $1 =~ ^[1-9][0-9]?$ ]]
}

parse() {
    is_number "${1:-}" || fail "up: expected a number of hosts from 1 to 99 (got '${1:-}')"
    num_hosts=$1 rate='' delay='' private=()
    shift
    while (($#)); do
        case $1 in
        --rate) rate=${2:-} ;;
        --delay) delay=${2:-} ;;
        --private) private+=("${2:-}") ;;
        *) fail "up: expected --rate, --delay or --private (got '$1')" ;;
        esac
        (($# > 1)) || fail "up: expected a value after $1"
        shift 2
    done
    [[ -z $rate || $rate =~ ^[0-9]+(kbit|mbit|gbit)$ ]] ||
        fail "--rate: expected a number and kbit, mbit or gbit, such as 100mbit (got '$rate')"
    [[ -z $delay || $delay =~ ^[0-9]+ms$ ]] ||
        fail "--delay: expected a number and ms, such as 5ms (got '$delay')"
    for path in "${private[@]}"; do
        [[ -d $path && $path == /* ]] || fail "--private: expected a folder's full path (got '$path')"
    done
}

look_for_tools() {
    local tool
    for tool in ip tc sshd ssh-keygen unshare nsenter python3; do
        command -v "$tool" >/dev/null ||
            fail "no $tool on this machine. On Debian: apt-get install iproute2 openssh-server"
    done
    [ "$(id -u)" = 0 ] || fail "needs root (got user $(id -un)), as it makes network devices"
    ip netns list >/dev/null 2>&1 && unshare --net true 2>/dev/null ||
        fail "this system lets nobody make a network namespace: a container needs --privileged"
}

address() { # node1 is .101
    echo "$net.$((100 + $1))"
}

# A key for all logins, and one for all hosts.
make_keys() {
    local number
    (umask 077 && ssh-keygen -q -t ed25519 -N '' -C "$tag" -f "$folder/key" &&
        ssh-keygen -q -t ed25519 -N '' -C "$tag" -f "$folder/host_key")
    {
        echo "127.0.0.1 localhost"
        for number in $(seq 0 "$num_hosts"); do
            echo "$(address "$number") node$number"
        done
        echo "$(address 0) $(hostname)" # as what is started here names itself
    } >"$folder/hosts"
    for number in $(seq "$num_hosts"); do
        echo "node$number,$(address "$number") $(cut -d' ' -f1,2 "$folder/host_key.pub")"
    done >"$folder/known_hosts"
    {
        for number in $(seq "$num_hosts"); do
            printf 'Host node%s\n    HostName %s\n' "$number" "$(address "$number")"
        done
        cat <<END
Host *
    User root
    IdentityFile $folder/key
    IdentitiesOnly yes
    UserKnownHostsFile $folder/known_hosts
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    BatchMode yes
    ConnectTimeout 10
    ServerAliveInterval 2
    ServerAliveCountMax 3
END
    } >"$folder/ssh_config"
}


# What a host does first: its name, its folders; then it is its sshd.
boot() {
    local number=$1 path
    hostname "node$number"
    mount --make-rprivate /
    mount --bind "$folder/hosts" /etc/hosts
    mount --bind "$folder/ssh_config" /etc/ssh/ssh_config
    for path in /run /dev/shm "${@:2}"; do
        mount -t tmpfs -o mode=1777 none "$path"
    done
    mkdir -p -m 755 /run/sshd
    exec "$(command -v sshd)" -D -e -o "ListenAddress=$(address "$number")" -f "$folder/sshd_config"
}

configure_sshd() {
    cat >"$folder/sshd_config" <<END
HostKey $folder/host_key
AuthorizedKeysFile $folder/key.pub
StrictModes no
PidFile none
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
MaxStartups 100
Subsystem sftp internal-sftp
END
}

shape() { # in a namespace, a device
    if [ -n "$rate" ]; then
        ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$rate" burst 64kb latency 200ms
    fi
}

give_address() { # to a namespace's eth0
    ip -n "$1" link set lo up
    ip -n "$1" addr add "$(address "$2")/24" dev eth0
    ip -n "$1" link set eth0 up
}

# Take a network that nobody has: of two who try at once, one can make the namespace.
take_net() {
    local free
    for free in ${net:-$(seq -f 10.213.%g 7 250)}; do
        use_net "$free"
        if [ -z "$(ip -4 -o addr show to "$net.0/24")" ] && ip netns add "$switch" 2>/dev/null; then
            echo "$net" >"$folder/net"
            return
        fi
    done
    rm -r "$folder"
    fail "$net.0/24 is in use on this machine. Set DDP_LESSONS_NET to another network"
}

# Wire all hosts to a switch: the kernel's, or, where messages take longer, ours.
wire() {
    local number
    ip -n "$switch" link set lo up
    ip -n "$switch" link add name switch type bridge
    ip -n "$switch" link set switch up
    for number in $(seq 0 "$num_hosts"); do
        if [ "$number" = 0 ]; then
            ip link add name "$tag" type veth peer name port0 netns "$switch"
            ip addr add "$(address 0)/24" dev "$tag"
            ip link set "$tag" up
        else
            ip netns add "$tag-node$number"
            ip -n "$tag-node$number" link add name eth0 type veth peer name "port$number" netns "$switch"
            give_address "$tag-node$number" "$number"
            shape "$tag-node$number" eth0
        fi
        if [ -z "$delay" ]; then
            ip -n "$switch" link set "port$number" master switch
        fi
        ip -n "$switch" link set "port$number" up
        if [ "$number" != 0 ]; then
            shape "$switch" "port$number"
        fi
    done
    if [ -n "$delay" ]; then
        start_relay
    fi
}

start_relay() {
    DDP_LESSONS_HOSTS=$folder ip netns exec "$switch" setsid python3 "$here/relay.py" --delay-ms "${delay%ms}" \
        $(seq -f port%g 0 "$num_hosts") </dev/null >"$folder/relay.log" 2>&1 &
    echo $! >"$folder/relay.pid"
    disown
    wait_until "the relay" grep -q ready "$folder/relay.log"
}

wait_until() {
    local what=$1 tries
    shift
    for tries in $(seq 100); do
        if "$@" 2>/dev/null; then return; fi
        sleep 0.1
    done
    fail "$what did not come up within 10 s"
}

start_host() {
    local number=$1
    ip netns exec "$tag-node$number" unshare --uts --ipc --mount --pid --fork --kill-child \
        --mount-proc env DDP_LESSONS_HOSTS="$folder" DDP_LESSONS_NET="$net" "$here/hosts.sh" boot "$number" "${private[@]}" \
        </dev/null >"$folder/node$number.log" 2>&1 &
    echo $! >"$folder/node$number.pid"
    disown
    wait_until "node$number's sshd" grep -q "Server listening" "$folder/node$number.log"
}

up() {
    parse "$@"
    look_for_tools
    [ ! -e "$folder" ] || fail "$folder is there: one is up, or was not taken down. Run: scripts/hosts.sh down"
    (umask 022 && mkdir "$folder")
    take_net
    trap give_up EXIT
    make_keys
    configure_sshd
    wire
    local number
    for number in $(seq "$num_hosts"); do
        start_host "$number"
    done
    trap - EXIT
    echo "export DDP_LESSONS_HOSTS=$folder DDP_LESSONS_NET=$net"
}

give_up() {
    trap - EXIT
    tail -n 5 "$folder"/*.log >&2 2>/dev/null || true
    down
    fail "it did not come up: its last words stand above"
}

host() { # the process that a host began with, seen from here
    is_number "${1:-}" && [ -e "$folder/node$1.pid" ] || fail "there is no node '${1:-}'"
    pgrep --parent "$(cat "$folder/node$1.pid")" || fail "node$1 is off"
}

run() {
    local first
    first=$(host "${1:-}")
    shift
    exec nsenter --target "$first" --net --uts --ipc --mount --pid --wdns="$PWD" -- "$@"
}

is_node() {
    is_number "${1:-}" && [ -e "$folder/node$1.pid" ] || fail "there is no node '${1:-}'"
}

pull_out() {
    is_node "${1:-}"
    ip -n "$switch" link set "port$1" down
}

# What a node sends goes to a device that nobody has: lost, and no error says so.
mute() {
    is_node "${1:-}"
    local nodes=("$folder"/node*.pid) other
    for other in $(seq 0 "${#nodes[@]}"); do
        ip -n "$tag-node$1" neigh replace "$(address "$other")" lladdr 02:00:00:00:00:01 \
            nud permanent dev eth0
    done
}

mend() {
    is_node "${1:-}"
    ip -n "$switch" link set "port$1" up
    ip -n "$tag-node$1" neigh flush dev eth0 nud permanent
}

off() {
    host "${1:-}" >/dev/null
    ip -n "$switch" link set "port$1" down # or its processes would still say goodbye
    end "$(cat "$folder/node$1.pid")"
}

is_ours() { # a process: its number may be another one's by now
    cat "/proc/$1/cmdline" "/proc/$1/environ" 2>/dev/null | grep -qaF "$folder"
}

end() { # a process; one that only waits for its parent to take note is at its end
    is_ours "$1" || return 0
    kill -KILL "$1" 2>/dev/null || true
    while grep -qs '^State:.[^Z]' "/proc/$1/status"; do sleep 0.05; done
}

down() {
    local file name
    [ -e "$folder" ] || return 0
    [ -O "$folder" ] || fail "$folder is another user's. Set DDP_LESSONS_HOSTS to a folder of your own"
    for file in "$folder"/*.pid; do
        if [ -s "$file" ]; then end "$(cat "$file")"; fi
    done
    ip link del "$tag" 2>/dev/null || true
    for name in $(ip netns list | awk '{ print $1 }' | grep -E "^$tag-(node[0-9]+|switch)$" || true); do
        ip netns del "$name"
    done
    rm -rf "$folder"
}

case ${1:-} in
up | run | mute | mend | off | down | boot) "$@" ;;
cut) pull_out "${2:-}" ;;
*) fail "expected up, run, cut, mute, mend, off or down (got '${1:-}')" ;;
esac
