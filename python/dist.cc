// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/carrier.hpp"
#include "module.hpp"

namespace nb = nanobind;

namespace dsakit::python {
namespace {

using Sizes = std::vector<std::size_t>;

/// Of what a carrier raised; `ranks` of it are missing.
Error error_of(const nb::python_error& e, const char* name, std::int64_t number) {
  if (e.matches(PyExc_KeyboardInterrupt))
    return Error(Status::interrupted, "group", "exchange", "", "is interrupted", "");
  const std::string what = nb::cast<std::string>(nb::str(e.value()));
  std::vector<int> ranks;
  if (nb::try_cast(nb::getattr(e.value(), "ranks", nb::none()), ranks) && !ranks.empty())
    return peers_missing(name, number, ranks, 0, what);
  const std::string type = nb::cast<std::string>(e.type().attr("__name__"));
  return Error(Status::peer_failed, "group", name + (" " + std::to_string(number)), "", "raised " + type, "all ranks",
               what);
}

/// Where the exchanges of a carrier in Python are asked for: under the GIL, and never again after one has failed.
struct Carrier {
  nb::object object;
  std::shared_ptr<std::optional<Error>> death;
  Sequence sequence{};

  ~Carrier() {
    nb::gil_scoped_acquire hold;
    object.reset();
  }

  template <class F>
  auto ask(const char* name, std::int64_t number, F f) {
    if (*death) throw **death;
    nb::gil_scoped_acquire hold;
    try {
      return f();
    } catch (const nb::python_error& e) {
      *death = error_of(e, name, number);
      throw **death;
    }
  }
};

nb::object view_of(const std::byte* data, std::size_t bytes) {
  static char nothing;
  char* memory = bytes > 0 ? reinterpret_cast<char*>(const_cast<std::byte*>(data)) : &nothing;
  return nb::steal(PyMemoryView_FromMemory(memory, Py_ssize_t(bytes), PyBUF_WRITE));
}

nb::object list_of(std::span<const std::size_t> sizes) { return nb::cast(Sizes(sizes.begin(), sizes.end())); }

class PythonPending : public Pending {
 public:
  PythonPending(std::shared_ptr<Carrier> carrier, const char* name, std::int64_t number, int rank, nb::object work)
      : carrier_(std::move(carrier)), name_(name), number_(number), rank_(rank), work_(std::move(work)) {}

  ~PythonPending() override {
    nb::gil_scoped_acquire hold;
    work_.reset();
    if (done_) return;
    carrier_->sequence.end();
    if (!*carrier_->death) *carrier_->death = dropped_unwaited(name_, number_, rank_);
  }

  bool poll() override {
    return done_ || (carrier_->ask(name_, number_, [&] { return nb::cast<bool>(work_.attr("poll")()); }) && end());
  }
  void wait() override {
    if (!done_) carrier_->ask(name_, number_, [&] { work_.attr("wait")(); }), end();
  }

 private:
  bool end() {
    carrier_->sequence.end();
    return done_ = true;
  }

