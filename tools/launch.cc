// SPDX-License-Identifier: Apache-2.0
#include "launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/text.hpp"
#include "run/cores.hpp"
#include "run/numa.hpp"
#ifdef DSAKIT_DIST
#include "dsakit/mpi.hpp"
#endif

namespace dsakit::tools {
namespace {

std::unique_ptr<Group> group;  // of this process, if a launcher started it

int number_from(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::max(0, std::atoi(text)) : 0;
}

std::string host() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

Error refusal(const Launch& l, const std::string& got, const std::string& wanted) {
  return Error(Status::unsupported, "dsakit", "launcher", "",
               fmt::format("started {} processes ({}), {}", l.processes, l.by, got), wanted,
               "they would be copies that know nothing of each other");
}

}  // namespace

std::optional<Launch> launch() {
  struct Names {
    const char *all, *here;
  };
  // Open MPI; MPICH, Intel MPI and MVAPICH; srun, which is asked last because it starts them too.
  for (const auto [all, here] :
       {Names{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}, Names{"PMI_SIZE", "MPI_LOCALNRANKS"},
        Names{"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"},
        Names{"SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"}})
    if (const int processes = number_from(all)) return Launch{all, processes, number_from(here)};
  return {};
}

Group* launched_group(double timeout) {
  const std::optional<Launch> l = launch();
  if (group || !l) return group.get();
#ifdef DSAKIT_DIST
  group = mpi_group(timeout);
  if (const int size = group->size(); size != l->processes) {
    group.reset();
    throw refusal(*l, fmt::format("MPI knows {}", size), "the mpirun of the MPI that dsakit was built with");
  }
  if (const std::string warning = binding_warning(usable_cores(), cores_here(), l->processes_here); !warning.empty())
    fmt::print(stderr, "rank {}: {}\n", group->rank(), warning);
#else
  (void)timeout;
  if (l->processes > 1) throw refusal(*l, "this build has no MPI", "a build with DSAKIT_DIST=ON");
#endif
  return group.get();
}

void say(std::string_view sentence) { fmt::print(stderr, "{}\n", printable(sentence, sentence.size())); }

int failed(const Error& e) {
  if (!group) {
    say(e.what());
    return exit_code(e.status);
  }
  const std::string sentence = fmt::format("host {}, pid {}, rank {} of {}: {}: {}", host(), ::getpid(), group->rank(),
                                           group->size(), name_of(e.status), e.what());
  if (e.status == Status::peer_failed) group->abort(e.status, sentence);
  say(sentence);
  return exit_code(e.status);
}

}  // namespace dsakit::tools
