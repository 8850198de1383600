# `source common.sh [PACKAGE==VERSION...]`: in a folder that goes at the end, with these packages in ./venv. `seen` runs Python there, with this folder's modules.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work"; python3 -m venv venv
install() { venv/bin/pip install -q --disable-pip-version-check ${FIND_LINKS:+--find-links "$FIND_LINKS"} "$@"; }
(($# == 0)) || install "$@"
seen() { PYTHONPATH="$here" PYTHONDONTWRITEBYTECODE=1 venv/bin/python "$@"; }
