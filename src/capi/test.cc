// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "capi/as_c.hpp"
#include "capi/context.hpp"
#include "capi/error.hpp"
#include "core/random.hpp"
#include "dsakit/dsakit.hpp"
#include "kernels/test_rungs.hpp"
#include "ops/fused_infer_attention_score_v2/cases.hpp"
#include "ops/mla_prolog_v3/runs.hpp"
#include "ops/quant_lightning_indexer/cases.hpp"
#include "run/call.hpp"

// The C interface gives what the C++ one gives: the same bits, the same refusals.
namespace dsakit::capi {
namespace {

std::string message() { return dsakit_last_error()->message; }

/// What a call answered: "" or the sentence.
template <class F>
std::string answer(F call) {
  try {
    call();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

/// One tensor's memory for each name, the same bytes for every call that is made on it.
struct Memory {
  std::map<std::string, std::vector<std::byte>> bytes;

  void* of(const std::string& name, std::size_t size) {
    auto& b = bytes[name];
    b.resize(size);
    return b.data();
  }
};

/// A call with arguments drawn from what the description lists: shapes agree in their letters, mostly.
/// Most operators have something to refuse, each at another place of its door.
template <class Args, class Outs>
void random_call(Random& r, Args& a, Outs& o, Memory& memory) {
  static constexpr const char* kTypes[] = {"float32", "bfloat16", "float16", "int8", "uint8", "int32", "int64", "bool"};
  static constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i8,
                                      DType::u8,  DType::i32,  DType::i64, DType::boolean};
  const DType common = r.below(2) ? DType::bf16 : DType::f32;
  std::map<char, std::int64_t> letters;
  for_each_field(a, o, [&](const Field& f, auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, Tensor>) {
      if (f.role == Role::out || (!f.is_required() && r.below(8)) || r.below(40) == 0) return;
      std::vector<DType> types;
      for (int i = 0; i < 8; ++i)
        if (f.dtypes.find(kTypes[i]) != f.dtypes.npos) types.push_back(kDTypes[i]);
      value.dtype = types.empty() || (std::ranges::find(types, common) != types.end() && r.below(10))
                        ? common
                        : types[std::size_t(r.below(std::int64_t(types.size())))];
      if (f.kind == Kind::lengths) value.dtype = DType::i32;  // the C interface narrows others
      value.rank = 0;
      const std::string_view list = f.shape.substr(0, f.shape.find(']'));
      for (char c : list)
        if (c >= 'A' && c <= 'z' && c != '[' && value.rank < 4) {
          if (auto [it, fresh] = letters.try_emplace(c, 1 + r.below(4)); fresh || r.below(50))
            value.shape[std::size_t(value.rank++)] = it->second;
        } else if (c == '1' && value.rank < 4) {
          value.shape[std::size_t(value.rank++)] = 1;
        }
      if (value.rank == 0) value.rank = 2, value.shape[0] = 4, value.shape[1] = 3;
      make_contiguous(value);
      value.data = memory.of(f.name, std::size_t(value.elements()) * std::size_t(size_of(value.dtype)));
      if (f.kind == Kind::data)
        for (std::byte& b : memory.bytes[f.name]) b = std::byte(r.below(256));
    } else if constexpr (std::is_same_v<Value, std::int64_t>) {
      if (r.below(12) == 0) value = r.below(5) - 1;
    } else if constexpr (std::is_same_v<Value, bool>) {
      if (r.below(6) == 0) value = !value;
    } else if constexpr (std::is_same_v<Value, Level>) {
      if (r.below(6) == 0) value = Level::strict;
    } else if constexpr (std::is_same_v<Value, Axes>) {
      if (r.below(3) == 0) value = {1, 0, 2};
      else if (r.below(3) == 0) value = {0, 2, 1};
      else if (r.below(9) == 0) value = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    } else if constexpr (std::is_same_v<Value, std::string_view>) {
      if (r.below(12) == 0) value = "TND";
      if (f.kind == Kind::dtype) value = "int8";
    }
  });
  if (answer([&] { infer(std::as_const(a), o); }) != "") return;
  for_each_field(a, o, [&](const Field& f, auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Tensor>)
      if (f.role == Role::out && value && r.below(40))
        value.data = memory.of(f.name, std::size_t(value.elements()) * std::size_t(size_of(value.dtype)));
  });
}

template <class Args, class Outs, class Run, class Twin>
int same_answers(const char* op, Run run, Twin twin) {
  int computed = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random r(seed);
    Args a{};
    Outs o{};
    Memory memory;
    if (seed != 0) random_call(r, a, o, memory);
    const auto before = memory.bytes;
    const AsC c(a, o);
    for (const bool reference : {false, true}) {
      const std::string wanted = answer([&] { reference ? twin(a, o) : run(a, o); });
      const auto after = memory.bytes;
      for (auto& [name, bytes] : before) std::ranges::copy(bytes, memory.bytes[name].begin());
      const dsakit_status status = c.run(((reference ? "reference." : "") + std::string(op)).c_str());
      EXPECT_EQ(status == DSAKIT_OK ? "" : message(), wanted) << op << ", seed " << seed;
      EXPECT_TRUE(memory.bytes == after) << op << ", seed " << seed;
      for (auto& [name, bytes] : before) std::ranges::copy(bytes, memory.bytes[name].begin());
      computed += wanted.empty();
    }
    if (::testing::Test::HasFailure()) return computed;
  }
  return computed;
}

