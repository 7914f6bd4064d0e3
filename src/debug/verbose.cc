// SPDX-License-Identifier: Apache-2.0
#include "debug/verbose.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "core/view.hpp"
#include "debug/addressing.hpp"
#include "debug/bind.hpp"
#include "debug/case_json.hpp"
#include "debug/operations.hpp"
#include "debug/record.hpp"
#include "io/durable.hpp"
#include "run/stages.hpp"
#include "run/state.hpp"

namespace dsakit::debug {
namespace {

constexpr std::string_view kStart = "dsakit,1,exec,";

const char* short_name(DType t) {
  static constexpr const char* kNames[] = {"bool", "u8",  "i8",   "u16", "i16", "u32",  "i32",  "u64",
                                           "i64",  "f16", "bf16", "f32", "f64", "e4m3", "e5m2", "other"};
  return kNames[int(t)];
}

void add_word(std::string& text, const std::string& word) { text += (text.empty() ? "" : " ") + word; }

std::string dims_of(const Tensor& t) {
  std::string text;
  for (int a = 0; a < std::clamp(t.rank, 0, 8); ++a) text += (a ? "x" : "") + std::to_string(t.shape[a]);
  return text.empty() ? "1" : text;
}

void add_tensor(std::string& text, const std::string& name, const Tensor& t) {
  Tensor dense = t;
  const bool countable = is_readable(t);
  if (countable) make_contiguous(dense);
  const char* how = t.format == Format::NZ                  ? ":nz"
                    : t.format != Format::ND                ? ":packed"
                    : countable && dense.stride != t.stride ? ":strided"
                                                            : "";
  add_word(text, name + ":" + short_name(t.dtype) + ":" + dims_of(t) + how);
}

template <class F>
void each_tensor(const Arguments& a, F f) {
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    const std::string name = a.op->parameters[i].field.name;
    if (const auto* t = std::get_if<Tensor>(&a.values[i]); t && *t) f(name, *t);
    if (const auto* list = std::get_if<std::vector<Tensor>>(&a.values[i]))
      for (std::size_t e = 0; e < list->size(); ++e)
        if ((*list)[e]) f(name + "." + std::to_string(e), (*list)[e]);
  }
}

std::string tensors_of(const Arguments& a) {
  std::string text;
  each_tensor(a, [&](const std::string& name, const Tensor& t) { add_tensor(text, name, t); });
  return text;
}

/// Attributes that are not the default.
std::string modes_of(const Arguments& a) {
  const Arguments usual = default_arguments(*a.op);
  std::string text;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    std::visit(
        [&]<class T>(const T& value) {
          if constexpr (!std::is_same_v<T, std::monostate> && !std::is_same_v<T, Tensor> &&
                        !std::is_same_v<T, std::vector<Tensor>>) {
            const T* usually = std::get_if<T>(&usual.values[i]);
            if (usually ? *usually == value : value == T()) return;
            std::string shown = json_of(Attribute(value));
            std::erase_if(shown, [](char c) { return c == '"' || c == '\\' || c == '\n'; });
            std::replace(shown.begin(), shown.end(), ',', '+');
            std::replace(shown.begin(), shown.end(), ' ', '_');
            add_word(text, std::string(a.op->parameters[i].field.name) + "=" + shown);
          }
        },
        a.values[i]);
  }
  return text;
}

std::string run_lengths(const Tensor& t) {
  std::string text;
  for (std::int64_t i = 0, n = t.elements(); i < n;) {
    std::int64_t same = 1;
    while (i + same < n && integer_at(t, i + same) == integer_at(t, i)) ++same;
    text += (text.empty() ? "" : "+") + std::to_string(integer_at(t, i));
    if (same > 1) text += "*" + std::to_string(same);
    if (text.size() > 400) return text + "+..";
    i += same;
  }
  return text.empty() ? "none" : text;
}

std::string order_of(const PageUse& use) {
  const Integers needed = use.needed();
  if (needed.size() != use.used.size()) return "shared";
  for (std::size_t i = 0; i < use.used.size(); ++i)
    if (use.used[i].page != std::int64_t(i)) return "mixed";
  return "identity";
}

