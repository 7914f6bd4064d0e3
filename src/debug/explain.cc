// SPDX-License-Identifier: Apache-2.0
#include "debug/explain.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>

#include "core/view.hpp"
#include "debug/change.hpp"
#include "debug/lint.hpp"
#include "debug/names.hpp"
#include "debug/rule.hpp"

namespace dsakit::debug {
namespace {

constexpr std::size_t kWorstRows = 4, kSpreadRows = 4, kConfirmedRows = 64, kPaired = 10;
constexpr double kDear = 4e9;  // products in float64 for one change: some seconds
constexpr double kInfinite = std::numeric_limits<double>::infinity();

using Rows = std::vector<std::int64_t>;

/// `count` of them, evenly.
Rows spread(const Rows& from, std::size_t count) {
  Rows some;
  for (std::size_t i = 0; i < std::min(count, from.size()); ++i)
    some.push_back(from[i * from.size() / std::min(count, from.size())]);
  return some;
}

/// The rows that a change is judged by: probed, then confirmed.
struct Sample {
  Rows probe, confirm;

  Sample(const Left& left, std::int64_t row) {
    Rows all(left.rows.size());
    std::iota(all.begin(), all.end(), 0);
    if (row >= 0) {
      probe = {row};
      return;
    }
    std::stable_sort(all.begin(), all.end(),
                     [&](std::int64_t a, std::int64_t b) { return left.figure(a) > left.figure(b); });
    const auto worst = all.begin() + std::ptrdiff_t(std::min(kWorstRows, all.size()));
    probe.assign(all.begin(), worst);
    Rows others(worst, all.end());
    std::sort(others.begin(), others.end());
    const Rows between = spread(others, kSpreadRows);
    probe.insert(probe.end(), between.begin(), between.end());
    std::sort(probe.begin(), probe.end());
    std::erase_if(others, [&](std::int64_t r) { return std::binary_search(probe.begin(), probe.end(), r); });
    confirm = spread(others, kConfirmedRows);
  }

  double figure(const Left& left) const { return std::max(left.figure(probe), left.figure(confirm)); }
};

/// A run beside the target.
struct Run {
  Outcome outcome;
  std::deque<Stored> memory;  // of a target that is read otherwise
  std::vector<Pair> pairs;
  std::vector<Left> left;  // empty where a pair does not match
  bool reread = false;
};

class Explaining {
 public:
  Explaining(const Case& c, const ExplainOptions& options)
      : case_(c),
        op_(c.op()),
        options_(options),
        strict_(c.metadata.contains("producer") && c.metadata.at("producer").starts_with("dsakit")) {}

  Explanation explain() {
    plain_ = run(nullptr, "out");
    if (plain_->outcome.refusal || case_.refusal()) return refused();
    choose_target();
    judge_target();
    told_.lints = lints_of(plain_->outcome.bound);
    figures();
    const bool agrees = told_.verdict == "agrees";
    if ((!agrees || options_.always) && !plain_->pairs.empty()) search();
    if (!agrees) conclude();
    return std::move(told_);
  }

 private:
  using RunOf = std::unique_ptr<Run>;

  Explanation refused() {
    told_.verdict = "inputs";
    told_.refusal = plain_->outcome.refusal ? plain_->outcome.refusal->what() : *case_.refusal();
    // What was refused there and is computed here is the other side's affair.
    told_.side = plain_->outcome.refusal ? "call" : "producer";
    return std::move(told_);
  }

  /// The call with a change, or as it is; null where there is nothing to change or the operator refuses it.
  RunOf run(const Change* change, std::string_view group) {
    auto made = std::make_unique<Run>();
    bool changed = true;
    Execution how{.context = options_.context};
    if (change) how.deviation = change->deviation;
    if (change && change->edit)
      how.edit = [&](Bound& bound) {
        Edit edit(bound);
        changed = change->edit(edit);
      };
    made->outcome = execute(case_, how);
    if (change && (!changed || made->outcome.refusal)) return nullptr;
    if (made->outcome.refusal) return made;
    measure(*made, group);
    return made;
  }

