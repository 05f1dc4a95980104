//! Where a cache keeps a token.

/// The slot of the token at `position`; `None` beyond the capacity. A ring has a slot for every position.
pub fn slot(position: usize, capacity: usize, ring: bool) -> Option<usize> {
    if ring { Some(position % capacity) } else { Some(position).filter(|&p| p < capacity) }
}

/// The row of the token at `position` among all pages, of `page` rows each, that `table` names for its sequence.
pub fn paged_row(position: usize, page: usize, table: &[usize]) -> Option<usize> {
    table.get(position / page).map(|number| number * page + position % page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_worked() {
        assert_eq!([0, 3, 4].map(|p| slot(p, 4, false)), [Some(0), Some(3), None]);
        assert_eq!([0, 3, 4, 9].map(|p| slot(p, 4, true)), [Some(0), Some(3), Some(0), Some(1)]);
        assert_eq!([0, 15, 16, 32].map(|p| paged_row(p, 16, &[5, 2])), [Some(80), Some(95), Some(32), None]);
    }
}
