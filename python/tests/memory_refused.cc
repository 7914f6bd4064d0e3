// SPDX-License-Identifier: Apache-2.0
// Preloaded into a process: requests for memory that come from one library are counted, and the n-th is refused, or all
// from there on.
#include <link.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);
}

namespace {

struct {
  std::uintptr_t first, last;
} ranges[2];
int watched = 0;  // ranges in use
std::atomic<long> countdown{0}, counted{0}, live{0};
std::atomic<bool> for_good{false};
std::atomic<void*> aligned[256];  // given to the library, and not yet free

int find(dl_phdr_info* info, std::size_t, void* name) {
  if (watched == 2 || !std::strstr(info->dlpi_name, static_cast<const char*>(name))) return 0;
  auto& range = ranges[watched++];
  range = {UINTPTR_MAX, 0};
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t at = info->dlpi_addr + part.p_vaddr;
    if (at < range.first) range.first = at;
    if (at + part.p_memsz > range.last) range.last = at + part.p_memsz;
  }
  return 1;
}

bool from_library(void* caller) {
  const auto at = reinterpret_cast<std::uintptr_t>(caller);
  for (int i = 0; i < watched; ++i)
    if (at >= ranges[i].first && at < ranges[i].last) return true;
  return false;
}
bool refused(void* caller) {
  if (!from_library(caller)) return false;
  ++counted;
  if (countdown == 0) return false;
  if (countdown == 1 && for_good) return true;
  return --countdown == 0;
}

void* obtain(std::size_t bytes, std::size_t align, void* caller) {
  if (refused(caller)) return nullptr;
  void* p = align > alignof(std::max_align_t) ? __libc_memalign(align, bytes) : __libc_malloc(bytes);
  if (p) ++live;
  return p;
}
void* obtain_or_throw(std::size_t bytes, std::size_t align, void* caller) {
  if (void* p = obtain(bytes, align, caller)) return p;
  throw std::bad_alloc();
}
void give_back(void* p) {
  if (p) --live;
  __libc_free(p);
}

}  // namespace

extern "C" {
/// Requests from the library whose path has `name` in it are its own from now on; two at most. 1: it is there.
int memory_watch(const char* name) { return dl_iterate_phdr(find, const_cast<char*>(name)); }
/// The n-th from now on is refused, and with `others` all after it; 0: none.
void memory_refuse(long n, bool others) { counted = 0, for_good = others, countdown = n; }
/// How many there were since memory_refuse().
long memory_counted() { return counted; }
/// What C++ of the whole process, and aligned_alloc() of the library, has been given and not given back.
long memory_live() { return live; }

void* malloc(std::size_t bytes) { return refused(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes); }
void* aligned_alloc(std::size_t align, std::size_t bytes) {
  void* const caller = __builtin_return_address(0);
  if (refused(caller)) return nullptr;
  void* p = __libc_memalign(align, bytes);
  if (p && from_library(caller))
    for (auto& place : aligned)
      if (void* nothing = nullptr; place.compare_exchange_strong(nothing, p)) {
        ++live;
        break;
      }
  return p;
}
void free(void* p) {
  if (p && reinterpret_cast<std::uintptr_t>(p) % 64 == 0)
    for (auto& place : aligned)
      if (void* same = p; place.compare_exchange_strong(same, nullptr)) {
        --live;
        break;
      }
  __libc_free(p);
}
}

#define CALLER __builtin_return_address(0)
void* operator new(std::size_t n) { return obtain_or_throw(n, 1, CALLER); }
void* operator new[](std::size_t n) { return obtain_or_throw(n, 1, CALLER); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return obtain(n, 1, CALLER); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return obtain(n, 1, CALLER); }
void* operator new(std::size_t n, std::align_val_t a) { return obtain_or_throw(n, std::size_t(a), CALLER); }
void* operator new[](std::size_t n, std::align_val_t a) { return obtain_or_throw(n, std::size_t(a), CALLER); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return obtain(n, std::size_t(a), CALLER);
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return obtain(n, std::size_t(a), CALLER);
}
void operator delete(void* p) noexcept { give_back(p); }
void operator delete[](void* p) noexcept { give_back(p); }
void operator delete(void* p, std::size_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
