// SPDX-License-Identifier: Apache-2.0
#include "arrays.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>

#include "core/check.hpp"
#include "core/text.hpp"
#include "dlpack.hpp"
#include "dsakit/packed_weight.hpp"

namespace dsakit::python {
namespace {

// What `array.__array_struct__` points to: https://numpy.org/doc/stable/reference/arrays.interface.html
struct ArrayInterface {
  int two;
  int nd;
  char typekind;
  int itemsize;
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;  // bytes
  void* data;
  PyObject* descr;
};
constexpr int kNotSwapped = 0x200, kWriteable = 0x400;

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

constexpr std::pair<const char*, DType> kNames[] = {
    {"bool", DType::boolean},
    {"uint8", DType::u8},
    {"int8", DType::i8},
    {"uint16", DType::u16},
    {"int16", DType::i16},
    {"uint32", DType::u32},
    {"int32", DType::i32},
    {"uint64", DType::u64},
    {"int64", DType::i64},
    {"float16", DType::f16},
    {"bfloat16", DType::bf16},
    {"float32", DType::f32},
    {"float64", DType::f64},
    {"float8_e4m3fn", DType::f8_e4m3},
    {"float8_e5m2", DType::f8_e5m2},
};

/// numpy, seen once and kept for the life of the process, as its own static objects are.
struct Numpy {
  nb::object module = nb::module_::import_("numpy");
  nb::object types = nb::module_::import_("ml_dtypes");
  PyTypeObject* array = reinterpret_cast<PyTypeObject*>(nb::object(module.attr("ndarray")).release().ptr());
  nb::object empty = module.attr("empty");
  PyObject* array_struct = interned("__array_struct__");
  PyObject* dtype = interned("dtype");
  PyObject* base = interned("base");
  std::array<nb::object, 16> dtypes;

  Numpy() {
    for (const auto& [name, type] : kNames) {
      const bool own = type == DType::bf16 || type == DType::f8_e4m3 || type == DType::f8_e5m2;
      dtypes[std::size_t(type)] = module.attr("dtype")(own ? nb::object(types.attr(name)) : nb::str(name));
    }
  }
};
Numpy& np() {
  static Numpy* numpy = new Numpy;
  return *numpy;
}

/// torch, if this process has it: never imported here.
struct Torch {
  PyTypeObject *tensor, *parameter;
  nb::object empty, strided, dispatch;
  nb::object nothing = nb::steal(PyTuple_New(0));
  nb::object modes[2];                        // how many of torch's dispatch and function modes are on
  int (*borrow)(void*, DLTensor*) = nullptr;  // a tensor as DLPack has it, in one call
  std::array<nb::object, 16> dtypes;
  PyObject *size = interned("size"), *data_ptr = interned("data_ptr"), *shape = interned("shape"),
           *stride = interned("stride"), *dtype = interned("dtype"), *is_cpu = interned("is_cpu"),
           *layout = interned("layout"), *is_neg = interned("is_neg");