  /// The unchanged run beside the target as it is read otherwise, or with results that no kernel computes.
  RunOf read_otherwise(const Change& change) {
    auto made = std::make_unique<Run>();
    made->pairs = plain_->pairs;
    bool changed = false;
    if (change.restate) changed = change.restate({made->pairs, made->memory, plain_->outcome.bound.arguments});
    else
      for (Pair& pair : made->pairs) changed |= pair.mismatch.empty() && change.reread({pair, made->memory});
    if (!changed) return nullptr;
    for (std::size_t i = 0; i < made->pairs.size(); ++i)
      made->reread |= made->pairs[i].recorded.data != plain_->pairs[i].recorded.data;
    measure_pairs(*made, plain_->outcome);
    return made;
  }

  void measure(Run& run, std::string_view group) {
    run.pairs = pairs_of(case_, group, run.outcome);
    measure_pairs(run, run.outcome);
  }

  void measure_pairs(Run& run, const Outcome& outcome) {
    std::unique_ptr<IndexScores> scores;
    if (is_indexer(op_)) scores = std::make_unique<IndexScores>(outcome.bound.arguments);
    for (const Pair& pair : run.pairs) {
      run.left.push_back(pair.mismatch.empty() ? left_over(op_, pair, scores.get(), strict_) : Left{});
      leave_out_old_rows(pair, run.left.back());
    }
  }

  /// Rows of a cache that are as they were say nothing: neither side has written them.
  void leave_out_old_rows(const Pair& pair, Left& left) const {
    if (!pair.key.starts_with("after.")) return;
    const auto in = case_.tensors.find("in." + pair.key.substr(6));
    const auto rows = std::int64_t(left.rows.size());
    if (in == case_.tensors.end() || rows == 0 || in->second.elements() != pair.recorded.elements()) return;
    const Stored recorded(pair.recorded);
    const std::size_t bytes = recorded.bytes->size() / std::size_t(rows);
    if (in->second.bytes->size() != recorded.bytes->size()) return;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto* row = recorded.bytes->data() + std::size_t(r) * bytes;
      if (left.rows[std::size_t(r)].unequal == 0 &&
          std::equal(row, row + bytes, in->second.bytes->data() + std::size_t(r) * bytes))
        left.rows[std::size_t(r)] = {};
    }
  }

  // ---- the target

  /// Departs by more than right results do; in between the rule of the operator decides.
  bool departs(const Run& r, std::size_t i, const Sample& sample) const {
    const Pair& pair = r.pairs[i];
    if (!pair.mismatch.empty()) return true;
    const double figure = sample.figure(r.left[i]);
    if (figure <= r.left[i].allowed) return false;
    if (figure >= r.left[i].departing || !judge("dsakit", op_, pair).passes) return true;
    Rows all(r.left[i].rows.size());  // the rule counts rows of a cache that nobody writes
    std::iota(all.begin(), all.end(), 0);
    return r.left[i].measure == Measure::share && r.left[i].figure(all) > r.left[i].allowed;
  }

  bool departs(const Run& r) const {
    for (std::size_t i = 0; i < r.pairs.size(); ++i)
      if (departs(r, i, Sample(r.left[i], options_.row))) return true;
    return false;
  }

  void choose_target() {
    const bool has_out = !case_.names("out").empty() || !case_.names("after").empty();
    const bool out_departs = has_out && departs(*plain_);
    told_.target = has_out ? "out" : "ref";
    if (case_.names("ref").empty()) {
      told_.side = out_departs ? "producer" : "consistent";
      return;
    }
    Run of_ref;
    of_ref.pairs = pairs_of(case_, "ref", plain_->outcome);
    measure_pairs(of_ref, plain_->outcome);
    const bool ref_departs = departs(of_ref);
    if (!out_departs) {
      told_.target = "ref", told_.side = ref_departs ? "call" : "consistent";
      plain_->pairs = std::move(of_ref.pairs), plain_->left = std::move(of_ref.left);
    } else {
      told_.side = ref_departs && out_equals_ref() ? "dsakit?" : "producer";
    }
  }

