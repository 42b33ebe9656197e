// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

#include <algorithm>

namespace mixgrad::core {

const char* to_string(Language language) noexcept { return language == Language::native ? "native" : "python"; }
const char* to_string(What what) noexcept { return what == What::forward ? "forward" : "gradient"; }

std::size_t Op::attribute_index(std::string_view attribute) const noexcept {
  for (std::size_t i = 0; i < attribute_names.size(); ++i)
    if (attribute_names[i] == attribute) return i;
  return attribute_names.size();
}

void Op::update_whole_reads() noexcept {
  const Implementation& native = of(What::gradient, Language::native);
  const PythonGradient* python = of(What::gradient, Language::python).gradient.get();
  const bool whole = (python && python->whole && !python->own) ||
                     (native.native && native.native->kind != MIXGRAD_KIND_ELEMENTWISE && !native.own);
  whole_reads = 0;
  if (whole)
    for (std::size_t i = 0; i < std::max<std::size_t>(1, reads.size()); ++i) whole_reads |= reads_of(i);
}

Registry& Registry::instance() {
  // Leaked on purpose: ops hold Python objects, and static destructors run after the interpreter is gone.
  static auto* registry = new Registry;
  return *registry;
}

Op* Registry::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : found->second;
}

Op& Registry::get(std::string_view name) const {
  if (Op* op = find(name)) return *op;
  std::string text = "no op named '" + std::string(name) + "' is registered";
  const auto near = near_names(name);
  if (!near.empty()) {
    text += "; near names: ";
    for (std::size_t i = 0; i < near.size(); ++i) text += (i ? ", '" : "'") + near[i] + "'";
  }
  text += ". mixgrad.registry lists all ops; mixgrad.register_op(\"" + std::string(name) + "\") registers a new one";
  raise_error("UnknownOpError", "%s", text.c_str());
}

Op& Registry::add(std::unique_ptr<Op> op, bool replace) {
  std::vector<std::string> names = op->aliases;
  names.insert(names.begin(), op->name);
  for (const auto& name : names) {
    if (const Op* other = find(name)) {
      if (replace && other->name == op->name) continue;
      raise_error(
          "DuplicateRegistrationError",
          "op '%s' cannot be registered at %s: the name '%s' belongs to op '%s', registered at %s. Choose another "
          "name, or pass replace=True to replace an op of the same name",
          op->name.c_str(), op->of(What::forward, Language::python).origin.c_str(), name.c_str(), other->name.c_str(),
          other->of(What::forward, Language::python).origin.c_str());
    }
  }
  if (Op* other = find(op->name)) remove(*other);
  Op& added = *op;
  owned_.push_back(std::move(op));
  for (const auto& name : names) by_name_[name] = &added;
  order_.push_back(&added);
  for (const auto& name : names) {
    if (const auto waiting = pending_.find(name); waiting != pending_.end()) {
      for (const auto& pending : waiting->second) attach(added, *pending.registration, pending.module);
      pending_.erase(waiting);
    }
  }
  changed();
  return added;
}

void Registry::remove(Op& op) {
  std::erase_if(by_name_, [&](const auto& item) { return item.second == &op; });
  std::erase(order_, &op);
  op.registered = false;
  // Entries that are still alive then say that there is no gradient, instead of keeping users' functions alive.
  for (auto* table : {op.forwards, op.gradients})
    for (int i = 0; i < 2; ++i) table[i] = Implementation{};
  Py_CLEAR(op.object);
  changed();
}

void check_duplicate(const Op& op, What what, const Implementation& present, const std::string& origin, bool replace) {
  if (!present.present || replace) return;
  raise_error(
      "DuplicateRegistrationError",
      "op '%s' has a %s %s already, registered at %s; a second one was given at %s. Pass replace=True to replace "
      "it, or use mixgrad.override_gradient to replace it for a while",
      op.name.c_str(), to_string(present.language), to_string(what), present.origin.c_str(), origin.c_str());
}

namespace {
std::string origin_of(const mixgrad_registration& registration, const std::string& module) {
  std::string file = registration.file ? registration.file : "";
  if (const auto slash = file.find_last_of('/'); slash != std::string::npos) {
    // The last two components tell the family; the build's path is nobody's business.
    const auto before = file.find_last_of('/', slash - 1);
    file = file.substr(before == std::string::npos ? 0 : before + 1);
  }
  return module + " (" + file + ":" + std::to_string(registration.line) + ")";
}
}  // namespace

void Registry::attach(Op& op, const mixgrad_registration& registration, const std::string& module) {
  const What what = registration.kind == MIXGRAD_KIND_FORWARD ? What::forward : What::gradient;
  Implementation& implementation = op.of(what, Language::native);
  Implementation made;
  made.language = Language::native;
  made.present = true;
  made.differentiable = registration.kind != MIXGRAD_KIND_KERNEL_GRADIENT;
  made.origin = origin_of(registration, module);
  made.native = &registration;
  made.own = module == kOwnModule;
  implementation = std::move(made);
  op.update_whole_reads();
}