  explicit Torch(nb::handle module)
      : tensor(reinterpret_cast<PyTypeObject*>(nb::object(module.attr("Tensor")).release().ptr())),
        parameter(reinterpret_cast<PyTypeObject*>(nb::object(module.attr("nn").attr("Parameter")).release().ptr())),
        empty(module.attr("empty")),
        strided(module.attr("strided")),
        dispatch(module.attr("Tensor").attr("__torch_dispatch__")),
        modes{module.attr("_C").attr("_len_torch_dispatch_stack"),
              module.attr("_C").attr("_len_torch_function_stack")} {
    const nb::object api = nb::getattr(module.attr("Tensor"), "__dlpack_c_exchange_api__", nb::none());
    if (PyCapsule_IsValid(api.ptr(), "dlpack_exchange_api")) {
      const auto* table = static_cast<DLPackExchangeApi*>(PyCapsule_GetPointer(api.ptr(), "dlpack_exchange_api"));
      if (table->major == 1) borrow = table->dltensor_from_py_object;
    }
    for (const auto& [name, type] : kNames)
      if (nb::hasattr(module, name)) dtypes[std::size_t(type)] = module.attr(name);
  }
};
Torch* torch_module() {
  static Torch* torch = nullptr;
  if (torch) return torch;
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (module && nb::hasattr(module, "__version__") && nb::hasattr(module, "nn")) torch = new Torch(module);
  return torch;
}

/// A tensor whose calls torch sends elsewhere: fake, functional, and other subclasses with a dispatch of their own.
bool dispatches_itself(const Torch& torch, PyObject* tensor) {
  PyTypeObject* type = Py_TYPE(tensor);
  if (type == torch.tensor || type == torch.parameter) return false;
  const nb::object own = nb::getattr(reinterpret_cast<PyObject*>(type), "__torch_dispatch__", nb::none());
  return !own.is_none() && !own.equal(torch.dispatch);
}

nb::object get(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object, name);
  if (!value) throw nb::python_error();
  return nb::steal(value);
}

/// Lowest and one past the highest byte, relative to data; strides may be negative. Far out where 64 bits do not do.
std::pair<std::int64_t, std::int64_t> reach(const Tensor& t) {
  constexpr __int128 kFar = __int128(1) << 58;
  std::int64_t low = 0, high = size_of(t.dtype);
  for (int a = 0; a < t.rank; ++a) {
    const __int128 way = __int128(t.shape[a] - 1) * t.stride[a];
    const auto bytes = std::int64_t(std::clamp(way, -kFar, kFar) * size_of(t.dtype));
    (bytes < 0 ? low : high) += std::clamp(bytes, -std::int64_t(kFar), std::int64_t(kFar));
  }
  return {low, high};
}

bool has_negative_stride(const Tensor& t) {
  return std::any_of(t.stride.begin(), t.stride.begin() + t.rank, [](std::int64_t s) { return s < 0; });
}

/// f(pointer) for every element in row-major order.
template <class F>
void for_each_element(const Tensor& t, F&& f) {
  std::array<std::int64_t, 8> at{};
  const std::int64_t count = t.elements();
  const std::byte* p = static_cast<const std::byte*>(t.data);
  for (std::int64_t i = 0; i < count; ++i) {
    f(p);
    for (int a = t.rank - 1; a >= 0; --a) {
      p += t.stride[a] * size_of(t.dtype);
      if (++at[a] < t.shape[a]) break;
      p -= t.shape[a] * t.stride[a] * size_of(t.dtype);
      at[a] = 0;
    }
  }
}

std::int64_t integer_at(const std::byte* p, DType type) {
  auto load = [p](auto v) -> std::int64_t {
    std::memcpy(&v, p, sizeof v);
    if constexpr (sizeof v == 8) return v > decltype(v)(INT64_MAX) ? INT64_MAX : std::int64_t(v);
    return std::int64_t(v);
  };
  switch (type) {
    case DType::u8:
      return load(std::uint8_t{});
    case DType::i8:
      return load(std::int8_t{});
    case DType::u16:
      return load(std::uint16_t{});
    case DType::i16:
      return load(std::int16_t{});
    case DType::u32:
      return load(std::uint32_t{});
    case DType::u64:
      return load(std::uint64_t{});
    default:
      return load(std::int64_t{});
  }
}

}  // namespace

std::string type_of(PyObject* object) {
  if (object == Py_None) return "None";
  const nb::handle type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  std::string name = nb::cast<std::string>(type.attr("__qualname__"));
  const std::string module = nb::cast<std::string>(nb::str(type.attr("__module__")));
  if (module != "builtins") name = module + "." + name;
  return std::string(std::strchr("aeiou", name[0]) ? "an " : "a ").append(name, 0, 120);
}

std::string dtype_name(PyObject* object) {
  if (object == Py_None) return "";
  if (PyUnicode_Check(object)) return nb::cast<std::string>(nb::handle(object));
  std::string name = nb::cast<std::string>(nb::str(nb::handle(object)));
  if (name.starts_with("torch.")) return name.substr(6);
  PyObject* dtype = PyObject_CallMethod(np().module.ptr(), "dtype", "O", object);
  if (!dtype) {
    PyErr_Clear();
    return name;
  }
  return nb::cast<std::string>(nb::steal(dtype).attr("name"));
}

