// SPDX-License-Identifier: Apache-2.0
#include "debug/explain.hpp"

#include <algorithm>
#include <cmath>
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
    told_.lints = lints_of(plain_->outcome.bound.arguments);
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

  /// The unchanged run beside the target as it is read otherwise.
  RunOf read_otherwise(const Change& change) {
    auto made = std::make_unique<Run>();
    made->reread = true;
    made->pairs = plain_->pairs;
    bool changed = false;
    for (Pair& pair : made->pairs) changed |= pair.mismatch.empty() && change.reread({pair, made->memory});
    if (!changed) return nullptr;
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
    for (const Pair& pair : run.pairs)
      run.left.push_back(pair.mismatch.empty() ? left_over(op_, pair, scores.get(), strict_) : Left{});
  }

  // ---- the target

  /// Departs by more than right results do; in between the rule of the operator decides.
  bool departs(const Run& r, std::size_t i, const Sample& sample) const {
    const Pair& pair = r.pairs[i];
    if (!pair.mismatch.empty()) return true;
    const double figure = sample.figure(r.left[i]);
    if (figure <= r.left[i].allowed) return false;
    return figure >= r.left[i].departing || !judge("dsakit", op_, pair).passes;
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

  void figures() {
    for (const Pair& pair : plain_->pairs) {
      if (!is_indexer(op_) || pair.parameter != "sparse_indices" || !pair.mismatch.empty() || told_.rows.empty())
        continue;
      const Tensor& t = pair.recorded;
      const std::int64_t width = t.shape[t.rank - 1], row = told_.rows[0];
      if (row >= t.elements() / std::max<std::int64_t>(width, 1)) continue;
      std::vector<std::int64_t> list;
      for (std::int64_t i = 0; i < width; ++i)
        list.push_back(std::int64_t(number_at(t, offset_of(t, row * width + i))));
      told_.selection = selection_figures(IndexScores(plain_->outcome.bound.arguments), row, list);
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
    told_.missing = untried_changes();
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
      RunOf made = change.reread ? read_otherwise(change) : run(&change, told_.target);
      if (!made) continue;
      ++told_.tried;
      if (!made->reread && same_results(*made, *plain_)) {
        told_.blind.push_back(text);
        continue;
      }
      weigh(change, std::move(made));
    }
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
                                    : was >= before.departing && was >= after.fewer * is;
      // Where a change leaves nothing but ties, every list agrees: half of it has to be the target's.
      const Left::Row keys = keys_of(after, samples_[i]);
      reached = reached && 2 * keys.common >= keys.tie + keys.near + keys.wrong;
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

  /// Two runs whose results a right call could have as well.
  bool same_results(const Run& a, const Run& b) const {
    if (a.reread || b.reread) return false;
    std::unique_ptr<IndexScores> scores;
    if (is_indexer(op_)) scores = std::make_unique<IndexScores>(b.outcome.bound.arguments);
    for (const auto& [key, result] : a.outcome.results) {
      const auto other = b.outcome.results.find(key);
      if (other == b.outcome.results.end()) return false;
      const std::string parameter = key.substr(key.find('.') + 1);
      const Pair pair{key, parameter, result.tensor, other->second.tensor, {}, result.undefined, ""};
      if (pair.recorded.elements() != pair.computed.elements()) return false;
      const Left left = left_over(op_, pair, scores.get(), false);
      Rows all(left.rows.size());
      std::iota(all.begin(), all.end(), 0);
      const Sample worst(left, -1);
      const double limit = left.measure == Measure::share ? left.allowed : left.measure == Measure::keys ? 0 : 2;
      if (std::max(left.figure(all), worst.figure(left)) > limit) return false;
    }
    return true;
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
          std::find_if(named.begin(), named.end(), [&](Candidate* n) { return same_results(*c.run, *n->run); });
      if (twin == named.end()) named.push_back(&c);
      else (*twin)->tried.twins.push_back(c.tried.text + " (" + c.tried.id + ")");
    }
    for (Candidate* c : named) told_.findings.push_back(std::move(c->tried));
    if (told_.findings.empty()) {
      if (!told_.lints.empty()) told_.verdict = "inputs";
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

Explanation explain(const Case& c, const ExplainOptions& options) { return Explaining(c, options).explain(); }

}  // namespace dsakit::debug