TEST(CInterface, EveryOperatorAnswersAsInCpp) {
  int computed = 0;
#define DSAKIT_OP(name, Type)                                                      \
  computed += same_answers<Type##Args, Type##Outs>(                                \
      #name, [](const Type##Args& a, const Type##Outs& o) { dsakit::name(a, o); }, \
      [](const Type##Args& a, const Type##Outs& o) { dsakit::reference::name(a, o); });
#include "ops/ops.inc"
#undef DSAKIT_OP
  EXPECT_GT(computed, 100) << "hardly a call was accepted: nothing was compared";
}

/// A context of the C interface.
struct CContext {
  dsakit_context* handle = nullptr;
  CContext(const char* isa, int threads) {
    dsakit_context_options options{};
    options.size = sizeof options, options.isa = isa, options.threads = threads;
    EXPECT_EQ(dsakit_context_create(&options, &handle), DSAKIT_OK) << message();
  }
  ~CContext() { dsakit_context_destroy(handle); }
};

class CInterfaceBits : public EveryRung {};
INSTANTIATE_TEST_SUITE_P(Rungs, CInterfaceBits, for_every_rung(), rung_name);

TEST_P(CInterfaceBits, OfSelections) {
  for (int threads : {1, 2, 3})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      auto c = quant_lightning_indexer_cases::random_case(seed);
      const auto a = c.args();
      Context context({.threads = threads, .isa = kernels().isa});
      quant_lightning_indexer(a, c.outs(), context);
      const std::vector<std::int32_t> wanted = c.out;
      std::fill(c.out.begin(), c.out.end(), 12345);
      EXPECT_EQ(AsC(a, c.outs()).run("quant_lightning_indexer", CContext(kernels().isa, threads).handle), DSAKIT_OK)
          << message();
      EXPECT_EQ(c.out, wanted) << "seed " << seed << ", threads " << threads;
    }
}

TEST_P(CInterfaceBits, OfPrologsAndTheirCaches) {
  for (int threads : {1, 2, 3})
    for (int row = 1; row <= 7; ++row) {
      const prolog_v3::Data data(prolog_v3::Case{.row = row});
      prolog_v3::Written wanted = data.initial, got = data.initial;
      Context context({.threads = threads, .isa = kernels().isa});
      mla_prolog_v3(data.args(wanted), wanted.outs(), context);
      EXPECT_NE(got.first_difference(wanted), "");
      EXPECT_EQ(AsC(data.args(got), got.outs()).run("mla_prolog_v3", CContext(kernels().isa, threads).handle),
                DSAKIT_OK)
          << message();
      EXPECT_EQ(got.first_difference(wanted), "") << "row " << row << ", threads " << threads;
    }
}

