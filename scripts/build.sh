#!/bin/sh
# Installs the Debian packages that are missing (as root, or with sudo) and builds the release preset.
# To be sourced or run from the repository's root.
set -e
missing=$(xargs dpkg-query -W -f '${db:Status-Status} ${Package}\n' < .ci/debian-packages 2>/dev/null |
  awk '$1 == "installed" { print $2 }' | sort | comm -13 - .ci/debian-packages)
if [ -n "$missing" ]; then
  root=; [ "$(id -u)" = 0 ] || root=sudo
  $root apt-get update -qq
  echo "$missing" | xargs $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends > /dev/null
fi
export CMAKE_CXX_COMPILER_LAUNCHER=ccache
/usr/bin/cmake --preset release
/usr/bin/cmake --build --preset release