/// Bytes that a call may look at: of a pool, those of the pages in use.
double bytes_of(const Arguments& a, const std::vector<PageUse>& uses) {
  double bytes = 0;
  each_tensor(a, [&](const std::string& name, const Tensor& t) {
    double here = is_readable(t) ? double(t.elements()) * size_of(t.dtype) : 0;
    for (const PageUse& use : uses)
      if (use.pages > 0 && std::find(use.caches.begin(), use.caches.end(), name) != use.caches.end())
        here *= double(use.needed().size()) / double(use.pages);
    bytes += here;
  });
  return bytes;
}

bool readable(const Arguments& a) {
  bool all = true;
  each_tensor(a, [&](const std::string&, const Tensor& t) { all &= is_readable(t) || t.elements() == 0; });
  return all;
}

class Verbose : public Watcher {
 public:
  explicit Verbose(const std::string& target)
      : stages_(target == "2"),
        file_(target == "1" || stages_ ? io::Descriptor(::dup(STDERR_FILENO))
                                       : io::opened(target, O_WRONLY | O_CREAT | O_APPEND, "verbose")) {
    write(verbose_header());
    if (stages_) write("dsakit,1,fields of a stage,seq,number,items,threads,us,estimated us on one thread");
  }

  std::unique_ptr<WatchedCall> begin(const Arguments& arguments, Context& context) noexcept override {
    try {
      auto call = std::make_unique<Call>(*this, arguments, context);
      if (stages_) call->ask();
      return call;
    } catch (const std::exception&) {
      return nullptr;
    }
  }

 private:
  class Call : public WatchedCall, public Stages {
   public:
    Call(Verbose& verbose, const Arguments& a, Context& context)
        : verbose_(verbose),
          context_(context),
          sequence_(++verbose.calls_),
          name_("dsakit." + std::string(a.op->name)) {
      tensors_ = tensors_of(a), modes_ = modes_of(a);
      if (!readable(a)) return;  // to be refused
      work_ = work_of(a), bytes_ = bytes_of(a, pages_of(a)), arguments_ = a;
    }

    ~Call() override { stop(); }

    /// For loops and choices, until it ends.
    void ask() {
      before_ = stages, stages = this;
      choice("same products", context_.same_products());
    }

    void loop(std::int64_t items, int threads, const Work& work, double seconds) noexcept override {
      char text[120];
      const double estimate = work.nanoseconds(*context_.state().rates) * 1e-3;
      std::snprintf(text, sizeof text, "dsakit,1,stage,%lld,%d,%lld,%d,%.3f,%.3f", (long long)sequence_, ++loops_,
                    (long long)items, threads, seconds * 1e6, estimate);
      line(text);
    }
    void choice(const char* name, std::int64_t value) noexcept override {
      char text[120];
      std::snprintf(text, sizeof text, "dsakit,1,choice,%lld,%s,%lld", (long long)sequence_, name, (long long)value);
      line(text);
    }

    void end(const Error* refusal, double seconds) noexcept override {
      stop();
      try {
        char numbers[120];
        const double each = seconds > 0 ? 1e-9 / seconds : 0;
        const double operations = refusal || !arguments_.op ? 0 : operations_of(arguments_);
        std::snprintf(numbers, sizeof numbers, ",%s,%d,%.3f,%.3f,%.3f,", context_.isa(), context_.threads(),
                      seconds * 1e6, bytes_ * each, operations * each);
        verbose_.write(std::string(kStart) + std::to_string(sequence_) + "," + name_ + "," + tensors_ + "," + work_ +
                       "," + modes_ + numbers + (refusal ? dsakit::name_of(refusal->status) : "OK"));
      } catch (const std::exception&) {
        // No memory for a line.
      }
    }

   private:
    void stop() {
      if (stages == this) stages = before_;
    }
    void line(const char* text) const noexcept {
      try {
        verbose_.write(text);
      } catch (const std::exception&) {
        // No memory for a line.
      }
    }

    Verbose& verbose_;
    Context& context_;
    Stages* before_ = nullptr;
    int loops_ = 0;
    std::int64_t sequence_;
    std::string name_, tensors_, work_, modes_;
    Arguments arguments_;  // of a call that can be counted
    double bytes_ = 0;
  };

