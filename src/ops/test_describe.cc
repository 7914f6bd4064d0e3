// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <concepts>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "dsakit/dsakit.hpp"
#include "ops/describe_text.hpp"
#include "ops/door.hpp"
#include "ops/print.hpp"

// What comes with a description alone, shown with an operator that is nothing else; and the descriptions themselves.
namespace dsakit {
namespace {

struct ToyArgs {
  Tensor x;
  Tensor w;
  Tensor bias{};
  std::int64_t steps = 3;
  std::string_view mode = "plain";
  Level level = Level::portable;
};
struct ToyOuts {
  Tensor cache;
  Tensor y;
  Tensor scale{};
};

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, ToyArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"x", Role::in, Kind::data, "float32", "[n]", "values"}, a.x);
  v({"w", Role::in, Kind::weight, "int8", "[k, n]", "a weight"}, a.w);
  v({"bias", Role::in_opt, Kind::scale, "float32", "[n]", "factors"}, a.bias);
  v({"cache", Role::inout, Kind::cache, "float32", "[rows, n]", "rows"}, o.cache);
  v({"steps", Role::attribute, Kind::number, "int", ">= 1", "how many", kWithoutDefault}, a.steps);
  v({"mode", Role::attribute, Kind::mode, "str", "plain, wild", "which"}, a.mode);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "float32", "[n]", "the sum"}, o.y);
  v({"scale", Role::out, Kind::scale, "float32", "[n]", "its scale"}, o.scale);
  v({"y_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
}
constexpr Description describe(const ToyArgs&) {
  return {.summary = "A toy",
          .formula = "y = x",
          .errors = "INVALID_ARGUMENT: x is missing",
          .source = "nobody",
          .page = "toy.md",
          .family = Family::dsakit,
          .positional = 4};
}

struct Toy {
  float memory[64]{};
  std::int8_t codes[64]{};
  ToyArgs a{.x = tensor(memory, {4}), .w = tensor(codes, {2, 4})};
  ToyOuts o{.cache = tensor(memory + 8, {2, 4}), .y = tensor(memory + 16, {4})};
};

/// The sentence of a refusal, or "".
template <class Question>
std::string refusal(Question ask) {
  try {
    ask(Check("toy", Level::portable));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Description, PresenceShapesAndFormats) {
  Toy toy;
  const auto given = [&](const Check& c) { check_given(c, Tensors(toy.a, toy.o)); };
  EXPECT_EQ(refusal(given), "");
  toy.o.cache = {};
  EXPECT_EQ(refusal(given), "toy: cache is missing, wanted a tensor");
  toy.a.w = {};
  EXPECT_EQ(refusal(given), "toy: w is missing, wanted a tensor");

  Toy other;
  const auto countable = [&](const Check& c) { check_countable(c, Tensors(other.a, other.o)); };
  other.a.w.format = Format::NZ;
  EXPECT_EQ(refusal(countable), "");
  other.a.x.format = Format::NZ;
  EXPECT_EQ(refusal(countable), "toy: x is in a weight's format, wanted a plain strided tensor");
  other.a.x.shape[0] = -1;
  EXPECT_EQ(refusal(countable), "toy: x has shape [-1], wanted no negative dimension");
}

TEST(Description, MemoryAndOverlap) {
  Toy toy;
  const auto memory = [&](const Check& c) { check_memory(c, Tensors(toy.a, toy.o)); };
  EXPECT_EQ(refusal(memory), "");
  toy.o.y.read_only = true;
  EXPECT_EQ(refusal(memory), "toy: y is read-only, wanted writable memory");
  toy.o.y = tensor(toy.memory + 6, {4});
  const auto named = [&](Named first) {
    return refusal([&](const Check& c) { check_separate(c, Tensors(toy.a, toy.o), first); });
  };
  EXPECT_EQ(named(Named::earlier), "toy: cache overlaps y, wanted separate memory (bytes 0..7 of cache)");
  EXPECT_EQ(named(Named::later), "toy: y overlaps cache, wanted separate memory (bytes 8..15 of y)");
  toy.o.y = tensor(toy.memory + 3, {4});
  EXPECT_EQ(named(Named::later), "toy: y overlaps x, wanted separate memory (bytes 0..3 of y)");
  Tensors without(toy.a, toy.o);
  without.forget("x");
  EXPECT_EQ(refusal([&](const Check& c) { check_separate(c, without); }), "");
}

TEST(Description, StrictLeavesTheFirstAxisOfPagedCachesFree) {
  Toy toy;
  toy.o.cache.stride[0] = 6;
  const Check strict("toy", Level::strict);
  const Tensors all(toy.a, toy.o);
  EXPECT_NO_THROW(check_memory(strict, all, Caches::free_first_axis));
  EXPECT_THROW(check_memory(strict, all), Error);
  toy.a.w.stride[0] = 6;  // no cache
  EXPECT_THROW(check_memory(strict, all, Caches::free_first_axis), Error);
}

TEST(Description, ValuesOfScalesAreNotNegative) {
  Toy toy;
  toy.a.bias = tensor(toy.memory + 32, {4});
  toy.memory[1] = -1;
  const auto finite = [&](const Check& c) { check_finite(c, Tensors::inputs<ToyOuts>(toy.a)); };
  EXPECT_EQ(refusal(finite), "");
  toy.memory[34] = -1;
  EXPECT_EQ(refusal(finite), "toy: bias[2] is -1.000000, wanted finite and not negative");
}

TEST(Description, PrintsACall) {
  Toy toy;
  toy.a.w.format = Format::packed;
  toy.o.cache.stride[0] = 6;
  toy.a.mode = "wild";
  EXPECT_EQ(to_text("toy", toy.a, toy.o),
            "toy(x=float32[4], w=int8[2, 4] packed, cache=float32[2, 4] strides [6, 1], steps=3, mode=\"wild\", "
            "y=float32[4])");
}

TEST(Description, DocumentsACall) {
  const Operator toy = describe_operator<ToyArgs, ToyOuts>("toy");
  EXPECT_EQ(signature(toy, 200),
            "toy(x, w, bias, cache, *, steps, mode=\"plain\", level=\"portable\") -> (cache, y, scale)\n");
  EXPECT_EQ(signature(toy, 40),
            "toy(x, w, bias, cache, *, steps,\n    mode=\"plain\", level=\"portable\")\n    -> (cache, y, scale)\n");
  const std::string table = to_markdown(toy);
  EXPECT_NE(table.find("| cache | float32 | [rows, n] |  | rows; updated in place |"), std::string::npos) << table;
  EXPECT_NE(table.find("| y_dtype | | | None | reserved: must stay None |"), std::string::npos) << table;
  EXPECT_NE(to_text(toy).find("Follows nobody; docs/operators/toy.md"), std::string::npos);
}

/// The word for the type of an attribute.
template <class Value>
std::string_view type_word() {
  if (std::is_same_v<Value, bool>) return "bool";
  if (std::is_same_v<Value, std::int64_t>) return "int";
  if (std::is_same_v<Value, Axes>) return "list of int";
  return std::is_same_v<Value, double> ? "float" : "str";
}

template <class Args, class Outs>
void check_description(std::string_view name) {
  SCOPED_TRACE(name);
  const Args args{};
  const Outs outs{};
  std::set<std::string_view> names;
  int place = 0;
  for_each_field(args, outs, [&](const Field& field, const auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    SCOPED_TRACE(field.name);
    EXPECT_TRUE(names.insert(field.name).second) << "twice";
    EXPECT_NE(field.meaning, "");
    EXPECT_EQ(field.has_member(), (!std::is_same_v<Value, Absent>));
    if constexpr (std::is_same_v<Value, Tensor> || std::is_same_v<Value, TensorList>) {
      EXPECT_NE(field.role, Role::attribute);
      EXPECT_LE(field.kind, Kind::reserved);
      EXPECT_TRUE(field.kind == Kind::reserved || !field.dtypes.empty() || field.shape == "absent");
      EXPECT_NE(field.shape, "");
    } else if constexpr (!std::is_same_v<Value, Absent>) {
      EXPECT_EQ(field.role, Role::attribute);
      EXPECT_GT(field.kind, Kind::reserved);
      EXPECT_EQ(field.dtypes == "dtype" ? "str" : field.dtypes, type_word<Value>());
    }
    EXPECT_TRUE(place++ >= describe(args).positional || field.role != Role::out);
  });
  const Description d = describe(args);
  for (std::string_view text : {d.summary, d.formula, d.errors, d.source, d.page}) {
    EXPECT_NE(text, "");
    EXPECT_FALSE(text.ends_with('\n') || text.ends_with('.')) << text;
  }
}

TEST(Description, OfEveryOperatorIsComplete) {
#define DSAKIT_OP(name, Type) check_description<Type##Args, Type##Outs>(#name);
#include "ops/ops.inc"
#undef DSAKIT_OP
}

TEST(Description, PagesHoldTheTables) {
  const std::filesystem::path folder = DSAKIT_SOURCE_DIR "/docs/operators";
  for (const Operator& op : operators()) {
    std::stringstream text;
    text << std::ifstream(folder / op.description.page).rdbuf();
    const std::string page = text.str(), mark = "<!-- operator " + std::string(op.name) + " -->\n";
    EXPECT_NE(page.find(mark), std::string::npos) << op.description.page << " has no " << mark;
    EXPECT_EQ(with_tables(page), page) << "make them anew: build/release/dsakit describe --pages docs/operators";
  }
}

}  // namespace
}  // namespace dsakit
