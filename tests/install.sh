#!/bin/sh
# Installs the library into a scratch folder, builds examples/ and the program of docs/c.md against it as users would, with
# CMake and with pkg-config, and compares what they print.
# Usage: install.sh CMAKE SOURCE_DIR BUILD_DIR
set -e
cmake=$1 source=$2 build=$3 at=$3/install-test
rm -rf "$at"
"$cmake" --install "$build" --prefix "$at/first" > /dev/null
mv "$at/first" "$at/prefix"  # what is installed may be moved
"$cmake" -S "$source/examples" -B "$at/examples" -DCMAKE_PREFIX_PATH="$at/prefix" > /dev/null
"$cmake" --build "$at/examples" > /dev/null

prints() { # file, program: prints what is in the file
  test -s "$1"
  "$2" > "$at/printed"
  diff "$1" "$at/printed"
  echo "$2: as in $1"
}
same() { prints "$source/examples/select_positions.txt" "$1"; }
same "$at/examples/select_positions"
same "$at/examples/select_positions_c"

# A project without C++ finds the C library.
mkdir "$at/c" && cp "$source/examples/select_positions.c" "$at/c"
cat > "$at/c/CMakeLists.txt" << 'END'
cmake_minimum_required(VERSION 3.25)
project(c LANGUAGES C)
find_package(dsakit REQUIRED)
add_executable(select_positions select_positions.c)
target_link_libraries(select_positions PRIVATE dsakit::c)
END
"$cmake" -S "$at/c" -B "$at/c/build" -DCMAKE_PREFIX_PATH="$at/prefix" > /dev/null
"$cmake" --build "$at/c/build" > /dev/null
same "$at/c/build/select_positions"

# Ranks by MPI are a component, which a build without MPI lacks by name.
mkdir "$at/dist"
cat > "$at/dist/group.cc" << 'END'
#include <dsakit/mpi.hpp>
int main() { return dsakit::mpi_group()->size() - 1; }
END
cat > "$at/dist/CMakeLists.txt" << 'END'
cmake_minimum_required(VERSION 3.25)
project(dist LANGUAGES CXX)
find_package(dsakit REQUIRED COMPONENTS dist)
add_executable(group group.cc)
target_link_libraries(group PRIVATE dsakit::dist)
END
if [ -n "$(find "$at/prefix" -name libdsakit_dist.a)" ]; then
  "$cmake" -S "$at/dist" -B "$at/dist/build" -DCMAKE_PREFIX_PATH="$at/prefix" > /dev/null
  "$cmake" --build "$at/dist/build" > /dev/null
  "$at/dist/build/group"
else
  "$cmake" -S "$at/dist" -B "$at/dist/build" -DCMAKE_PREFIX_PATH="$at/prefix" > "$at/dist/log" 2>&1 && exit 1
  grep "component dist: this dsakit was built without MPI" "$at/dist/log"
fi

pc=$(find "$at/prefix" -name dsakit.pc)
export PKG_CONFIG_PATH=${pc%/*}
flags() { pkg-config --cflags --libs "$@"; }
rpath=-Wl,-rpath,$(pkg-config --variable=libdir dsakit)
cc -std=c99 -Wall -Wextra -Wpedantic -Werror "$source/examples/select_positions.c" $(flags dsakit) "$rpath" -o "$at/c99"
same "$at/c99"
"${CXX:-c++}" -std=c++20 "$source/examples/select_positions.cc" $(flags dsakit-cpp) -o "$at/cpp"
same "$at/cpp"

block() { awk -v fence='```'"$1" '$0 == fence { inside = 1; next } $0 == "```" { inside = 0 } inside' "$source/docs/c.md"; }
block c > "$at/page.c"
block text > "$at/page.txt"
cc -std=c99 -Wall -Wextra -Werror "$at/page.c" $(flags dsakit) "$rpath" -o "$at/page"
prints "$at/page.txt" "$at/page"

# The command comes with its manual, its completions and the schemas of what it prints.
"$at/prefix/bin/dsakit" manual | diff - "$at/prefix/share/man/man1/dsakit.1"
for file in bash-completion/completions/dsakit zsh/site-functions/_dsakit fish/vendor_completions.d/dsakit.fish \
  dsakit/schemas/explain-1.schema.json; do
  test -s "$at/prefix/share/$file"
done

# What it is made of, and how it is linked (in the folder of the build the command may search for MPI's libraries).
grep -q '"bomFormat": "CycloneDX"' "$at/prefix/share/doc/dsakit/dsakit.cdx.json"
[ -z "$READ_BINARIES" ] || $READ_BINARIES "$at/prefix/bin/dsakit" "$at"/prefix/lib*/libdsakit.so

"$at/prefix/bin/dsakit" inspect "$at/prefix/share/dsakit/models/tiny-dsa" | tail -n 1
