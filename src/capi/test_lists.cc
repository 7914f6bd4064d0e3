// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <concepts>

#include "capi/arguments.hpp"
#include "capi/error.hpp"

// Lists of integers and of tensors, shown with an operator that is nothing else.
namespace dsakit::capi {
namespace {

struct Integers {
  std::int64_t sum = 0, count = 0;
  Integers() = default;
  Integers(const std::int64_t* list, std::int64_t n) : count(n) {
    for (std::int64_t i = 0; i < n; ++i) sum += list[i];
  }
};

struct ToyArgs {
  TensorList parts;
  Integers order;
};
struct ToyOuts {
  Tensor y;
};

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, ToyArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"parts", Role::in, Kind::data, "float32", "[n] each", "what is merged"}, a.parts);
  v({"order", Role::attribute, Kind::number, "list of int", "", "in which order"}, a.order);
  v({"y", Role::out, Kind::data, "float32", "[n]", "the result"}, o.y);
}
constexpr Description describe(const ToyArgs&) {
  return {
      .summary = "", .formula = "", .errors = "", .source = "", .page = "", .family = Family::dsakit, .positional = 1};
}

/// The refusal, or "" with `read` as it is read.
std::string answer(const std::vector<dsakit_argument>& arguments, const auto& read) {
  static const Signature signature = [] {
    Signature s{"toy", {}};
    for (Parameter& p : describe_operator<ToyArgs, ToyOuts>("toy").parameters)
      s.slots.push_back({p, p.field.role == Role::in ? DSAKIT_TENSORS : DSAKIT_INTEGERS, p.field.role == Role::in});
    return s;
  }();
  const dsakit_status status = guarded([&] {
    Arguments given(signature, arguments.data(), arguments.size());
    ToyArgs args;
    ToyOuts outs;
    given.read(args, outs, true);
    read(args);
  });
  return status == DSAKIT_OK ? "" : dsakit_last_error()->message;
}

TEST(CInterfaceLists, OfTensorsAndOfIntegers) {
  float x[] = {1, 2}, y[] = {3, 4, 5};
  std::int64_t two[] = {2}, three[] = {3};
  dsakit_tensor parts[] = {dsakit_cpu_tensor(x, DSAKIT_FLOAT, 32, 1, two),
                           dsakit_cpu_tensor(y, DSAKIT_FLOAT, 32, 1, three)};
  const std::int64_t order[] = {1, 10};
  const auto tensors = dsakit_tensors_arg("parts", parts, 2);
  const auto integers = dsakit_integers_arg("order", order, 2);
  const auto nothing = [](const ToyArgs&) { ADD_FAILURE() << "accepted"; };
  EXPECT_EQ(answer({tensors, integers},
                   [&](const ToyArgs& a) {
                     ASSERT_EQ(a.parts.size(), 2u);
                     EXPECT_EQ(a.parts[1].data, y);
                     EXPECT_EQ(a.parts[1].shape[0], 3);
                     EXPECT_EQ(a.order.count, 2);
                     EXPECT_EQ(a.order.sum, 11);
                   }),
            "");
  EXPECT_EQ(answer({dsakit_tensors_arg("parts", nullptr, 0), dsakit_integers_arg("order", nullptr, 0)},
                   [&](const ToyArgs& a) { EXPECT_TRUE(a.parts.empty() && a.order.count == 0); }),
            "");
  EXPECT_EQ(answer({}, nothing), "toy: parts is missing, wanted an array of tensors");
  EXPECT_EQ(answer({dsakit_tensor_arg("parts", parts)}, nothing), "toy: parts is a tensor, wanted an array of tensors");
  EXPECT_EQ(answer({tensors, dsakit_integer_arg("order", 1)}, nothing),
            "toy: order is an integer, wanted an array of integers");
  EXPECT_EQ(answer({dsakit_tensors_arg("parts", nullptr, 2)}, nothing),
            "toy: parts is a null pointer, wanted an array of tensors (DSAKIT_NONE is for none)");
  dsakit_argument tagged = tensors;
  tagged.flags = DSAKIT_FRACTAL_NZ;
  EXPECT_EQ(answer({tagged}, nothing), "toy: parts[0] is in a weight's format, wanted a plain strided tensor");
  parts[1].device.device_type = 2;
  EXPECT_EQ(answer({tensors}, nothing), "toy: parts[1] is on DLPack device 2, wanted 1 (cpu)");
}

}  // namespace
}  // namespace dsakit::capi
