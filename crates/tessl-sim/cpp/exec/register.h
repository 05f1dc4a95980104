// EMU_REGISTER(kernel), put after the kernel text by the builder, one line per KERNEL.
#pragma once
#include <tuple>
#include <type_traits>
#include <utility>

namespace emu {

// Buffers are passed as pointers, argument blocks by reference; both arrive as an address.
template <class P>
struct Arg {
  static P get(void* p) { return (P)(uintptr_t)p; }
};
template <class T>
struct Arg<T constant&> {
  static T constant& get(void* p) { return *(T constant*)(uintptr_t)p; }
};

// The prelude appends four index parameters to each kernel.
constexpr int INDEX_PARAMETERS = 4;

template <class... P>
constexpr int argument_count(void (*)(P...)) {
  return int(sizeof...(P)) - INDEX_PARAMETERS;
}

template <class P>
constexpr bool is_writable() {
  return std::is_pointer_v<P> && !std::is_const_v<std::remove_pointer_t<P>>;
}

template <class... P>
constexpr uint32_t write_mask(void (*)(P...)) {
  uint32_t mask = 0, bit = 1;
  ((mask |= is_writable<P>() ? bit : 0, bit <<= 1), ...);
  return mask;
}

template <auto F>
struct Call;

template <class... P, void (*F)(P...)>
struct Call<F> {
  typedef std::tuple<P...> List;

  template <size_t... I>
  static void unpack(void* const* args, const Ids& d, std::index_sequence<I...>) {
    uint3 group = {d.group[0], d.group[1], d.group[2]};
    uint3 in_group = {d.in_group[0], d.in_group[1], d.in_group[2]};
    F(Arg<std::tuple_element_t<I, List>>::get(args[I])..., group, in_group, d.lane, d.simdgroup);
  }

  static void go(void* const* args, const Ids& ids) {
    unpack(args, ids, std::make_index_sequence<sizeof...(P) - INDEX_PARAMETERS>());
  }
};

}  // namespace emu

#define EMU_REGISTER(k)                                                                                     \
  static emu::Register emu_register_##k(#k, &emu::Call<&k>::go, emu::argument_count(&k), emu::write_mask(&k));
