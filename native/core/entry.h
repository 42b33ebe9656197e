// SPDX-License-Identifier: Apache-2.0
//
// The recorded operation as a Python gradient sees it (`op`), and the stand-in for a value that was not saved.
#pragma once

#include "dispatch.h"
#include "python.h"

namespace mixgrad::core {

/// The Python object for a call, alive for the call only: reading it afterwards is an error, never a dangling pointer.
class EntryGuard {
 public:
  explicit EntryGuard(Call& call);
  ~EntryGuard();
  EntryGuard(const EntryGuard&) = delete;
  EntryGuard& operator=(const EntryGuard&) = delete;
  PyObject* get() const noexcept { return object_.get(); }

 private:
  Ref object_;
};

/// Shape and dtype of an input (or output) without its data; reading more raises NotSavedError.
Ref not_saved(const Call& call, std::size_t index, bool output);
[[noreturn]] void raise_not_saved(const std::string& op, const std::string& what);

/// (language, origin) of the gradient that runs for a call; empty strings when none does.
Ref runs(Call& call);

/// A call's attributes by name.
Ref attributes_dict(const Op& op, PyObject* attributes);

void init_entry(PyObject* module);

}  // namespace mixgrad::core