TEST_P(CInterfaceBits, OfAttentionWithLengthsAsIntegers) {
  namespace cases = fused_infer_attention_score_v2_op;
  for (int threads : {1, 2, 3}) {
    cases::Case direct(cases::Spec{.b = 2, .s1 = 3, .s2 = 40}), by_name(cases::Spec{.b = 2, .s1 = 3, .s2 = 40});
    const std::int64_t lengths[] = {40, 17};
    const std::int32_t narrow[] = {40, 17};
    auto a = direct.args();
    a.actual_seq_kvlen = tensor(narrow, {2});
    Context context({.threads = threads, .isa = kernels().isa});
    fused_infer_attention_score_v2(a, direct.outs(), context);
    AsC c(by_name.args(), by_name.outs());
    EXPECT_NE(by_name.attention.bytes, direct.attention.bytes);
    c["actual_seq_kvlen"] = dsakit_integers_arg("actual_seq_kvlen", lengths, 2);
    EXPECT_EQ(c.run("fused_infer_attention_score_v2", CContext(kernels().isa, threads).handle), DSAKIT_OK) << message();
    EXPECT_EQ(by_name.attention.bytes, direct.attention.bytes);
  }
}

/// A weight in its three forms gives the same bits.
TEST(CInterface, WeightsInEveryForm) {
  const prolog_v3::Data data(prolog_v3::Case{.row = 5});
  prolog_v3::Written wanted = data.initial;
  ASSERT_EQ(AsC(data.args(wanted), wanted.outs()).run("mla_prolog_v3"), DSAKIT_OK) << message();
  for (const bool nz : {false, true}) {
    prolog_v3::Written got = data.initial;
    AsC c(data.args(got), got.outs());
    const prolog_v3::Array storage = prolog_v3::fractal_nz(data.weight_uq_qr);
    if (nz) {
      c.tensor("weight_uq_qr").data = const_cast<std::byte*>(storage.bytes.data());
      c["weight_uq_qr"].flags |= DSAKIT_FRACTAL_NZ;
    }
    dsakit_packed_weight *packed = nullptr, *stack = nullptr;
    ASSERT_EQ(dsakit_pack_weight(&c.tensor("weight_uq_qr"), c["weight_uq_qr"].flags, &packed), DSAKIT_OK) << message();
    ASSERT_EQ(dsakit_pack_weight(&c.tensor("weight_uk"), DSAKIT_READ_ONLY, &stack), DSAKIT_OK) << message();
    if (nz) {
      EXPECT_EQ(c.run("mla_prolog_v3"), DSAKIT_OK) << message();
      EXPECT_EQ(got.first_difference(wanted), "");
      got = data.initial;
    }
    AsC again(data.args(got), got.outs());
    again["weight_uq_qr"] = dsakit_packed_arg("weight_uq_qr", packed);
    again["weight_uk"] = dsakit_packed_arg("weight_uk", stack);
    EXPECT_EQ(again.run("mla_prolog_v3"), DSAKIT_OK) << message();
    EXPECT_EQ(got.first_difference(wanted), "") << "nz " << nz;
    dsakit_packed_weight_destroy(packed);
    dsakit_packed_weight_destroy(stack);
  }
}

/// An order of axes is an array of integers; without entries it is the default.
TEST(CInterface, OrdersOfAxesAreIntegers) {
  float x[] = {1, 2, 3, 4, 5, 6}, w[] = {1, 10, 100}, y[6] = {};
  const TransposeBatchmatmulArgs a{.input = tensor(x, {2, 3, 1}), .weight = tensor(w, {3, 1, 1})};
  AsC c(a, TransposeBatchmatmulOuts{tensor(y, {2, 3, 1})});
  const std::int64_t order[] = {1, 0, 2};
  c["perm_x1"] = dsakit_integers_arg("perm_x1", order, 3);
  c["perm_y"] = dsakit_integers_arg("perm_y", nullptr, 0);
  ASSERT_EQ(c.run("transpose_batchmatmul"), DSAKIT_OK) << message();
  EXPECT_EQ(std::vector<float>(y, y + 6), (std::vector<float>{1, 20, 300, 4, 50, 600}));
  c["perm_y"] = dsakit_integer_arg("perm_y", 1);
  EXPECT_EQ(c.run("transpose_batchmatmul"), DSAKIT_INVALID_DTYPE);
  EXPECT_EQ(message(), "transpose_batchmatmul: perm_y is an integer, wanted an array of integers");
}

