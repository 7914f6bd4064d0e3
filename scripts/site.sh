#!/bin/sh
# Builds the documentation as a site, build/site/html: the pages of docs/, the Python functions and the headers.
# A link or reference that leads nowhere is an error.
cd "$(dirname "$0")/.." && . scripts/build.sh
install_packages .ci/debian-packages && install_packages .ci/debian-packages-docs
/usr/bin/python3 -m venv .venv
.venv/bin/pip install -q -r docs/requirements.txt
sh scripts/wheel.sh > /dev/null
.venv/bin/pip install -q build/wheel/*.whl && .venv/bin/pip install -q --force-reinstall --no-deps build/wheel/*.whl
.venv/bin/python -m sphinx -W --keep-going -q -b html docs build/site/html
echo "build/site/html/index.html"
