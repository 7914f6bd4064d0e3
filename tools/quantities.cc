// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdlib>
#include <span>
#include <string_view>

#include "commands.hpp"

namespace dsakit::tools {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

/// "12.5 GB": a positive number and one of the units; 0 for anything else.
double quantity(const std::string& text, std::span<const Unit> units) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string_view unit(end + (*end == ' '));
  for (const Unit& u : units)
    if (u.name == unit && end != text.c_str() && number > 0 && std::isfinite(number)) return number * u.factor;
  return 0;
}

}  // namespace

std::uint64_t size_of_text(const std::string& text) {
  static constexpr Unit kUnits[] = {{"", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},    {"TB", 1e12},
                                    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  const double bytes = quantity(text, kUnits);
  return bytes < 0x1p62 ? std::uint64_t(std::llround(bytes)) : 0;
}

double rate_of_text(const std::string& text) {
  static constexpr Unit kUnits[] = {{"Mb", 1e6 / 8},   {"Gb", 1e9 / 8},   {"Tb", 1e12 / 8},   {"MB", 1e6},
                                    {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"Tb/s", 1e12 / 8}, {"MB/s", 1e6},
                                    {"GB", 1e9},       {"GB/s", 1e9}};
  return quantity(text, kUnits);
}

double seconds_of_text(const std::string& text) {
  static constexpr Unit kUnits[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  return quantity(text, kUnits);
}

}  // namespace dsakit::tools
