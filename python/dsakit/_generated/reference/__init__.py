# SPDX-License-Identifier: Apache-2.0
"""The readable twins, written by scripts/generate_python.py."""
