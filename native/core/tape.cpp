// SPDX-License-Identifier: Apache-2.0
#include "tape.h"

#include <frameobject.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace mixgrad::core {

namespace {
// Tapes by id, for the one question that concerns another thread's.
std::mutex tapes_mutex;
std::unordered_map<std::uint32_t, const Tape*>& tapes() {
  static auto* map = new std::unordered_map<std::uint32_t, const Tape*>;
  return *map;
}
}  // namespace

Tape::Tape() {
  static std::atomic<std::uint32_t> ids{0};
  id_ = ++ids;
  const std::lock_guard lock(tapes_mutex);
  tapes()[id_] = this;
}

Tape::~Tape() {
  const std::lock_guard lock(tapes_mutex);
  tapes().erase(id_);
}

Tape& Tape::current() {
  struct Owner {
    Tape* tape = new Tape;
    ~Owner() { tape->release(); }
  };
  thread_local Tape* tape = nullptr;
  if (!tape) [[unlikely]] {
    thread_local Owner owner;
    tape = owner.tape;
  }
  return *tape;
}

bool Tape::recorded_elsewhere(const Value& value) const noexcept {
  if (value.windows == 0 || value.tape == id_) return false;
  const std::lock_guard lock(tapes_mutex);
  const auto found = tapes().find(value.tape);
  if (found == tapes().end()) return false;
  const Tape& other = *found->second;
  return other.live_slow(value.position, value.windows & other.open_) != 0;
}

Mask Tape::live_slow(Position position, Mask mask) const noexcept {
  // A bit may have been given to a newer window since: that one starts after the value's position.
  for (Mask rest = mask; rest != 0; rest &= rest - 1) {
    const int bit = std::countr_zero(rest);
    if (position < starts_[bit]) mask &= ~(Mask{1} << bit);
  }
  return mask;
}

void Tape::find_newest_start() noexcept {
  newest_start_ = 0;
  for (Mask rest = open_; rest != 0; rest &= rest - 1) {
    const Position start = starts_[std::countr_zero(rest)];
    if (start > newest_start_) newest_start_ = start;
  }
}

int Tape::open_window() {
  if (open_ == ~Mask{0})
    raise_error(
        "TapeUsedError",
        "cannot open another tape: 64 tapes of this thread are recording already; leave the `with` block of some "
        "first (a tape that has stopped recording does not count)");
  const int bit = std::countr_one(open_);
  open_ |= Mask{1} << bit;
  recording_ |= Mask{1} << bit;
  starts_[bit] = next_;
  newest_start_ = next_;
  return bit;
}

void Tape::close_window(int bit) noexcept {
  const Mask mask = ~(Mask{1} << bit);
  open_ &= mask;
  recording_ &= mask;
  greedy_ &= mask;
  find_newest_start();
}

Entry* Tape::at(Position position) noexcept {
  const Position index = (position >> kChunkShift) - first_chunk_;
  if (index < 0 || index >= static_cast<Position>(chunks_.size()) || position >= next_) return nullptr;
  Chunk* chunk = chunks_[static_cast<std::size_t>(index)].get();
  if (!chunk) return nullptr;
  Entry& entry = chunk->entries[position & (kChunkSize - 1)];
  return entry.windows ? &entry : nullptr;
}

Tape::Chunk* Tape::chunk_for_push() {
  const Position index = next_ >> kChunkShift;
  if (chunks_.empty()) first_chunk_ = index;
  const auto slot = static_cast<std::size_t>(index - first_chunk_);
  if (slot == chunks_.size()) {
    auto chunk = spare_ ? std::move(spare_) : std::make_unique<Chunk>();
    if (!chunk) throw std::bad_alloc();
    chunks_.push_back(std::move(chunk));
  }
  return chunks_[slot].get();
}

Entry& Tape::push(Mask windows, std::uint32_t n_outputs, std::uint32_t n_inputs) {
  Value** block = nullptr;
  if (n_inputs > std::size(Entry{}.inline_inputs))
    block = static_cast<Value**>(pool::allocate(n_inputs * sizeof(Value*)));
  Entry* first = nullptr;
  for (std::uint32_t i = 0; i < n_outputs; ++i) {
    Chunk* chunk = chunk_for_push();
    Entry& entry = chunk->entries[next_ & (kChunkSize - 1)];
    entry.op = nullptr;
    entry.windows = windows;
    entry.output = nullptr;
    entry.inputs = entry.inline_inputs;
    entry.attributes = nullptr;
    entry.overrides = nullptr;
    entry.location = {};
    entry.n_inputs = 0;
    entry.n_outputs = 1;
    entry.lead = i;
    entry.watcher = -1;
    entry.nanoseconds = 0;
    entry.saved = 0;
    if (!first) first = &entry;
    ++chunk->live;
    ++counters.entries;
    ++next_;
  }
  if (block) first->inputs = block;
  first->n_inputs = n_inputs;
  first->n_outputs = n_outputs;
  std::memset(first->inputs, 0, n_inputs * sizeof(Value*));
  return *first;
}

