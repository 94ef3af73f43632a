#!/usr/bin/env bash
# Copy all learners' exercises into a new folder that only you can read, or copy feedback home. As root.
#
#   workshop/collect.sh                            into /srv/ddp-handed-in/<date>/<learner>/
#   workshop/collect.sh FOLDER                     into FOLDER/<date>/<learner>/
#   workshop/collect.sh --feedback FOLDER          FOLDER/<learner>.html into the homes
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(cd "$root" && scripts/setup.sh --where)
[[ $python == /* ]] || python=$root/$python
exec "$python" -P -m ddp_lessons.course.classroom.collecting "$@"