nb::tuple shape_of(const Tensor& t) {
  nb::list shape;
  for (int a = 0; a < t.rank; ++a) shape.append(t.shape[a]);
  return nb::tuple(shape);
}

nb::handle numpy_dtype(DType t) { return np().dtypes[std::size_t(t)]; }

nb::object numpy_empty(const std::vector<std::int64_t>& shape, nb::handle dtype) {
  return np().empty(nb::tuple(nb::cast(shape)), dtype);
}

namespace {
/// f(tensor) for the tensors of torch among the values and in their lists, until one says yes.
template <class F>
bool any_tensor(const Torch& torch, PyObject* values, F&& f) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(values); ++i) {
    PyObject* value = PySequence_Fast_GET_ITEM(values, i);
    if (PyObject_TypeCheck(value, torch.tensor)
            ? f(value)
            : (PyList_Check(value) || PyTuple_Check(value)) && any_tensor(torch, value, f))
      return true;
  }
  return false;
}
}  // namespace

bool is_traced(PyObject* values) {
  const Torch* torch = torch_module();
  if (!torch) return false;
  bool any = false;
  const bool own = any_tensor(*torch, values, [&](PyObject* tensor) {
    any = true;
    return dispatches_itself(*torch, tensor);
  });
  return own || (any && std::any_of(std::begin(torch->modes), std::end(torch->modes),
                                    [](const nb::object& count) { return !count().equal(nb::int_(0)); }));
}

bool has_meta(PyObject* values) {
  const Torch* torch = torch_module();
  return torch && any_tensor(*torch, values,
                             [](PyObject* tensor) { return nb::cast<bool>(nb::handle(tensor).attr("is_meta")); });
}

Arrays::~Arrays() {
  for (auto& [managed, release] : exports_) release(managed);
}

void Arrays::refuse(Status status, const char* parameter, std::string got, std::string wanted,
                    std::string position) const {
  throw Error(status, op_, parameter, std::move(position), std::move(got), std::move(wanted));
}

std::byte* Arrays::memory(std::size_t bytes) {
  memory_.push_back(std::make_unique<std::byte[]>(std::max<std::size_t>(bytes, 1)));
  return memory_.back().get();
}

Tensor Arrays::read(PyObject* object, const char* parameter, bool written, Kind kind) {
  if (object == Py_None) return {};
  if (shapes_only_) {
    return shape_only(object, parameter);
  }
  if (kind == Kind::lengths) return integers(object, parameter, Status::invalid_seqlen);
  const Tensor t = any(object, parameter, kind == Kind::weight);
  return written ? t : forwards(t);
}

TensorList Arrays::list(PyObject* object, const char* parameter) {
  if (!PyList_Check(object) && !PyTuple_Check(object))
    refuse(Status::invalid_dtype, parameter, "is " + type_of(object), "a list of tensors");
  const nb::object items = nb::steal(PySequence_Tuple(object));  // nobody takes one out meanwhile
  objects_.push_back(items);
  const Py_ssize_t count = PyTuple_GET_SIZE(items.ptr());
  lists_.push_back(std::make_unique<Tensor[]>(std::size_t(count)));
  for (Py_ssize_t i = 0; i < count; ++i) try {
      lists_.back()[std::size_t(i)] = read(PyTuple_GET_ITEM(items.ptr(), i), parameter, false);
    } catch (const Error& e) {
      refuse(e.status, parameter, e.got, e.wanted, "[" + std::to_string(i) + "]" + e.position);
    }
  return {lists_.back().get(), std::size_t(count)};
}

