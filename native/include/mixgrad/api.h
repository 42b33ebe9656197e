// SPDX-License-Identifier: Apache-2.0
//
// The C interface between the core and native implementations: plain structs and one table of functions. Nothing here
// knows Python or C++. The table only grows: a function keeps its place and its meaning for as long as the major
// version stands, and a caller asks `size` before it uses one that was added later.
#ifndef MIXGRAD_API_H
#define MIXGRAD_API_H

#include <stddef.h>
#include <stdint.h>

#define MIXGRAD_ABI_MAJOR 1
#define MIXGRAD_ABI_MINOR 0
#define MIXGRAD_CAPSULE_NAME "mixgrad._core.api"

#define MIXGRAD_MAX_NDIM 64
#define MIXGRAD_MAX_ELEMENTWISE_INPUTS 4
#define MIXGRAD_DIFFERENTIABLE_DTYPES 4

#ifdef __cplusplus
extern "C" {
#endif

/// A counted reference to an array value. Every function that returns one gives the caller a reference of its own.
typedef struct mixgrad_array mixgrad_array;
/// A registered op.
typedef struct mixgrad_op mixgrad_op;
/// One call of an implementation: a forward that is being computed, or an entry whose gradient is taken.
typedef struct mixgrad_call mixgrad_call;

/// NumPy's type numbers. Only the last four below are differentiated.
typedef enum mixgrad_dtype {
  MIXGRAD_BOOL = 0,
  MIXGRAD_INT8 = 1,
  MIXGRAD_UINT8 = 2,
  MIXGRAD_INT16 = 3,
  MIXGRAD_UINT16 = 4,
  MIXGRAD_INT32 = 5,
  MIXGRAD_UINT32 = 6,
  MIXGRAD_INT64 = 7,
  MIXGRAD_UINT64 = 8,
  MIXGRAD_FLOAT32 = 11,
  MIXGRAD_FLOAT64 = 12,
  MIXGRAD_COMPLEX64 = 14,
  MIXGRAD_COMPLEX128 = 15
} mixgrad_dtype;

typedef enum mixgrad_status {
  MIXGRAD_OK = 0,
  MIXGRAD_ERROR = -1,   ///< an error is set; return it to the caller unchanged
  MIXGRAD_DECLINED = 1  ///< this implementation does not take these arguments; the dispatcher asks the next one
} mixgrad_status;

/// The memory of an array. Strides are in bytes and may be zero or negative.
typedef struct mixgrad_view {
  void* data;
  int32_t dtype;
  int32_t ndim;
  int64_t size;
  const int64_t* shape;
  const int64_t* strides;
  int32_t contiguous;  ///< C-contiguous
} mixgrad_view;

typedef enum mixgrad_attribute_kind {
  MIXGRAD_ATTRIBUTE_NONE = 0,     ///< Python's None
  MIXGRAD_ATTRIBUTE_MISSING = 1,  ///< the op has no attribute of this name
  MIXGRAD_ATTRIBUTE_BOOL = 2,
  MIXGRAD_ATTRIBUTE_INT = 3,
  MIXGRAD_ATTRIBUTE_FLOAT = 4,
  MIXGRAD_ATTRIBUTE_INTS = 5,  ///< a tuple or list of integers
  MIXGRAD_ATTRIBUTE_STRING = 6,
  MIXGRAD_ATTRIBUTE_ARRAY = 7,   ///< an ndarray; integers arrive as int64
  MIXGRAD_ATTRIBUTE_OTHER = 8,   ///< any other Python object; a native implementation declines
  MIXGRAD_ATTRIBUTE_OF_CALL = 9  ///< for op_call: `array` is a mixgrad_call, whose attribute of this name is handed on
} mixgrad_attribute_kind;

/// One attribute of a call. Pointers stay valid until the call returns.
typedef struct mixgrad_attribute {
  const char* name;
  int32_t kind;
  int32_t count;    ///< of `integers`
  int64_t integer;  ///< also the value of a bool
  double real;
  const int64_t* integers;
  const char* string;
  mixgrad_array* array;
} mixgrad_attribute;

/// An inner loop over one axis, as NumPy's own ufuncs have it. `args`, `strides`: one per operand, the result last.
typedef void (*mixgrad_loop)(char** args, const int64_t* n, const int64_t* strides, void* data);

/// A forward or a gradient. It reads its arguments from `call` and gives its results to `call_return`.
typedef mixgrad_status (*mixgrad_function)(mixgrad_call* call);

typedef enum mixgrad_kind {
  MIXGRAD_KIND_FORWARD = 0,
  MIXGRAD_KIND_GRADIENT = 1,         ///< composed of ops, so differentiable itself
  MIXGRAD_KIND_KERNEL_GRADIENT = 2,  ///< over raw memory: first order only
  MIXGRAD_KIND_ELEMENTWISE = 3,      ///< one expression per argument, as loops and as ops
  MIXGRAD_KIND_OP = 4                ///< no implementation: declares a new op
} mixgrad_kind;

/// MIXGRAD_TRIVIAL_TIMES + k: g times operand k of the loop; there is a loop as well, but where g is 1 it need not run.
enum { MIXGRAD_TRIVIAL_NO = 0, MIXGRAD_TRIVIAL_ZERO = 1, MIXGRAD_TRIVIAL_UPSTREAM = 2, MIXGRAD_TRIVIAL_TIMES = 3 };
enum { MIXGRAD_FLAG_REAL_ONLY = 1, MIXGRAD_FLAG_REPLACE = 2, MIXGRAD_FLAG_BROADCASTS = 4, MIXGRAD_FLAG_MULTIPLE = 8 };

/// One native implementation, a node of an intrusive list: static registrars only link it, the core reads the list.
///
/// An element-wise gradient has for each argument and differentiable dtype (float32, float64, complex64, complex128) a
/// loop with the operands g, inputs..., out, result; null: the dtype is declined, or none is needed
/// (`trivial` set: the gradient is zero, or g itself). `function` computes the same with ops, for the argument
/// `call_argument(call)`.
typedef struct mixgrad_registration {
  uint32_t struct_size;
  int32_t kind;
  const char* op;
  uint32_t flags;
  int32_t n_inputs;
  mixgrad_function function;
  mixgrad_loop loops[MIXGRAD_MAX_ELEMENTWISE_INPUTS][MIXGRAD_DIFFERENTIABLE_DTYPES];
  uint8_t trivial[MIXGRAD_MAX_ELEMENTWISE_INPUTS];  ///< MIXGRAD_TRIVIAL_...
  const char* file;
  int32_t line;
  struct mixgrad_registration* next;
  // Of a new op only.
  const char* signature;  ///< as in Python: "x, y, axis=None, *, scale=1.0"; without a default: an array input
  const char* doc;
  const char* saves;  ///< what its gradients read: words among the inputs' names, inputs, output
} mixgrad_registration;

typedef enum mixgrad_error {
  MIXGRAD_ERROR_RUNTIME = 0,
  MIXGRAD_ERROR_VALUE = 1,
  MIXGRAD_ERROR_TYPE = 2,
  MIXGRAD_ERROR_MEMORY = 3,
  MIXGRAD_ERROR_NOT_SAVED = 4,
  MIXGRAD_ERROR_GRADIENT_COUNT = 5
} mixgrad_error;

typedef struct mixgrad_api {
  uint32_t size;  ///< sizeof(mixgrad_api) of the core that filled it
  uint32_t major;
  uint32_t minor;

  // Arrays.
  void (*array_retain)(mixgrad_array*);
  void (*array_release)(mixgrad_array*);
  void (*array_view)(const mixgrad_array*, mixgrad_view* out);
  /// New, uninitialised, C-contiguous. Null: an error is set.
  mixgrad_array* (*array_new)(int32_t dtype, int32_t ndim, const int64_t* shape);
  /// A constant of no dimensions.
  mixgrad_array* (*array_scalar)(int32_t dtype, double real, double imaginary);
  /// A Python-like number: it takes the dtype of what it meets.
  mixgrad_array* (*array_number)(double real, double imaginary, int32_t is_complex);
  /// Another view of the same memory, not recorded: for forwards. `offset` in bytes.
  mixgrad_array* (*array_strided)(const mixgrad_array*, int32_t ndim, const int64_t* shape, const int64_t* strides,
                                  int64_t offset);
  /// C-contiguous, of this dtype; the same array when it already is. Not recorded: for kernels.
  mixgrad_array* (*array_contiguous)(const mixgrad_array*, int32_t dtype);
  /// The part of `base` that the attribute `name` selects, when that is a basic index (integers, slices, None,
  /// Ellipsis): a view, not recorded. MIXGRAD_DECLINED for any other index.
  mixgrad_status (*array_index)(const mixgrad_array* base, mixgrad_call*, const char* name, mixgrad_array** out);
  /// Whether differentiation would see this array: an op on it is recorded.
  int32_t (*array_is_recorded)(const mixgrad_array*);

  // Ops.
  mixgrad_op* (*op_find)(const char* name);  ///< null: an error is set
  /// Runs the op through the dispatcher, recorded as any other. Fills up to `n_outputs` results.
  mixgrad_status (*op_call)(mixgrad_op*, int32_t n_inputs, mixgrad_array* const* inputs, int32_t n_attributes,
                            const mixgrad_attribute* attributes, int32_t n_outputs, mixgrad_array** outputs);

  // The call of an implementation.
  const char* (*call_name)(const mixgrad_call*);
  int32_t (*call_n_inputs)(const mixgrad_call*);
  int32_t (*call_n_outputs)(const mixgrad_call*);
  int32_t (*call_argument)(const mixgrad_call*);
  mixgrad_array* (*call_input)(mixgrad_call*, int32_t index);     ///< null: an error is set (out of range, not saved)
  mixgrad_array* (*call_output)(mixgrad_call*, int32_t index);    ///< gradients only
  mixgrad_array* (*call_upstream)(mixgrad_call*, int32_t index);  ///< g of that output
  /// Shape and dtype of an input or output whose data need not be saved (`data` is null then).
  mixgrad_status (*call_input_view)(mixgrad_call*, int32_t index, mixgrad_view* out);
  mixgrad_status (*call_output_view)(mixgrad_call*, int32_t index, mixgrad_view* out);
  int32_t (*call_needs_gradient)(const mixgrad_call*, int32_t index);
  /// Whether this gradient is itself being recorded (a higher-order derivative): it must then be composed of ops.
  int32_t (*call_is_recorded)(const mixgrad_call*);
  mixgrad_status (*call_attribute)(mixgrad_call*, const char* name, mixgrad_attribute* out);
  /// Gives result `index`: an output of a forward, or the gradient of input `index` (null: zero).
  mixgrad_status (*call_return)(mixgrad_call*, int32_t index, mixgrad_array* result);

  // Numeric kernels that have no loop of their own on this side; not recorded. DECLINED where they do not apply.
  mixgrad_status (*kernel_matmul)(const mixgrad_array* a, const mixgrad_array* b, mixgrad_array** out);
  /// `name`: add, maximum, minimum or multiply; reduces the axes whose bit is set, bit-equal to NumPy's own.
  mixgrad_status (*kernel_reduce)(const char* name, const mixgrad_array*, uint64_t axes, int32_t keepdims,
                                  mixgrad_array** out);
  /// Copies (and casts) with broadcasting, adding to what is there when `accumulate`.
  mixgrad_status (*kernel_copy)(const mixgrad_array* from, mixgrad_array* to, int32_t accumulate);
  /// Runs body(begin, end, data) over [0, n) in pieces, on several threads and without the GIL when n is above `grain`.
  mixgrad_status (*parallel_for)(int64_t n, int64_t grain, void (*body)(int64_t, int64_t, void*), void* data);

  // Errors and registration.
  void (*error_set)(int32_t kind, const char* message);
  /// Registers a list of implementations, all or none. `module`: who brings them, for messages.
  mixgrad_status (*register_list)(mixgrad_registration* first, const char* module);
} mixgrad_api;

/// What a plug-in exports, under the name MIXGRAD_PLUGIN_SYMBOL: a shared library that holds native implementations.
/// The headers define it; an author writes nothing.
typedef struct mixgrad_plugin {
  uint32_t struct_size;
  uint32_t major;  ///< of the interface that the plug-in was built for
  uint32_t minor;
  const char* built_with;
  /// Takes the table, gives the list of what the plug-in registers.
  mixgrad_registration* (*start)(const mixgrad_api*);
} mixgrad_plugin;

#define MIXGRAD_PLUGIN_SYMBOL "mixgrad_plugin_entry"

#ifdef __cplusplus
}
#endif

#endif  // MIXGRAD_API_H