TEST(CInterface, StridesAndOffsetsAreFollowed) {
  std::vector<float> x(3 * 20 + 2);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(i % 37) - 18;
  std::vector<std::int8_t> y(3 * 16), wanted(3 * 16);
  std::vector<float> scale(3), wanted_scale(3);
  DynamicQuantArgs a{.input = tensor(x.data() + 2, {3, 16})};
  a.input.stride[0] = 20;
  dynamic_quant(a, {.y = tensor(wanted.data(), {3, 16}), .scale = tensor(wanted_scale.data(), {3})});
  AsC c(a, DynamicQuantOuts{.y = tensor(y.data(), {3, 16}), .scale = tensor(scale.data(), {3})});
  c.tensor("input").data = x.data();
  c.tensor("input").byte_offset = 2 * sizeof(float);
  c.tensor("y").strides = nullptr;
  ASSERT_EQ(c.run("dynamic_quant"), DSAKIT_OK) << message();
  EXPECT_EQ(y, wanted);
  EXPECT_EQ(scale, wanted_scale);
}

/// What is selected in a batch whose lengths come as `a`, or the refusal.
std::string with_lengths(const dsakit_argument& a) {
  auto c = quant_lightning_indexer_cases::random_case(3);
  const auto args = c.args();
  AsC call(args, c.outs());
  call[a.name] = a;
  if (call.run("quant_lightning_indexer") != DSAKIT_OK) return message();
  std::string text;
  for (std::int32_t i : c.out) text += std::to_string(i) + " ";
  return text;
}

TEST(CInterface, LengthsAreIntegersOfAnyWidth) {
  auto c = quant_lightning_indexer_cases::random_case(3);
  const auto args = c.args();
  quant_lightning_indexer(args, c.outs());
  std::string wanted;
  for (std::int32_t i : c.out) wanted += std::to_string(i) + " ";
  const Tensor& t = args.actual_seq_lengths_key;
  std::vector<std::int64_t> wide;
  std::vector<std::uint8_t> narrow;
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    wide.push_back(static_cast<const std::int32_t*>(t.data)[i]);
    for (int copy = 0; copy < 2; ++copy) narrow.push_back(std::uint8_t(wide.back()));  // every other one is read
  }
  const char* name = "actual_seq_lengths_key";
  std::int64_t shape[] = {t.elements()}, stride[] = {2};
  dsakit_tensor w = dsakit_cpu_tensor(wide.data(), DSAKIT_INT, 64, 1, shape),
                n = dsakit_cpu_tensor(narrow.data(), DSAKIT_UINT, 8, 1, shape);
  EXPECT_EQ(with_lengths(dsakit_integers_arg(name, wide.data(), wide.size())), wanted);
  EXPECT_EQ(with_lengths(dsakit_tensor_arg(name, &w)), wanted);
  n.strides = stride;
  EXPECT_EQ(with_lengths(dsakit_tensor_arg(name, &n)),
            "quant_lightning_indexer: actual_seq_lengths_key has innermost stride 2, wanted 1");
  wide[0] = std::int64_t{1} << 31;
  EXPECT_EQ(with_lengths(dsakit_tensor_arg(name, &w)),
            "quant_lightning_indexer: actual_seq_lengths_key[0] is 2147483648, wanted an int32");
  EXPECT_EQ(dsakit_last_error()->status, DSAKIT_INVALID_SEQLEN);
}

