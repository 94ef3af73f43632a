#!/usr/bin/env bash
# Make or remove the users of a room, as root. Each is in the group "learners", which the hub lets in, and
# has a home that nobody else can read.
#
#   workshop/learners.sh add 30        learner01 ... learner30; prints a name and a password a line
#   workshop/learners.sh remove 30     removes them, with their homes and all that is in them
#   workshop/learners.sh add 2 guest   guest01, guest02
set -euo pipefail

usage() {
    echo "Usage: $0 add|remove NUMBER [NAME]: a number from 1 to 99 expected (got ${2:-none})." >&2
    exit 2
}

[[ ${1:-} == add || ${1:-} == remove ]] || usage "$@"
[[ ${2:-} =~ ^[1-9][0-9]?$ ]] || usage "$@"
if [[ $(id -u) != 0 ]]; then
    echo "Only root makes users (got $(id -un)). Run it with sudo." >&2
    exit 1
fi

name=${3:-learner}
for number in $(seq -w 01 "$(printf %02d "$2")"); do
    user=$name$number
    if [[ $1 == add ]]; then
        groupadd --force learners
        groupadd --force teachers
        useradd --create-home --key HOME_MODE=0700 --shell /bin/bash --groups learners "$user"
        # Ten letters that nobody takes for others.
        password=$(tr --delete --complement a-hjkmnp-z </dev/urandom | head --bytes=10 || true)
        chpasswd <<<"$user:$password"
        echo "$user $password"
    elif getent passwd "$user" >/dev/null; then
        if pgrep --runstates D,R,S,T --uid "$user" >/dev/null; then
            echo "Not removed: $user must run nothing. Stop their server, or: pkill -KILL --uid $user" >&2
            exit 1
        fi
        userdel --remove "$user" 2> >(grep --invert-match 'mail spool' >&2) # which nobody has
    fi
done
