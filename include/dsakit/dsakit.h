/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface: every operator by its documented name, with its documented parameters. docs/c.md has a program.
 *
 * A call returns a status; dsakit_last_error() says what was wrong, in one sentence. A call that is refused has written
 * nothing. Nothing here throws, prints or aborts. What this file declares stays as it is: later versions append.
 */
#ifndef DSAKIT_DSAKIT_H
#define DSAKIT_DSAKIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define DSAKIT_NOEXCEPT noexcept
extern "C" {
#else
#define DSAKIT_NOEXCEPT
#endif
#define DSAKIT_API __attribute__((visibility("default")))

/* ---- what went wrong ---- */

typedef enum dsakit_status {
  DSAKIT_OK = 0,
  DSAKIT_INVALID_ARGUMENT = 1, /* missing, unused and given, unknown, out of range, or not a documented combination */
  DSAKIT_INVALID_SHAPE = 2,
  DSAKIT_INVALID_DTYPE = 3,
  DSAKIT_INVALID_STRIDE = 4,
  DSAKIT_MISALIGNED = 5,
  DSAKIT_INVALID_DEVICE = 6, /* wrong device, or read-only where written */
  DSAKIT_ALIASED = 7,        /* overlapping memory that must not overlap */
  DSAKIT_INVALID_SEQLEN = 8,
  DSAKIT_INVALID_BLOCK = 9,  /* block_table */
  DSAKIT_INVALID_SLOT = 10,  /* cache_index */
  DSAKIT_INVALID_INDEX = 11, /* sparse_indices */
  DSAKIT_INVALID_VALUE = 12, /* found by value checking */
  DSAKIT_UNSUPPORTED = 13,   /* documented but not offered, or (strict) beyond the chip */
  DSAKIT_OUT_OF_MEMORY = 14,
  DSAKIT_IO_ERROR = 15,
  DSAKIT_INVALID_PATH = 16,
  DSAKIT_INVALID_FILE = 17,
  DSAKIT_INVALID_CONFIG = 18,
  DSAKIT_MISSING_TENSOR = 19,
  DSAKIT_CONFLICT = 20,
  DSAKIT_PEER_FAILED = 21,
  DSAKIT_INTERRUPTED = 22, /* the one after which outputs are unspecified */
  DSAKIT_INTERNAL = 23
} dsakit_status;

/* "INVALID_SHAPE" and so on. */
DSAKIT_API const char* dsakit_status_name(dsakit_status status) DSAKIT_NOEXCEPT;

typedef struct dsakit_error {
  dsakit_status status;
  const char* message; /* <operator>: <parameter><position> <got>, wanted <wanted>[ (<why>)] */
  const char* operator_name;
  const char* parameter;
  const char* position; /* "[3][17]", or "" */
  const char* got;
  const char* wanted;
} dsakit_error;

/* The last refusal that this thread has met, whatever succeeded since; never null. Its texts live until the thread
 * meets the next one, or ends. */
DSAKIT_API const dsakit_error* dsakit_last_error(void) DSAKIT_NOEXCEPT;

/* "0.1.0" */
DSAKIT_API const char* dsakit_version(void) DSAKIT_NOEXCEPT;

/* ---- tensors ---- */

/* A tensor as DLPack describes it: with dlpack.h included before, its own types; otherwise structures of the same
 * layout, to which a pointer to a DLTensor may be cast. The memory is the caller's. */
#ifdef DLPACK_DLPACK_H_
typedef DLDataType dsakit_dtype;
typedef DLTensor dsakit_tensor;
#else
typedef struct dsakit_dtype {
  uint8_t code; /* dsakit_dtype_code */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} dsakit_dtype;

typedef struct dsakit_device {
  int32_t device_type; /* 1: memory of the CPU; all else is refused */
  int32_t device_id;
} dsakit_device;

typedef struct dsakit_tensor {
  void* data;
  dsakit_device device;
  int32_t ndim; /* at most 8 */
  dsakit_dtype dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; null: row-major */
  uint64_t byte_offset;
} dsakit_tensor;
#endif

/* The codes of DLPack. int8 is 8 bits of DSAKIT_INT, bfloat16 16 bits of DSAKIT_BFLOAT. */
typedef enum dsakit_dtype_code {
  DSAKIT_INT = 0,
  DSAKIT_UINT = 1,
  DSAKIT_FLOAT = 2,
  DSAKIT_BFLOAT = 4,
  DSAKIT_BOOL = 6,
  DSAKIT_FLOAT8_E4M3 = 10,
  DSAKIT_FLOAT8_E5M2 = 12
} dsakit_dtype_code;

/* A row-major tensor; `shape` is looked at during calls, not copied. */
static inline dsakit_tensor dsakit_cpu_tensor(void* data, dsakit_dtype_code code, int bits, int ndim, int64_t* shape) {
  dsakit_tensor t;
  t.data = data;
#ifdef DLPACK_DLPACK_H_
  t.device.device_type = kDLCPU;
#else
  t.device.device_type = 1;
#endif
  t.device.device_id = 0;
  t.ndim = ndim;
  t.dtype.code = (uint8_t)code;
  t.dtype.bits = (uint8_t)bits;
  t.dtype.lanes = 1;
  t.shape = shape;
  t.strides = NULL;
  t.byte_offset = 0;
  return t;
}

/* A weight rearranged once into the panels that the kernels read, for many calls with the same bits. Owns its memory.
 */
typedef struct dsakit_packed_weight dsakit_packed_weight;

/* ---- arguments ---- */

/* What an argument holds. */
typedef enum dsakit_kind {
  DSAKIT_NONE = 0, /* as if the argument were not there */
  DSAKIT_TENSOR = 1,
  DSAKIT_TENSORS = 2,       /* an array of `count` */
  DSAKIT_PACKED_WEIGHT = 3, /* where a weight is wanted */
  DSAKIT_INTEGER = 4,
  DSAKIT_INTEGERS = 5, /* an array of `count`; also where lengths of sequences are wanted */
  DSAKIT_REAL = 6,     /* an integer serves too */
  DSAKIT_BOOLEAN = 7,
  DSAKIT_STRING = 8 /* one of the documented words; the name of a dtype */
} dsakit_kind;

/* Of a tensor. */
enum {
  DSAKIT_READ_ONLY = 1, /* refused where it would be written */
  DSAKIT_FRACTAL_NZ = 2 /* a weight: the shape is the logical [K, N], the memory [ceil(N/c0), ceil(K/16), 16, c0], c0 32
                            bytes; strides are not looked at */
};

typedef struct dsakit_argument {
  const char* name; /* of the parameter, as documented */
  int32_t kind;     /* dsakit_kind */
  uint32_t flags;   /* of tensors, else 0 */
  union {
    const dsakit_tensor* tensor; /* outputs and caches are written through it all the same */
    const dsakit_tensor* tensors;
    const dsakit_packed_weight* packed_weight;
    int64_t integer;
    const int64_t* integers;
    double real;
    bool boolean;
    const char* string;
  } value;
  size_t count; /* of arrays, else 0 */
} dsakit_argument;

/* Arguments without flags, which are set afterwards: .flags = DSAKIT_FRACTAL_NZ. */
static inline dsakit_argument dsakit_no_arg(const char* name, int32_t kind, size_t count) {
  dsakit_argument a;
  a.name = name;
  a.kind = kind;
  a.flags = 0;
  a.value.integer = 0;
  a.count = count;
  return a;
}
static inline dsakit_argument dsakit_tensor_arg(const char* name, const dsakit_tensor* tensor) {
  dsakit_argument a = dsakit_no_arg(name, DSAKIT_TENSOR, 0);
  a.value.tensor = tensor;
  return a;
}
static inline dsakit_argument dsakit_tensors_arg(const char* name, const dsakit_tensor* tensors, size_t count) {
  dsakit_argument a = dsakit_no_arg(name, DSAKIT_TENSORS, count);
  a.value.tensors = tensors;
  return a;
}
static inline dsakit_argument dsakit_packed_arg(const char* name, const dsakit_packed_weight* weight) {
  dsakit_argument a = dsakit_no_arg(name, DSAKIT_PACKED_WEIGHT, 0);
  a.value.packed_weight = weight;
  return a;
}
static inline dsakit_argument dsakit_integer_arg(const char* name, int64_t value) {
  dsakit_argument a = dsakit_no_arg(name, DSAKIT_INTEGER, 0);
  a.value.integer = value;
  return a;
}
static inline dsakit_argument dsakit_integers_arg(const char* name, const int64_t* values, size_t count) {
  dsakit_argument a = dsakit_no_arg(name, DSAKIT_INTEGERS, count);
  a.value.integers = values;
  return a;
}
static inline dsakit_argument dsakit_real_arg(const char* name, double value) {
  dsakit_argument a = dsakit_no_arg(name, DSAKIT_REAL, 0);
  a.value.real = value;
  return a;
}
static inline dsakit_argument dsakit_boolean_arg(const char* name, bool value) {
  dsakit_argument a = dsakit_no_arg(name, DSAKIT_BOOLEAN, 0);
  a.value.boolean = value;
  return a;
}
static inline dsakit_argument dsakit_string_arg(const char* name, const char* value) {
  dsakit_argument a = dsakit_no_arg(name, DSAKIT_STRING, 0);
  a.value.string = value;
  return a;
}

/* ---- contexts ---- */

/* Threads, workspace and instruction set of the calls made with it. One context runs one call at a time (others queue
 * up): one per thread runs in parallel. Once a call has run, a call of the same size allocates nothing. */
typedef struct dsakit_context dsakit_context;

/* Zeros suit everybody who has no wish. */
typedef struct dsakit_context_options {
  size_t size;         /* sizeof(dsakit_context_options) */
  const char* isa;     /* null: DSAKIT_ISA, else the best this machine has; "generic", "avx2", ... */
  size_t memory_limit; /* bytes of workspace; 0: DSAKIT_MEM_LIMIT, else none */
  int32_t threads;     /* 0: DSAKIT_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  bool same_products;  /* bf16 products with the same bits on every instruction set, slower */
  bool check_values;   /* non-finite inputs and illegal scales become DSAKIT_INVALID_VALUE */
} dsakit_context_options;

/* `options` may be null. */
DSAKIT_API dsakit_status dsakit_context_create(const dsakit_context_options* options,
                                               dsakit_context** context) DSAKIT_NOEXCEPT;
/* Null is fine. No call may be running. */
DSAKIT_API void dsakit_context_destroy(dsakit_context* context) DSAKIT_NOEXCEPT;

/* Wherever a context is taken, null is the one of the process, made on first use. */
DSAKIT_API dsakit_status dsakit_context_isa(dsakit_context* context, const char** isa) DSAKIT_NOEXCEPT;
DSAKIT_API dsakit_status dsakit_context_threads(dsakit_context* context, int32_t* threads) DSAKIT_NOEXCEPT;
/* Accepted arguments that deserve a word: each sentence once, oldest first; null behind the last. Lives as long as the
 * context. */
DSAKIT_API dsakit_status dsakit_context_warning(dsakit_context* context, size_t index,
                                                const char** sentence) DSAKIT_NOEXCEPT;
/* `asked` is called now and then during a long call, which ends with DSAKIT_INTERRUPTED when it returns true. Null: no
 * more. */
DSAKIT_API dsakit_status dsakit_context_set_interrupt(dsakit_context* context, bool (*asked)(void* data),
                                                      void* data) DSAKIT_NOEXCEPT;

/* ---- operators ---- */

/* Runs an operator: `name` as in dsakit_operator, or "reference." before it for the readable twin. Inputs, outputs
 * (whose memory the caller brings) and attributes are arguments alike, in any order, best in the documented one. An
 * attribute that is not there has its documented default. */
DSAKIT_API dsakit_status dsakit_run(dsakit_context* context, const char* name, const dsakit_argument* arguments,
                                    size_t count) DSAKIT_NOEXCEPT;

typedef struct dsakit_shape {
  const char* name; /* of the result */
  dsakit_dtype dtype;
  int32_t ndim; /* -1: this call has no such result */
  int64_t shape[8];
} dsakit_shape;

/* The results that a call with these arguments has, in the order of dsakit_operator.results, as many as are written to
 * `results`. Needs no outputs; memory of inputs is not looked at but where lengths say how large a result is. */
DSAKIT_API dsakit_status dsakit_infer(const char* name, const dsakit_argument* arguments, size_t count,
                                      dsakit_shape* results, size_t capacity) DSAKIT_NOEXCEPT;

/* `flags`: DSAKIT_FRACTAL_NZ, DSAKIT_READ_ONLY. bfloat16 or int8 [K, N], or a stack [B, K, N] of bfloat16. */
DSAKIT_API dsakit_status dsakit_pack_weight(const dsakit_tensor* weight, uint32_t flags,
                                            dsakit_packed_weight** packed) DSAKIT_NOEXCEPT;
/* Null is fine. No call may be reading it. */
DSAKIT_API void dsakit_packed_weight_destroy(dsakit_packed_weight* packed) DSAKIT_NOEXCEPT;

/* ---- what there is, for bindings ---- */

typedef struct dsakit_parameter {
  const char* name;
  const char* role; /* in, in_opt, inout, inout_opt, out, attribute; reserved, tolerated: only DSAKIT_NONE; hint:
                       anything, of no effect */
  const char* kind_of_data; /* of a tensor: data, weight, cache, scale, index, table, lengths, mask, reserved; of an
                               attribute: number, flag, mode, layout, dtype, level */
  const char* dtypes;
  const char* shape; /* of an attribute: the values it may have */
  const char* meaning;
  dsakit_kind kind;              /* as which it is given; DSAKIT_NONE: reserved, tolerated or hint */
  bool required;                 /* a call without it is always refused */
  int32_t result;                /* its place in dsakit_operator.results, or -1 */
  dsakit_argument default_value; /* of kind DSAKIT_NONE where there is none */
} dsakit_parameter;

typedef struct dsakit_operator {
  const char* name;
  const char* summary;
  const char* formula;
  const char* errors;
  const char* source; /* the documented call that is followed */
  const char* family; /* torch_npu, PyPTO or dsakit */
  size_t parameter_count;
  const dsakit_parameter* const* parameters; /* in the documented order of the call */
  size_t result_count;
  const char* const* results;
} dsakit_operator;

DSAKIT_API size_t dsakit_operator_count(void) DSAKIT_NOEXCEPT;
/* Lives as long as the process; null from dsakit_operator_count() on. */
DSAKIT_API const dsakit_operator* dsakit_operator_at(size_t index) DSAKIT_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
