// SPDX-License-Identifier: Apache-2.0
//
// The registry: the one table of ops and their implementations, seen from both languages. It decides nothing
// (dispatch.h does) and never holds tape data.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels.h"
#include "mixgrad/api.h"
#include "python.h"

namespace mixgrad::core {

enum class Language : std::uint8_t { native, python };
enum class What : std::uint8_t { forward, gradient };
const char* to_string(Language) noexcept;
const char* to_string(What) noexcept;

/// A Python function that is called with an op's attributes by keyword: those it names, or all when it takes **kwargs.
struct PythonFunction {
  Ref callable;
  Ref keywords;                     ///< tuple of the attribute names passed; null: none
  std::vector<std::size_t> passed;  ///< their places in the op's attributes
};

/// The gradient of one input: not given, declared zero, or a function.
struct ArgumentGradient {
  enum class State : std::uint8_t { missing, zero, function } state = State::missing;
  PythonFunction function;
  std::string origin;
};

/// A gradient written in Python: of all inputs at once, or one function per input. Never changed once registered, so
/// that a call that is under way keeps it while another is registered in its place.
struct PythonGradient {
  std::string origin;
  Ref whole;                                ///< called as (op, g); null: per input
  std::vector<ArgumentGradient> arguments;  ///< one per input
  bool own = false;                         ///< mixgrad's: it asks what is needed before it reads
  bool per_index = false;                   ///< arguments[0] serves every input of a list: called with its index

  const ArgumentGradient& argument(std::size_t input) const noexcept { return arguments[per_index ? 0 : input]; }
};

/// One forward or gradient in one language.
struct Implementation {
  Language language = Language::native;
  bool present = false;
  bool own = false;  ///< native: mixgrad's
  bool differentiable = true;
  std::string origin;  ///< file and line, or the module that brought it
  Ref when;            ///< outside this condition it declines

  const mixgrad_registration* native = nullptr;    ///< null for a ufunc's own loops
  Ref forward;                                     ///< python: called as (*inputs, **attributes)
  std::shared_ptr<const PythonGradient> gradient;  ///< python

  mutable std::uint64_t calls = 0;
  mutable std::uint64_t declined = 0;
};

/// Under which name mixgrad's own native implementations are registered.
inline constexpr const char* kOwnModule = "mixgrad";

struct Parameter {
  Ref name;
  bool is_input;
  std::size_t index;  ///< among the inputs, or among the attributes
  bool keyword_only;
  Ref default_value;  ///< of an attribute; null: required
};

struct Op {
  std::string name;
  Ref name_object;
  std::vector<std::string> aliases;
  std::vector<Parameter> parameters;
  std::vector<std::string> input_names;
  std::vector<std::string> attribute_names;
  Ref attribute_keywords;  ///< tuple of the attributes' names
  Ref defaults;            ///< tuple of the attributes' defaults; null where an attribute is required
  bool variadic = false;   ///< the first parameter is a sequence of arrays
  bool broadcasts = false;
  bool multiple = false;
  bool differentiable = true;
  bool registered = true;
  mutable bool told_fallback = false;
  std::vector<std::uint32_t> reads;  ///< for each input: what its gradient reads, as bits of Entry::saved
  /// What a gradient of all inputs at once may read, where one from outside is registered: it does not ask which input
  /// needs a gradient before it reads what belongs to another. 0: none is.
  std::uint32_t whole_reads = 0;
  kernels::Ufunc ufunc;
  int preferred = -1;  ///< by MIXGRAD_PREFER: a Language, or -1
  Ref standing;        ///< an override record for all calls of this op's gradient, after those of contexts; null: none

  Implementation forwards[2];
  Implementation gradients[2];
  PyObject* object = nullptr;  ///< its Python face, owned while it is registered

  std::uint32_t reads_of(std::size_t input) const noexcept {
    return reads.empty() ? kAll : reads[input < reads.size() ? input : reads.size() - 1];
  }
  Implementation& of(What what, Language language) noexcept {
    return (what == What::forward ? forwards : gradients)[static_cast<int>(language)];
  }
  const Implementation& of(What what, Language language) const noexcept {
    return const_cast<Op*>(this)->of(what, language);
  }
  /// After a gradient has come or gone.
  void update_whole_reads() noexcept;
  std::size_t attribute_index(std::string_view attribute) const noexcept;

 private:
  static constexpr std::uint32_t kAll = 0xFFFFFFFFu;
};

class Registry {
 public:
  static Registry& instance();

  /// By name or alias; null when unknown.
  Op* find(std::string_view name) const noexcept;
  /// By name or alias; throws UnknownOpError with near names.
  Op& get(std::string_view name) const;

  /// Adds an op whose fields are filled in; throws DuplicateRegistrationError and leaves everything as it was.
  Op& add(std::unique_ptr<Op> op, bool replace);
  void remove(Op& op);
  /// Registers a list of new ops and native implementations, all or none. Those of ops that are not registered yet wait
  /// for them. `replace`: take the place of what is there.
  void add_native(const mixgrad_registration* first, const std::string& module, bool replace = false);
  /// Registers of such a list what has no native implementation: what was unregistered, with its op or alone, since the
  /// list was first registered.
  void restore_native(const mixgrad_registration* first, const std::string& module);
  /// Native implementations whose op never came.
  std::vector<std::string> waiting() const;

  const std::vector<Op*>& ops() const noexcept { return order_; }
  std::vector<std::string> near_names(std::string_view name) const;
  /// Raised by every registration: caches of names compare it.
  std::uint64_t version() const noexcept { return version_; }
  void changed() noexcept { ++version_; }

 private:
  struct Pending {
    const mixgrad_registration* registration;
    std::string module;
  };
  void attach(Op& op, const mixgrad_registration& registration, const std::string& module);

  std::unordered_map<std::string, Op*> by_name_;
  std::vector<Op*> order_;
  std::vector<std::unique_ptr<Op>> owned_;  ///< also removed ones: entries may still point at them
  std::unordered_map<std::string, std::vector<Pending>> pending_;
  std::uint64_t version_ = 0;
};

/// Throws DuplicateRegistrationError naming both places when there is an implementation already.
void check_duplicate(const Op& op, What what, const Implementation& present, const std::string& origin, bool replace);

}  // namespace mixgrad::core