Tensor Arrays::any(PyObject* object, const char* parameter, bool weight) {
  static const nb::object fractal_type = nb::module_::import_("dsakit.weights").attr("FractalNZ");
  Torch* const maybe_torch = torch_module();
  Source source = Source::other;
  Tensor t;
  const bool tensor = maybe_torch && PyObject_TypeCheck(object, maybe_torch->tensor);
  if (PyObject_TypeCheck(object, np().array)) {
    source = Source::numpy;
    t = numpy(object, parameter);
  } else if (weight && (!tensor || strict_) && nb::isinstance(object, fractal_type)) {
    t = fractal_nz(object, parameter);  // a tensor is row-major inside: strict wants it as it says it is
  } else if (tensor) {
    source = Source::torch;
    t = torch(object, parameter);
  } else if (weight && nb::isinstance<PackedWeight>(object)) {
    t = nb::cast<const PackedWeight&>(nb::handle(object)).tensor();
  } else if (PyCapsule_CheckExact(object) || PyObject_HasAttrString(object, "__dlpack__")) {
    t = dlpack(object, parameter);
  } else {
    refuse(Status::invalid_dtype, parameter, "is " + type_of(object), "an array");
  }
  if (first_ == Source::none) first_ = source;
  if (t.format != Format::ND) return t;
  Check(op_, Level::portable).sizes(t, parameter);
  const std::int64_t count = t.elements();
  if (count != 0 && !t.data) refuse(Status::invalid_argument, parameter, "has no memory", "memory for its elements");
  std::int64_t inner = 1;  // the stride of an axis of length 1 says nothing, and comes as it likes
  for (int a = t.rank - 1; a >= 0; --a) {
    if (t.shape[a] == 1) t.stride[a] = inner;
    std::int64_t reach = 0;
    if (count != 0 && (__builtin_mul_overflow(t.shape[a], t.stride[a], &inner) ||
                       __builtin_mul_overflow(inner, std::int64_t(16), &reach)))
      refuse(Status::invalid_stride, parameter,
             "has stride " + std::to_string(t.stride[a]) + " on axis " + std::to_string(a), "offsets below 2^59");
  }
  return t;
}

