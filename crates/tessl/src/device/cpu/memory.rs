//! Memory of the CPU device.

#[cfg(target_os = "linux")]
mod slab;

use std::alloc::Layout;

/// Small blocks start at a multiple of this: a cache line pair, and every SIMD width.
const ALIGN: usize = 128;
/// From this size on blocks are mapped on their own and asked to lie on huge pages.
const HUGE: usize = 2 << 20;

fn small(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGN).ok()
}

/// `bytes` bytes of unspecified contents, or `None` when there is no room.
pub(super) fn map(bytes: usize) -> Option<*mut u8> {
    if bytes >= HUGE && cfg!(target_os = "linux") {
        return map_pages(bytes);
    }
    #[cfg(target_os = "linux")]
    if slab::SIZES.contains(&bytes) {
        return slab::take(bytes);
    }
    // SAFETY: the size is not zero.
    let p = unsafe { std::alloc::alloc(small(bytes)?) };
    (!p.is_null()).then_some(p)
}

/// Returns memory.
///
/// # Safety
/// `p` is from [`map`] with the same `bytes` and is not used any more.
pub(super) unsafe fn unmap(p: *mut u8, bytes: usize) {
    if bytes >= HUGE && cfg!(target_os = "linux") {
        // SAFETY: forwarded.
        return unsafe { unmap_pages(p, bytes) };
    }
    #[cfg(target_os = "linux")]
    if slab::SIZES.contains(&bytes) {
        // SAFETY: forwarded.
        return unsafe { slab::give(p) };
    }
    if let Some(layout) = small(bytes) {
        // SAFETY: allocated in `map` with this layout.
        unsafe { std::alloc::dealloc(p, layout) };
    }
}

/// Mapped length: room to start at a huge page, whole huge pages.
#[cfg(target_os = "linux")]
fn whole_pages(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(HUGE)
}

#[cfg(target_os = "linux")]
fn map_pages(bytes: usize) -> Option<*mut u8> {
    let len = whole_pages(bytes)?;
    let reserve = len.checked_add(HUGE)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh anonymous mapping; parts of it are unmapped again below.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), reserve, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base.cast::<u8>();
        let head = base.align_offset(HUGE);
        if head > 0 {
            libc::munmap(base.cast(), head);
        }
        let start = base.add(head);
        libc::munmap(start.add(len).cast(), HUGE - head);
        // Only a wish; small pages work too.
        libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
        Some(start)
    }
}

#[cfg(target_os = "linux")]
unsafe fn unmap_pages(p: *mut u8, bytes: usize) {
    let len = whole_pages(bytes).unwrap_or(bytes);
    // SAFETY: `map_pages` left exactly this range mapped.
    unsafe { libc::munmap(p.cast(), len) };
}

#[cfg(not(target_os = "linux"))]
fn map_pages(_bytes: usize) -> Option<*mut u8> {
    unreachable!("only Linux maps pages")
}

#[cfg(not(target_os = "linux"))]
unsafe fn unmap_pages(_p: *mut u8, _bytes: usize) {
    unreachable!("only Linux maps pages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_writable_to_the_end() {
        for bytes in [0usize, 1, 127, 4096, (64 << 10) - 1, 64 << 10, 700_001, HUGE - 1, HUGE, HUGE + 1, 3 * HUGE] {
            let p = map(bytes).expect("there is room");
            assert_eq!(p.align_offset(ALIGN), 0);
            // SAFETY: `bytes` bytes were asked for.
            unsafe {
                std::ptr::write_bytes(p, 0xA5, bytes);
                unmap(p, bytes);
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
            assert!(map(bytes).is_none());
        }
    }
}
