#!/bin/sh
# What tests need beyond Python and util-linux: for a bed Debian's Slurm without systemd, ip, and a C compiler for the
# switch; for the report a browser. For root on a Debian or Ubuntu machine; where everything is there it does nothing.
set -eu

packages="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix2 iproute2 procps gcc libc6-dev chromium fonts-dejavu-core"
lacking=
for package in $packages; do
    dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || lacking="$lacking $package"
done

if [ "$(id -u)" -ne 0 ]; then
    [ -z "$lacking" ] || echo "not root: these packages stay missing:$lacking" >&2
    exit 0
fi

if [ -n "$lacking" ]; then
    echo "Installing$lacking"
    apt-get update -qq
    # No daemon of the system is to start: a bed starts its own.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    # shellcheck disable=SC2086 - a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $lacking >/dev/null
fi

# Slurm's plugin opens the name without a version, which only libpmix-dev brings; without it srun --mpi=pmix fails.
for library in /usr/lib/*/pmix2/lib/libpmix.so.2; do
    [ ! -e "$library" ] || [ -e "${library%.2}" ] || ln -s libpmix.so.2 "${library%.2}"
done
