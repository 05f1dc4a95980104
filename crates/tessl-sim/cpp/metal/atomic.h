// Atomics on device and threadgroup memory, real ones: launches of several host threads may share a status block.
#pragma once
#pragma clang system_header

namespace metal {

enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
  thread_scope_system
};

template <class T>
struct atomic {
  T value;
};
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;

inline void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// The host uses sequential consistency whatever the kernel asks for.
#define EMU_ATOMICS(AS)                                                                                            \
  template <class T>                                                                                               \
  inline T* emu_address(AS atomic<T>* p) {                                                                         \
    return (T*)(uintptr_t)p;                                                                                       \
  }                                                                                                                \
  template <class T>                                                                                               \
  inline T atomic_load_explicit(AS atomic<T>* p, memory_order) {                                                   \
    return __atomic_load_n(emu_address(p), __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                                \
  template <class T>                                                                                               \
  inline void atomic_store_explicit(AS atomic<T>* p, T v, memory_order) {                                          \
    __atomic_store_n(emu_address(p), v, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                                \
  template <class T>                                                                                               \
  inline T atomic_fetch_add_explicit(AS atomic<T>* p, T v, memory_order) {                                         \
    return __atomic_fetch_add(emu_address(p), v, __ATOMIC_SEQ_CST);                                                \
  }                                                                                                                \
  template <class T>                                                                                               \
  inline T atomic_fetch_or_explicit(AS atomic<T>* p, T v, memory_order) {                                          \
    return __atomic_fetch_or(emu_address(p), v, __ATOMIC_SEQ_CST);                                                 \
  }                                                                                                                \
  template <class T>                                                                                               \
  inline T atomic_exchange_explicit(AS atomic<T>* p, T v, memory_order) {                                          \
    return __atomic_exchange_n(emu_address(p), v, __ATOMIC_SEQ_CST);                                               \
  }                                                                                                                \
  template <class T>                                                                                               \
  inline bool atomic_compare_exchange_weak_explicit(AS atomic<T>* p, T* expected, T v, memory_order, memory_order) { \
    return __atomic_compare_exchange_n(emu_address(p), expected, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
  }
EMU_ATOMICS(device)
#ifndef EMU_FLAT
EMU_ATOMICS(threadgroup)
#endif

}  // namespace metal
