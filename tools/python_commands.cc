// SPDX-License-Identifier: Apache-2.0
#include "python_commands.hpp"

#include "dsakit/error.hpp"

namespace dsakit::tools {

PythonCommands::PythonCommands(CLI::App& app)
    : plot_(app.add_subcommand("plot", "A picture of recorded calls or of benchmarks (Python: dsakit[plot])")),
      report_(app.add_subcommand("report", "Calls, verdicts and pictures as one HTML file (Python: dsakit[plot])")),
      import_(app.add_subcommand("import", "Cases from a .pt file, a folder of arrays or a dump of msprobe (Python)")),
      export_(app.add_subcommand("export", "A case as a folder of .npy files (Python)")) {
  const auto one = [&](CLI::App* command, const char* name, const char* text) {
    return command->add_option_function<std::string>(name, [](const std::string&) {}, text);
  };
  one(plot_, "KIND", "What to show")
      ->required()
      ->check(CLI::IsMember(
          {"selection", "profile", "mass", "recency", "heads", "latency", "roofline", "ulp", "codes"}));
  plot_
      ->add_option("FILE", unread_,
                   "Case files and folders of them; of latency and roofline, times\nand limits as `dsakit bench` "
                   "prints them with --json")
      ->required();
  one(plot_, "-o,--output", "The picture to write, .svg or .png")->required();
  one(plot_, "--row", "This query row alone (profile, mass, recency, heads)")->check(CLI::NonNegativeNumber);
  one(plot_, "--ref", "Another recording of the call, whose results are wanted (ulp)");
  plot_->add_flag_function("--dark", [](std::int64_t) {},
                           "On dark paper; an SVG follows the reader's setting without it");
  plot_->footer(
      "Examples:\n  dsakit plot selection dump -o selection.svg\n"
      "  dsakit bench contexts --json > bench.json; dsakit plot latency bench.json -o latency.png");

  report_->add_option("FILE", unread_, "Case files, or folders of them")->required();
  one(report_, "-o,--output", "The file to write, .html")->required();
  one(report_, "--cases", "Calls at most that are shown in full, those that do not agree first (default: 20)")
      ->check(CLI::NonNegativeNumber);
  one(report_, "--ref", "Another recording of the call, whose results are wanted, as explain has it");
  report_->add_flag_function("--json", [](std::int64_t) {}, "What was written, machine-readable");
  report_->footer("Examples:\n  dsakit report dump -o report.html");

  one(import_, "PATH", "What the other tool wrote")->required();
  one(import_, "--call", "The spelling that was called, such as torch_npu.npu_rms_norm");
  import_->add_option("--map", unread_, "Another name for a tensor, such as 3=weights");
  one(import_, "-o,--output", "A .safetensors file, or a folder")->required();
  import_->footer("Examples:\n  dsakit import call.pt --call torch_npu.npu_rms_norm -o case.safetensors");

  one(export_, "FILE", "A case")->required();
  one(export_, "-o,--output", "A folder")->required();
  export_->footer("Examples:\n  dsakit export case.safetensors -o arrays");
}

void PythonCommands::refuse() const {
  for (const CLI::App* command : {plot_, report_, import_, export_}) {
    if (!*command) continue;
    const std::string package = command == plot_ || command == report_ ? "dsakit[plot]" : "dsakit";
    throw Error(Status::unsupported, command->get_name(), "this program", "", "has no Python",
                "the command of pip install '" + package + "'");
  }
}

}  // namespace dsakit::tools
