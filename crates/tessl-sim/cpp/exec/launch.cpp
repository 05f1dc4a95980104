#include "launch.h"

#include <stdio.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "group.h"

namespace emu {

// Filled by static constructors, read only afterwards, so that launches need no lock.
static std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> map;
  return map;
}

static std::map<std::string, int>& constant_ids() {
  static std::map<std::string, int> map;
  return map;
}

Register::Register(const char* name, Trampoline call, int nargs, uint32_t writes) {
  if (!kernels().insert({name, Kernel{call, nargs, writes}}).second) {
    fprintf(stderr, "tessl-sim: two kernels are named %s\n", name);
    __builtin_trap();
  }
}

int constant_id(const char* name) { return constant_ids().insert({name, int(constant_ids().size())}).first->second; }

double constant_value(int id) { return active->constant(id); }

static bool set_constants(const tessl_sim_launch_desc& d, std::vector<Constant>& out, std::string& error) {
  out.resize(constant_ids().size());
  for (size_t i = 0; i < d.constant_count; i++) {
    auto found = constant_ids().find(d.constants[i].name);
    if (found == constant_ids().end()) {
      error = std::string("no function constant is named ") + d.constants[i].name;
      return false;
    }
    out[found->second] = {true, d.constants[i].value};
  }
  return true;
}

// A stride that visits all of `total` threadgroups in a scattered order.
static uint64_t coprime_step(uint64_t total, uint64_t seed) {
  uint64_t step = seed % total;
  while (std::gcd(step, total) != 1) step++;
  return step;
}

static bool launch(const tessl_sim_launch_desc& d, std::string& error) {
  auto found = kernels().find(d.kernel);
  if (found == kernels().end()) {
    error = "no such kernel";
    return false;
  }
  const Kernel& kernel = found->second;
  if (size_t(kernel.nargs) != d.arg_count) {
    error = "takes " + std::to_string(kernel.nargs) + " arguments, got " + std::to_string(d.arg_count);
    return false;
  }
  if (d.threads == 0 || d.threads % LANES != 0 || d.threads > 1024) {
    error = "threadgroup size " + std::to_string(d.threads) + " is not a multiple of 32 up to 1024";
    return false;
  }
  std::vector<Constant> constants;
  if (!set_constants(d, constants, error)) return false;

  Group* outer = active;
  auto group = std::make_unique<Group>(kernel, d.args, constants, d.threads, d.seed);
  active = group.get();
  const uint64_t total = uint64_t(d.grid[0]) * d.grid[1] * d.grid[2];
  const uint64_t step = d.seed > 1 && total > 0 ? coprime_step(total, d.seed) : 1;
  bool ok = true;
  for (uint64_t i = 0; i < total && ok; i++) {
    const uint64_t at = d.seed == 1 ? total - 1 - i : i * step % total;
    const uint32_t id[3] = {uint32_t(at % d.grid[0]), uint32_t(at / d.grid[0] % d.grid[1]),
                            uint32_t(at / d.grid[0] / d.grid[1])};
    ok = group->run(id);
  }
  if (!ok) error = group->error();
  active = outer;
  return ok;
}

}  // namespace emu

int tessl_sim_launch(const tessl_sim_launch_desc* d, char* error, size_t error_bytes) {
  std::string text;
  if (emu::launch(*d, text)) return 0;
  snprintf(error, error_bytes, "%s: %s", d->kernel, text.c_str());
  return -1;
}

bool tessl_sim_kernel(size_t index, const char** name, uint32_t* nargs, uint32_t* writes) {
  for (auto& [key, kernel] : emu::kernels()) {
    if (index-- == 0) {
      *name = key.c_str();
      *nargs = uint32_t(kernel.nargs);
      *writes = kernel.writes;
      return true;
    }
  }
  return false;
}

#ifdef TESSL_SIM_SANITIZE
// Rust's test harness leaks by design, and fibers end without unwinding their stacks.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "detect_leaks=0:detect_stack_use_after_return=0";
}
#endif
