// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "capi/as_c.hpp"
#include "capi/error.hpp"
#include "dsakit/dsakit.hpp"
#include "ops/describe_text.hpp"

// What the C interface refuses of its own: names, kinds of arguments, descriptions of tensors.
namespace dsakit::capi {
namespace {

/// A call of quantize that is fine, with room for a change.
struct Quantize {
  std::vector<float> x = {1, 2, 3, -4, 5, 600}, scale = {1, 2, 3};
  std::vector<std::int8_t> y = std::vector<std::int8_t>(6, 77);
  AsC call{QuantizeArgs{.input = tensor(x.data(), {2, 3}), .scales = tensor(scale.data(), {3}), .dtype = "qint8"},
           QuantizeOuts{.y = tensor(y.data(), {2, 3})}};
  std::int64_t shape[9] = {2, 3, 1, 1, 1, 1, 1, 1, 1};
};

/// Refused with this sentence, by the operator and by its reference, and nothing is written.
void expect_refused(const std::function<void(Quantize&)>& change, dsakit_status status, const char* parameter,
                    const char* sentence) {
  for (const char* op : {"quantize", "reference.quantize"}) {
    Quantize q;
    change(q);
    EXPECT_EQ(q.call.run(op), status) << sentence;
    const dsakit_error& e = *dsakit_last_error();
    EXPECT_EQ(e.status, status);
    EXPECT_STREQ(e.operator_name, "quantize");
    EXPECT_STREQ(e.parameter, parameter);
    EXPECT_STREQ(e.message, sentence);
    EXPECT_NE(std::strstr(e.message, e.got), nullptr);
    EXPECT_NE(std::strstr(e.message, e.wanted), nullptr);
    EXPECT_EQ(q.y, std::vector<std::int8_t>(6, 77));
  }
  Quantize fine;
  EXPECT_EQ(fine.call.run("quantize"), DSAKIT_OK);
  EXPECT_EQ(fine.y, (std::vector<std::int8_t>{1, 1, 1, -4, 2, 127}));
}

TEST(CRefusals, Names) {
  expect_refused([](Quantize& q) { q.call["scales"].name = "scale"; }, DSAKIT_INVALID_ARGUMENT, "scale",
                 "quantize: scale is unknown, wanted a parameter of this operator (nearest: scales)");
  expect_refused([](Quantize& q) { q.call["scales"].name = "sc\nales"; }, DSAKIT_INVALID_ARGUMENT, "sc\\u000aales",
                 "quantize: sc\\u000aales is unknown, wanted a parameter of this operator (nearest: scales)");
  expect_refused([](Quantize& q) { q.call["scales"].name = nullptr; }, DSAKIT_INVALID_ARGUMENT, "arguments",
                 "quantize: arguments[1] has no name, wanted the name of a parameter");
  expect_refused([](Quantize& q) { q.call["axis"].name = "div_mode"; }, DSAKIT_INVALID_ARGUMENT, "div_mode",
                 "quantize: div_mode is given twice, wanted once");
  expect_refused([](Quantize& q) { q.call.arguments.erase(q.call.arguments.begin()); }, DSAKIT_INVALID_ARGUMENT,
                 "input", "quantize: input is missing, wanted a tensor");
  expect_refused([](Quantize& q) { q.call["scales"].kind = DSAKIT_NONE; }, DSAKIT_INVALID_ARGUMENT, "scales",
                 "quantize: scales is missing, wanted a tensor");
  expect_refused([](Quantize& q) { q.call["dtype"].kind = DSAKIT_NONE; }, DSAKIT_INVALID_ARGUMENT, "dtype",
                 "quantize: dtype is missing, wanted the dtype of the codes");
}

TEST(CRefusals, Operators) {
  Quantize q;
  EXPECT_EQ(q.call.run("quantise"), DSAKIT_INVALID_ARGUMENT);
  EXPECT_STREQ(dsakit_last_error()->message,
               "run: name is \"quantise\", wanted the name of an operator (nearest: quantize)");
  EXPECT_EQ(q.call.run("npu_quantize"), DSAKIT_INVALID_ARGUMENT);
  EXPECT_STREQ(dsakit_last_error()->operator_name, "run");
  EXPECT_EQ(q.call.run(nullptr), DSAKIT_INVALID_ARGUMENT);
  EXPECT_STREQ(dsakit_last_error()->message, "run: name is a null pointer, wanted a pointer");
  EXPECT_EQ(dsakit_run(nullptr, "quantize", nullptr, 3), DSAKIT_INVALID_ARGUMENT);
  EXPECT_STREQ(dsakit_last_error()->message, "quantize: arguments is a null pointer, wanted an array");
  EXPECT_EQ(dsakit_infer("reference.quantize", nullptr, 0, nullptr, 0), DSAKIT_INVALID_ARGUMENT);
  EXPECT_EQ(dsakit_infer("quantize", q.call.arguments.data(), q.call.arguments.size(), nullptr, 1),
            DSAKIT_INVALID_ARGUMENT);
  EXPECT_STREQ(dsakit_last_error()->message, "infer: results is a null pointer, wanted a pointer");
  EXPECT_EQ(q.y, std::vector<std::int8_t>(6, 77));
}

TEST(CRefusals, Kinds) {
  const auto kind = [](const char* name, dsakit_argument a) { return [=](Quantize& q) { q.call[name] = a; }; };
  expect_refused(kind("axis", dsakit_real_arg("axis", 1)), DSAKIT_INVALID_DTYPE, "axis",
                 "quantize: axis is a real number, wanted an integer");
  expect_refused(kind("div_mode", dsakit_integer_arg("div_mode", 1)), DSAKIT_INVALID_DTYPE, "div_mode",
                 "quantize: div_mode is an integer, wanted a boolean");
  expect_refused(kind("dtype", dsakit_integer_arg("dtype", 1)), DSAKIT_INVALID_DTYPE, "dtype",
                 "quantize: dtype is an integer, wanted a string");
  expect_refused(kind("dtype", dsakit_string_arg("dtype", "")), DSAKIT_INVALID_ARGUMENT, "dtype",
                 "quantize: dtype is \"\", wanted the name of a dtype");
  expect_refused(kind("level", dsakit_string_arg("level", "severe")), DSAKIT_INVALID_ARGUMENT, "level",
                 "quantize: level is \"severe\", wanted \"portable\" or \"strict\"");
  expect_refused(kind("scales", dsakit_real_arg("scales", 1)), DSAKIT_INVALID_DTYPE, "scales",
                 "quantize: scales is a real number, wanted a tensor");
  static const std::int64_t numbers[] = {1, 2, 3};
  expect_refused(kind("scales", dsakit_integers_arg("scales", numbers, 3)), DSAKIT_INVALID_DTYPE, "scales",
                 "quantize: scales is an array of integers, wanted a tensor");
  expect_refused(kind("scales", dsakit_tensor_arg("scales", nullptr)), DSAKIT_INVALID_ARGUMENT, "scales",
                 "quantize: scales is a null pointer, wanted a tensor (DSAKIT_NONE is for none)");
  expect_refused(kind("dtype", dsakit_string_arg("dtype", nullptr)), DSAKIT_INVALID_ARGUMENT, "dtype",
                 "quantize: dtype is a null pointer, wanted a string (DSAKIT_NONE is for none)");
  expect_refused([](Quantize& q) { q.call["axis"].kind = 99; }, DSAKIT_INVALID_ARGUMENT, "axis",
                 "quantize: axis has kind 99, wanted one of dsakit_kind");
  expect_refused([](Quantize& q) { q.call["axis"].flags = 1; }, DSAKIT_INVALID_ARGUMENT, "axis",
                 "quantize: axis has flags 1, wanted 0");
  expect_refused([](Quantize& q) { q.call["input"].flags = 12; }, DSAKIT_INVALID_ARGUMENT, "input",
                 "quantize: input has flags 12, wanted DSAKIT_READ_ONLY, DSAKIT_FRACTAL_NZ");
  expect_refused([](Quantize& q) { q.call["input"].count = 2; }, DSAKIT_INVALID_ARGUMENT, "input",
                 "quantize: input has count 2, wanted 0 beside a single value");
}

TEST(CRefusals, Tensors) {
  const auto input = [](auto change) { return [=](Quantize& q) { change(q, q.call.tensor("input")); }; };
  using T = dsakit_tensor;
  expect_refused(input([](Quantize&, T& t) { t.device.device_type = 2; }), DSAKIT_INVALID_DEVICE, "input",
                 "quantize: input is on DLPack device 2, wanted 1 (cpu)");
  expect_refused(input([](Quantize&, T& t) { t.dtype.code = 5; }), DSAKIT_INVALID_DTYPE, "input",
                 "quantize: input has DLPack code 5, 32 bits, 1 lanes, wanted a plain number");
  expect_refused(input([](Quantize&, T& t) { t.dtype.lanes = 4; }), DSAKIT_INVALID_DTYPE, "input",
                 "quantize: input has DLPack code 2, 32 bits, 4 lanes, wanted a plain number");
  expect_refused(input([](Quantize& q, T& t) { t.ndim = 9, t.shape = q.shape; }), DSAKIT_INVALID_SHAPE, "input",
                 "quantize: input has rank 9, wanted at most 8");
  expect_refused(input([](Quantize&, T& t) { t.ndim = -1; }), DSAKIT_INVALID_SHAPE, "input",
                 "quantize: input has rank -1, wanted at most 8");
  expect_refused(input([](Quantize&, T& t) { t.shape = nullptr; }), DSAKIT_INVALID_SHAPE, "input",
                 "quantize: input has no shape, wanted an array of ndim lengths");
  expect_refused(input([](Quantize& q, T& t) { q.shape[0] = -2, t.shape = q.shape; }), DSAKIT_INVALID_SHAPE, "input",
                 "quantize: input has shape [-2, 3], wanted no negative dimension");
  expect_refused(input([](Quantize&, T& t) { t.data = nullptr; }), DSAKIT_INVALID_ARGUMENT, "input",
                 "quantize: input has no memory, wanted memory for [2, 3]");
  expect_refused(input([](Quantize&, T& t) { t.byte_offset = 2; }), DSAKIT_MISALIGNED, "input",
                 "quantize: input is at an address not a multiple of 4, wanted aligned elements");
  expect_refused(input([](Quantize& q, T& t) { q.shape[3] = INT64_MAX, q.shape[4] = 1, t.strides = q.shape + 3; }),
                 DSAKIT_INVALID_STRIDE, "input",
                 "quantize: input has strides [9223372036854775807, 1], wanted offsets below 2^59");
  expect_refused([](Quantize& q) { q.call["y"].flags = DSAKIT_READ_ONLY; }, DSAKIT_INVALID_DEVICE, "y",
                 "quantize: y is read-only, wanted writable memory");
  expect_refused([](Quantize& q) { q.call["y"].flags = DSAKIT_FRACTAL_NZ; }, DSAKIT_INVALID_ARGUMENT, "y",
                 "quantize: y is in a weight's format, wanted a plain strided tensor");
  expect_refused([](Quantize& q) { q.call.tensor("y").data = q.x.data(); }, DSAKIT_ALIASED, "y",
                 "quantize: y overlaps input, wanted separate memory (bytes 0..5 of y)");
}

TEST(CRefusals, PackedWeights) {
  const std::vector<bf16> w(64 * 16);
  std::int64_t shape[] = {64, 16};
  dsakit_tensor t = dsakit_cpu_tensor(const_cast<bf16*>(w.data()), DSAKIT_FLOAT, 32, 2, shape);
  dsakit_packed_weight* packed = nullptr;
  EXPECT_EQ(dsakit_pack_weight(&t, 0, &packed), DSAKIT_INVALID_DTYPE);
  EXPECT_EQ(packed, nullptr);
  EXPECT_STREQ(dsakit_last_error()->operator_name, "pack_weight");
  t.dtype = {DSAKIT_BFLOAT, 16, 1};
  EXPECT_EQ(dsakit_pack_weight(&t, 0, nullptr), DSAKIT_INVALID_ARGUMENT);
  EXPECT_EQ(dsakit_pack_weight(nullptr, 0, &packed), DSAKIT_INVALID_ARGUMENT);
  EXPECT_EQ(dsakit_pack_weight(&t, 4, &packed), DSAKIT_INVALID_ARGUMENT);
  EXPECT_STREQ(dsakit_last_error()->message,
               "pack_weight: weight has flags 4, wanted DSAKIT_READ_ONLY, DSAKIT_FRACTAL_NZ");
  ASSERT_EQ(dsakit_pack_weight(&t, 0, &packed), DSAKIT_OK);
  expect_refused([&](Quantize& q) { q.call["input"] = dsakit_packed_arg("input", packed); }, DSAKIT_INVALID_DTYPE,
                 "input", "quantize: input is a packed weight, wanted a tensor");
  dsakit_packed_weight_destroy(packed);
  dsakit_packed_weight_destroy(nullptr);
}

/// The parameter that mla_prolog_v3 refuses when all that it needs is given, but kr_cache, and `a`.
std::string refused_parameter(const char* level, dsakit_argument a) {
  float x = 0;
  std::int64_t one[] = {1};
  dsakit_tensor t = dsakit_cpu_tensor(&x, DSAKIT_FLOAT, 32, 1, one);
  AsC call(MlaPrologV3Args{}, MlaPrologV3Outs{});
  for (const Parameter& p : find_operator("mla_prolog_v3")->parameters)
    if (p.field.is_required()) call[p.field.name] = dsakit_tensor_arg(p.field.name, &t);
  call["level"].value.string = level;
  call[a.name] = a;
  EXPECT_NE(call.run("mla_prolog_v3"), DSAKIT_OK);
  return dsakit_last_error()->parameter;
}

TEST(CRefusals, ParametersWithoutMember) {
  const dsakit_argument none = dsakit_no_arg("k_pe_clip_alpha", DSAKIT_NONE, 0),
                        some = dsakit_real_arg("k_pe_clip_alpha", 1);
  EXPECT_EQ(refused_parameter("portable", none), "kr_cache");
  EXPECT_EQ(refused_parameter("strict", none), "k_pe_clip_alpha");
  EXPECT_EQ(refused_parameter("portable", some), "k_pe_clip_alpha");
  EXPECT_EQ(dsakit_last_error()->status, DSAKIT_INVALID_ARGUMENT);
  EXPECT_EQ(refused_parameter("portable", dsakit_string_arg("token_x_dtype", "int8")), "token_x_dtype");
  EXPECT_EQ(dsakit_last_error()->status, DSAKIT_UNSUPPORTED);
  EXPECT_EQ(refused_parameter("strict", dsakit_no_arg("token_x_dtype", DSAKIT_NONE, 0)), "kr_cache");
}

TEST(CRefusals, Contexts) {
  dsakit_context* c = nullptr;
  dsakit_context_options o{};
  EXPECT_EQ(dsakit_context_create(&o, &c), DSAKIT_INVALID_ARGUMENT);
  EXPECT_STREQ(dsakit_last_error()->message, "context: size is 0, wanted sizeof(dsakit_context_options)");
  o.size = sizeof o;
  EXPECT_EQ(dsakit_context_create(&o, nullptr), DSAKIT_INVALID_ARGUMENT);
  o.threads = -1;
  EXPECT_EQ(dsakit_context_create(&o, &c), DSAKIT_INVALID_ARGUMENT);
  o.threads = 3, o.isa = "abacus";
  EXPECT_EQ(dsakit_context_create(&o, &c), DSAKIT_UNSUPPORTED);
  o.isa = "generic";
  struct Later {
    dsakit_context_options now;
    std::uint64_t more;
  } later{o, 0};
  later.now.size = sizeof later;
  ASSERT_EQ(dsakit_context_create(&later.now, &c), DSAKIT_OK) << dsakit_last_error()->message;
  const char* isa = nullptr;
  std::int32_t threads = 0;
  EXPECT_EQ(dsakit_context_isa(c, &isa), DSAKIT_OK);
  EXPECT_EQ(dsakit_context_threads(c, &threads), DSAKIT_OK);
  EXPECT_STREQ(isa, "generic");
  EXPECT_EQ(threads, 3);
  EXPECT_EQ(dsakit_context_isa(c, nullptr), DSAKIT_INVALID_ARGUMENT);
  dsakit_context_destroy(c);
  c = nullptr;
  later.more = 1;
  EXPECT_EQ(dsakit_context_create(&later.now, &c), DSAKIT_INVALID_ARGUMENT);
  EXPECT_EQ(c, nullptr);
  later.now.size = offsetof(dsakit_context_options, threads);  // an earlier version's
  ASSERT_EQ(dsakit_context_create(&later.now, &c), DSAKIT_OK);
  dsakit_context_destroy(c);
  dsakit_context_destroy(nullptr);
  ASSERT_EQ(dsakit_context_create(nullptr, &c), DSAKIT_OK);
  EXPECT_EQ(dsakit_context_set_interrupt(
                c, [](void*) { return true; }, nullptr),
            DSAKIT_OK);
  EXPECT_EQ(dsakit_context_set_interrupt(c, nullptr, nullptr), DSAKIT_OK);
  dsakit_context_destroy(c);
}

TEST(CRefusals, OfAllOtherExceptions) {
  EXPECT_EQ(guarded([] { throw std::bad_alloc(); }), DSAKIT_OUT_OF_MEMORY);
  EXPECT_EQ(dsakit_last_error()->status, DSAKIT_OUT_OF_MEMORY);
  EXPECT_EQ(guarded([] { throw std::runtime_error("a fire"); }), DSAKIT_INTERNAL);
  EXPECT_STREQ(dsakit_last_error()->message, "dsakit: call ended with a fire, wanted a report of this");
  EXPECT_EQ(guarded([] { throw 3; }), DSAKIT_INTERNAL);
  EXPECT_EQ(guarded([] {}), DSAKIT_OK);
  EXPECT_EQ(dsakit_last_error()->status, DSAKIT_INTERNAL) << "what succeeds leaves the last refusal";
}

TEST(CRefusals, StatusesAreThoseOfCpp) {
  for (int s = 0; s <= int(Status::internal); ++s)
    EXPECT_STREQ(dsakit_status_name(dsakit_status(s)), name_of(Status(s)));
  EXPECT_EQ(DSAKIT_INVALID_SHAPE, int(Status::invalid_shape));
  EXPECT_EQ(DSAKIT_ALIASED, int(Status::aliased));
  EXPECT_EQ(DSAKIT_UNSUPPORTED, int(Status::unsupported));
  EXPECT_EQ(DSAKIT_INTERRUPTED, int(Status::interrupted));
}

}  // namespace
}  // namespace dsakit::capi