void fill(Entry& entry, const Op* op, std::span<Value* const> inputs, std::uint32_t saved) {
  entry.op = op;
  entry.saved = saved;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Value* value = inputs[i];
    if (saved & saved_bit(i)) {
      value->use();
      if (value->buffer->exposed()) value->buffer->watch();
    } else {
      value->retain();
    }
    entry.inputs[i] = value;
  }
}

void Tape::give_objects(Position position, PyObject* attributes, PyObject* overrides) noexcept {
  Entry& entry = *at(position);
  entry.attributes = attributes;
  entry.overrides = overrides;
  if (attributes || overrides) ++chunks_[static_cast<std::size_t>((position >> kChunkShift) - first_chunk_)]->objects;
}

void Tape::clear(Entry& entry, Chunk& chunk) noexcept {
  if (entry.attributes || entry.overrides) --chunk.objects;
  // Moved out first: releasing Python objects can run code that comes back to this tape.
  const Entry old = entry;
  entry.windows = 0;
  --counters.entries;
  Value* const* inputs = old.inputs == entry.inline_inputs ? old.inline_inputs : old.inputs;
  for (std::uint32_t i = 0; i < old.n_inputs; ++i) {
    if (!inputs[i]) continue;
    if (old.saved & saved_bit(i))
      inputs[i]->unuse();
    else
      inputs[i]->release();
  }
  if (old.n_inputs > std::size(old.inline_inputs)) pool::release(old.inputs, old.n_inputs * sizeof(Value*));
  if (old.output) {
    if (old.saved & kSavedOutput)
      old.output->unuse();
    else
      old.output->release();
  }
  Py_XDECREF(old.attributes);
  Py_XDECREF(old.overrides);
  Py_XDECREF(old.location.code);
}

void Tape::forget(int bit, Position position, std::uint32_t n_outputs) noexcept {
  const Mask mask = Mask{1} << bit;
  for (std::uint32_t i = 0; i < n_outputs; ++i, ++position) {
    const Position index = (position >> kChunkShift) - first_chunk_;
    if (index < 0 || index >= static_cast<Position>(chunks_.size())) return;
    Chunk* chunk = chunks_[static_cast<std::size_t>(index)].get();
    if (!chunk) return;
    Entry& entry = chunk->entries[position & (kChunkSize - 1)];
    if (!(entry.windows & mask)) continue;
    entry.windows &= ~mask;
    if (entry.windows != 0) continue;
    --chunk->live;
    clear(entry, *chunk);
  }
}

void Tape::drop(int bit, Position start, Position end) noexcept {
  const Mask mask = Mask{1} << bit;
  for (Position p = start; p < end;) {
    const Position index = (p >> kChunkShift) - first_chunk_;
    const Position stop = std::min(end, ((p >> kChunkShift) + 1) << kChunkShift);
    Chunk* chunk = index >= 0 && index < static_cast<Position>(chunks_.size())
                       ? chunks_[static_cast<std::size_t>(index)].get()
                       : nullptr;
    if (!chunk) {
      p = stop;
      continue;
    }
    // A whole chunk at a time; `live` is counted down first so that a re-entrant drop sees the truth.
    ++chunk->live;
    for (; p < stop; ++p) {
      Entry& entry = chunk->entries[p & (kChunkSize - 1)];
      if (!(entry.windows & mask)) continue;
      entry.windows &= ~mask;
      if (entry.windows == 0) {
        --chunk->live;
        clear(entry, *chunk);
      }
    }
    --chunk->live;
  }
  // Chunks that nothing lives in go, but for the one that is being filled.
  const Position filling = next_ >> kChunkShift;
  for (Position c = start >> kChunkShift; c <= (end - 1) >> kChunkShift && c < filling; ++c) {
    const Position index = c - first_chunk_;
    if (index < 0 || index >= static_cast<Position>(chunks_.size())) continue;
    auto& chunk = chunks_[static_cast<std::size_t>(index)];
    if (chunk && chunk->live == 0) {
      if (!spare_)
        spare_ = std::move(chunk);
      else
        chunk.reset();
    }
  }
  while (!chunks_.empty() && !chunks_.front() && first_chunk_ < filling) {
    chunks_.pop_front();
    ++first_chunk_;
  }
}

