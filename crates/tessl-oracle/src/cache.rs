//! Where a cache keeps a token.

/// The slot of the token at `position`; `None` beyond the capacity. A ring has a slot for every position.
pub fn slot(position: usize, capacity: usize, ring: bool) -> Option<usize> {
    if ring { Some(position % capacity) } else { Some(position).filter(|&p| p < capacity) }
}

/// The row of the token at `position` among all pages, of `page` rows each, that `table` names for its sequence.
pub fn paged_row(position: usize, page: usize, table: &[usize]) -> Option<usize> {
    table.get(position / page).map(|number| number * page + position % page)
}

/// The scale of a row that is kept in codes of 8 bits, and its codes before they are rounded: all 0 below 2^-100; with NaN or
/// infinity the scale is NaN.
pub fn codes(row: &[f64]) -> (f64, Vec<f64>) {
    if row.iter().any(|x| !x.is_finite()) {
        return (f64::NAN, vec![0.0; row.len()]);
    }
    let most = row.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let scale = if most < 2f64.powi(-100) { 0.0 } else { most / 127.0 };
    (scale, row.iter().map(|x| if scale == 0.0 { 0.0 } else { x / scale }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_by_hand() {
        assert_eq!(codes(&[1.27, -0.5, 0.0]), (0.01, vec![127.0, -50.0, 0.0]));
        assert_eq!(codes(&[1e-40, -1e-39]), (0.0, vec![0.0; 2]));
        assert!(codes(&[1.0, f64::NAN]).0.is_nan() && codes(&[f64::NEG_INFINITY]).0.is_nan());
    }

    #[test]
    fn hand_worked() {
        assert_eq!([0, 3, 4].map(|p| slot(p, 4, false)), [Some(0), Some(3), None]);
        assert_eq!([0, 3, 4, 9].map(|p| slot(p, 4, true)), [Some(0), Some(3), Some(0), Some(1)]);
        assert_eq!([0, 15, 16, 32].map(|p| paged_row(p, 16, &[5, 2])), [Some(80), Some(95), Some(32), None]);
    }
}
