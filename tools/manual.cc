// SPDX-License-Identifier: Apache-2.0
// What the description of the command is made into besides --help: completion for shells, and the manual page.
#include "manual.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "debug/rule.hpp"
#include "dsakit/version.hpp"
#include "kernels/roof.hpp"

namespace dsakit::tools {
namespace {

using std::string;
using std::string_view;
using Words = std::vector<string>;

/// The names of all operators.
Words operators() {
  Words all;
#define DSAKIT_OP(name, Type) all.push_back(#name);
#include "ops/ops.inc"
#undef DSAKIT_OP
  return all;
}

/// The values that an option can have; none where files or numbers are meant.
Words choices(const CLI::Option& o) {
  const string name = o.get_name();
  if (name == "OPERATOR") return operators();
  if (name == "--isa") {
    Words all = {"all"};  // of every machine: what is installed says the same everywhere
    for (const Rung& rung : known_rungs())
      if (std::find(all.begin(), all.end(), rung.isa) == all.end()) all.emplace_back(rung.isa);
    return all;
  }
  if (name == "--rule") {
    Words all;
    for (const debug::RuleInfo& rule : debug::rules()) all.emplace_back(rule.name);
    return all;
  }
  const string type = o.get_type_name();  // TEXT:{a,b}
  const std::size_t begin = type.find('{'), end = type.find('}');
  if (begin == string::npos || end == string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

string joined(const Words& words) { return CLI::detail::join(words, " "); }

/// The first line of what is said about something, without what shells take for their own.
string line(string text, string_view taken) {
  text.resize(std::min(text.find('\n'), text.size()));
  std::erase_if(text, [&](char c) { return taken.find(c) != string_view::npos; });
  return text;
}

std::vector<const CLI::App*> commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

/// Options that begin with -, and positional ones.
std::vector<const CLI::Option*> options(const CLI::App& app, bool positional) {
  return app.get_options([=](const CLI::Option* o) { return o->nonpositional() != positional; });
}

/// "--json", or "-o --output"
Words spellings(const CLI::Option& o) {
  Words all;
  for (const string& name : o.get_snames()) all.push_back("-" + name);
  for (const string& name : o.get_lnames()) all.push_back("--" + name);
  return all;
}

bool takes_value(const CLI::Option& o) { return o.get_items_expected_max() > 0; }

string bash(const CLI::App& app) {
  Words names;
  string cases;
  for (const CLI::App* c : commands(app)) {
    names.push_back(c->get_name());
    Words words, first;
    string values;
    for (const CLI::Option* o : options(*c, false)) {
      for (const string& name : spellings(*o)) words.push_back(name);
      if (takes_value(*o))
        values += fmt::format("        {}) words=\"{}\" ;;\n", fmt::join(spellings(*o), "|"), joined(choices(*o)));
    }
    for (const CLI::Option* o : options(*c, true))
      if (first.empty()) first = choices(*o);
    cases += fmt::format("    {})\n      words=\"{}\"\n      [[ $current == -* ]] || words=\"{}\"\n", c->get_name(),
                         joined(words), joined(first));
    if (!values.empty()) cases += fmt::format("      case $before in\n{}      esac\n", values);
    cases += "      ;;\n";
  }
  return fmt::format(
      "# bash completion of dsakit: source it, or put it where completions of this shell lie.\n"
      "_dsakit() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}\n"
      "  local words=\"{} --help --version\"\n"
      "  [ \"$COMP_CWORD\" = 1 ] || case ${{COMP_WORDS[1]}} in\n{}    *) words= ;;\n  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o default -F _dsakit dsakit\n",
      joined(names), cases);
}

string zsh(const CLI::App& app) {
  constexpr string_view kTaken = "'[]:`\\";
  string names, cases;
  for (const CLI::App* c : commands(app)) {
    names += fmt::format("    '{}:{}'\n", c->get_name(), line(c->get_description(), kTaken));
    cases += fmt::format("    {})\n      _arguments", c->get_name());
    for (const CLI::Option* o : options(*c, false))
      for (const string& name : spellings(*o)) {
        const Words values = choices(*o);
        cases += fmt::format(" \\\n        '{}[{}]", name, line(o->get_description(), kTaken));
        if (takes_value(*o)) cases += values.empty() ? ":value:_files" : ":value:(" + joined(values) + ")";
        cases += "'";
      }
    for (const CLI::Option* o : options(*c, true)) {
      const Words values = choices(*o);
      const bool many = o->get_items_expected_max() > 1;
      cases += fmt::format(" \\\n        '{}:{}:{}'", many ? "*" : "", o->get_name(),
                           values.empty() ? "_files" : "(" + joined(values) + ")");
    }
    cases += "\n      ;;\n";
  }
  return fmt::format(
      "#compdef dsakit\n"
      "_dsakit() {{\n"
      "  local -a commands\n"
      "  commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $words[1] in\n{}  esac\n"
      "}}\n"
      "if [ \"$funcstack[1]\" = _dsakit ]; then _dsakit \"$@\"; else compdef _dsakit dsakit; fi\n",
      names, cases);
}

string fish(const CLI::App& app) {
  constexpr string_view kTaken = "'\\";
  string all = "complete -c dsakit -n __fish_use_subcommand -f\n";
  for (const CLI::App* c : commands(app)) {
    all += fmt::format("complete -c dsakit -n __fish_use_subcommand -a {} -d '{}'\n", c->get_name(),
                       line(c->get_description(), kTaken));
    const string here = fmt::format("complete -c dsakit -n '__fish_seen_subcommand_from {}'", c->get_name());
    for (const CLI::Option* o : options(*c, false)) {
      all += here;
      for (const string& name : o->get_snames()) all += " -s " + name;
      for (const string& name : o->get_lnames()) all += " -l " + name;
      const Words values = choices(*o);
      if (takes_value(*o)) all += values.empty() ? " -r" : " -x -a '" + joined(values) + "'";
      all += fmt::format(" -d '{}'\n", line(o->get_description(), kTaken));
    }
    for (const CLI::Option* o : options(*c, true))
      if (const Words values = choices(*o); !values.empty()) all += here + " -a '" + joined(values) + "'\n";
  }
  return all;
}

/// Text as troff reads it: no line is a request, no hyphen is broken.
string troff(string_view text) {
  string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else out += c;
    begins = c == '\n';
  }
  return out;
}

string values_of(const CLI::Option& o) {
  if (!takes_value(o)) return "";
  const Words all = choices(o);
  const string type = all.empty() || all.size() > 12 ? "VALUE" : fmt::format("{}", fmt::join(all, "|"));
  const string preset = o.get_default_str().empty() ? "" : "=" + o.get_default_str();
  return " " + type + preset + (o.get_items_expected_max() > 1 ? " .." : "");
}

string section(const CLI::App& c) {
  string out = fmt::format(".SS {}\n{}.\n", troff(c.get_name()), troff(c.get_description()));
  string usage = "dsakit " + c.get_name();
  for (const CLI::Option* o : options(c, true)) {
    string name = o->get_name() + (o->get_items_expected_max() > 1 ? ".." : "");
    usage += o->get_required() ? " " + name : " [" + name + "]";
  }
  out += fmt::format(".PP\n.B {}\n[options]\n", troff(usage));
  for (const bool positional : {true, false})
    for (const CLI::Option* o : options(c, positional)) {
      if (o->get_name() == "--help") continue;
      const Words names = positional ? Words{o->get_name()} : spellings(*o);
      out += fmt::format(".TP\n.B {}\n{}\n", troff(CLI::detail::join(names, ", ") + (positional ? "" : values_of(*o))),
                         troff(o->get_description()));
    }
  if (const string footer = c.get_footer(); !footer.empty()) out += fmt::format(".PP\n.nf\n{}\n.fi\n", troff(footer));
  return out;
}

string man(const CLI::App& app) {
  string out = fmt::format(
      ".TH DSAKIT 1 \"\" \"dsakit {}\" \"User Commands\"\n.SH NAME\ndsakit \\- DeepSeek Sparse Attention on ordinary "
      "machines\n.SH SYNOPSIS\n.B dsakit\nCOMMAND [options]\n.SH DESCRIPTION\n{}\n.SH COMMANDS\n",
      DSAKIT_VERSION, troff(app.get_description()));
  for (const CLI::App* c : commands(app)) out += section(*c);
  return out + fmt::format(".SH NOTES\n.nf\n{}\n.fi\n", troff(app.get_footer()));
}

}  // namespace

int manual(const CLI::App& app, std::string_view form) {
  fmt::print("{}", form == "man" ? man(app) : form == "bash" ? bash(app) : form == "zsh" ? zsh(app) : fish(app));
  return 0;
}

}  // namespace dsakit::tools
