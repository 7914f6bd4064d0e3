#!/bin/sh
# Installs the library into a scratch folder, builds examples/ against it as a user would, runs one.
# Usage: install.sh CMAKE SOURCE_DIR BUILD_DIR
set -e
cmake=$1 source=$2 build=$3 at=$3/install-test
rm -rf "$at"
"$cmake" --install "$build" --prefix "$at/prefix" > /dev/null
"$cmake" -S "$source/examples" -B "$at/examples" -DCMAKE_PREFIX_PATH="$at/prefix" > /dev/null
"$cmake" --build "$at/examples" > /dev/null
"$at/examples/select_positions"
"$at/prefix/bin/dsakit" inspect "$at/prefix/share/dsakit/models/tiny-dsa" | tail -n 1