TEST(CInterface, WarnsOnceInAContext) {
  const prolog_v3::Data data(prolog_v3::Case{.row = 7});
  prolog_v3::Written w = data.initial;
  AsC call(data.args(w), w.outs());
  const CContext context("generic", 1);
  const char* sentence = "nobody wrote here";
  ASSERT_EQ(dsakit_context_warning(context.handle, 0, &sentence), DSAKIT_OK);
  EXPECT_EQ(sentence, nullptr);
  std::vector<float> unused(128, 1.f);
  std::int64_t shape[] = {1, 128};
  const dsakit_tensor scale = dsakit_cpu_tensor(unused.data(), DSAKIT_FLOAT, 32, 2, shape);
  call["quant_scale_ckv"] = dsakit_tensor_arg("quant_scale_ckv", &scale);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(call.run("mla_prolog_v3", context.handle), DSAKIT_OK) << message();
  ASSERT_EQ(dsakit_context_warning(context.handle, 0, &sentence), DSAKIT_OK);
  EXPECT_STREQ(sentence,
               "mla_prolog_v3: quant_scale_ckv is not used: with kv_cache_quant_mode 3 every tile makes its own scale");
  ASSERT_EQ(dsakit_context_warning(context.handle, 1, &sentence), DSAKIT_OK);
  EXPECT_EQ(sentence, nullptr);
}

TEST(CInterface, InterruptEndsACall) {
  const CContext context("generic", 1);
  int asked = 0;
  const auto stop = [](void* count) { return ++*static_cast<int*>(count) > 0; };
  ASSERT_EQ(dsakit_context_set_interrupt(context.handle, stop, &asked), DSAKIT_OK);
  const dsakit_status status = guarded([&] {
    Call call(context.handle->context, "op", 0);
    while (asked == 0) call.parallel_for(1, Work{}, [](std::int64_t, int) {});
    call.finish();
  });
  EXPECT_EQ(status, DSAKIT_INTERRUPTED);
  EXPECT_EQ(asked, 1);
}

TEST(CInterface, ListsOfTensors) {
  const std::vector<float> lse{1, 2, -1, 3}, values{10, 20, 30, 40};
  std::vector<Tensor> l{tensor(lse.data(), {2}), tensor(lse.data() + 2, {2})},
      v{tensor(values.data(), {2, 1}), tensor(values.data() + 2, {2, 1})};
  std::vector<float> out(2), total(2), c_out(2), c_total(2);
  const AttentionUpdateArgs a{l, v, 1};
  attention_update(a, {.out = tensor(out.data(), {2, 1}), .lse_out = tensor(total.data(), {2})});
  const AttentionUpdateOuts outs{.out = tensor(c_out.data(), {2, 1}), .lse_out = tensor(c_total.data(), {2})};
  ASSERT_EQ(AsC(a, outs).run("attention_update"), DSAKIT_OK) << message();
  EXPECT_EQ(c_out, out);
  EXPECT_EQ(c_total, total);
  v[1].shape[1] = 2;
  EXPECT_EQ(AsC(a, outs).run("attention_update"), DSAKIT_INVALID_SHAPE);
  EXPECT_EQ(message(), "attention_update: local_out[1] has shape [2, 2], wanted [2, 1] (shape of local_out[0])");
  AsC wrong(a, outs);
  wrong["lse"] = dsakit_tensor_arg("lse", wrong["lse"].value.tensors);
  EXPECT_EQ(wrong.run("attention_update"), DSAKIT_INVALID_DTYPE);
  EXPECT_EQ(message(), "attention_update: lse is a tensor, wanted an array of tensors");
}

TEST(CInterface, InfersResults) {
  const prolog_v3::Data data(prolog_v3::Case{.row = 7, .query_norm = false});
  prolog_v3::Written w = data.initial;
  const AsC c(data.args(w), MlaPrologV3Outs{});
  dsakit_shape shapes[5];
  ASSERT_EQ(dsakit_infer("mla_prolog_v3", c.arguments.data(), c.arguments.size(), shapes, 5), DSAKIT_OK) << message();
  MlaPrologV3Outs o{};
  infer(data.args(w), o);
  int i = 0;
  for (const Tensor& t : {o.query, o.query_rope, o.dequant_scale_q_nope, o.query_norm, o.dequant_scale_q_norm}) {
    const dsakit_shape& s = shapes[i++];
    EXPECT_EQ(s.ndim, t.rank) << s.name;
    EXPECT_TRUE(std::equal(s.shape, s.shape + s.ndim, t.shape.begin())) << s.name;
    EXPECT_EQ(dtype_of_dlpack(s.dtype.code, s.dtype.bits), t.dtype) << s.name;
  }
  EXPECT_STREQ(shapes[1].name, "query_rope");
  shapes[1].ndim = 77;
  ASSERT_EQ(dsakit_infer("mla_prolog_v3", c.arguments.data(), c.arguments.size(), shapes, 1), DSAKIT_OK);
  EXPECT_EQ(shapes[1].ndim, 77) << "written beyond the capacity";
  ASSERT_EQ(dsakit_infer("mla_prolog_v3", c.arguments.data(), c.arguments.size(), nullptr, 0), DSAKIT_OK);
}