Tensor Arrays::shape_only(PyObject* described, const char* parameter) {
  const nb::tuple given = nb::borrow<nb::tuple>(described);
  const nb::tuple shape = nb::cast<nb::tuple>(given[0]), stride = nb::cast<nb::tuple>(given[1]);
  const std::string dtype = nb::cast<std::string>(given[2]);
  Tensor t{.dtype = DType::other, .rank = int(nb::len(shape))};
  for (const auto& [name, type] : kNames)
    if (dtype == name) t.dtype = type;
  if (t.dtype == DType::other) refuse(Status::invalid_dtype, parameter, "has dtype " + dtype, "a plain number");
  if (t.rank > 8) refuse(Status::invalid_shape, parameter, "has rank " + std::to_string(t.rank), "at most 8");
  for (int a = 0; a < t.rank; ++a) {
    t.shape[a] = nb::cast<std::int64_t>(shape[a]);
    t.stride[a] = nb::cast<std::int64_t>(stride[a]);
  }
  // `infer` looks at lengths and indices as a call would, and compares the bytes of some tensors. What it may read are
  // zeros that take no memory, or integers that are harmless in their place.
  constexpr std::size_t kApart = std::size_t(1) << 37, kAll = std::size_t(1) << 44;
  static void* const zeros = mmap(nullptr, kAll, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  place_ += kApart;
  if (zeros == MAP_FAILED || place_ > kAll - kApart)
    refuse(Status::out_of_memory, parameter, "has no address", "room for the shapes of a call");
  t.data = static_cast<std::byte*>(zeros) + place_;
  if (given[3].is_none()) return t;
  const auto fill = nb::cast<std::int64_t>(given[3]);
  const std::size_t size = std::size_t(size_of(t.dtype));
  const auto count = std::size_t(reach(t).second) / size;
  std::byte* values = memory(count * size);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(values + i * size, &fill, size);  // little-endian
  t.data = values;
  return t;
}

Tensor Arrays::numpy(PyObject* array, const char* parameter) {
  const nb::object capsule = get(array, np().array_struct);
  const auto* in = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (!in) throw nb::python_error();
  Tensor t{.data = in->data, .dtype = DType::other, .read_only = !(in->flags & kWriteable), .rank = in->nd};
  const int size = in->itemsize;
  switch (in->flags & kNotSwapped ? in->typekind : '>') {
    case 'b':
      t.dtype = DType::boolean;
      break;
    case 'i':
      t.dtype = size == 1 ? DType::i8 : size == 2 ? DType::i16 : size == 4 ? DType::i32 : DType::i64;
      break;
    case 'u':
      t.dtype = size == 1 ? DType::u8 : size == 2 ? DType::u16 : size == 4 ? DType::u32 : DType::u64;
      break;
    case 'f':
      t.dtype = size == 2 ? DType::f16 : size == 4 ? DType::f32 : size == 8 ? DType::f64 : DType::other;
      [[fallthrough]];
    default:
      if (t.dtype == DType::other) {
        const nb::object dtype = get(array, np().dtype);
        for (DType own : {DType::bf16, DType::f8_e4m3, DType::f8_e5m2})
          if (dtype.equal(np().dtypes[std::size_t(own)])) t.dtype = own;
        if (t.dtype == DType::other)
          refuse(Status::invalid_dtype, parameter, "has dtype " + printable(nb::cast<std::string>(nb::str(dtype))),
                 "a number in native byte order");
      }
  }
  if (t.rank > 8) refuse(Status::invalid_shape, parameter, "has rank " + std::to_string(t.rank), "at most 8");
  for (int a = 0; a < t.rank; ++a) {
    t.shape[a] = in->shape[a];
    if (in->strides[a] % size != 0 && t.shape[a] > 1)
      refuse(Status::invalid_stride, parameter, "has a stride of " + std::to_string(in->strides[a]) + " bytes",
             "multiples of " + std::to_string(size));
    t.stride[a] = in->strides[a] / size;
  }
  if (t.elements() != 0) stay_inside(array, t, parameter);
  return t;
}

void Arrays::stay_inside(PyObject* array, const Tensor& t, const char* parameter) const {
  nb::object owner = get(array, np().base);
  if (owner.is_none()) return;
  const auto data = reinterpret_cast<std::intptr_t>(t.data);  // signed: `low` may lead beneath zero
  const auto [low, high] = reach(t);
  auto within = [&](const void* begin, std::size_t bytes) {
    const auto first = reinterpret_cast<std::intptr_t>(begin);
    if (data + low >= first && data + high <= first + std::intptr_t(bytes)) return;
    refuse(Status::invalid_stride, parameter,
           "reaches outside the buffer of " + std::to_string(bytes) + " bytes it views", "memory of its own");
  };
  for (;;) {
    nb::object next = nb::getattr(owner, "base", nb::none());
    if (next.is_none()) break;
    owner = std::move(next);
  }
  if (PyObject_TypeCheck(owner.ptr(), np().array)) {
    const nb::object capsule = get(owner.ptr(), np().array_struct);
    const auto* in = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
    if (!in) throw nb::python_error();
    std::size_t bytes = std::size_t(in->itemsize);
    for (int a = 0; a < in->nd; ++a) bytes *= std::size_t(in->shape[a]);
    within(in->data, bytes);
  } else if (Py_buffer buffer; PyObject_CheckBuffer(owner.ptr())) {
    if (PyObject_GetBuffer(owner.ptr(), &buffer, PyBUF_SIMPLE) != 0) return PyErr_Clear();
    const void* begin = buffer.buf;
    const std::size_t bytes = std::size_t(buffer.len);
    PyBuffer_Release(&buffer);
    within(begin, bytes);
  }
}

Tensor Arrays::torch(PyObject* tensor, const char* parameter) {
  Torch& torch = *torch_module();
  static const bool registered = [] {  // the operators stand in torch.ops from the first tensor on
    nb::module_::import_("dsakit.graph").attr("register")();
    return true;
  }();
  (void)registered;
  if (torch.borrow && !dispatches_itself(torch, tensor)) {
    DLTensor in;
    if (torch.borrow(tensor, &in) != 0) {
      PyErr_Clear();  // what is wrong with it is said below
    } else if (const DType type = in.lanes == 1 ? dtype_of_dlpack(in.code, in.bits) : DType::other;
               in.device_type == kDLPackCpu && type != DType::other && in.ndim <= 8 &&
               (type < DType::f16 || type == DType::bf16 ||  // a negated view is part of a complex tensor
                nb::steal(PyObject_CallMethodNoArgs(tensor, torch.is_neg)).ptr() == Py_False)) {
      Tensor t{.data = in.data ? static_cast<std::byte*>(in.data) + in.byte_offset : nullptr,
               .dtype = type,
               .rank = in.ndim};
      std::copy_n(in.shape, t.rank, t.shape.begin());
      if (in.strides) std::copy_n(in.strides, t.rank, t.stride.begin());
      else make_contiguous(t);
      return t;
    }
  }
  if (get(tensor, torch.is_cpu).ptr() != Py_True)
    refuse(Status::invalid_device, parameter,
           "is on " + nb::cast<std::string>(nb::str(nb::object(nb::handle(tensor).attr("device")))), "cpu");
  if (!get(tensor, torch.layout).is(torch.strided))
    refuse(Status::invalid_stride, parameter, "has layout " + nb::cast<std::string>(nb::str(get(tensor, torch.layout))),
           "a strided tensor");
  if (nb::steal(PyObject_CallMethodNoArgs(tensor, torch.is_neg)).ptr() == Py_True)
    refuse(Status::invalid_stride, parameter, "is a negated view", "plain memory");
  Tensor t{.dtype = DType::other};
  const nb::object dtype = get(tensor, torch.dtype);
  for (std::size_t i = 0; i < torch.dtypes.size(); ++i)
    if (torch.dtypes[i].is_valid() && dtype.is(torch.dtypes[i])) t.dtype = DType(i);
  if (t.dtype == DType::other)
    refuse(Status::invalid_dtype, parameter, "has dtype " + nb::cast<std::string>(nb::str(dtype)), "a plain number");
  const nb::object address = nb::steal(PyObject_CallMethodNoArgs(tensor, torch.data_ptr));
  if (!address.is_valid()) {
    PyErr_Clear();
    refuse(Status::invalid_device, parameter, "has no memory", "a tensor with storage");
  }
  t.data = PyLong_AsVoidPtr(address.ptr());
  const nb::object shape = get(tensor, torch.shape),
                   stride = nb::steal(PyObject_CallMethodNoArgs(tensor, torch.stride));
  const Py_ssize_t rank = PyTuple_Size(shape.ptr());
  if (rank > 8) refuse(Status::invalid_shape, parameter, "has rank " + std::to_string(rank), "at most 8");
  t.rank = int(rank);
  for (int a = 0; a < t.rank; ++a) {
    t.shape[a] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), a));
    t.stride[a] = PyLong_AsLongLong(PyTuple_GET_ITEM(stride.ptr(), a));
  }
  return t;
}