  bool out_equals_ref() const {
    const auto pairs = pairs_of(case_, "out", case_, "ref");
    return !pairs.empty() && std::all_of(pairs.begin(), pairs.end(), [&](const Pair& p) {
      return p.mismatch.empty() && compare_bits(p, false).equal();
    });
  }

  void judge_target() {
    bool any = false;
    for (std::size_t i = 0; i < plain_->pairs.size(); ++i) {
      samples_.emplace_back(plain_->left[i], options_.row);
      const Pair& pair = plain_->pairs[i];
      const bool out = departs(*plain_, i, samples_[i]);
      any |= out;
      failing_.push_back(out);
      told_.outputs.push_back({pair.key, plain_->left[i].measure,
                               pair.mismatch.empty() ? samples_[i].figure(plain_->left[i]) : kInfinite, out});
      if (plain_->left[i].measure == Measure::keys) told_.keys = keys_of(plain_->left[i], samples_[i]);
    }
    told_.verdict = any ? "operator" : "agrees";
    for (std::size_t i = 0; i < samples_.size() && told_.rows.empty(); ++i)
      if (failing_[i] || !any) told_.rows = samples_[i].probe;
  }

  // ---- figures

  void figures() {
    if (is_indexer(op_)) selection();
    attention();
    codes();
  }

  static Integers list_of(const Tensor& t, std::int64_t row) {
    const std::int64_t width = t.shape[t.rank - 1];
    Integers list;
    for (std::int64_t i = 0; i < width; ++i) list.push_back(std::int64_t(number_at(t, offset_of(t, row * width + i))));
    return list;
  }

  void selection() {
    for (const Pair& pair : plain_->pairs) {
      if (pair.parameter != "sparse_indices" || !pair.mismatch.empty() || told_.rows.empty()) continue;
      const Tensor& t = pair.recorded;
      const std::int64_t width = t.shape[t.rank - 1], rows = t.elements() / std::max<std::int64_t>(width, 1);
      if (told_.rows[0] >= rows) continue;
      const IndexScores scores(plain_->outcome.bound.arguments);
      told_.selection =
          selection_figures(scores, told_.rows[0], list_of(t, told_.rows[0]), list_of(pair.computed, told_.rows[0]));
      const Tensor& query = plain_->outcome.bound.arguments.tensor("query");
      told_.selection->heads = query.shape[query.rank - 2], told_.selection->count = width;
      recall(t, width, rows);
    }
  }

  /// A tensor of `float` of the argument's shape, or nothing.
  Tensor before_quantisation(std::string_view parameter) const {
    for (const std::string& name : case_.names("float")) {
      const auto place = case_.place("float", name);
      if (!place || op_.parameters[std::size_t(place->parameter)].field.name != parameter) continue;
      const auto at = case_.tensors.find("float." + name);
      if (at == case_.tensors.end()) continue;
      const Tensor& codes = plain_->outcome.bound.arguments.tensor(parameter);
      const Tensor numbers = at->second.tensor();
      return numbers.elements() == codes.elements() ? numbers : Tensor{};
    }
    return {};
  }

  void recall(const Tensor& lists, std::int64_t width, std::int64_t rows) {
    const Arguments& call = plain_->outcome.bound.arguments;
    const Tensor query = before_quantisation("query"), key = before_quantisation("key"),
                 weights = before_quantisation("weights");
    if (!plain_->outcome.bound.pools.empty() || (!query && !key && !weights)) return;
    const IndexScores unquantised(call, query, key, weights);
    std::int64_t common = 0, wanted = 0, selected = 0;
    for (const std::int64_t row : told_.rows) {
      if (row >= rows) continue;
      Integers a = list_of(lists, row), b = best_of(unquantised, row, width), both;
      std::erase(a, -1);
      std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
      std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
      common += std::int64_t(both.size()), wanted += std::int64_t(b.size()), selected += std::int64_t(a.size());
    }
    if (wanted == 0 || selected == 0) return;
    told_.selection->recall = double(common) / double(wanted);
    told_.selection->precision = double(common) / double(selected);
    if (*told_.selection->recall < options_.limits.recall)
      told_.loss = text_of("recall %.3g of the keys that unquantised operands select, below %.3g",
                           *told_.selection->recall, options_.limits.recall);
  }

