//! Blocks smaller than a huge page, cut from huge pages.
//!
//! On pages of their own they would waste most of a huge page each; on small pages a product of 512^3 loses an eighth of its speed
//! to page walks.

use super::{HUGE, map_pages, unmap_pages};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Sizes that are cut from slabs. Below, an allocation is a few pages, and the allocator's bounds checkers see it.
pub(super) const SIZES: Range<usize> = 64 << 10..HUGE;
/// Blocks begin at a multiple of this.
const UNIT: usize = 4096;

/// A huge page and the parts of it that are in use, in order.
struct Slab {
    base: *mut u8,
    used: Vec<Range<usize>>,
}

// SAFETY: the memory belongs to whoever took it; only its address is kept here.
unsafe impl Send for Slab {}

static SLABS: Mutex<Vec<Slab>> = Mutex::new(Vec::new());

impl Slab {
    /// Marks the first free part of `len` bytes as used.
    fn take(&mut self, len: usize) -> Option<*mut u8> {
        let mut start = 0;
        let at = self.used.iter().position(|part| {
            let fits = part.start - start >= len;
            start = if fits { start } else { part.end };
            fits
        });
        if start + len > HUGE {
            return None;
        }
        self.used.insert(at.unwrap_or(self.used.len()), start..start + len);
        Some(self.base.wrapping_add(start))
    }

    fn holds(&self, p: *mut u8) -> bool {
        (self.base.addr()..self.base.addr() + HUGE).contains(&p.addr())
    }
}

/// `bytes` bytes, or `None` when there is no room.
pub(super) fn take(bytes: usize) -> Option<*mut u8> {
    let len = bytes.next_multiple_of(UNIT);
    let mut slabs = SLABS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(p) = slabs.iter_mut().find_map(|slab| slab.take(len)) {
        return Some(p);
    }
    let mut slab = Slab { base: map_pages(HUGE)?, used: Vec::new() };
    let p = slab.take(len);
    slabs.push(slab);
    p
}

/// Returns a block; the last one of a slab returns the slab.
///
/// # Safety
/// `p` is from [`take`] and is not used any more.
pub(super) unsafe fn give(p: *mut u8) {
    let mut slabs = SLABS.lock().unwrap_or_else(PoisonError::into_inner);
    let i = slabs.iter().position(|slab| slab.holds(p)).expect("INVARIANT: blocks come from slabs");
    let start = p.addr() - slabs[i].base.addr();
    slabs[i].used.retain(|part| part.start != start);
    if slabs[i].used.is_empty() {
        let slab = slabs.swap_remove(i);
        // SAFETY: mapped in `take` with this size; nobody holds a part of it.
        unsafe { unmap_pages(slab.base, HUGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_used_again() {
        let mut slab = Slab { base: std::ptr::null_mut(), used: Vec::new() };
        let mut take = |len: usize| slab.take(len).map(|p| p.addr());
        let third = HUGE / 4 * 3 / 2;
        assert_eq!([take(third), take(third), take(third)], [Some(0), Some(third), None]);
        assert_eq!([take(HUGE / 4), take(UNIT)], [Some(2 * third), None]);
        slab.used.remove(1);
        assert_eq!(slab.take(third + UNIT), None);
        assert_eq!(
            [slab.take(UNIT), slab.take(third - UNIT)].map(|p| p.map(|p| p.addr())),
            [Some(third), Some(third + UNIT)]
        );
        assert!(slab.used.is_sorted_by_key(|part| part.start));
    }
}