int Tape::for_each_object(Position start, Position end, Mask windows, visitproc visit, void* arg) {
  for (Position p = start; p < end;) {
    const Position stop = std::min(end, ((p >> kChunkShift) + 1) << kChunkShift);
    const Position index = (p >> kChunkShift) - first_chunk_;
    const Chunk* chunk = index >= 0 && index < static_cast<Position>(chunks_.size())
                             ? chunks_[static_cast<std::size_t>(index)].get()
                             : nullptr;
    if (!chunk || chunk->objects == 0) {
      p = stop;
      continue;
    }
    for (; p < stop; ++p) {
      const Entry& entry = chunk->entries[p & (kChunkSize - 1)];
      if (entry.windows != windows) continue;
      Py_VISIT(entry.attributes);
      Py_VISIT(entry.overrides);
    }
  }
  return 0;
}

namespace {
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000
// The head of CPython 3.11's frame, of which only these two members are read.
struct InterpreterFrame {
  PyObject* function;
  PyObject* globals;
  PyObject* builtins;
  PyObject* locals;
  PyCodeObject* code;
  PyFrameObject* frame_object;
  InterpreterFrame* previous;
  _Py_CODEUNIT* previous_instruction;
};
#endif
}  // namespace

namespace {

std::string package_folder;

/// Whether the code is the package's own: then the line that a user wants to read is further up.
bool is_own(PyObject* code) noexcept {
  PyObject* file = reinterpret_cast<PyCodeObject*>(code)->co_filename;
  // Code of one file shares the name object: mostly the comparison is with the last one.
  static PyObject* last_of_user = nullptr;
  if (file == last_of_user || package_folder.empty()) return false;
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(file, &length);
  if (!text) {
    PyErr_Clear();
    return false;
  }
  if (std::string_view(text, static_cast<std::size_t>(length)).starts_with(package_folder)) return true;
  Py_XSETREF(last_of_user, Py_NewRef(file));
  return false;
}

Location innermost() noexcept;

/// The nearest frame outside the package; empty when there is none.
Location outside_package() noexcept {
  Location found;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame) {
    PyObject* code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
    if (!is_own(code)) {
#if PY_VERSION_HEX < 0x030b0000
      found = {code, frame->f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT))};
#else
      found = {code, PyFrame_GetLasti(frame)};
#endif
      Py_DECREF(frame);
      return found;
    }
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  return found;
}

}  // namespace

void Location::set_package_folder(const std::string& folder) { package_folder = folder; }

Ref location_tuple(const Location& location) {
  if (!location.code) return Ref::borrow(Py_None);
  auto* code = reinterpret_cast<PyCodeObject*>(location.code);
  return Ref::steal(Py_BuildValue("(Oi)", code->co_filename, PyCode_Addr2Line(code, location.offset)));
}

Location Location::here() noexcept {
  const Location location = innermost();
  if (!location.code || !is_own(location.code)) return location;
  const Location outside = outside_package();
  if (!outside.code) return location;
  Py_DECREF(location.code);
  return outside;
}

namespace {

Location innermost() noexcept {
#if PY_VERSION_HEX < 0x030b0000
  PyFrameObject* frame = PyEval_GetFrame();
  if (!frame) return {};
  PyCodeObject* code = PyFrame_GetCode(frame);
  return {reinterpret_cast<PyObject*>(code), frame->f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT))};
#elif PY_VERSION_HEX < 0x030c0000
  auto* frame = reinterpret_cast<InterpreterFrame*>(PyThreadState_Get()->cframe->current_frame);
  if (!frame) return {};
  const auto* first = reinterpret_cast<_Py_CODEUNIT*>(frame->code->co_code_adaptive);
  return {Py_NewRef(reinterpret_cast<PyObject*>(frame->code)),
          static_cast<int>((frame->previous_instruction - first) * static_cast<std::ptrdiff_t>(sizeof(_Py_CODEUNIT)))};
#elif PY_VERSION_HEX < 0x030e0000
#if PY_VERSION_HEX < 0x030d0000
  _PyInterpreterFrame* frame = PyThreadState_Get()->cframe->current_frame;
#else
  _PyInterpreterFrame* frame = PyThreadState_Get()->current_frame;
#endif
  if (!frame) return {};
  // The C-API shim frame at the bottom of a thread has no code worth telling.
  PyObject* code = PyUnstable_InterpreterFrame_GetCode(frame);
  if (!code || !PyCode_Check(code)) {
    Py_XDECREF(code);
    return {};
  }
  return {code, PyUnstable_InterpreterFrame_GetLasti(frame)};
#else
  PyFrameObject* frame = PyEval_GetFrame();
  if (!frame) return {};
  return {reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)), PyFrame_GetLasti(frame)};
#endif
}

}  // namespace

}  // namespace mixgrad::core