Tensor Arrays::dlpack(PyObject* object, const char* parameter) {
  nb::object capsule = nb::borrow(object);
  if (!PyCapsule_CheckExact(object)) {
    if (nb::hasattr(object, "__dlpack_device__")) {
      const nb::object device = nb::handle(object).attr("__dlpack_device__")();
      if (const int kind = nb::cast<int>(nb::int_(device[0])); kind != kDLPackCpu)
        refuse(Status::invalid_device, parameter, "is on DLPack device " + std::to_string(kind), "1 (cpu)");
    }
    const nb::object method = nb::handle(object).attr("__dlpack__");
    try {
      capsule = method(nb::arg("max_version") = nb::make_tuple(1, 0));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = method();
    }
  }
  const bool versioned = PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned");
  if (!versioned && !PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    const char* name = PyCapsule_CheckExact(capsule.ptr()) ? PyCapsule_GetName(capsule.ptr()) : nullptr;
    if (name && std::string_view(name).starts_with("used_dltensor"))
      refuse(Status::invalid_argument, parameter, "is a DLPack capsule that was used before", "a fresh one");
    refuse(Status::invalid_dtype, parameter, "is " + type_of(capsule.ptr()), "an array or a DLPack capsule");
  }
  void* pointer = PyCapsule_GetPointer(capsule.ptr(), versioned ? "dltensor_versioned" : "dltensor");
  const DLTensor& in = versioned ? static_cast<DLManagedTensorVersioned*>(pointer)->dl_tensor
                                 : static_cast<DLManagedTensor*>(pointer)->dl_tensor;
  bool read_only = false;
  if (versioned) {
    const auto* managed = static_cast<DLManagedTensorVersioned*>(pointer);
    if (managed->major != 1)
      refuse(Status::invalid_dtype, parameter, "is DLPack version " + std::to_string(managed->major), "1");
    read_only = managed->flags & 1;
  }
  if (in.device_type != kDLPackCpu)
    refuse(Status::invalid_device, parameter, "is on DLPack device " + std::to_string(in.device_type), "1 (cpu)");
  const DType type = in.lanes == 1 ? dtype_of_dlpack(in.code, in.bits) : DType::other;
  if (type == DType::other)
    refuse(Status::invalid_dtype, parameter,
           "has DLPack code " + std::to_string(in.code) + ", " + std::to_string(in.bits) + " bits, " +
               std::to_string(in.lanes) + " lanes",
           "a plain number");
  if (in.ndim < 0 || in.ndim > 8)
    refuse(Status::invalid_shape, parameter, "has rank " + std::to_string(in.ndim), "at most 8");
  Tensor t{.data = static_cast<std::byte*>(in.data) + in.byte_offset,
           .dtype = type,
           .read_only = read_only,
           .rank = in.ndim};
  if (!in.data) t.data = nullptr;
  std::copy_n(in.shape, t.rank, t.shape.begin());
  if (in.strides) std::copy_n(in.strides, t.rank, t.stride.begin());
  else make_contiguous(t);
  // From here on it is ours to release: a capsule serves once.
  PyCapsule_SetName(capsule.ptr(), versioned ? "used_dltensor_versioned" : "used_dltensor");
  if (versioned)
    exports_.emplace_back(pointer, [](void* p) {
      auto* managed = static_cast<DLManagedTensorVersioned*>(p);
      if (managed->deleter) managed->deleter(managed);
    });
  else
    exports_.emplace_back(pointer, [](void* p) {
      auto* managed = static_cast<DLManagedTensor*>(p);
      if (managed->deleter) managed->deleter(managed);
    });
  return t;
}