  void write(const std::string& line) const {
    const std::string text = line + "\n";
    [[maybe_unused]] const ssize_t n = ::write(file_.number(), text.data(), text.size());
  }

  bool stages_;
  io::Descriptor file_;
  std::atomic<std::int64_t> calls_ = 0;
};

}  // namespace

std::string verbose_header() {
  std::string text = "dsakit,1,fields";
  for (const std::string_view field : kVerboseFields) text += "," + std::string(field);
  return text;
}

std::optional<std::vector<std::string>> parse_verbose(std::string_view line) {
  if (!line.starts_with(kStart)) return {};
  line.remove_prefix(kStart.size());
  std::vector<std::string> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.emplace_back(line.substr(0, comma));
    if (comma == line.npos) break;
    line.remove_prefix(comma + 1);
  }
  if (fields.size() != kVerboseFields.size()) return {};
  return fields;
}

CallOfLine call_of(const std::vector<std::string>& columns) {
  const auto& name = columns[1];
  CallOfLine call{name.substr(name.find('.') + 1), {}};
  const Operator* op = find_operator(call.op);
  if (!op) return call;  // who makes the call refuses it
  const auto words = [](std::string_view text, auto f) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(' '), text.size());
      if (end > 0) f(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  };
  const auto is_argument = [&](std::string_view parameter) {
    return std::any_of(op->parameters.begin(), op->parameters.end(), [&](const Parameter& p) {
      return p.field.name == parameter && p.field.has_member() && p.field.role != Role::out;
    });
  };
  std::int64_t shards = 0;
  words(columns[2], [&](std::string_view word) {
    const std::size_t colon = word.find(':');
    std::string_view tensor = word.substr(0, colon);
    if (const std::size_t dot = tensor.find('.'); dot != tensor.npos) {  // of a list
      const bool first = tensor.substr(dot) == ".0";
      tensor = tensor.substr(0, dot);
      shards = std::max<std::int64_t>(shards, std::atoll(std::string(word.substr(dot + 1)).c_str()) + 1);
      if (!first) return;
    }
    if (is_argument(tensor)) call.settings.emplace_back(tensor, word.substr(colon + 1));
  });
  if (shards > 0) call.settings.emplace_back("shards", std::to_string(shards));
  words(columns[3], [&](std::string_view word) {
    const std::size_t equals = word.find('=');
    const std::string_view what = word.substr(0, equals), value = word.substr(equals + 1);
    if (what == "pages") call.settings.emplace_back(what, value);
    else if (what.ends_with(".fill")) call.settings.emplace_back("fill", value);
    else if (is_argument(what) && value != "none" && !value.ends_with("..")) call.settings.emplace_back(what, value);
  });
  words(columns[4], [&](std::string_view word) {
    const std::size_t equals = word.find('=');
    std::string value(word.substr(equals + 1));
    if (value.starts_with('['))  // of a list, whose spaces are underscores
      std::erase_if(value, [](char c) { return c == '[' || c == ']' || c == '_'; });
    call.settings.emplace_back(word.substr(0, equals), value);
  });
  return call;
}

std::string work_of(const Arguments& a) {
  std::string text;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    const Field& field = a.op->parameters[i].field;
    const auto* t = std::get_if<Tensor>(&a.values[i]);
    if (!t || !*t || field.role == Role::out) continue;
    const std::string name = field.name;
    if (field.kind == Kind::lengths) add_word(text, name + "=" + run_lengths(*t));
    if (field.kind != Kind::index || t->elements() == 0) continue;
    std::int64_t negative = 0;
    for (std::int64_t e = 0, n = t->elements(); e < n; ++e) negative += integer_at(*t, e) < 0;
    char fill[32];
    std::snprintf(fill, sizeof fill, "%.3f", 1 - double(negative) / double(t->elements()));
    const bool list = name.find("indices") != name.npos;
    add_word(text, name + (list ? ".fill=" + std::string(fill) : ".skipped=" + std::to_string(negative)));
  }
  for (const PageUse& use : pages_of(a)) add_word(text, "pages=" + order_of(use));
  return text;
}

std::shared_ptr<Watcher> verbose_watcher(const std::string& target) { return std::make_shared<Verbose>(target); }

}  // namespace dsakit::debug