  std::shared_ptr<Carrier> carrier_;
  const char* name_;
  std::int64_t number_;
  int rank_;
  nb::object work_;
  bool done_ = false;
};

/// A group of an object of Python, with the names of Group. It gets memoryviews, all of which it could write, and must
/// not keep; what it returns has poll() and wait().
class PythonGroup : public Group {
 public:
  PythonGroup(nb::object object, std::shared_ptr<std::optional<Error>> death)
      : carrier_(std::make_shared<Carrier>(std::move(object), std::move(death))),
        rank_(nb::cast<int>(carrier_->object.attr("rank")())),
        size_(nb::cast<int>(carrier_->object.attr("size")())) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                      std::span<const std::size_t> bytes_of_rank) override {
    return start(all_gather_of(*this, mine, all, bytes_of_rank).name, [&](const nb::object& o) {
      return o.attr("all_gather")(view_of(mine.data(), mine.size()), view_of(all.data(), all.size()),
                                  list_of(bytes_of_rank));
    });
  }
  std::unique_ptr<Pending> all_to_all(std::span<const std::byte> mine, std::span<const std::size_t> to,
                                      std::span<std::byte> got, std::span<const std::size_t> from) override {
    return start(all_to_all_of(*this, mine, to, got, from).name, [&](const nb::object& o) {
      return o.attr("all_to_all")(view_of(mine.data(), mine.size()), list_of(to), view_of(got.data(), got.size()),
                                  list_of(from));
    });
  }
  std::unique_ptr<Pending> broadcast(std::span<std::byte> bytes, int root) override {
    return start(broadcast_of(*this, bytes, root).name,
                 [&](const nb::object& o) { return o.attr("broadcast")(view_of(bytes.data(), bytes.size()), root); });
  }
  std::unique_ptr<Group> split(int colour, int key) override {
    if (colour < 0)
      throw Error(Status::invalid_argument, "split", "colour", "", "is " + std::to_string(colour), "0 or above");
    return carrier_->ask("split", ++splits_, [&] {
      return std::make_unique<PythonGroup>(carrier_->object.attr("split")(colour, key), carrier_->death);
    });
  }
  void abort(Status status, const std::string& sentence) override {
    nb::gil_scoped_acquire hold;
    carrier_->object.attr("abort")(exit_code(status), sentence);
  }

 private:
  template <class F>
  std::unique_ptr<Pending> start(const char* name, F f) {
    if (*carrier_->death) throw **carrier_->death;
    const std::int64_t number = carrier_->sequence.begin(name);
    return carrier_->ask(
        name, number, [&] { return std::make_unique<PythonPending>(carrier_, name, number, rank_, f(carrier_->object)); });
  }

  std::shared_ptr<Carrier> carrier_;
  int rank_, size_;
  std::int64_t splits_ = 0;
};

/// What Python holds; empty after the thread whose rank it is has ended.
struct Ranks {
  std::shared_ptr<Group> group;

  Group& get() const {
    if (!group) throw Error(Status::invalid_argument, "group", "rank", "", "is used after its thread", "before its end");
    return *group;
  }
};

/// The memory of bytes, a bytearray, a contiguous array.
class Buffer {
 public:
  Buffer(nb::handle h, int flags) {
    if (PyObject_GetBuffer(h.ptr(), &view_, flags) != 0) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(view_.buf), std::size_t(view_.len)}; }

 private:
  Py_buffer view_{};
};

/// An exchange asked for from Python, with what it reads and writes.
struct Work {
  std::shared_ptr<Group> group;
  std::vector<std::unique_ptr<Buffer>> buffers{};
  std::unique_ptr<Pending> pending{};

  std::span<std::byte> hold(nb::handle h, int flags) {
    return buffers.emplace_back(std::make_unique<Buffer>(h, flags))->bytes();
  }
  ~Work() {
    nb::gil_scoped_release others;
    pending.reset();
  }
};

template <class F>
std::unique_ptr<Work> start(const Ranks& ranks, F f) {
  auto work = std::make_unique<Work>();
  work->group = (ranks.get(), ranks.group);
  f(*work);
  return work;
}

template <class F>
auto without_gil(F f) {
  nb::gil_scoped_release release;
  return f();
}

void threads_as_ranks_of_python(int ranks, const nb::object& f, double timeout) {
  without_gil([&] {
    threads_as_ranks(
        ranks,
        [&](Group& group) {
          nb::gil_scoped_acquire hold;
          nb::object mine = nb::cast(Ranks{{&group, [](Group*) {}}});
          try {
            f(mine);
          } catch (...) {
            nb::cast<Ranks&>(mine).group.reset();
            throw;
          }
          nb::cast<Ranks&>(mine).group.reset();
        },
        timeout);
  });
}

}  // namespace

