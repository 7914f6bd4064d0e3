// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dsakit {

/// Where makes of cores differ, or their caches, and instruction sets do not: rungs.cc says it before any kernel runs. No
/// bit depends on it. What is measured, and where: docs/notes/0024-prefetch.md; of panels docs/notes/0022-blocks-and-rows.md,
/// of strips docs/notes/0018-strips.md.
struct Tuning {
  int stream_ahead = 1 << 10;   // bytes ahead of a stream of whole lines that are asked for
  int run_ahead = 0;            // the same of FRACTAL_NZ that one or two rows meet, and of transposed codes if it is not 0
  int column_ahead = 8 << 10;   // of transposed codes
  int rows_ahead = 8 << 10;     // of keys and values of a GEMV: so much of values meets all weights before the next
  int strip_block = 32;         // rows of a block of a row-major matrix that few rows meet: it shares L2 with the next
  int code_block = 64 << 10;    // bytes of a panel of codes, with registers of a line, that all rows meet before the next
  int wide_panels = 512 << 10;  // bytes at most of panels of a chunk of keys that are of fp32: they stay in L2
};
extern Tuning tuning;

}  // namespace dsakit