TEST(CInterface, EnumeratesWhatThereIs) {
  ASSERT_EQ(dsakit_operator_count(), operators().size());
  EXPECT_EQ(dsakit_operator_at(operators().size()), nullptr);
  for (std::size_t i = 0; i < operators().size(); ++i) {
    const Operator& op = operators()[i];
    const dsakit_operator& shown = *dsakit_operator_at(i);
    EXPECT_EQ(shown.name, op.name);
    EXPECT_EQ(shown.summary, op.description.summary);
    ASSERT_EQ(shown.parameter_count, op.parameters.size());
    ASSERT_EQ(shown.result_count, op.results().size());
    for (std::size_t p = 0; p < op.parameters.size(); ++p) {
      const Parameter& wanted = op.parameters[p];
      const dsakit_parameter& got = *shown.parameters[p];
      EXPECT_STREQ(got.name, wanted.field.name);
      EXPECT_STREQ(got.role, name_of(wanted.field.role));
      EXPECT_EQ(got.meaning, wanted.field.meaning);
      EXPECT_EQ(got.kind != DSAKIT_NONE, wanted.field.has_member());
      EXPECT_STREQ(got.default_value.name, got.name);
      if (got.result >= 0) {
        EXPECT_STREQ(shown.results[got.result], got.name);
      }
    }
  }
  const dsakit_operator* quantize = nullptr;
  for (std::size_t i = 0; i < dsakit_operator_count(); ++i)
    if (dsakit_operator_at(i)->name == std::string("quantize")) quantize = dsakit_operator_at(i);
  ASSERT_NE(quantize, nullptr);
  EXPECT_TRUE(quantize->parameters[0]->required);
  EXPECT_EQ(quantize->parameters[0]->kind, DSAKIT_TENSOR);
  EXPECT_EQ(quantize->parameters[4]->default_value.kind, DSAKIT_INTEGER);  // axis
  EXPECT_EQ(quantize->parameters[4]->default_value.value.integer, 1);
  EXPECT_STREQ(quantize->parameters[6]->default_value.value.string, "portable");
}

TEST(CInterface, EveryDTypeHasItsNumber) {
  for (int i = 0; i < int(DType::other); ++i) {
    const dsakit_dtype t = dlpack_of(DType(i));
    EXPECT_EQ(dtype_of_dlpack(t.code, t.bits), DType(i));
    EXPECT_EQ(t.bits, 8 * size_of(DType(i)));
  }
}

TEST(CInterface, EightThreadsWithContextsOfTheirOwn) {
  std::vector<std::vector<std::int32_t>> got(8), wanted(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      auto c = quant_lightning_indexer_cases::random_case(t);
      const auto a = c.args();
      reference::quant_lightning_indexer(a, c.outs());
      wanted[t] = c.out;
      const CContext context("generic", 2);
      for (int i = 0; i < 10; ++i) {
        std::fill(c.out.begin(), c.out.end(), 12345);
        AsC call(a, c.outs());
        ASSERT_EQ(call.run("quant_lightning_indexer", context.handle), DSAKIT_OK) << message();
        got[t] = c.out;
        const std::string unknown = "nobody" + std::to_string(t);
        call["query"].name = unknown.c_str();
        ASSERT_EQ(call.run("quant_lightning_indexer", context.handle), DSAKIT_INVALID_ARGUMENT);
        ASSERT_EQ(dsakit_last_error()->parameter, unknown);  // of this thread
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(got, wanted);
}

}  // namespace
}  // namespace dsakit::capi
