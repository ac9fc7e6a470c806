#!/bin/sh
# Installs by apt what the tests of several hosts, MPI and Slurm need; without it they skip by name.
# Root only. Meant for CI: on a machine that runs services, Debian starts ssh, munge and Slurm once they are installed;
# the tests use daemons of their own. A package that cannot be had is named, and is no error: the rest is tested all the same.
set -eu

missing() {
  while read -r command packages; do
    # A command, or files: the compilers' headers, and what Slurm's pmix plugin loads, come with no command of their own.
    # shellcheck disable=SC2086
    command -v "$command" >/dev/null || ls $command >/dev/null 2>&1 || printf ' %s' "$packages"
  done <<EOF
ip iproute2
nsenter util-linux
nft nftables
ssh openssh-client
sshd openssh-server
tcsh tcsh
fish fish
zsh zsh
munged munge
slurmctld slurm-wlm
mpirun.openmpi openmpi-bin
/usr/lib/*/openmpi/include/mpi.h libopenmpi-dev
mpirun.mpich mpich
/usr/include/*/mpich/mpi.h libmpich-dev
/usr/lib/*/libpmix.so libpmix-dev
chromium-headless-shell chromium-headless-shell
EOF
}

PATH=$PATH:/usr/sbin:/sbin
packages=$(missing)
[ -n "$packages" ] || exit 0
install="apt-get install -y --no-install-recommends$packages"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  printf 'Some tests will be skipped; to run them too:\n  sudo %s\n' "$install" >&2
  exit 0
fi
echo "== $install"
log=$(mktemp)
apt-get update -q >"$log" 2>&1 || tail -n 20 "$log" >&2
# apt-get installs nothing where it does not know one of the names: Ubuntu has Chromium as a snap only.
for package in $packages; do
  apt-cache show "$package" >/dev/null 2>&1 || install=$(printf '%s' "$install " | sed "s/ $package / /")
done
# shellcheck disable=SC2086  # a list of package names
DEBIAN_FRONTEND=noninteractive $install -q >"$log" 2>&1 || tail -n 20 "$log" >&2
rm -f "$log"
packages=$(missing)
[ -z "$packages" ] || echo "still missing, their tests will be skipped:$packages" >&2