  void attention() {
    // Of caches that are partly stored, keys that no list has are not there.
    if (!is_attention(op_) || told_.rows.empty() || !plain_->outcome.bound.pools.empty()) return;
    const auto attended = Attended::of(plain_->outcome.bound.arguments);
    if (told_.rows[0] >= attended->rows) return;
    const double keys = double(attended->visible(told_.rows[0]).size());
    if (keys > 0 && keys * double(attended->heads) * double(attended->width) < kDear)
      told_.attention = attention_figures(*attended, told_.rows[0]);
  }

  static std::string text_of(const char* format, auto... values) {
    char line[160];
    std::snprintf(line, sizeof line, format, values...);
    return line;
  }

  /// A result as it was recorded, an argument as it was passed.
  Tensor as_given(std::string_view parameter) const {
    for (const Pair& pair : plain_->pairs)
      if (pair.parameter == parameter) return pair.recorded;
    return plain_->outcome.bound.arguments.tensor(parameter);
  }

  void codes() {
    for (const Coded& coded : codes_of(op_)) {
      const Tensor c = as_given(coded.codes), s = as_given(coded.scales);
      if (!c || !s || c.dtype != DType::i8 || c.elements() == 0 || s.elements() == 0) continue;
      if (c.elements() % s.elements() != 0) continue;
      const bool quantises = is_quantiser(op_);
      const Arguments& call = plain_->outcome.bound.arguments;
      // Scales of columns or of blocks that do not divide a row are no groups of neighbours.
      if (quantises && (op_.name == "quantize" || s.elements() < c.elements() / c.shape[c.rank - 1])) continue;
      Tensor before, smooth;
      if (!quantises) {
        before = before_quantisation(coded.codes);
      } else {
        before = call.tensor(parameter_of(op_, {"input", "x"}));
        if (const auto name = parameter_of(op_, {"smooth_scales"}); !name.empty()) smooth = call.tensor(name);
        if (smooth && smooth.rank != 1) continue;
      }
      told_.codes.push_back(code_figures(std::string(coded.codes), c, s, before, smooth));
      const CodeFigures& f = told_.codes.back();
      if (!f.has_loss() || !told_.loss.empty()) continue;
      const auto& row = f.worst.front();
      if (row.sqnr < options_.limits.sqnr || row.sqnr < f.median - options_.limits.below)
        told_.loss = text_of("row %lld of %s has an SQNR of %.3g dB, the median %.3g", (long long)row.row,
                             f.name.c_str(), row.sqnr, f.median);
    }
  }

  static Left::Row keys_of(const Left& left, const Sample& sample) {
    Left::Row sum;
    for (const std::int64_t r : sample.probe) {
      if (r >= std::int64_t(left.rows.size())) continue;
      const Left::Row& row = left.rows[std::size_t(r)];
      sum.common += row.common, sum.tie += row.tie, sum.near += row.near, sum.wrong += row.wrong;
    }
    return sum;
  }

  // ---- the search

  struct Candidate {
    const Change* change = nullptr;
    Tried tried;
    RunOf run;
    bool named = false;
    double distance = 0;  // to order those that are not: how far the furthest output is, in what is allowed
  };

  void search() {
    told_.missing = impossible_changes(op_);
    if (!plain_->outcome.bound.pools.empty())
      told_.missing.insert(told_.missing.begin(), "other pages and slots (record with caches=\"whole\")");
    changes_ = changes_of(plain_->outcome.bound.arguments);
    for (const Change& change : changes_) {
      const std::string text = change.text + " (" + change.id + ")";
      if (options_.classes.find(change.id[0]) == std::string::npos) continue;
      if (told_.tried >= options_.tries) {
        told_.untried.push_back(text);
        continue;
      }
      if (change.work > kDear) {
        told_.untried.push_back(text + ": too large");
        continue;
      }
      RunOf made = change.reread || change.restate ? read_otherwise(change) : run(&change, told_.target);
      if (!made) continue;
      ++told_.tried;
      if (const Apart moved = apart(*made, *plain_); moved.same) {
        told_.blind.push_back(moved.figure == 0
                                  ? text
                                  : change.text + " (" + change.id + ", " + spelled(moved.figure, moved.measure) + ")");
        continue;
      }
      weigh(change, std::move(made));
    }
  }

