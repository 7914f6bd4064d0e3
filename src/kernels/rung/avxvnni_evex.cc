// SPDX-License-Identifier: Apache-2.0
// The dots of avxvnni in their AVX-512 encoding: machines with AVX-512 VNNI alone can run, and test, that rung.
#define DSAKIT_USE use_avxvnni_evex
#include "kernels/rung/avxvnni.cc"
