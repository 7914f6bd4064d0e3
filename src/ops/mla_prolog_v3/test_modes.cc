// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <map>

#include "ops/mla_prolog_v3/modes.hpp"
#include "ops/mla_prolog_v3/runs.hpp"

namespace dsakit::prolog_v3 {
namespace {

using mla_prolog_v3_op::kModeTable;
using mla_prolog_v3_op::Mode;
using mla_prolog_v3_op::Need;

int offered_row(int wq, int kvq, int qq, int ck, int qs) {
  for (int row = 1; row <= 7; ++row)
    if (const RowModes& m = kRows[row]; m.wq == wq && m.kvq == kvq && m.qq == qq && m.ck == ck && m.qs == qs)
      return row;
  return 0;
}

/// All 6 x 4 x 2 x 2 x 2 combinations: 7 run, 9 are reserved and say why, 176 do not exist.
TEST(MlaPrologV3Modes, EveryCombination) {
  std::map<Status, int> count;
  const Data plain({.exact = true});
  for (int wq = 0; wq < 6; ++wq)
    for (int kvq = 0; kvq < 4; ++kvq)
      for (int qq = 0; qq < 2; ++qq)
        for (int ck = 0; ck < 2; ++ck)
          for (int qs = 0; qs < 2; ++qs) {
            SCOPED_TRACE(std::to_string(wq) + std::to_string(kvq) + std::to_string(qq) + std::to_string(ck) +
                         std::to_string(qs));
            if (const int row = offered_row(wq, kvq, qq, ck, qs)) {
              const Data data({.row = row, .exact = true});
              EXPECT_EQ(run(data, {.threads = 1}).first_difference(reference_of(data)), "");
              ++count[Status::ok];
              continue;
            }
            const Change change = [&](MlaPrologV3Args& a, MlaPrologV3Outs&) {
              a.weight_quant_mode = wq, a.kv_cache_quant_mode = kvq, a.query_quant_mode = qq;
              a.ckvkr_repo_mode = ck, a.quant_scale_repo_mode = qs;
            };
            // The four others follow from weight_quant_mode and kv_cache_quant_mode.
            const bool pair = wq == 0 ? kvq == 0 : wq == 1 ? kvq != 1 : kvq != 2;
            const bool query = qq == (kvq == 1), packed = ck == (kvq == 3), repo = qs == (kvq == 3);
            if (wq >= 3 && pair && query && packed && repo) {
              const std::string sentence = expect_refused(plain, change, Status::unsupported, "weight_quant_mode");
              EXPECT_NE(sentence.find(wq == 3   ? "mxfp8 is reserved"
                                      : wq == 4 ? "fp8 is reserved"
                                                : "hifloat8 is reserved"),
                        std::string::npos)
                  << sentence;
              ++count[Status::unsupported];
              continue;
            }
            if (pair && query + packed + repo == 2)
              expect_refused(plain, change, Status::invalid_argument,
                             !query    ? "query_quant_mode"
                             : !packed ? "ckvkr_repo_mode"
                                       : "quant_scale_repo_mode");
            else if (query && packed && repo)
              expect_refused(plain, change, Status::invalid_argument, "kv_cache_quant_mode");
            else
              for (const bool by_reference : {false, true}) {  // several are wrong: some one of them is named
                Written w = plain.initial;
                MlaPrologV3Args a = plain.args(w);
                MlaPrologV3Outs o = w.outs();
                change(a, o);
                try {
                  by_reference ? reference::mla_prolog_v3(a, o) : mla_prolog_v3(a, o);
                  ADD_FAILURE() << "accepted";
                } catch (const Error& e) {
                  EXPECT_EQ(e.status, Status::invalid_argument) << e.what();
                  EXPECT_TRUE(e.parameter.ends_with("_mode")) << e.what();
                }
                EXPECT_EQ(w.first_difference(plain.initial), "");
              }
            ++count[Status::invalid_argument];
          }
  EXPECT_EQ(count, (std::map<Status, int>{{Status::ok, 7}, {Status::unsupported, 9}, {Status::invalid_argument, 176}}));
}

TEST(MlaPrologV3Modes, OutOfRange) {
  const Data data({});
  auto refused = [&](std::int64_t MlaPrologV3Args::*mode, const char* name,
                     std::initializer_list<std::int64_t> values) {
    for (const std::int64_t value : values)
      expect_refused(
          data, [&](MlaPrologV3Args& a, MlaPrologV3Outs&) { a.*mode = value; }, Status::invalid_argument, name);
  };
  refused(&MlaPrologV3Args::weight_quant_mode, "weight_quant_mode", {-1, 6, INT64_MAX, INT64_MIN, 1ll << 32});
  refused(&MlaPrologV3Args::kv_cache_quant_mode, "kv_cache_quant_mode", {-1, 4, 1ll << 32});
  refused(&MlaPrologV3Args::query_quant_mode, "query_quant_mode", {-1, 2, 1ll << 32});
  refused(&MlaPrologV3Args::ckvkr_repo_mode, "ckvkr_repo_mode", {-1, 2, 1ll << 32});
  refused(&MlaPrologV3Args::quant_scale_repo_mode, "quant_scale_repo_mode", {-1, 2, 1ll << 32});
}

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> out;
  for (std::size_t at = line.find('|'), next; (next = line.find('|', at + 1)) != std::string::npos; at = next) {
    const std::string cell = line.substr(at + 1, next - at - 1);
    const std::size_t first = cell.find_first_not_of(' ');
    out.push_back(first == std::string::npos ? "" : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
  }
  return out;
}

std::string word(DType t, const char* other = "hif8") {
  switch (t) {
    case DType::bf16:
      return "bf16";
    case DType::i8:
      return "int8";
    case DType::f8_e4m3:
      return "e4m3";
    case DType::f32:
      return "fp32";
    default:
      return other;
  }
}
std::string word(Need need, const char* shape) {
  switch (need) {
    case Need::absent:
      return "-";
    case Need::optional:
      return "opt";
    case Need::required:
      return std::string("req") + shape;
    case Need::single:
      return "req [1]";
    default:
      return "sources disagree";
  }
}

/// The documentation's tables of modes and of scales are the table that check() searches.
TEST(MlaPrologV3Modes, DocumentedTable) {
  std::ifstream page(DSAKIT_SOURCE_DIR "/docs/operators/mla_prolog.md");
  ASSERT_TRUE(page);
  std::map<int, std::vector<std::string>> modes, scales;
  for (std::string line; std::getline(page, line);) {
    const std::vector<std::string> row = cells(line);
    if (row.size() != 17 && row.size() != 9) continue;
    for (std::size_t at = 0; (at = row[0].find_first_of("0123456789", at)) < row[0].size();) {  // "8, 10" is two rows
      const int r = std::stoi(row[0].substr(at));
      at += std::to_string(r).size();
      (row.size() == 17 ? modes : scales)[r] = {row.begin() + 1, row.end()};
    }
  }
  for (const Mode& m : kModeTable) {
    SCOPED_TRACE("R" + std::to_string(m.row));
    const std::string per_block = m.dequant_scale == DType::f32 ? "" : " e8m0";
    EXPECT_EQ(modes[m.row],
              (std::vector<std::string>{
                  std::to_string(m.weight_quant), std::to_string(m.kv_cache_quant), std::to_string(m.query_quant),
                  std::to_string(m.ckvkr_repo), std::to_string(m.quant_scale_repo),
                  m.every_cache_mode ? "ALL6" : "TILE3", m.reserved ? "reserved" : "now", word(m.token_x),
                  word(m.weight_dq), word(m.weight_uq_qr), word(m.kv_cache) + (m.packed() ? " packed" : ""),
                  m.packed() ? "empty" : word(m.kr_cache), word(m.query), m.query_codes() ? "fp32" : "[0]",
                  word(m.query_norm), m.weight_quant == 0 ? "[0]" : word(m.dequant_scale, "e8m0")}));
    const std::string hidden = word(m.hidden_scales, per_block.c_str());
    EXPECT_EQ(scales[m.row],
              (std::vector<std::string>{hidden, hidden, word(m.dequant_scale_w_uq_qr, per_block.c_str()), hidden,
                                        word(m.quant_scale_ckv, " [1,Hckv]"), word(m.quant_scale_ckr, " [1,Dr]"),
                                        word(m.smooth_scales_cq, ""), word(m.k_nope_clip_alpha, "")}));
  }
  EXPECT_EQ(modes.size(), std::size(kModeTable));
  EXPECT_EQ(scales.size(), std::size(kModeTable));
}

}  // namespace
}  // namespace dsakit::prolog_v3