  static bool is_far(const Left& left, double figure) {
    return left.measure == Measure::share ? figure > left.allowed : figure >= left.departing;
  }

  void weigh(const Change& change, RunOf made) {
    Candidate c;
    c.change = &change, c.tried.id = change.id, c.tried.text = change.text;
    const bool numerics = change.id[0] == 'N';
    bool named = std::find(failing_.begin(), failing_.end(), true) != failing_.end(), reached = false;
    for (std::size_t i = 0; i < made->pairs.size(); ++i) {
      if (!made->pairs[i].mismatch.empty()) return;
      const Left &after = made->left[i], &before = plain_->left[i];
      const double was = plain_->pairs[i].mismatch.empty() ? samples_[i].figure(before) : kInfinite;
      const double is = samples_[i].figure(after);
      const bool floats = after.measure == Measure::roundings;
      const bool good =
          numerics && floats && failing_[i] ? after.equal_share(samples_[i].probe) >= 0.95 : is <= after.allowed;
      named = named && good;
      c.distance = std::max(c.distance, is / std::max(after.allowed, 1e-3));
      if (!failing_[i]) continue;
      reached |= numerics && floats ? before.equal_share(samples_[i].probe) <= 0.75
                                    : is_far(before, was) && was >= after.fewer * is;
      // Where a change leaves nothing but ties, every list agrees: half of it has to be the target's.
      const Left::Row keys = keys_of(after, samples_[i]);
      const bool ties_alone = 2 * keys.common < keys.tie + keys.near + keys.wrong;
      reached = reached && !ties_alone;
      if (ties_alone) c.distance = kInfinite;
      c.tried.outputs.push_back(made->pairs[i].key);
      if (c.tried.outputs.size() == 1 || is > c.tried.after) c.tried.before = was, c.tried.after = is;
      if (after.measure == Measure::keys) c.tried.keys = keys;
      c.tried.rows_agreeing = std::int64_t(std::count_if(samples_[i].probe.begin(), samples_[i].probe.end(),
                                                         [&](auto r) { return after.figure(r) <= after.allowed; }));
    }
    c.named = named && reached;
    if (c.named) c.run = std::move(made);
    candidates_.push_back(std::move(c));
  }

  static bool nearer(const Candidate& a, const Candidate& b) {
    return a.named != b.named ? a.named : a.named ? a.tried.after < b.tried.after : a.distance < b.distance;
  }

  /// Two mistakes at once, of those that alone come nearest.
  void search_pairs() {
    std::vector<const Change*> nearest;
    for (const Candidate& c : candidates_)
      if (c.change->edit && nearest.size() < kPaired) nearest.push_back(c.change);
    for (std::size_t i = 0; i < nearest.size(); ++i)
      for (std::size_t j = i + 1; j < nearest.size(); ++j) {
        const Change &a = *nearest[i], &b = *nearest[j];
        pairs_.push_back(
            {a.id + "+" + b.id, a.text + " and " + b.text, [&a, &b](Edit& e) { return a.edit(e) && b.edit(e); }});
        RunOf made = told_.tried < options_.tries ? run(&pairs_.back(), told_.target) : nullptr;
        if (!made) continue;
        ++told_.tried;
        weigh(pairs_.back(), std::move(made));
      }
  }

  /// As it was run; what no kernel computes has no call of its own.
  const Arguments& arguments_of(const Run& r) const {
    return r.outcome.bound.arguments.op ? r.outcome.bound.arguments : plain_->outcome.bound.arguments;
  }

