#!/bin/sh
# Makes sure that this machine can build ringreduce, then creates .venv. What is missing is installed by apt when we are
# root; otherwise the one apt line to run is printed and we stop.
# Usage: bootstrap.sh VENV [doctest]; PYTHON chooses the interpreter.
set -eu
venv=$1
python=${PYTHON:-python3}

ask() { "$python" -c "$1" >/dev/null 2>&1; }

missing() {
  ask 'import venv, ensurepip' || printf ' python3-venv'
  ask 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' || printf ' python3-dev'
  command -v "${CXX:-c++}" >/dev/null || printf ' g++'
  [ "${2:-}" != doctest ] || [ -e /usr/include/doctest/doctest.h ] || printf ' doctest-dev'
}

if ! command -v "$python" >/dev/null; then
  echo "ringreduce needs Python 3.10 or newer, and there is no $python here (make PYTHON=/path/to/python3)" >&2
  exit 1
fi
if ! ask 'import sys; assert sys.version_info >= (3, 10)'; then
  echo "ringreduce needs Python 3.10 or newer; $python is $("$python" --version 2>&1) (make PYTHON=/path/to/python3)" >&2
  exit 1
fi

packages=$(missing "$@")
if [ -n "$packages" ]; then
  install="apt-get install -y --no-install-recommends$packages"
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    printf 'Missing on this machine; please run this line, then make again:\n  sudo %s\n' "$install" >&2
    exit 1
  fi
  echo "== $install"
  log=$(mktemp)
  # shellcheck disable=SC2086  # a list of package names
  if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive $install -q; } >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
  fi
  rm -f "$log"
  packages=$(missing "$@")
  if [ -n "$packages" ]; then
    echo "still missing for $(command -v "$python") after apt-get:$packages (make PYTHON=/usr/bin/python3 may help)" >&2
    exit 1
  fi
fi

# A .venv whose interpreter has gone (an upgrade, another machine) is made anew.
"$venv/bin/python" -c 'import pip' >/dev/null 2>&1 || "$python" -m venv --clear "$venv"
