// SPDX-License-Identifier: Apache-2.0
// One rank of the tests of dsakit_dist; tests/mpi.py starts it by mpirun and looks at what all of them do.
// Usage: dsakit_dist_tests exchanges | FAULT, where the last rank goes wrong
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "dsakit/mpi.hpp"
#include "tests/carriers.hpp"

namespace dsakit {
namespace {

using carriers::Bytes;

/// With messages in one piece, in pieces that no size of a test is a multiple of, and of single bytes.
void exchanges() {
  carriers::every_exchange(*mpi_group());
  carriers::every_exchange(*mpi_group(20, 4099));
  const auto group = mpi_group(20, 1);
  carriers::several_pending(*group);
  carriers::must_refuse(Status::invalid_argument, "messages of no bytes", [] { mpi_group(20, 0); });
  if (group->rank() == 0) std::puts("every exchange");
}

/// What the last rank does in place of the second exchange.
void fault(const std::function<void(Group&)>& f) {
  const auto group = mpi_group(2);
  std::printf("pid %d\n", int(getpid()));
  std::fflush(stdout);
  try {
    barrier(*group);  // a rank that is late here may already hear of the fault
    if (group->rank() == group->size() - 1) f(*group);
    for (int i = 0; i < 10; ++i) barrier(*group);  // messages that were on their way may do for the first ones
    std::puts("nothing was wrong");
  } catch (const Error& e) {
    const std::string sentence = e.what();
    try {
      barrier(*group);
      std::puts("a dead group goes on");
    } catch (const Error& again) {
      if (again.what() != sentence) std::puts("a dead group says something else");
    }
    std::printf("rank %d: %s: %s\n", group->rank(), name_of(e.status), e.what());
    std::fflush(stdout);
    group->abort(e.status, "rank " + std::to_string(group->rank()) + " aborts");
  }
}

const std::map<std::string, std::function<void(Group&)>> kFaults = {
    {"killed", [](Group&) { raise(SIGKILL); }},
    {"stopped", [](Group&) { raise(SIGSTOP); }},
    {"exit_0", [](Group&) { std::exit(0); }},
    {"quick_exit_0", [](Group&) { _exit(0); }},
    {"dropped", [](Group& g) { (void)carriers::start_all_gather(g, 0, [](int) { return std::size_t{1}; }); }},
    {"longer", [](Group& g) { carriers::start_all_gather(g, 0, [](int) { return std::size_t{2}; }).pending->wait(); }},
    {"another", [](Group& g) { carriers::start_broadcast(g, 0, 0, 5).pending->wait(); }},
};

int run(const std::string& what) {
  if (what == "exchanges") exchanges();
  else if (kFaults.contains(what)) fault(kFaults.at(what));
  else return 2;
  return 0;
}

}  // namespace
}  // namespace dsakit

int main(int argc, char** argv) {
  try {
    return dsakit::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::_Exit(1);  // the others may wait for this rank: mpirun ends them
  }
}