std::shared_ptr<Group> group_of(nb::handle object) {
  if (nb::isinstance<Ranks>(object)) return nb::cast<Ranks&>(object).get(), nb::cast<Ranks&>(object).group;
  return std::make_shared<PythonGroup>(nb::borrow(object), std::make_shared<std::optional<Error>>());
}

void bind_dist(nb::module_& m) {
  nb::class_<Work>(m, "Pending", "An exchange on its way; its arrays belong to it until it is done.")
      .def("poll", [](Work& w) { return without_gil([&] { return w.pending->poll(); }); }, "Whether it is done.")
      .def("wait", [](Work& w) { without_gil([&] { w.pending->wait(); }); }, "Until it is done.");

  nb::class_<Ranks>(m, "Group", "Processes that compute together; see dsakit.dist.")
      .def("__init__", [](Ranks* self, nb::handle carrier) { new (self) Ranks{group_of(carrier)}; }, nb::arg("carrier"))
      .def("rank", [](const Ranks& r) { return r.get().rank(); })
      .def("size", [](const Ranks& r) { return r.get().size(); })
      .def("all_gather",
           [](const Ranks& r, nb::handle mine, nb::handle all, const Sizes& bytes_of_rank) {
             return start(r, [&](Work& w) {
               const auto sent = w.hold(mine, PyBUF_SIMPLE), got = w.hold(all, PyBUF_WRITABLE);
               without_gil([&] { w.pending = r.get().all_gather(sent, got, bytes_of_rank); });
             });
           },
           nb::arg("mine"), nb::arg("all"), nb::arg("bytes_of_rank"),
           "all: the bytes of rank 0, 1, .. one after the other, bytes_of_rank[r] of each.")
      .def("all_to_all",
           [](const Ranks& r, nb::handle mine, const Sizes& to, nb::handle got, const Sizes& from) {
             return start(r, [&](Work& w) {
               const auto sent = w.hold(mine, PyBUF_SIMPLE), taken = w.hold(got, PyBUF_WRITABLE);
               without_gil([&] { w.pending = r.get().all_to_all(sent, to, taken, from); });
             });
           },
           nb::arg("mine"), nb::arg("to"), nb::arg("got"), nb::arg("from_"),
           "mine: to[r] bytes for each rank in order; got: from_[r] bytes of each.")
      .def("broadcast",
           [](const Ranks& r, nb::handle bytes, int root) {
             return start(r, [&](Work& w) {
               const auto all = w.hold(bytes, PyBUF_WRITABLE);
               without_gil([&] { w.pending = r.get().broadcast(all, root); });
             });
           },
           nb::arg("bytes"), nb::arg("root"), "The bytes of rank `root` to all.")
      .def("split",
           [](const Ranks& r, int colour, int key) {
             return Ranks{without_gil([&] { return std::shared_ptr<Group>(r.get().split(colour, key)); })};
           },
           nb::arg("colour"), nb::arg("key"),
           "The group of those who name the same colour, in the order of key and then rank.")
      .def("barrier", [](const Ranks& r) { without_gil([&] { barrier(r.get()); }); }, "All ranks have come.")
      .def("all_reduce",
           [](const Ranks& r, nb::handle values, bool largest) {
             const Buffer floats(values, PyBUF_WRITABLE);
             const std::span<std::byte> bytes = floats.bytes();
             if (bytes.size() % sizeof(float) != 0)
               throw Error(Status::invalid_argument, "all_reduce", "values", "",
                           "have " + std::to_string(bytes.size()) + " bytes", "float32");
             without_gil([&] {
               all_reduce(r.get(), {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)},
                          largest ? Reduction::max : Reduction::sum);
             });
           },
           nb::arg("values"), nb::arg("largest") = false,
           "float32 values, added in the order of the ranks, or the largest.");
  m.def("threads_as_ranks", threads_as_ranks_of_python, nb::arg("ranks"), nb::arg("f"), nb::arg("timeout"));
}

}  // namespace dsakit::python
