#!/bin/sh
# Makes sure that this machine can build ringreduce, then creates .venv. What is missing is installed by apt when we are
# root; otherwise the one apt line to run is printed and we stop. With doctest: also what the tests use if it is there.
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

# Tests skip, by name, the MPI that is not here; ccache shortens builds.
optional() {
  [ "${2:-}" = doctest ] || return 0
  command -v mpirun.openmpi >/dev/null || printf ' openmpi-bin'
  command -v mpirun.mpich >/dev/null || printf ' mpich'
  command -v ccache >/dev/null || printf ' ccache'
}

can_install() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

# apt_install PACKAGES...: shows apt's words only if it fails
apt_install() {
  echo "== apt-get install $*"
  log=$(mktemp)
  if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -q "$@"; } \
    >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
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
  if ! can_install; then
    printf 'Missing on this machine; please run this line, then make again:\n  sudo apt-get install -y --no-install-recommends%s\n' \
      "$packages" >&2
    exit 1
  fi
  # shellcheck disable=SC2086  # a list of package names
  apt_install $packages || exit 1
  packages=$(missing "$@")
  if [ -n "$packages" ]; then
    echo "still missing for $(command -v "$python") after apt-get:$packages (make PYTHON=/usr/bin/python3 may help)" >&2
    exit 1
  fi
fi
packages=$(optional "$@")
if [ -n "$packages" ]; then
  # shellcheck disable=SC2086
  { can_install && apt_install $packages; } || echo "== not here, so some tests skip and builds take longer:$packages" >&2
fi

# A .venv whose interpreter has gone (an upgrade, another machine) is made anew.
"$venv/bin/python" -c 'import pip' >/dev/null 2>&1 || "$python" -m venv --clear "$venv"