namespace {

/// Ops that a list declares, taken back unless the whole list is accepted.
class NewOps {
 public:
  void declare(const mixgrad_registration& node, const std::string& origin, bool replace) {
    const Ref module = Ref::steal(PyImport_ImportModule("mixgrad.registry"));
    const Ref op = Ref::steal(PyObject_CallMethod(
        module.get(), "declare_native", "ssssOOsO", node.op, node.signature ? node.signature : "",
        node.doc ? node.doc : "", node.saves ? node.saves : "inputs output",
        node.flags & MIXGRAD_FLAG_BROADCASTS ? Py_True : Py_False,
        node.flags & MIXGRAD_FLAG_MULTIPLE ? Py_True : Py_False, origin.c_str(), replace ? Py_True : Py_False));
    names_.emplace_back(node.op);
  }
  void accept() noexcept { names_.clear(); }
  ~NewOps() {
    for (const std::string& name : names_)
      if (Op* op = Registry::instance().find(name)) Registry::instance().remove(*op);
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace

void Registry::add_native(const mixgrad_registration* first, const std::string& module, bool replace_all) {
  // A struct that grew since the plug-in was built ends earlier there: new fields are read only where they are.
  constexpr std::size_t kOldest = offsetof(mixgrad_registration, signature);
  NewOps new_ops;
  for (const auto* node = first; node; node = node->next) {
    if (node->struct_size < kOldest)
      raise_error("RegistrationError", "%s: the native registration of '%s' was built for another version of mixgrad",
                  module.c_str(), node->op);
    if (node->kind == MIXGRAD_KIND_OP && node->struct_size >= sizeof(mixgrad_registration))
      new_ops.declare(*node, origin_of(*node, module), replace_all || (node->flags & MIXGRAD_FLAG_REPLACE) != 0);
  }
  // Checked as a whole before anything is changed, so that a rejected list leaves the registry as it was.
  std::vector<const mixgrad_registration*> seen;
  for (const auto* node = first; node; node = node->next) {
    const What what = node->kind == MIXGRAD_KIND_FORWARD ? What::forward : What::gradient;
    const std::string origin = origin_of(*node, module);
    if (node->kind == MIXGRAD_KIND_OP) continue;
    const bool replace = replace_all || (node->flags & MIXGRAD_FLAG_REPLACE) != 0;
    if (Op* op = find(node->op)) {
      const Implementation& present = op->of(what, Language::native);
      // A ufunc's own loops are a default that a native forward may replace.
      if (present.native || !present.present || what == What::gradient)
        check_duplicate(*op, what, present, origin, replace);
      if (node->kind == MIXGRAD_KIND_ELEMENTWISE && static_cast<std::size_t>(node->n_inputs) != op->input_names.size())
        raise_error("GradientCountError",
                    "%s: element-wise gradient of '%s' gives %d expressions, the op has %d inputs", origin.c_str(),
                    op->name.c_str(), node->n_inputs, static_cast<int>(op->input_names.size()));
    }
    for (const auto* other : seen)
      if (std::string_view(other->op) == node->op &&
          (other->kind == MIXGRAD_KIND_FORWARD) == (node->kind == MIXGRAD_KIND_FORWARD) && !replace)
        raise_error("DuplicateRegistrationError", "op '%s' gets two native %ss: at %s and at %s", node->op,
                    to_string(what), origin_of(*other, module).c_str(), origin.c_str());
    seen.push_back(node);
  }
  for (const auto* node : seen) {
    if (Op* op = find(node->op))
      attach(*op, *node, module);
    else
      pending_[node->op].push_back({node, module});
  }
  new_ops.accept();
  changed();
}

void Registry::restore_native(const mixgrad_registration* first, const std::string& module) {
  NewOps new_ops;
  for (const auto* node = first; node; node = node->next)
    if (node->kind == MIXGRAD_KIND_OP && !find(node->op)) new_ops.declare(*node, origin_of(*node, module), false);
  new_ops.accept();
  for (const auto* node = first; node; node = node->next) {
    if (node->kind == MIXGRAD_KIND_OP) continue;
    const What what = node->kind == MIXGRAD_KIND_FORWARD ? What::forward : What::gradient;
    if (Op* op = find(node->op)) {
      if (!op->of(what, Language::native).native) attach(*op, *node, module);
      continue;
    }
    auto& waiting = pending_[node->op];
    const bool there = std::any_of(waiting.begin(), waiting.end(),
                                   [node](const Pending& pending) { return pending.registration == node; });
    if (!there) waiting.push_back({node, module});
  }
  changed();
}

std::vector<std::string> Registry::waiting() const {
  std::vector<std::string> names;
  for (const auto& item : pending_) names.push_back(item.first);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Registry::near_names(std::string_view name) const {
  std::vector<std::pair<std::size_t, std::string>> scored;
  for (const auto& [candidate, op] : by_name_) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= name.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j <= candidate.size(); ++j) {
        const std::size_t above = row[j];
        row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (name[i - 1] != candidate[j - 1])});
        diagonal = above;
      }
    }
    const std::size_t distance = row.back();
    const bool contains = name.size() > 2 && candidate.find(name) != std::string::npos;
    if (distance <= std::max<std::size_t>(1, name.size() / 3) || contains) scored.emplace_back(distance, candidate);
  }
  std::sort(scored.begin(), scored.end());
  std::vector<std::string> near;
  for (std::size_t i = 0; i < scored.size() && i < 5; ++i) near.push_back(scored[i].second);
  return near;
}

}  // namespace mixgrad::core
