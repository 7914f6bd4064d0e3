// SPDX-License-Identifier: Apache-2.0
#include "capi/describe.hpp"

#include <deque>
#include <string>

#include "capi/operators.hpp"

namespace dsakit::capi {
namespace {

/// Everything that the structures point to. Elements of deques stay where they are.
struct Shelf {
  std::deque<std::string> texts;
  std::deque<std::vector<std::int64_t>> integers;
  std::deque<dsakit_parameter> parameters;
  std::deque<std::vector<const dsakit_parameter*>> parameter_lists;
  std::deque<std::vector<const char*>> result_lists;
  std::deque<dsakit_operator> operators;
  std::vector<const dsakit_operator*> all;

  const char* text(std::string_view text) { return texts.emplace_back(text).c_str(); }

  dsakit_argument argument(const char* name, const Default& value) {
    return std::visit(
        [&]<class T>(const T& v) -> dsakit_argument {
          if constexpr (std::is_same_v<T, std::monostate>) return dsakit_no_arg(name, DSAKIT_NONE, 0);
          else if constexpr (std::is_same_v<T, std::int64_t>) return dsakit_integer_arg(name, v);
          else if constexpr (std::is_same_v<T, double>) return dsakit_real_arg(name, v);
          else if constexpr (std::is_same_v<T, bool>) return dsakit_boolean_arg(name, v);
          else if constexpr (std::is_same_v<T, std::string_view>) return dsakit_string_arg(name, text(v));
          else
            return dsakit_integers_arg(name, integers.emplace_back(v.axis.begin(), v.axis.begin() + v.count).data(),
                                       std::size_t(v.count));
        },
        value);
  }

  const dsakit_parameter* parameter(const Slot& s) {
    const Field& f = s.field;
    return &parameters.emplace_back(dsakit_parameter{
        .name = f.name,
        .role = name_of(f.role),
        .kind_of_data = name_of(f.kind),
        .dtypes = text(f.dtypes),
        .shape = text(f.shape),
        .meaning = text(f.meaning),
        .kind = s.given_as,
        .required = s.needed,
        .result = s.result,
        .default_value = argument(f.name, s.default_value),
    });
  }

  void add(const Operator& op, const Signature& signature) {
    auto& list = parameter_lists.emplace_back();
    for (const Slot& s : signature.slots) list.push_back(parameter(s));
    auto& results = result_lists.emplace_back();
    for (std::string_view name : op.results()) results.push_back(text(name));
    const Description& d = op.description;
    all.push_back(&operators.emplace_back(dsakit_operator{
        .name = text(op.name),
        .summary = text(d.summary),
        .formula = text(d.formula),
        .errors = text(std::string(d.errors) + "\n" + std::string(kCommonErrors)),
        .source = text(d.source),
        .family = name_of(d.family),
        .parameter_count = list.size(),
        .parameters = list.data(),
        .result_count = results.size(),
        .results = results.data(),
    }));
  }
};

}  // namespace

const std::vector<const dsakit_operator*>& described() {
  static const Shelf* shelf = [] {
    auto s = std::make_unique<Shelf>();
    for (std::size_t i = 0; i < entries().size(); ++i) s->add(operators()[i], entries()[i].signature);
    return s.release();
  }();
  return shelf->all;
}

}  // namespace dsakit::capi
