# SPDX-License-Identifier: Apache-2.0
"""One file per operator, written by scripts/generate_python.py."""
