#!/bin/sh
# What is shipped has the same bits wherever it is built: builds the installed tree and the wheel here, and again from a copy
# of the sources in another folder (build/reproducible), there without the compiler cache and for other permissions, and
# compares all files. Names each that differs.
cd "$(dirname "$0")/.." && . scripts/build.sh
install_packages .ci/debian-packages
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) && export SOURCE_DATE_EPOCH
make_here() { # options of cmake
  build release -DDSAKIT_DIST=ON "$@"
  rm -rf build/installed && /usr/bin/cmake --install build/release --prefix build/installed > /dev/null
  sh scripts/wheel.sh && /usr/bin/python3 -m zipfile -e build/wheel/*.whl build/wheel/unpacked
}
make_here

copy=build/reproducible
rm -rf $copy && mkdir -p $copy/elsewhere && git ls-files -z | xargs -0 tar -cf - | tar -xf - -C $copy/elsewhere
(cd $copy/elsewhere && umask 027 && export CCACHE_DISABLE=1 && make_here -DDSAKIT_BUILD_TESTS=OFF)

files() { (cd "$1/build" && find installed wheel -type f | LC_ALL=C sort); }
files . > $copy/files && files $copy/elsewhere > $copy/files-elsewhere
differ=0
diff $copy/files $copy/files-elsewhere || differ=1
while read -r file; do
  cmp "build/$file" "$copy/elsewhere/build/$file" || differ=1
done < $copy/files
[ $differ = 0 ] && echo "the same in both: $(wc -l < $copy/files) files"
exit $differ
