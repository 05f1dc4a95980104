#include "group.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fiber.h"

#ifdef TESSL_SIM_SANITIZE
#include <sanitizer/asan_interface.h>
#endif

namespace emu {

thread_local Group* active = nullptr;

static void fiber_entry() { active->enter(); }

// Fisher-Yates with a small generator: the schedule of a seed must be the same on every machine.
static void shuffle(uint32_t* v, uint32_t n, uint32_t& state) {
  for (uint32_t i = n - 1; i > 0; i--) {
    state = state * 1664525u + 1013904223u;
    uint32_t j = (state >> 8) % (i + 1);
    uint32_t t = v[i];
    v[i] = v[j];
    v[j] = t;
  }
}

Group::Group(const Kernel& kernel, void* const* args, const std::vector<Constant>& constants, uint32_t threads,
             uint32_t seed)
    : kernel_(kernel),
      args_(args),
      constants_(constants),
      threads_(threads),
      backward_(seed == 1),
      fibers_(threads),
      simdgroups_(threads / LANES),
      lane_order_(threads),
      simdgroup_order_(threads / LANES) {
  for (uint32_t i = 0; i < threads; i++) {
    fibers_[i].stack = stack_new();
    lane_order_[i] = backward_ ? i / LANES * LANES + (LANES - 1 - i % LANES) : i;
  }
  const uint32_t count = threads / LANES;
  for (uint32_t i = 0; i < count; i++) simdgroup_order_[i] = backward_ ? count - 1 - i : i;
  if (seed > 1) {
    uint32_t state = seed;
    shuffle(simdgroup_order_.data(), count, state);
    for (uint32_t i = 0; i < count; i++) shuffle(&lane_order_[i * LANES], LANES, state);
  }
}

Group::~Group() {
#ifdef TESSL_SIM_SANITIZE
  __asan_unpoison_memory_region(memory_, sizeof memory_);
#endif
  for (Fiber& f : fibers_) stack_free(f.stack);
}

void Group::reset(const uint32_t id[3]) {
#ifdef TESSL_SIM_SANITIZE
  __asan_unpoison_memory_region(memory_, sizeof memory_);
#endif
  memset(memory_, 0xff, sizeof memory_);  // NaN in every floating-point type: uninitialised reads show
#ifdef TESSL_SIM_SANITIZE
  __asan_poison_memory_region(memory_, sizeof memory_);
#endif
  for (Simdgroup& s : simdgroups_) {
    s.arrived[0] = s.arrived[1] = 0;
    s.completed = 0;
  }
  for (uint32_t i = 0; i < threads_; i++) {
    Fiber& f = fibers_[i];
    f.state = State::runnable;
    f.exchanges = 0;
    f.memory_used = 0;
    f.arrays = 0;
    f.line = 0;
    f.ids = {{id[0], id[1], id[2]}, {i, 0, 0}, i % LANES, i / LANES};
    f.stack_pointer = stack_prepare(f.stack, fiber_entry);
  }
}

bool Group::ready(const Fiber& f) const {
  return f.state == State::runnable ||
         (f.state == State::at_exchange && simdgroups_[f.ids.simdgroup].completed > f.exchanges);
}

Fiber* Group::next_ready(uint32_t simdgroup) {
  for (uint32_t i = 0; i < LANES; i++) {
    Fiber& f = fibers_[lane_order_[simdgroup * LANES + i]];
    if (ready(f)) return &f;
  }
  return nullptr;
}

// Leaves the current fiber for another lane of its simdgroup that can run, else for the scheduler.
void Group::yield() {
  Fiber* me = current_;
  const uint32_t* order = &lane_order_[me->ids.simdgroup * LANES];
  const uint32_t self = uint32_t(me - fibers_.data());
  uint32_t at = 0;
  while (order[at] != self) at++;
  for (uint32_t i = 1; i < LANES; i++) {
    Fiber* next = &fibers_[order[(at + i) % LANES]];
    if (ready(*next)) {
      current_ = next;
      next->state = State::runnable;
      tessl_sim_switch(&me->stack_pointer, next->stack_pointer);
      return;
    }
  }
  tessl_sim_switch(&me->stack_pointer, scheduler_);
}

// Runs lanes until all of them wait or have returned.
bool Group::run_simdgroup(uint32_t simdgroup) {
  while (Fiber* next = next_ready(simdgroup)) {
    next->state = State::runnable;
    current_ = next;
    tessl_sim_switch(&scheduler_, next->stack_pointer);
    if (failed_) return false;
  }
  return true;
}

bool Group::run(const uint32_t id[3]) {
  reset(id);
  for (;;) {
    uint32_t done = 0, waiting = 0;
    for (uint32_t s : simdgroup_order_) {
      if (!run_simdgroup(s)) return false;
      for (uint32_t i = 0; i < LANES; i++) {
        const Fiber& f = fibers_[s * LANES + i];
        if (f.state == State::done) {
          done++;
        } else if (f.state == State::at_barrier) {
          waiting++;
        } else {
          return stop(id, "simdgroup %u: lane %u waits at line %d for lanes that are at a barrier or returned", s, i,
                      f.line);
        }
      }
    }
    if (done == threads_) return true;
    if (done) return stop(id, "%u threads wait at a threadgroup_barrier, %u returned", waiting, done);
    for (Fiber& f : fibers_) {
      if (f.line != fibers_[0].line)
        return stop(id, "threads wait at different barriers (lines %d and %d)", fibers_[0].line, f.line);
    }
    for (Fiber& f : fibers_) f.state = State::runnable;
  }
}

bool Group::stop(const uint32_t id[3], const char* format, ...) {
  int n = snprintf(error_, sizeof error_, "threadgroup (%u,%u,%u): ", id[0], id[1], id[2]);
  va_list list;
  va_start(list, format);
  vsnprintf(error_ + n, sizeof error_ - n, format, list);
  va_end(list);
  return false;
}

void Group::barrier(int line) {
  current_->state = State::at_barrier;
  current_->line = line;
  yield();
}

const unsigned char* Group::exchange(const void* value, size_t bytes, Op op, int line) {
  Fiber& me = *current_;
  Simdgroup& s = simdgroups_[me.ids.simdgroup];
  const uint64_t phase = me.exchanges;
  const unsigned b = phase & 1;
  if (s.arrived[b] == 0) {
    s.op[b] = op;
    s.line[b] = line;
  } else if (s.op[b] != op || s.line[b] != line) {
    char text[96];
    snprintf(text, sizeof text, "divergent simdgroup operation: line %d and line %d", s.line[b], line);
    fail(text);
  }
  memcpy(s.slots[b][me.ids.lane], value, bytes);
  if (++s.arrived[b] == LANES) {
    s.arrived[b] = 0;
    s.completed = phase + 1;
  } else {
    me.state = State::at_exchange;
    me.line = line;
    while (s.completed <= phase) yield();
    me.state = State::runnable;
  }
  me.exchanges = phase + 1;
  return &s.slots[b][0][0];
}

void* Group::memory(size_t bytes, size_t align) {
  if (align < 16) align = 16;
  Fiber& me = *current_;
  me.memory_used = (me.memory_used + align - 1) / align * align + bytes;
  if (me.memory_used > THREADGROUP_BYTES) fail("threadgroup memory over 32 KiB");
  if (me.arrays == MAX_ARRAYS) fail("more threadgroup arrays than the simulator keeps apart");
  // Arrays are kept GAP bytes apart; the sanitizer build makes the gaps unreadable.
  unsigned char* at = memory_ + me.memory_used - bytes + GAP * ++me.arrays;
#ifdef TESSL_SIM_SANITIZE
  __asan_unpoison_memory_region(at, bytes);
#endif
  return at;
}

double Group::constant(int id) {
  if (size_t(id) >= constants_.size() || !constants_[id].set) fail("a function constant is not set");
  return constants_[id].value;
}

void Group::fail(const char* text) {
  if (!failed_) {
    const Ids& d = current_->ids;
    snprintf(error_, sizeof error_, "threadgroup (%u,%u,%u) thread %u: %s", d.group[0], d.group[1], d.group[2],
             d.in_group[0], text);
    failed_ = true;
  }
  tessl_sim_switch(&current_->stack_pointer, scheduler_);
  abort();
}

void Group::enter() {
  kernel_.call(args_, current_->ids);
  current_->state = State::done;
  yield();
  abort();
}

// --- the functions of emu.h, on the active group ---------------------------------------------------------------------

void threadgroup_barrier(int line) { active->barrier(line); }

const unsigned char* exchange(const void* value, size_t bytes, Op op, int line) {
  return active->exchange(value, bytes, op, line);
}

void* threadgroup_memory(size_t bytes, size_t align) { return active->memory(bytes, align); }

unsigned lane() { return active->current().ids.lane; }

bool store_first() { return active->backward(); }

int group_threads() { return int(active->threads()); }

unsigned scope_lane(int lanes) { return lanes == 1 ? 0 : active->current().ids.in_group[0] % unsigned(lanes); }

void scope_sync(int lanes, int line) {
  char nothing = 0;
  if (lanes == int(LANES)) {
    exchange(&nothing, 1, Op::scope, line);
  } else if (lanes > int(LANES)) {
    threadgroup_barrier(line);
  }
}

void fail(const char* format, ...) {
  char text[256];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  active->fail(text);
}

}  // namespace emu
