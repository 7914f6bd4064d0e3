// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <memory>

#include "dsakit/group.hpp"

// In the library dsakit_dist, the CMake component dist.
namespace dsakit {

/// All processes that mpirun, srun or the like has started; each of them calls it. MPI is initialised unless the program
/// did (then with MPI_THREAD_FUNNELED at least), and only then finalised, at the end of the program; not after a group
/// has died, because it would wait for all. Exchanges are for the thread that initialised MPI. A wait longer than
/// `timeout` seconds is PEER_FAILED: those who wait then call all ranks and name, within a second, who does not answer. A
/// message of more than `most` bytes goes in rounds; it is the same on all ranks.
std::unique_ptr<Group> mpi_group(double timeout = 20, std::size_t most = std::size_t{1} << 30);

}  // namespace dsakit