  /// How far the results of two runs are from each other; `same`: a right call could have either.
  struct Apart {
    bool same = false;
    double figure = 0;
    Measure measure = Measure::roundings;
  };
  Apart apart(const Run& a, const Run& b) const {
    Apart most{true, 0, Measure::roundings};
    if (a.reread || b.reread) return {};
    std::unique_ptr<IndexScores> scores;
    if (is_indexer(op_)) scores = std::make_unique<IndexScores>(arguments_of(b));
    for (std::size_t i = 0; i < std::min(a.pairs.size(), b.pairs.size()); ++i) {
      Pair pair = a.pairs[i];
      if (!pair.rows.empty()) pair.undefined.clear();
      pair.recorded = a.pairs[i].computed, pair.computed = b.pairs[i].computed, pair.rows.clear();
      if (pair.recorded.elements() != pair.computed.elements()) return {};
      const Left left = left_over(op_, pair, scores.get(), false);
      Rows all(left.rows.size());
      std::iota(all.begin(), all.end(), 0);
      const Sample worst(left, -1);
      const double limit = left.measure == Measure::share ? left.allowed : left.measure == Measure::keys ? 0 : 2;
      const double figure = std::max(left.figure(all), worst.figure(left));
      most.same = most.same && figure <= limit;
      if (figure > most.figure) most.figure = figure, most.measure = left.measure;
    }
    return most;
  }

  // ---- the verdict

  static const char* verdict_of(const std::string& id) {
    switch (id[0]) {
      case 'L':
        return "layout";
      case 'Q':
        return "quantisation";
      case 'A':
        return "arguments";
      default:
        return "numerics";
    }
  }

  void conclude() {
    std::stable_sort(candidates_.begin(), candidates_.end(), nearer);
    if (options_.pairs && !candidates_.empty() && !candidates_[0].named) {
      search_pairs();
      std::stable_sort(candidates_.begin(), candidates_.end(), nearer);
    }
    std::vector<Candidate*> named;
    for (Candidate& c : candidates_) {
      if (!c.named) break;
      const auto twin =
          std::find_if(named.begin(), named.end(), [&](Candidate* n) { return apart(*c.run, *n->run).same; });
      if (twin == named.end()) named.push_back(&c);
      else (*twin)->tried.twins.push_back(c.tried.text + " (" + c.tried.id + ")");
    }
    for (Candidate* c : named) told_.findings.push_back(std::move(c->tried));
    if (told_.findings.empty()) {
      if (!told_.loss.empty() && told_.side == "call") told_.verdict = "quantisation";
      else if (!told_.lints.empty()) told_.verdict = "inputs";
      for (std::size_t i = 0; i < std::min<std::size_t>(3, candidates_.size()); ++i)
        told_.nearest.push_back(std::move(candidates_[i].tried));
      return;
    }
    const bool apart = told_.findings.size() == 1 || told_.findings[1].after >= 2 * told_.findings[0].after;
    const bool different = told_.findings.size() > 1 && !(apart && told_.findings[1].after > told_.findings[0].after);
    told_.verdict = different ? "undecided" : verdict_of(told_.findings[0].id);
    if (!different) told_.findings.resize(1);
  }

  const Case& case_;
  const Operator& op_;
  const ExplainOptions& options_;
  bool strict_;
  RunOf plain_;
  std::vector<Sample> samples_;  // of each output
  std::vector<bool> failing_;
  std::vector<Change> changes_;
  std::deque<Change> pairs_;
  std::vector<Candidate> candidates_;
  Explanation told_;
};

}  // namespace

std::string spelled(double figure, Measure m) {
  if (!std::isfinite(figure)) return "not comparable";
  char text[64];
  std::snprintf(text, sizeof text, m == Measure::share || figure < 1000 ? "%.3g" : "%.0f",
                m == Measure::share ? 100 * figure : figure);
  return std::string(text) + (m == Measure::keys    ? " keys a row"
                              : m == Measure::share ? " % of the codes"
                                                    : " roundings");
}

Explanation explain(const Case& c, const ExplainOptions& options) { return Explaining(c, options).explain(); }

}  // namespace dsakit::debug
