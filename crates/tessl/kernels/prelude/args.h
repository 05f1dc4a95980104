// Generated from src/args.rs by `cargo xtask docs`; do not edit.
#pragma once
struct GemmArgs {
  ulong a_rs;
  ulong a_cs;
  ulong a_bs;
  ulong b_rs;
  ulong b_cs;
  ulong b_bs;
  ulong c_rs;
  ulong c_bs;
  uint m;
  uint n;
  uint k;
  uint batch;
  uint tile_m;
  uint tile_n;
  uint tile_k;
  uint tiles_m;
  uint tiles_n;
  uint bias;
  uint activation;
  float alpha;
  float beta;
  uint bias_typed;
};
static_assert(sizeof(GemmArgs) == 120, "args layout");
struct RmsNormArgs {
  ulong x_s0;
  ulong x_s1;
  ulong x_s2;
  ulong y_s0;
  ulong y_s1;
  ulong y_s2;
  ulong rows;
  uint r1;
  uint r2;
  uint n;
  uint groups;
  float eps;
  float weight_offset;
};
static_assert(sizeof(RmsNormArgs) == 80, "args layout");
