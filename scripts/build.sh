#!/bin/sh
# To be sourced in the repository's root.
set -e
export CMAKE_CXX_COMPILER_LAUNCHER=ccache
export CMAKE_EXECUTABLE=/usr/bin/cmake  # for the wheel too: its objects are those of the build, and the cache has them
export CCACHE_SLOPPINESS=pch_defines,time_macros,locale  # precompiled headers; Python sets LC_CTYPE for the wheel

install_packages() { # list: installs its Debian packages that are missing (as root, or with sudo)
  missing=$(xargs dpkg-query -W -f '${db:Status-Status} ${Package}\n' < "$1" 2>/dev/null |
    awk '$1 == "installed" { print $2 }' | LC_ALL=C sort | LC_ALL=C comm -13 - "$1")
  [ -n "$missing" ] || return 0
  root=; [ "$(id -u)" = 0 ] || root=sudo
  echo "installing" $missing
  $root apt-get update -qq
  echo "$missing" | xargs $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends > /dev/null
}

build() { # preset, options of cmake
  preset=$1; shift
  /usr/bin/cmake --preset "$preset" "$@" && /usr/bin/cmake --build --preset "$preset"
}