Tensor Arrays::fractal_nz(PyObject* weight, const char* parameter) {
  const nb::handle tagged = weight;
  objects_.push_back(tagged.attr("storage"));
  const Tensor storage = read(objects_.back().ptr(), parameter, false);
  const nb::object shape = tagged.attr("logical_shape");
  Tensor t{.data = storage.data,
           .dtype = storage.dtype,
           .format = Format::NZ,
           .read_only = storage.read_only,
           .rank = int(nb::len(shape))};
  for (int a = 0; a < t.rank; ++a) t.shape[a] = nb::cast<std::int64_t>(shape[a]);
  make_contiguous(t);
  return t;
}

Tensor Arrays::integers(PyObject* object, const char* parameter, Status beyond) {
  auto narrow = [&](std::int64_t value, std::int64_t i, bool fits) {
    if (!fits || value < INT32_MIN || value > INT32_MAX)
      refuse(beyond, parameter, fits ? "is " + std::to_string(value) : "is beyond 64 bits", "an int32",
             "[" + std::to_string(i) + "]");
    return std::int32_t(value);
  };
  if (PyList_Check(object) || PyTuple_Check(object) || PyBytes_Check(object)) {
    const nb::object items = nb::steal(PySequence_Tuple(object));
    const Py_ssize_t count = PyTuple_GET_SIZE(items.ptr());
    auto* values = reinterpret_cast<std::int32_t*>(memory(std::size_t(count) * 4));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = PyTuple_GET_ITEM(items.ptr(), i);
      const nb::object number = PyBool_Check(item) ? nb::object() : nb::steal(PyNumber_Index(item));
      if (!number.is_valid()) {
        PyErr_Clear();
        refuse(Status::invalid_dtype, parameter, "is " + type_of(item), "an integer", "[" + std::to_string(i) + "]");
      }
      int overflow = 0;
      const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
      values[i] = narrow(value, i, overflow == 0);
    }
    Tensor t = shaped(DType::i32, {count});
    t.data = values;
    return t;
  }
  const Tensor t = any(object, parameter);
  const bool other_integers = t.dtype >= DType::u8 && t.dtype <= DType::i64 && t.dtype != DType::i32;
  if (!other_integers) return forwards(t);  // an int32 as it is; anything else for the operator to refuse
  if (!has_negative_stride(t)) Check(op_, Level::portable).readable(t, parameter);
  auto* values = reinterpret_cast<std::int32_t*>(memory(std::size_t(t.elements()) * 4));
  std::int64_t i = 0;
  for_each_element(t, [&](const std::byte* p) {
    values[i] = narrow(integer_at(p, t.dtype), i, true);
    ++i;
  });
  Tensor narrowed = t;
  narrowed.data = values;
  narrowed.dtype = DType::i32;
  make_contiguous(narrowed);
  return narrowed;
}

