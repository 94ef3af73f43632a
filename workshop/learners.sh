#!/usr/bin/env bash
# Make, change and remove the users of a room. The hub lets in the groups "learners" and "teachers". Only its
# user can read a home that this script makes. All commands but `sheet` need root.
#
#   workshop/learners.sh add 30              learner01 ... learner30; prints a name and a password a line
#   workshop/learners.sh add 8               eight more: numbers go on after the highest that is there, up to 99
#   workshop/learners.sh add 2 guest         guest01, guest02
#   workshop/learners.sh remove 30           removes learner01 ... learner30, their homes and all that is in them
#   workshop/learners.sh teacher ada         makes a teacher; an account that is there joins the teachers
#   workshop/learners.sh password learner07  gives a learner or a teacher a new password, and prints it
#   workshop/learners.sh sheet ADDRESS <list prints what `add` has printed as slips to cut out
set -euo pipefail

stop() { # stop STATUS WORD ...
    echo "${*:2}" >&2
    exit "$1"
}

is_there() {
    getent passwd "$1" >/dev/null
}

new_password() { # Ten letters that nobody takes for others.
    tr --delete --complement a-hjkmnp-z </dev/urandom | head --bytes=10 || true
}

make_user() { # make_user NAME GROUP: prints name and password; or returns 1, and leaves nothing behind
    local home password
    home=$(useradd --defaults | sed --quiet 's/^HOME=//p')/$1
    password=$(new_password)
    if [[ -e $home ]]; then
        echo "The home of $1 is there already: no file or folder expected (got $home). Move it away." >&2
        return 1
    fi
    groupadd --force learners
    groupadd --force teachers
    if useradd --create-home --key HOME_MODE=0700 --shell /bin/bash --groups "$2" "$1" &&
        chpasswd <<<"$1:$password"; then
        echo "$1 $password"
    else
        ! is_there "$1" || userdel --remove "$1" 2>/dev/null # useradd or chpasswd has said why
        return 1
    fi
}

add() { # add NUMBER NAME
    local added=() highest=0 number user
    while IFS=: read -r user _; do
        if [[ $user =~ ^"$2"([0-9][0-9])$ ]] && ((10#${BASH_REMATCH[1]} > highest)); then
            highest=$((10#${BASH_REMATCH[1]}))
        fi
    done < <(getent passwd)
    ((highest + $1 <= 99)) || stop 2 "Too many: at most $((99 - highest)) expected, as number $highest is there" \
        "(got $1). Take another name: $0 add $1 guest"
    for ((number = highest + 1; number <= highest + $1; number++)); do
        user=$2$(printf %02d "$number")
        make_user "$user" learners || stop 1 "Not added: $user. Added before: ${added[*]:-none}." \
            "Mend what is said above, then: $0 add $(($1 - ${#added[@]})) $2"
        added+=("$user")
    done
}

remove() { # remove NUMBER NAME
    local group id members number user users=()
    for ((number = 1; number <= $1; number++)); do
        user=$2$(printf %02d "$number")
        is_there "$user" || continue
        if pgrep --runstates D,R,S,T --uid "$user" >/dev/null; then
            stop 1 "Nobody was removed: $user must run nothing. Stop their server, or: pkill -KILL --uid $user"
        fi
        users+=("$user")
    done
    for user in "${users[@]}"; do
        userdel --remove "$user" 2> >(grep --invert-match 'mail spool' >&2) # which nobody has
    done
    for group in learners teachers; do
        IFS=: read -r _ _ id members < <(getent group "$group") || continue
        # A user whose first group this is does not stand among its members.
        if [[ -z $members ]] && getent passwd | awk -F: -v id="$id" '$4 == id { used = 1 } END { exit used }'; then
            groupdel "$group"
        fi
    done
}

teacher() { # teacher NAME
    local home
    if is_there "$1"; then
        groupadd --force teachers
        usermod --append --groups teachers "$1"
        echo "$1 was there: the account has joined the group teachers, and keeps its password." >&2
        home=$(getent passwd "$1" | cut --delimiter=: --fields=6)
        [[ $(stat --format=%a "$home") == 700 ]] || echo "Others may enter its home. To end that: chmod 700 $home" >&2
    else
        make_user "$1" teachers || stop 1 "Not added: $1. Mend what is said above, then: $0 teacher $1"
    fi
}

reset_password() { # reset_password NAME
    local password
    [[ " $(id --groups --name "$1" 2>/dev/null) " =~ " learners "|" teachers " ]] ||
        stop 1 "Password not changed: a member of the group learners or teachers expected (got $1)." \
            "List the members: getent group learners teachers"
    password=$(new_password)
    chpasswd <<<"$1:$password"
    echo "$1 $password"
}

sheet() { # sheet ADDRESS
    local number=0 password rest slips='' user
    while read -r user password rest || [[ -n $user ]]; do
        number=$((number + 1))
        [[ -n $password && -z $rest ]] || stop 2 "Wrong line $number of the list: a name and a password expected" \
            "(got $(wc --words <<<"$user $password $rest") words). Give the list that \"$0 add\" has printed."
        slips+=${slips:+$'\n- - - - - - - - - - - - - - - - - - - - - - - -\n\n'}
        slips+="Address:   $1"$'\n'"Name:      $user"$'\n'"Password:  $password"$'\n'
    done
    [[ -n $slips ]] || stop 2 "Empty list: lines with a name and a password expected (got none)." \
        "Give the list that \"$0 add\" has printed."
    printf %s "$slips"
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed --quiet '2,/^set/s/^# \?//p' "$0"
    exit
fi
command=${1:-} most=2 name=${2:-}
case $command in
add | remove)
    most=3 name=${3-learner}
    [[ ${2:-} =~ ^[1-9][0-9]?$ ]] ||
        stop 2 "Wrong number: a number from 1 to 99 expected (got ${2:-none}). Example: $0 $command 30"
    ;;
teacher | password) ;;
sheet) name=none ;;
*) stop 2 "Wrong command: add, remove, teacher, password or sheet expected (got ${1:-none}). See: $0 --help" ;;
esac
(($# >= 2 && $# <= most)) || stop 2 "Wrong command line: 2 words, or 3 to add and remove, expected (got $#: $*). See: $0 --help"
[[ $name =~ ^[A-Za-z_][A-Za-z0-9_.-]*$ ]] ||
    stop 2 "Wrong name: a letter, then letters, digits, _, - or . expected (got ${name:-none}). See: $0 --help"
if [[ $command == sheet ]]; then
    sheet "$2"
    exit
fi
[[ $(id --user) == 0 ]] || stop 1 "Not root: only root changes users (got $(id --user --name)). Run it with sudo."
[[ $(id --user "$name" 2>/dev/null) != 0 ]] ||
    stop 1 "Wrong user: a user other than root expected (got $name). Name a learner or a teacher."
case $command in
add) add "$2" "$name" ;;
remove) remove "$2" "$name" ;;
teacher) teacher "$name" ;;
password) reset_password "$name" ;;
esac
