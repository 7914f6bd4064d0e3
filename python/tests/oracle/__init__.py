# SPDX-License-Identifier: Apache-2.0
"""What the operators mean, written once more in plain numpy, from their documentation alone.

Values of 16-bit formats are held as float32 or float64 numbers that the format can represent."""