Tensor Arrays::forwards(const Tensor& t) {
  if (!has_negative_stride(t)) return t;
  const std::size_t size = std::size_t(size_of(t.dtype));
  Tensor copy = t;
  std::byte* to = memory(std::size_t(t.elements()) * size);
  copy.data = to;
  make_contiguous(copy);
  for_each_element(t, [&](const std::byte* p) {
    std::memcpy(to, p, size);
    to += size;
  });
  return copy;
}

void copy_elements(const Tensor& from, const Tensor& to) {
  // Row by row: as many inner axes as are contiguous on both sides form a row.
  const std::size_t size = std::size_t(size_of(from.dtype));
  std::int64_t row = 1;
  Tensor source = from, target = to;
  while (source.rank > 0 && source.stride[source.rank - 1] == row && target.stride[source.rank - 1] == row)
    row *= source.shape[--source.rank];
  target.rank = source.rank;
  if (row == 0) return;
  const auto* base = static_cast<const std::byte*>(from.data);
  std::vector<std::ptrdiff_t> places;
  for_each_element(source, [&](const std::byte* p) { places.push_back(p - base); });
  std::size_t i = 0;
  for_each_element(target, [&](const std::byte* p) {
    std::memcpy(const_cast<std::byte*>(p), base + places[i++], std::size_t(row) * size);
  });
}

nb::object Arrays::allocate(const Tensor& t, const char* parameter) const {
  const nb::object shape = nb::steal(PyTuple_New(t.rank));
  for (int a = 0; a < t.rank; ++a) PyTuple_SET_ITEM(shape.ptr(), a, PyLong_FromLongLong(t.shape[a]));
  try {
    if (first_ != Source::torch) return np().empty(shape, np().dtypes[std::size_t(t.dtype)]);
    // By name: torch first takes what comes by position for the sizes themselves, and makes an error of a tuple.
    Torch& torch = *torch_module();
    const nb::object named = nb::steal(PyDict_New());
    const bool complete = PyDict_SetItem(named.ptr(), torch.size, shape.ptr()) == 0 &&
                          PyDict_SetItem(named.ptr(), torch.dtype, torch.dtypes[std::size_t(t.dtype)].ptr()) == 0;
    PyObject* made = complete ? PyObject_Call(torch.empty.ptr(), torch.nothing.ptr(), named.ptr()) : nullptr;
    if (!made) throw nb::python_error();
    return nb::steal(made);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    refuse(Status::out_of_memory, parameter, "has " + std::to_string(t.elements()) + " elements",
           "memory the system can give");
  }
}

}  // namespace dsakit::python
