// One threadgroup: its fibers, its memory, and the order in which they run.
#pragma once
#include <vector>

#include "emu.h"

namespace emu {

constexpr size_t THREADGROUP_BYTES = 32 << 10;  // the limit of every Apple GPU
constexpr uint32_t LANES = 32;
constexpr size_t GAP = 32;
constexpr uint32_t MAX_ARRAYS = 63;

struct Kernel {
  Trampoline call;
  int nargs;
  uint32_t writes;
};

// A function constant of a launch; unset until given.
struct Constant {
  bool set = false;
  double value = 0;
};

enum class State : uint8_t { runnable, at_exchange, at_barrier, done };

struct Fiber {
  void* stack_pointer;
  char* stack;
  Ids ids;
  State state;
  uint64_t exchanges;  // exchanges that this lane has completed
  size_t memory_used;  // threadgroup memory that this thread has named
  uint32_t arrays;     // and in how many arrays
  int line;            // where it waits
};

// Two exchanges can be in use at once: fast lanes enter the next while slow lanes still read the last.
struct Simdgroup {
  uint32_t arrived[2];
  Op op[2];
  int line[2];
  uint64_t completed;
  unsigned char slots[2][LANES][SLOT];
};

class Group {
 public:
  // `seed` 0 runs lanes and simdgroups forward, 1 backward, any other number in a random order.
  Group(const Kernel& kernel, void* const* args, const std::vector<Constant>& constants, uint32_t threads,
        uint32_t seed);
  ~Group();
  Group(const Group&) = delete;

  // Runs threadgroup `id` to its end. False: see `error`.
  bool run(const uint32_t id[3]);
  const char* error() const { return error_; }

  // Called on a fiber.
  void barrier(int line);
  const unsigned char* exchange(const void* value, size_t bytes, Op op, int line);
  void* memory(size_t bytes, size_t align);
  [[noreturn]] void fail(const char* text);
  [[noreturn]] void enter();
  double constant(int id);

  const Fiber& current() const { return *current_; }
  uint32_t threads() const { return threads_; }
  bool backward() const { return backward_; }

 private:
  void reset(const uint32_t id[3]);
  bool ready(const Fiber& f) const;
  Fiber* next_ready(uint32_t simdgroup);
  void yield();
  bool run_simdgroup(uint32_t simdgroup);
  bool stop(const uint32_t id[3], const char* format, ...) __attribute__((format(printf, 3, 4)));

  const Kernel& kernel_;
  void* const* args_;
  const std::vector<Constant>& constants_;
  uint32_t threads_;
  bool backward_;
  std::vector<Fiber> fibers_;
  std::vector<Simdgroup> simdgroups_;
  std::vector<uint32_t> lane_order_, simdgroup_order_;
  void* scheduler_ = nullptr;
  Fiber* current_ = nullptr;
  bool failed_ = false;
  char error_[320] = "";
  alignas(64) unsigned char memory_[THREADGROUP_BYTES + GAP * (MAX_ARRAYS + 1)];
};

// The group that runs on this operating-system thread.
extern thread_local Group* active;

}  // namespace emu
