// copy_rows:  to[r, i] = from[r, i]        fill_rows:  to[r, i] = value
//
// Layout     rows of `width` units with a pitch on each side; a unit is 1, 4 or 16 bytes, as the name says.
// Grid       threads walk over the units of all rows.
// Access     one unit a thread; the host picks the widest that divides addresses, pitches and width.
// Why        blits want multiples of four bytes on macOS, and one command for each row.
constant constexpr ulong THREADS = 256;

template <typename T>
DEVFN void copy_units(const device T* from, device T* to, constant TransferArgs& p, uint group, uint tid) {
  for (ulong i = group * THREADS + tid; i < p.total; i += p.groups * THREADS) {
    const ulong row = i / p.width, unit = i % p.width;
    to[row * p.to_pitch + unit] = from[row * p.from_pitch + unit];
  }
}

template <typename T>
DEVFN void fill_units(device T* to, T value, constant TransferArgs& p, uint group, uint tid) {
  for (ulong i = group * THREADS + tid; i < p.total; i += p.groups * THREADS) {
    to[i / p.width * p.to_pitch + i % p.width] = value;
  }
}

KERNEL(copy_rows_1, 256, IN(uchar, from, 0), OUT(uchar, to, 1), ARGS(TransferArgs, p, 2)) {
  copy_units(from, to, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(copy_rows_4, 256, IN(uint, from, 0), OUT(uint, to, 1), ARGS(TransferArgs, p, 2)) {
  copy_units(from, to, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(copy_rows_16, 256, IN(uint4, from, 0), OUT(uint4, to, 1), ARGS(TransferArgs, p, 2)) {
  copy_units(from, to, p, gpu_tg.x, gpu_tid.x);
}

KERNEL(fill_rows_1, 256, OUT(uchar, to, 0), ARGS(TransferArgs, p, 1)) {
  fill_units(to, uchar(p.value), p, gpu_tg.x, gpu_tid.x);
}

KERNEL(fill_rows_4, 256, OUT(uint, to, 0), ARGS(TransferArgs, p, 1)) {
  fill_units(to, p.value, p, gpu_tg.x, gpu_tid.x);
}
