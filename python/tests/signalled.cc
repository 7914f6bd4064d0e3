// SPDX-License-Identifier: Apache-2.0
// Preloaded into a process: before its n-th read of a file at an offset, or its n-th write, it gets SIGINT. A point that is
// the same on every machine.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

struct Counted {
  std::atomic<long> countdown{0}, calls{0};
  void operator()() {
    ++calls;
    if (countdown > 0 && --countdown == 0) raise(SIGINT);
  }
} reads, writes;

/// DSAKIT_TEST_SIGNAL: "pread 3", "write 1"
[[gnu::constructor]] void as_environment_says() {
  const char* text = std::getenv("DSAKIT_TEST_SIGNAL");
  if (!text) return;
  (std::strncmp(text, "pread", 5) == 0 ? reads : writes).countdown = std::atol(text + 6);
}

}  // namespace

extern "C" {
/// The n-th read from now on; 0: none. How many there were since then.
void signal_before_read(long n) { reads.calls = 0, reads.countdown = n; }
long reads_counted() { return reads.calls; }

ssize_t pread(int file, void* to, size_t bytes, off_t at) {
  reads();
  return syscall(SYS_pread64, file, to, bytes, at);
}
ssize_t pread64(int file, void* to, size_t bytes, off_t at) { return pread(file, to, bytes, at); }
ssize_t write(int file, const void* from, size_t bytes) {
  if (file > STDERR_FILENO) writes();
  return syscall(SYS_write, file, from, bytes);
}
}
